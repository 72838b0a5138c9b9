"""Rewrites of execution graphs: one per file, each valid in, valid out. `PASSES` is the order in which they run."""

from __future__ import annotations

from grainline.execgraph.ir import ExecuteGraph
from grainline.execgraph.passes.drop_dead_nodes import DropDeadNodes

PASSES = (DropDeadNodes(),)


def optimise(graph: ExecuteGraph) -> ExecuteGraph:
    """The graph after all passes, in order."""
    for one in PASSES:
        graph = one.run(graph)
    return graph
