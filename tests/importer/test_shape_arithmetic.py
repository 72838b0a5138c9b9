"""Shapes that models compute from shapes become symbolic targets; what only a run knows goes to the host."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import grainline
from grainline.base.errors import FeedError
from grainline.graph import interp
from grainline.graph.ir import Graph
from grainline.importer.model import import_model
from tests.fixtures.models import model

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def node(op: str, inputs: str, outputs: str, **attributes: object) -> object:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def hosts(graph: Graph) -> list[str]:
    return [n.attributes["op_type"] for n in graph.nodes if n.op == "host"]


def test_reshape_by_gathered_extents() -> None:
    nodes = [
        node("Shape", "x", "s"), node("Gather", "s zero", "b", axis=0), node("Gather", "s two", "d", axis=0),
        node("Unsqueeze", "b axis0", "b1"), node("Unsqueeze", "d axis0", "d1"),
        node("Concat", "b1 d1 rest", "t", axis=0), node("Reshape", "x t", "y"),
    ]  # fmt: skip
    weights = {"zero": np.array(0, np.int64), "two": np.array(2, np.int64), "axis0": i64(0), "rest": i64(-1)}
    graph = import_model(model(nodes, {"x": X}, ["y"], weights))
    assert hosts(graph) == [] and str(dict(graph.outputs)["y"].shape) == "(x0, x2, x1)"
    assert interp.run(graph, {"x": X})[0].shape == (2, 4, 3)


def test_the_expand_idiom_of_old_exporters() -> None:
    """where(shape == -1, ones, shape): a symbol is never -1."""
    nodes = [
        node("Shape", "x", "s"), node("Shape", "s", "r"),
        node("ConstantOfShape", "r", "ones", value=helper.make_tensor("v", 7, [1], [1])), node("Mul", "ones minus", "m"),
        node("Equal", "s m", "e"), node("Where", "e ones s", "t"), node("Expand", "w t", "y"),
    ]  # fmt: skip
    weights = {"minus": np.array(-1, np.int64), "w": np.ones((1, 1, 1), np.float32)}
    graph = import_model(model(nodes, {"x": X}, ["y"], weights))
    assert hosts(graph) == []
    assert interp.run(graph, {"x": X})[0].shape == X.shape


def test_a_range_over_an_extent_is_an_iota() -> None:
    nodes = [node("Shape", "x", "s", start=1, end=2), node("Squeeze", "s", "n"), node("Range", "zero n one", "y")]
    weights = {"zero": np.array(0, np.int64), "one": np.array(1, np.int64)}
    graph = import_model(model(nodes, {"x": X}, ["y"], weights))
    assert [n.op for n in graph.nodes if n.output.name == "y"] == ["iota"]
    assert interp.run(graph, {"x": X})[0].tolist() == [0, 1, 2]


def test_a_target_from_data_is_the_hosts_and_its_extents_are_run_time_symbols() -> None:
    nodes = [node("Reshape", "x t", "z"), node("Relu", "z", "y")]
    graph = import_model(model(nodes, {"x": X, "t": i64(4, 6)}, ["y"], symbolic=False))
    assert hosts(graph) == ["Reshape"]
    for target in ((4, 6), (6, 4), (-1, 2)):
        assert interp.run(graph, {"x": X, "t": i64(*target)})[0].shape == X.reshape(target).shape


def test_symbols_of_inner_extents_must_agree() -> None:
    graph = import_model(model([node("MatMul", "a b", "y")], {"a": X[0], "b": X[0].T}, ["y"]))
    assert hosts(graph) == []
    assert interp.run(graph, {"a": X[0], "b": X[0].T})[0].shape == (3, 3)
    with pytest.raises(FeedError):
        interp.run(graph, {"a": X[0], "b": X[0]})


def test_a_reshape_that_cannot_fit_is_refused_by_the_run() -> None:
    nodes = [node("Reshape", "x t", "y")]
    graph = import_model(model(nodes, {"x": X}, ["y"], {"t": i64(-1, 5)}))
    assert interp.run(graph, {"x": np.zeros((1, 5, 2), np.float32)})[0].shape == (2, 5)
    with pytest.raises(FeedError, match="elements"):
        interp.run(graph, {"x": X})


def test_a_guard_follows_a_symbol_that_turns_out_to_be_another() -> None:
    """The reshape counts on x1; the concat finds afterwards that x1 is z1."""
    feeds = {"x": np.ones((2, 3), np.float32), "y": np.ones((3, 2), np.float32), "z": np.ones((1, 3), np.float32)}
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Gather", ["s", "one"], ["n"]),
        helper.make_node("Concat", ["n", "two"], ["t"], axis=0), helper.make_node("Reshape", ["y", "t"], ["r"]),
        helper.make_node("Concat", ["z", "x"], ["c"], axis=0),
    ]  # fmt: skip
    weights = {"one": np.array([1]), "two": np.array([2])}
    loaded = grainline.load(model(nodes, feeds, ["r", "c"], weights).SerializeToString())
    assert [array.shape for array in loaded.run(feeds)] == [(3, 2), (3, 3)]
    with pytest.raises(FeedError, match="number of elements"):
        loaded.run(feeds | {"y": np.ones((5, 2), np.float32)})
