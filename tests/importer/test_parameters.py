"""Parameters of one number per column, of com.microsoft: another count is an error of the model, as for others."""

from __future__ import annotations

import numpy as np
import pytest

import grainline
from grainline.base.errors import ModelError
from tests.fixtures.models import single
from tests.fixtures.peer import agrees_with_peer, peer_results

WIDTH = 8

#: operator -> its operands of one number per column, behind those of the shape of x
PARAMETERS = {
    "SkipLayerNormalization": (2, ("gamma", "beta", "bias")),
    "SkipSimplifiedLayerNormalization": (2, ("gamma", "bias")),
    "BiasGelu": (1, ("bias",)),
    "FastGelu": (1, ("bias",)),
}
CASES = [(op, name) for op, (_, names) in PARAMETERS.items() for name in names]


def operands(op: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(len(op))
    count, names = PARAMETERS[op]
    tensors = {f"x{index}": rng.standard_normal((2, 3, WIDTH)).astype(np.float32) for index in range(count)}
    return {**tensors, **{name: rng.standard_normal(WIDTH).astype(np.float32) for name in names}}


@pytest.mark.parametrize("op", PARAMETERS)
def test_fitting_parameters_work(op: str) -> None:
    feeds = operands(op)
    agrees_with_peer(single(op, feeds, domain="com.microsoft", symbolic=False), feeds)


@pytest.mark.parametrize("shape", [(1,), (), (WIDTH - 1,), (1, WIDTH)])
@pytest.mark.parametrize(("op", "name"), CASES)
def test_others_are_errors_here_and_there(op: str, name: str, shape: tuple[int, ...]) -> None:
    feeds = operands(op)
    feeds[name] = np.ones(shape, np.float32)
    data = single(op, feeds, domain="com.microsoft", symbolic=False).SerializeToString()
    with pytest.raises(ModelError, match="only"):
        grainline.load(data)
    with pytest.raises(Exception, match="dim"):
        peer_results(data, feeds)
