"""The passes over the compute graph, one rewrite per file. `ORDER` is the order; there is no other.

A pass is a frozen dataclass with a `name` and `run(graph) -> graph`: valid in, valid out, same results. `gather_first`
comes before anything is folded, so that a table made of constants is never made as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from grainline.graph.ir import Graph
from grainline.graph.passes.common_subexpressions import CommonSubexpressions
from grainline.graph.passes.eliminate_dead import EliminateDead
from grainline.graph.passes.fold_constants import FoldConstants
from grainline.graph.passes.gather_first import GatherFirst
from grainline.graph.passes.hoist_pointwise import HoistPointwise
from grainline.graph.passes.simplify import Simplify
from grainline.graph.passes.split_reduce import SplitReduce


class Pass(Protocol):
    @property
    def name(self) -> str: ...

    def run(self, graph: Graph) -> Graph: ...


ORDER: tuple[Pass, ...] = (
    Simplify(),
    GatherFirst(),
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
    return graph
