"""Extents that a host operator gives: what depends on them waits for them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

pytest.importorskip("grainline._native", reason="the native core is not built")

import grainline
from tests.fixtures.models import model


@pytest.mark.parametrize("executor", ["sequential", "topological", "multi-worker"])
def test_a_concat_is_allocated_when_its_length_is_known(executor: str) -> None:
    """The first part could be made inside the concat's block, were the other one's length not decided later."""
    nodes = [
        helper.make_node("Tanh", ["x"], ["a"]),
        helper.make_node("Compress", ["y", "flags"], ["b"], axis=0),
        helper.make_node("Concat", ["a", "b"], ["c"], axis=0),
        helper.make_node("Abs", ["c"], ["d"]),
    ]
    x, y = np.full((3, 2), -0.5, np.float32), -np.arange(2000, dtype=np.float32).reshape(1000, 2)
    feeds = {"x": x, "y": y, "flags": np.zeros(1000, bool)}
    compiled = grainline.load(model(nodes, feeds, ["d"]).SerializeToString(), cache=False, executor=executor)
    for count in (1, 1000, 0, 700):
        feeds["flags"] = np.arange(1000) < count
        expected = np.abs(np.concatenate([np.tanh(x), y[:count]]))
        np.testing.assert_allclose(compiled.run(feeds)[0], expected, 1e-5)
