"""A graph prints to text that parses back to the same graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from onnx import helper

from grainline.graph import interp
from grainline.graph.ir import Graph
from grainline.graph.text import parse, show
from grainline.graph.verify import verify
from grainline.importer.model import import_model
from tests.fixtures.models import decoder_block, model
from tests.graph.random_graphs import graphs


def same(a: Graph, b: Graph) -> bool:
    return (a.name, a.inputs, a.outputs, a.nodes, a.guards) == (b.name, b.inputs, b.outputs, b.nodes, b.guards)


@given(graph=graphs())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_round_trip(graph: Graph) -> None:
    again = parse(show(graph), graph.constants)
    verify(again)
    assert same(again, graph) and show(again) == show(graph)


def test_a_model_round_trips_and_still_runs() -> None:
    graph = import_model(decoder_block(hidden=16, heads=2, kv_heads=1, inner=8))
    again = parse(show(graph), graph.constants)
    feeds = {"hidden": np.ones((1, 3, 16), np.float32)}
    assert same(again, graph)
    assert interp.run(again, feeds)[0].tobytes() == interp.run(graph, feeds)[0].tobytes()


def test_host_nodes_and_odd_names_round_trip() -> None:
    branch = helper.make_graph(
        [helper.make_node("Neg", ["a/b c"], ["n"])], "then", [], [helper.make_tensor_value_info("n", 1, None)]
    )
    nodes = [helper.make_node("If", ["p"], ['odd "name", (1)'], then_branch=branch, else_branch=branch)]
    built = model(nodes, {"p": np.array(True), "a/b c": np.ones((1, 2), np.float32)}, ['odd "name", (1)'])
    graph = import_model(built)
    again = parse(show(graph), graph.constants)
    assert show(again) == show(graph)
    assert interp.run(again, {"p": np.array(True), "a/b c": np.ones((1, 2), np.float32)})[0].tolist() == [[-1, -1]]


@pytest.mark.parametrize("text", ["graph", "input %x", '%y: f32[] = relu(%x) {} ""', 'output "y" = %y'])
def test_text_that_is_no_graph(text: str) -> None:
    with pytest.raises(ValueError, match="line 1"):
        parse(text)
