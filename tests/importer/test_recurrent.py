"""Recurrent cells, written out and compiled, against another engine: directions, early ends, clipping, activations, initial states."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
import pytest

import grainline
from tests.fixtures.models import single
from tests.fixtures.peer import agrees_with_peer

SEED = 20261130
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
ACTIVATIONS = ["Sigmoid", "Tanh", "Relu", "HardSigmoid", "LeakyRelu", "Softsign", "Elu"]


def cell(op: str, seed: int, time: int = 5, batch: int = 3) -> tuple[onnx.ModelProto, dict[str, np.ndarray], str]:
    """A random cell: operands in order, "" for one that is left out, and what was drawn in words."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    direction = rng.choice(["forward", "reverse", "bidirectional"])
    count, gates, hidden, features = 1 + (direction == "bidirectional"), GATES[op], rng.randint(1, 5), rng.randint(1, 4)

    def draw(*shape: int) -> np.ndarray:
        return (0.6 * numbers.standard_normal(shape)).astype(np.float32)

    feeds = {"x": draw(time, batch, features)}
    weights = {"w": draw(count, gates * hidden, features), "r": draw(count, gates * hidden, hidden)}
    if rng.random() < 0.7:
        weights["b"] = draw(count, 2 * gates * hidden)
    if rng.random() < 0.6:
        feeds["lengths"] = numbers.integers(1, time + 1, batch).astype(np.int32)
    if rng.random() < 0.6:
        feeds["h"] = draw(count, batch, hidden)
    if op == "LSTM" and rng.random() < 0.6:
        feeds["c"] = draw(count, batch, hidden)
    if op == "LSTM" and rng.random() < 0.4:
        weights["p"] = draw(count, 3 * hidden)
    form: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if rng.random() < 0.3:
        form["clip"] = 0.4
    if rng.random() < 0.5:
        form["activations"] = [rng.choice(ACTIVATIONS) for _ in range(FUNCTIONS[op] * count)]
    if op == "GRU":
        form["linear_before_reset"] = rng.randint(0, 1)
    order = [
        name if name in feeds or name in weights else "" for name in ("x", "w", "r", "b", "lengths", "h", "c", "p")
    ]
    while not order[-1]:
        order.pop()
    model = single(op, feeds, weights=weights, order=order, outputs=3 if op == "LSTM" else 2, opset=14, **form)
    return model, feeds, f"seed {seed}: {form} with {order}"


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("seed", range(SEED, SEED + 20))
def test_cells(op: str, seed: int) -> None:
    agrees_with_peer(*cell(op, seed))


@pytest.mark.parametrize("op", GATES)
def test_batch_may_come_first(op: str) -> None:
    """layout 1 gives what layout 0 gives, with batch and time changed about."""
    model, feeds, where = cell(op, SEED + 2)
    batch_first = onnx.ModelProto.FromString(model.SerializeToString())
    batch_first.graph.node[0].attribute.append(onnx.helper.make_attribute("layout", 1))
    turned = {name: array if array.ndim < 3 else array.swapaxes(0, 1) for name, array in feeds.items()}
    for value in batch_first.graph.input:  # every extent is a symbol of its own, so only the order changes
        assert all(dim.dim_param for dim in value.type.tensor_type.shape.dim)
    wanted = grainline.load(model.SerializeToString()).run(feeds)
    found = grainline.load(batch_first.SerializeToString()).run(turned)
    np.testing.assert_array_equal(found[0], wanted[0].transpose(2, 0, 1, 3), err_msg=where)
    for end, right in zip(found[1:], wanted[1:], strict=True):
        np.testing.assert_array_equal(end, right.swapaxes(0, 1), err_msg=where)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize(("time", "batch"), [(0, 2), (3, 0)])
def test_no_time_and_no_batch(op: str, time: int, batch: int) -> None:
    gates, outputs = GATES[op], 3 if op == "LSTM" else 2
    x = np.zeros((time, batch, 2), np.float32)
    weights = {"w": np.ones((1, gates * 4, 2), np.float32), "r": np.ones((1, gates * 4, 4), np.float32)}
    model = single(op, {"x": x}, weights=weights, outputs=outputs, opset=14, hidden_size=4)
    y, *ends = grainline.load(model.SerializeToString()).run({"x": x})
    assert y.shape == (time, 1, batch, 4)
    assert all(end.shape == (1, batch, 4) and not end.any() for end in ends)


def test_what_does_not_fit_is_named() -> None:
    x = np.zeros((3, 2, 2), np.float32)
    weights = {"w": np.ones((1, 8, 2), np.float32), "r": np.ones((1, 8, 2), np.float32)}
    feeds = {"x": x, "lengths": np.array([1, 4], np.int32)}
    model = single("LSTM", feeds, weights=weights, order=["x", "w", "r", "", "lengths"], opset=14, hidden_size=2)
    loaded = grainline.load(model.SerializeToString())
    for wrong in (4, -1):
        with pytest.raises(grainline.KernelError, match="index"):
            loaded.run(feeds | {"lengths": np.array([1, wrong], np.int32)})
    model = single("LSTM", {"x": x}, weights=weights, opset=14, hidden_size=2, activations=["Sigmoid", "Tanh", "Cube"])
    with pytest.raises(grainline.ModelError, match="Cube"):
        grainline.load(model.SerializeToString())
    weights["r"] = np.ones((1, 6, 2), np.float32)
    with pytest.raises(grainline.ModelError, match="weights do not fit the cell"):
        grainline.load(single("LSTM", {"x": x}, weights=weights, opset=14, hidden_size=2).SerializeToString())


@pytest.mark.parametrize(
    "options", [{"threads": 2}, {"executor": "multi-worker", "workers": 3}, {"device": "discrete"}]
)
@pytest.mark.parametrize("op", GATES)
def test_bits_do_not_depend_on_who_runs_it(op: str, options: dict[str, Any]) -> None:
    model, feeds, where = cell(op, SEED + 1)
    data = model.SerializeToString()
    for found, right in zip(
        grainline.load(data, **options).run(feeds), grainline.load(data, threads=1).run(feeds), strict=True
    ):
        assert found.tobytes() == right.tobytes(), where


@pytest.mark.parametrize("op", GATES)
def test_a_step_is_a_few_launches_and_nothing_runs_on_the_host(op: str) -> None:
    explanation = grainline.load(cell(op, SEED + 3)[0].SerializeToString()).explain()
    assert "host " not in explanation
    x, weights = {"x": np.ones((3, 2, 4), np.float32)}, {}
    for name, shape in (("w", (1, GATES[op] * 4, 4)), ("r", (1, GATES[op] * 4, 4)), ("b", (1, 8 * GATES[op]))):
        weights[name] = np.ones(shape, np.float32)
    explanation = grainline.load(single(op, x, weights=weights, opset=14, hidden_size=4).SerializeToString()).explain()
    states, steps = {"RNN": (1, 1), "GRU": (1, 4), "LSTM": (2, 2)}[op]
    assert explanation.count("<-") == 1 + states + steps, "one product before all steps, and zeros for each state"
