"""The proof that a Free may go without an edge from its launches, and order edges that make it true.

There is one memory worker, and a memory task may wait for launches: an allocation in its slow path waits until every
launch is submitted whose Free has run. If such a launch still needs the memory worker, nobody can run it. So a Free F
may lose its edge from a launch L only if, when F runs, L can be submitted without the memory worker:

    every memory task in Need(L) stands before F in the static order.

Need(L) is what must run before L. Workers run their nodes in the static order (`order.py`), and launches are submitted
in it, so Need(L) is taken to be the ancestors of L *and of every other non-memory task that stands before L*, whichever
worker runs it. With

    demand(t) = the latest memory task among the ancestors of t,
    demand up to L = the latest of demand(t) over all non-memory tasks t up to L,

the condition is one comparison of positions. It also excludes silent reuse: an allocation behind F serves no launch
that stands before L, for it would be in Need(L).

An If or a loop of the graph itself, with all that it holds, is one task of the launch worker that takes and gives back
memory on its way. It counts as both kinds, at the place of its exit: no F in front of it loses the edge from an L
behind it, so whatever memory it takes never waits for launches.

Where the order alone does not say so, an edge (demand up to L) -> F makes it true. As long as nothing waits for F, that
edge closes no cycle and moves nothing but F, so one look at the order is enough for all edges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from grainline.execgraph.frames import Frame, outermost
from grainline.execgraph.ir import ExecuteNode
from grainline.execgraph.order import entries, execution_order, predecessors
from grainline.execgraph.registry import worker_of

#: With exactly three workers some memory kernels move to the normal one. A proof holds for every number of workers when
#: such a task counts as both.
_WORKER_COUNTS = (2, 3, 4)


@dataclass(frozen=True, slots=True)
class Demand:
    """`position` of every node in the static order, and per non-memory node the position of `demand up to` it (-1:
    none of them needs the memory worker)."""

    order: tuple[ExecuteNode, ...]
    position: dict[int, int]
    up_to: dict[int, int]

    @staticmethod
    def of(nodes: Iterable[ExecuteNode], frames: Iterable[Frame] = ()) -> Demand:
        nodes, frames = tuple(nodes), tuple(frames)
        order = execution_order(nodes, frames)
        before = predecessors(nodes)
        position = {node.id: number for number, node in enumerate(order)}
        entry = entries(nodes, frames)
        ends = {frame.entry: frame.exit for frame in outermost(frames).values()}
        demand: dict[int, int] = {}
        up_to: dict[int, int] = {}
        latest = -1
        for number, node in enumerate(order):
            needed = max((demand[earlier] for earlier in before[node.id]), default=-1)
            if node.id in entry:
                latest = demand[node.id] = position[ends[entry[node.id]]]
                continue
            if may_hold_up_launches(node.kernel):
                latest = max(latest, needed)
                up_to[node.id] = latest
            demand[node.id] = number if is_memory_task(node.kernel) else needed
        return Demand(order, position, up_to)

    def unproven(self, free: int, launch: int) -> ExecuteNode | None:
        """The latest memory task that the launch may still need when the Free runs, or None: it is proven."""
        needed = self.up_to[launch]
        return self.order[needed] if needed > self.position[free] else None


def is_memory_task(kernel: str) -> bool:
    return any(worker_of(kernel, count) == "memory" for count in _WORKER_COUNTS)


def may_hold_up_launches(kernel: str) -> bool:
    return any(worker_of(kernel, count) != "memory" for count in _WORKER_COUNTS)


def unproven(
    nodes: Iterable[ExecuteNode], relations: Sequence[tuple[int, int]], frames: Iterable[Frame] = ()
) -> list[tuple[int, int, ExecuteNode]]:
    """The relations (Free, Launch) that the static order of `nodes` does not prove, with what stands in the way."""
    if not relations:
        return []
    demand = Demand.of(nodes, frames)
    found = ((free, launch, demand.unproven(free, launch)) for free, launch in relations)
    return [(free, launch, task) for free, launch, task in found if task is not None]
