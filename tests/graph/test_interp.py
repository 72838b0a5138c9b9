"""The interpreter: only our errors come out, they name the node, and long loops end when they are told to."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from onnx import TensorProto, helper

from grainline.base.cancellation import cancelled_by
from grainline.base.errors import Cancelled, FeedError, KernelError
from grainline.graph import interp
from grainline.importer.model import import_model
from tests.fixtures.models import model, single

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def endless_loop() -> object:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["go"]), helper.make_node("Add", ["a", "a"], ["b"])],
        "body",
        [info("i", TensorProto.INT64, []), info("c", TensorProto.BOOL, []), info("a", TensorProto.FLOAT, [2, 3])],
        [info("go", TensorProto.BOOL, []), info("b", TensorProto.FLOAT, [2, 3])],
    )
    return model([helper.make_node("Loop", ["", "", "x"], ["y"], body=body)], {"x": X}, ["y"])


def test_a_loop_ends_when_the_run_is_cancelled() -> None:
    graph = import_model(endless_loop())
    flag = threading.Event()
    threading.Timer(0.2, flag.set).start()
    with cancelled_by(flag.is_set), pytest.raises(Cancelled):
        interp.run(graph, {"x": X})  # the loop has no other end


@pytest.mark.parametrize("value", [3, -4, 2**40])
def test_an_index_out_of_range_names_the_node(value: int) -> None:
    graph = import_model(single("Gather", {"x": X, "i": np.array([value])}, axis=1))
    with pytest.raises(KernelError, match="only"):
        interp.run(graph, {"x": X, "i": np.array([value])})


def test_integer_division_by_zero_is_an_error_and_the_smallest_by_minus_one_wraps() -> None:
    graph = import_model(single("Div", {"a": np.ones(1, np.int64)}, weights={"b": np.array([-1])}, symbolic=False))
    low = np.array([np.iinfo(np.int64).min])
    assert interp.run(graph, {"a": low})[0][0] == low[0]
    zero = import_model(single("Div", {"a": low}, weights={"b": np.array([0])}, symbolic=False))
    with pytest.raises(KernelError, match="zero"):
        interp.run(zero, {"a": low})


@pytest.mark.parametrize(
    ("feeds", "word"),
    [({}, "missing"), ({"x": X, "z": X}, "'z'"), ({"x": X.astype(np.float64)}, "type"), ({"x": X[0]}, "rank")],
)
def test_wrong_feeds_name_the_input(feeds: dict[str, np.ndarray], word: str) -> None:
    with pytest.raises(FeedError, match=word):
        interp.run(import_model(single("Relu", {"x": X})), feeds)


def test_half_types_are_rounded_once() -> None:
    x = np.full((1, 64), 60000, np.float16)
    graph = import_model(single("ReduceMean", {"x": x}, axes=[1]))
    assert interp.run(graph, {"x": x})[0].tolist() == [[60000.0]]
