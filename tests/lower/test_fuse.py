"""Laws of the partition into groups, on random graphs."""

from __future__ import annotations

import pytest

from grainline.base.dims import symbol
from grainline.base.dtypes import F32
from grainline.graph.ir import Graph, Node, Value
from grainline.graph.ops import is_view
from grainline.graph.passes.fuse import fuse
from grainline.graph.passes.split_reduce import SplitReduce
from tests.lower.random_graphs import random_graph

B, L = symbol("b"), symbol("l")


@pytest.mark.parametrize("seed", range(60))
def test_groups_partition_the_compute_nodes_in_a_valid_order(seed):
    graph = SplitReduce().run(random_graph(seed, steps=20).graph)
    groups = fuse(graph)
    grouped = [id(n) for g in groups for n in g.nodes]
    assert sorted(grouped) == sorted(id(n) for n in graph.nodes if not is_view(n.op)), f"seed {seed}"
    known = {v.name for v in graph.inputs} | set(graph.constants)
    views = [n for n in graph.nodes if is_view(n.op)]
    for group in groups:
        for node in group.nodes:
            for _ in views:
                known.update(n.output.name for n in views if n.inputs[0].name in known)
            missing = [v.name for v in node.inputs if v.name not in known]
            assert not missing, f"seed {seed}: {node.name} reads {missing} before they are made"
            known.update(v.name for v in node.outputs)


def _chain(*ops):
    x = Value("x", F32, (B, L, 8))
    nodes, value = [], x
    for i, (op, shape, attributes) in enumerate(ops):
        out = Value(f"t{i}", F32, shape)
        other = (value, x) if op in ("sub", "div", "mul", "add") else (value,)
        nodes.append(Node(op, other, (out,), attributes, op))
        value = out
    return Graph("g", (x,), (("y", value),), tuple(nodes), {})


def test_a_softmax_written_out_is_one_row_group():
    row = {"axes": (2,)}
    x = Value("x", F32, (B, L, 8))
    m, d, e, s, y = (
        Value(n, F32, sh)
        for n, sh in zip("mdesy", [(B, L, 1), (B, L, 8), (B, L, 8), (B, L, 1), (B, L, 8)], strict=True)
    )
    nodes = (
        Node("reduce", (x,), (m,), {**row, "kind": "max"}),
        Node("sub", (x, m), (d,)),
        Node("exp", (d,), (e,)),
        Node("reduce", (e,), (s,), {**row, "kind": "sum"}),
        Node("div", (e, s), (y,)),
    )
    (group,) = fuse(Graph("softmax", (x,), (("y", y),), nodes, {}))
    assert group.kind == "row" and group.axis == 2


def test_the_epilogue_of_a_product_joins_it_and_its_operand_does_not():
    x, w = Value("x", F32, (B, L, 8)), Value("w", F32, (8, 8))
    a, p, y = Value("a", F32, (B, L, 8)), Value("p", F32, (B, L, 8)), Value("y", F32, (B, L, 8))
    nodes = (Node("tanh", (x,), (a,)), Node("matmul", (a, w), (p,)), Node("add", (p, a), (y,)))
    groups = fuse(Graph("g", (x, w), (("y", y),), nodes, {}))
    assert [[n.op for n in g.nodes] for g in groups] == [["tanh"], ["matmul", "add"]]


def test_a_value_that_is_also_an_output_stays_an_output():
    graph = _chain(("tanh", (B, L, 8), {}), ("exp", (B, L, 8), {}))
    middle = graph.nodes[0].output
    both = Graph("g", graph.inputs, (*graph.outputs, ("middle", middle)), graph.nodes, {})
    (group,) = fuse(both)
    assert middle.name in group.values()


def test_a_column_reduction_keeps_wide_values_inside():
    wide = (B, L, 8)
    graph = _chain(("mul", wide, {}), ("reduce", (B, 1, 8), {"axes": (1,), "kind": "sum"}))
    (group,) = fuse(graph)
    assert group.kind == "column"
    shared = Graph("g", graph.inputs, (*graph.outputs, ("wide", graph.nodes[0].output)), graph.nodes, {})
    assert [g.kind for g in fuse(shared)] == ["pointwise", "column"]
