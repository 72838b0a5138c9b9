"""Rewrites of execution graphs: one per file, each valid in, valid out, and the order in which they run.

The first group repeats until a whole turn changes nothing; a pass that changes nothing returns the graph that it got.
The second runs once, in order. With several workers on one stream it splits mixed kernels, then replaces edges by
relations; with several streams it distributes the work and keeps every edge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from grainline.base import log
from grainline.execgraph.ir import ExecuteGraph
from grainline.execgraph.passes.assign_streams import AssignStreams
from grainline.execgraph.passes.constant_expression_motion import ConstantExpressionMotion
from grainline.execgraph.passes.copy_flow_launch_fuse import CopyFlowLaunchFuse
from grainline.execgraph.passes.drop_dead_nodes import DropDeadNodes
from grainline.execgraph.passes.output_zero_copy import OutputZeroCopy
from grainline.execgraph.passes.remove_launch_free_edge import RemoveLaunchFreeEdge
from grainline.execgraph.passes.split_mixed_launch_memory import SplitMixedLaunchMemory
from grainline.execgraph.passes.trust_out_tensor import TrustOutTensor

MOST_TURNS = 10


class Pass(Protocol):
    """A rewrite; `run` returns the graph it got when it changes nothing."""

    @property
    def name(self) -> str: ...

    def run(self, graph: ExecuteGraph) -> ExecuteGraph: ...


@dataclass(frozen=True)
class PassOptions:
    """`is_multi_worker`: several workers and one stream (`base.knobs.is_multi_worker`); it excludes several `streams`.
    ValueError for both."""

    is_multi_worker: bool = False
    trust_shape_on_out_tensor: bool = False
    streams: int = 1

    def __post_init__(self) -> None:
        if self.is_multi_worker and self.streams > 1:
            raise ValueError("several streams exclude splitting mixed kernels and removing edges")


REPEATED: tuple[Pass, ...] = (
    DropDeadNodes(),
    OutputZeroCopy(),
    ConstantExpressionMotion(),
    CopyFlowLaunchFuse(),
    TrustOutTensor(),
)
ONCE: tuple[Pass, ...] = (SplitMixedLaunchMemory(), RemoveLaunchFreeEdge())


def passes_of(options: PassOptions) -> tuple[tuple[Pass, ...], tuple[Pass, ...]]:
    """The repeated passes and the ones that run once, in order."""
    repeated = tuple(
        one for one in REPEATED if options.trust_shape_on_out_tensor or not isinstance(one, TrustOutTensor)
    )
    if options.streams > 1:
        return repeated, (AssignStreams(options.streams),)
    return repeated, ONCE if options.is_multi_worker else ()


def optimise(
    graph: ExecuteGraph,
    options: PassOptions | None = None,
    after: Callable[[str, ExecuteGraph], None] = lambda name, graph: None,
) -> ExecuteGraph:
    """The graph after all passes. `after(name, graph)` sees it behind every pass that changed something."""
    repeated, once = passes_of(options or PassOptions())
    for _ in range(MOST_TURNS):
        before = graph
        for one in repeated:
            graph = _run(one, graph, after)
        if graph is before:
            break
    else:
        log.warn_once(f"the passes on execution graph {graph.name!r} did not settle in {MOST_TURNS} turns")
    for one in once:
        graph = _run(one, graph, after)
    return graph


def _run(one: Pass, graph: ExecuteGraph, after: Callable[[str, ExecuteGraph], None]) -> ExecuteGraph:
    changed = one.run(graph)
    if changed is not graph:
        after(one.name, changed)
    return changed
