"""A failure or an end of sequence at every node of the encoders: the status survives, nothing leaks, the next run is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import grainline
from grainline import _native
from grainline.base.errors import EndOfSequence, KernelError
from grainline.session.model import Model

ENCODERS = ("encoder_int8", "encoder_fp32")
EXECUTORS = (("sequential", None), ("multi-worker", 3))


def feeds_of(model: Model) -> dict[str, np.ndarray[Any, Any]]:
    tokens = np.arange(8, dtype=np.int64)[None] + 100
    kinds = {"mask": np.ones_like(tokens), "type": np.zeros_like(tokens)}
    return {info.name: next((kinds[k] for k in kinds if k in info.name), tokens) for info in model.inputs}


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize(("executor", "workers"), EXECUTORS)
def test_a_fault_at_every_node(
    encoder: str, executor: str, workers: int | None, request: pytest.FixtureRequest
) -> None:
    model = grainline.load(request.getfixturevalue(encoder), threads=1, executor=executor, workers=workers)
    feeds = feeds_of(model)
    expected = model.run(feeds)[0]
    native = model._compiled.executor._native
    nodes = native.nodes()
    held = []
    for number, (_, kernel, operator) in enumerate(nodes):
        code, error = (("kernel_failed", KernelError), ("end_of_sequence", EndOfSequence))[number % 2]
        where = f"node {number} of {len(nodes)}, {kernel} of '{operator}'"
        native.override_node_for_test(number, code)
        with pytest.raises(error, match="injected"):
            model.run(feeds)
        native.override_node_for_test(number, "")
        if number % 5 == 0 or number == len(nodes) - 1:
            np.testing.assert_array_equal(model.run(feeds)[0], expected, err_msg=f"the run behind a fault at {where}")
        held.append(_native.memory_statistics()["live_bytes"])
        assert native.statistics()["states"] == 1, f"{where}: the failed run kept its state"
    assert held[-1] <= max(held[: len(held) // 2]), f"failed runs gather memory: {held}"
