"""The passes over the compute graph, one rewrite per file. `ORDER` is the order; there is no other.

A pass is a frozen dataclass with a `name` and `run(graph) -> graph`: valid in, valid out, same results. `gather_first`
comes before anything is folded, so that a table made of constants is never made as a whole. Sub-graphs go through the
same passes behind those of the graph around, once they were given the constants that these made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from grainline.graph.ir import Graph, Node
from grainline.graph.passes.common_subexpressions import CommonSubexpressions
from grainline.graph.passes.eliminate_dead import EliminateDead
from grainline.graph.passes.fold_constants import FoldConstants
from grainline.graph.passes.gather_first import GatherFirst
from grainline.graph.passes.hoist_pointwise import HoistPointwise
from grainline.graph.passes.simplify import Simplify
from grainline.graph.passes.sink_transposes import SinkTransposes
from grainline.graph.passes.split_reduce import SplitReduce


class Pass(Protocol):
    @property
    def name(self) -> str: ...

    def run(self, graph: Graph) -> Graph: ...


ORDER: tuple[Pass, ...] = (
    Simplify(),
    GatherFirst(),
    SinkTransposes(),
    FoldConstants(),
    CommonSubexpressions(),
    EliminateDead(),
    SplitReduce(),
    HoistPointwise(),
    Simplify(),
    EliminateDead(),
)


def run_passes(
    graph: Graph, order: tuple[Pass, ...] = ORDER, after: Callable[[str, Graph], None] | None = None
) -> Graph:
    """The graph after every pass in order. `after(name, graph)` is called behind each."""
    for step in order:
        graph = step.run(graph)
        if after is not None:
            after(step.name, graph)
    nodes = tuple(_with_subgraphs(graph, node, order, after) if node.op == "host" else node for node in graph.nodes)
    return replace(graph, nodes=nodes)


def _with_subgraphs(
    graph: Graph, node: Node, order: tuple[Pass, ...], after: Callable[[str, Graph], None] | None
) -> Node:
    """The node with every sub-graph after the passes."""
    subgraphs = dict(node.attributes["subgraphs"])
    captures = dict(node.attributes["captures"])
    if not subgraphs:
        return node
    for name, inner in subgraphs.items():
        inner, captures[name] = _with_constants(graph, node, inner, captures[name])
        subgraphs[name] = run_passes(inner, order, after)
    return replace(node, attributes={**node.attributes, "subgraphs": subgraphs, "captures": captures})


def _with_constants(graph: Graph, node: Node, inner: Graph, positions: Sequence[int]) -> tuple[Graph, tuple[int, ...]]:
    """A captured constant becomes a constant of the sub-graph."""
    formals = len(inner.inputs) - len(positions)
    captured = list(zip(inner.inputs[formals:], positions, strict=True))
    known = {
        value.name: graph.constants[node.inputs[at].name]
        for value, at in captured
        if node.inputs[at].name in graph.constants and value.shape is not None
    }
    kept = [(value, at) for value, at in captured if value.name not in known]
    inputs = (*inner.inputs[:formals], *(value for value, _ in kept))
    return replace(inner, inputs=inputs, constants={**inner.constants, **known}), tuple(at for _, at in kept)
