"""Buffers that a caller binds may overlap inputs, and each other: results are what they are for buffers of their own."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

pytest.importorskip("grainline._native", reason="the native core is not built")

import grainline

SEED = int(os.environ.get("GRAINLINE_TEST_SEED", "0"))
ROWS, COLUMNS = 9, 37
COUNT = ROWS * COLUMNS
#: starts of x, y, z and p, in elements of one array; p is x, passed on
PLACES = {
    "apart": (0, 400, 800, 1200),
    "in place": (0, 0, 400, 800),
    "in place of x, all": (0, 0, 0, 0),
    "one element before": (1, 0, 800, 1200),
    "one element behind": (0, 1, 800, 1200),
    "half": (0, COUNT // 2, 800, 1200),
    "a row behind, and z over y": (0, COLUMNS, COLUMNS + 3, 900),
    "passed on into itself": (100, 500, 900, 103),
}


def model() -> bytes:
    """y = softmax(x), z = layer-normalised x times a matrix, p = x."""
    matrix = np.random.default_rng(1).normal(size=(COLUMNS, COLUMNS)).astype(np.float32)
    nodes = [
        helper.make_node("Softmax", ["x"], ["y"], axis=-1),
        helper.make_node("LayerNormalization", ["x", "gamma"], ["n"]),
        helper.make_node("MatMul", ["n", "w"], ["z"]),
        helper.make_node("Identity", ["x"], ["p"]),
    ]
    shape = ("r", COLUMNS)
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "yzp"]
    weights = [
        helper.make_tensor("w", TensorProto.FLOAT, (COLUMNS, COLUMNS), matrix),
        helper.make_tensor("gamma", TensorProto.FLOAT, (COLUMNS,), np.linspace(0.5, 2, COLUMNS)),
    ]
    graph = helper.make_graph(
        nodes, "bound", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)], outputs, weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def settings(**entries: str) -> Any:
    options = grainline.SessionOptions()
    for name, value in entries.items():
        options.add_session_config_entry(f"grainline.{name}", value)
    return options


@pytest.fixture(
    scope="module", params=[{}, {"executor": "multi-worker", "workers": "2"}, {"device": "discrete"}], ids=str
)
def session(request: pytest.FixtureRequest) -> grainline.InferenceSession:
    return grainline.InferenceSession(model(), settings(**request.param))


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("order", ["yzp", "pzy", "zyp"])
def test_results_do_not_depend_on_what_bound_buffers_share(
    session: grainline.InferenceSession, places: tuple[int, ...], order: str
) -> None:
    """Results are delivered in the order of binding; where two buffers overlap the later one has the bytes."""
    x = np.random.default_rng(SEED).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    results = dict(zip("yzp", session.run(["y", "z", "p"], {"x": x.copy()}), strict=True))
    starts = dict(zip("xyzp", places, strict=True))
    memory = np.full(1600, -7, np.float32)
    memory[starts["x"] : starts["x"] + COUNT] = x.reshape(-1)
    expected = memory.copy()
    for name in order:
        expected[starts[name] : starts[name] + COUNT] = results[name].reshape(-1)
    binding = session.io_binding()
    binding.bind_cpu_input("x", memory[starts["x"] : starts["x"] + COUNT].reshape(x.shape))
    for name in order:
        binding.bind_output(name, "cpu", 0, np.float32, x.shape, memory[starts[name] :].ctypes.data)
    session.run_with_iobinding(binding)
    assert memory.tobytes() == expected.tobytes(), f"seed {SEED}"


def test_results_never_share_memory_with_feeds_or_each_other(session: grainline.InferenceSession) -> None:
    x = np.random.default_rng(SEED).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    arrays = [x, *session.run(None, {"x": x})]
    for number, one in enumerate(arrays):
        assert not any(np.shares_memory(one, other) for other in arrays[:number])


def test_a_result_may_be_fed_again_and_bound(session: grainline.InferenceSession) -> None:
    """The memory of an array that somebody holds goes to no other result."""
    x = np.random.default_rng(SEED).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    (once,) = session.run(["z"], {"x": x})
    (twice,) = session.run(["z"], {"x": once.copy()})
    binding = session.io_binding()
    binding.bind_cpu_input("x", once)
    binding.bind_output("z", "cpu", 0, np.float32, once.shape, once.ctypes.data)
    session.run_with_iobinding(binding)
    assert once.tobytes() == twice.tobytes()
