"""Cutting large tensors out of the wire form loses nothing."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from grainline.importer import wire
from tests.fixtures.models import model


def with_weights(*sizes: int) -> onnx.ModelProto:
    """Weights of these sizes as initialisers, and one more as a Constant node."""
    weights = {f"w{i}": np.arange(size, dtype=np.float32) for i, size in enumerate(sizes)}
    big = numpy_helper.from_array(np.arange(max(sizes), dtype=np.int64))
    nodes = [helper.make_node("Constant", [], ["c"], value=big), helper.make_node("Relu", ["x"], ["y"])]
    return model(nodes, {"x": np.ones(1, np.float32)}, ["y"], weights)


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=4))
def test_the_rest_and_the_spans_make_the_model_again(sizes: list[int]) -> None:
    original = with_weights(*sizes)
    data = original.SerializeToString()
    parts = wire.split(memoryview(data))
    rest = onnx.ModelProto.FromString(parts.rest)
    for index, (offset, length) in parts.initialisers.items():
        assert not rest.graph.initializer[index].HasField("raw_data")
        rest.graph.initializer[index].raw_data = data[offset : offset + length]
    for index, (offset, length) in parts.nodes.items():
        rest.graph.node[index].attribute[0].t.raw_data = data[offset : offset + length]
    assert rest == original


def test_large_tensors_are_cut_out_and_small_ones_stay() -> None:
    few = wire.LARGE_BYTES // 4 // 2
    parts = wire.split(memoryview(with_weights(few, wire.LARGE_BYTES).SerializeToString()))
    assert list(parts.initialisers) == [1] and list(parts.nodes) == [0]
    assert len(parts.rest) < 2 * wire.LARGE_BYTES


@given(st.binary(max_size=64))
def test_bytes_that_are_no_model_are_left_alone(data: bytes) -> None:
    parts = wire.split(memoryview(data))
    assert not parts.initialisers and not parts.nodes


def test_a_graph_given_twice_is_left_to_protobuf() -> None:
    data = with_weights(5000).SerializeToString()
    assert wire.split(memoryview(data + data)).rest == data + data
