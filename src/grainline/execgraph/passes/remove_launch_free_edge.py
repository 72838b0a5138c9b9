"""Launch -> Free  becomes  a relation (Free, Launch), and the Free holds the address of what it gives back.

With the edge the memory worker waits until the launch worker has submitted; without it a block returns to the pool
earlier, and memory only has to wait when it leaves the pool. `refusal_of` is what the rules say about one edge, in one
sentence; `STEPS` is the transformation. Until the last step every edge is still there, so that whoever stops in between
leaves a protected graph; the draft is private anyway, so a failure changes nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from grainline.execgraph.draft import Draft
from grainline.execgraph.gate import Demand, unproven
from grainline.execgraph.ir import RELEASE_INDEX, ExecuteGraph, ExecuteNode
from grainline.execgraph.registry import KERNELS, LAUNCH, MEMORY, Traits

#: The attribute of an allocation whose Free lost an edge: 1.
MARK = "remove_launch_free_edge_alloc"


@dataclass(slots=True)
class Plan:
    """What the pass means to do; launches -> their Frees, in order, and Free -> producer of what it releases."""

    frees_of: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    producer_of: dict[int, int] = field(default_factory=dict)

    def relations(self) -> list[tuple[int, int]]:
        return [(free, launch) for launch, frees in self.frees_of.items() for free in frees]


@dataclass(frozen=True)
class RemoveLaunchFreeEdge:
    """Removes every edge that the rules allow and the gate proves."""

    name: str = "remove_launch_free_edge"

    def run(self, graph: ExecuteGraph) -> ExecuteGraph:
        """`graph` itself when no edge can go. ValueError when the proof fails: a mistake of ours."""
        plan = plan_of(graph)
        if not plan.frees_of:
            return graph
        draft = Draft(graph)
        for step in STEPS:
            step(draft, plan)
        done = draft.finish()
        open_ends = unproven(done.main, done.relations.pairs(), done.frames)
        if open_ends:
            free, launch, task = open_ends[0]
            raise ValueError(f"launch {launch} may still need {task.kernel} {task.id} when Free {free} runs")
        return done


def plan_of(graph: ExecuteGraph) -> Plan:
    facts, plan = Facts.of(graph), Plan()
    for node in graph.main:
        for control in node.controls:
            if node.is_guarder and facts.refusal_of(control, node) is None:
                plan.frees_of[control].append(node.id)
                plan.producer_of[node.id] = facts.producer(node).id  # type: ignore[union-attr]
    return plan


# ---- which edges may go ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Facts:
    """What the rules ask about a graph."""

    nodes: dict[int, ExecuteNode]
    producers: dict[int, ExecuteNode]
    waited_for: frozenset[int]

    @staticmethod
    def of(graph: ExecuteGraph) -> Facts:
        return Facts(
            {node.id: node for node in graph.main},
            {slot: node for node in graph.main for slot in node.outputs},
            frozenset(control for node in graph.main for control in node.controls),
        )

    def producer(self, free: ExecuteNode) -> ExecuteNode | None:
        """The node that feeds the input which `ReleaseResourceIndex` names."""
        index = free.attributes.get(RELEASE_INDEX)
        if not isinstance(index, int) or not 0 <= index < len(free.inputs):
            return None
        return self.producers.get(free.inputs[index])

    def refusal_of(self, launch_id: int, free: ExecuteNode) -> str | None:
        """Why the edge from a node to a guarder stays, or None: it may go, subject to the gate."""
        launch = self.nodes[launch_id]
        kernel = KERNELS.get(launch.kernel)
        if kernel is None or kernel.section != LAUNCH:
            return f"{launch.kernel} is not registered as a launch"
        if not KERNELS[free.kernel].hold_address:
            return f"{free.kernel} has no variant that holds the address"
        producer = self.producer(free)
        if producer is None:
            return "no node of the graph produces what is released"
        return self._refusal_of_producer(producer) or self._refusal_of_order(launch, free)

    def _refusal_of_producer(self, producer: ExecuteNode) -> str | None:
        kernel = KERNELS.get(producer.kernel)
        if kernel is None or kernel.section != MEMORY:
            return f"{producer.kernel} is not registered with the memory section"
        if Traits.HOST_PATH in kernel.traits:
            return f"{producer.kernel} produces host memory"
        if producer.kernel == "EmptySlot":
            return "sub-graphs fill an EmptySlot, with blocks of their own"
        if producer.kernel == "AccessMemCrossStream":
            return "the place of AccessMemCrossStream is known in the run only"
        return None

    def _refusal_of_order(self, launch: ExecuteNode, free: ExecuteNode) -> str | None:
        if free.id in self.waited_for:
            return "other nodes wait for this Free, so it cannot be put off"
        if launch.owner != free.owner:
            return "launch and Free belong to different graphs"
        if free.owner != 0:
            return "control flow: a turn has no place in the static order to prove it by"
        return None


# ---- the transformation ------------------------------------------------------------------------------------------


def order_producers(draft: Draft, plan: Plan) -> None:
    """Every producer of a launch before every Free of it: none of its operands is handed to another of its operands."""
    for frees in plan.frees_of.values():
        producers = dict.fromkeys(plan.producer_of[free] for free in frees)
        for free in frees:
            for producer in producers:
                if producer != plan.producer_of[free]:  # ordered by the data edge
                    draft.order(producer, free)


def order_needs(draft: Draft, plan: Plan) -> None:
    """What the gate asks for: the latest memory task that a launch may still need, before its Free."""
    without = Draft(draft.finish())
    remove_edges(without, plan)
    demand = Demand.of(without.main(), draft.graph.frames)
    for free, launch in plan.relations():
        task = demand.unproven(free, launch)
        if task is not None:
            draft.order(task.id, free)


def record_relations(draft: Draft, plan: Plan) -> None:
    draft.relations = draft.relations.merged(plan.relations())


def mark_producers(draft: Draft, plan: Plan) -> None:
    for producer in dict.fromkeys(plan.producer_of.values()):
        draft.change(producer, attributes={**draft.nodes[producer].attributes, MARK: 1})


def hold_addresses(draft: Draft, plan: Plan) -> None:
    for free in plan.producer_of:
        draft.change(free, kernel=KERNELS[draft.nodes[free].kernel].hold_address)


def remove_edges(draft: Draft, plan: Plan) -> None:
    gone: dict[int, set[int]] = defaultdict(set)
    for free, launch in plan.relations():
        gone[free].add(launch)
    for free, launches in gone.items():
        kept = (control for control in draft.nodes[free].controls if control not in launches)
        draft.change(free, controls=tuple(kept))


STEPS: tuple[Callable[[Draft, Plan], None], ...] = (
    order_producers,
    order_needs,
    record_relations,
    mark_producers,
    hold_addresses,
    remove_edges,
)


# ---- why ---------------------------------------------------------------------------------------------------------


def explain(graph: ExecuteGraph) -> list[str]:
    """Which edges from launches to Frees are gone, and why the others stay: one line per reason, with counts."""
    facts = Facts.of(graph)
    kept = Counter(
        facts.refusal_of(control, node) or "the pass did not run"
        for node in graph.main
        if node.is_guarder
        for control in node.controls
        if KERNELS[facts.nodes[control].kernel].section == LAUNCH
        or Traits.LAUNCH in KERNELS[facts.nodes[control].kernel].traits
    )
    lines = []
    if len(graph.relations):
        lines.append(f"Launch -> Free: {len(graph.relations)} edges removed, each proven by the static order")
    return lines + [f"Launch -> Free: {count} edges kept: {reason}" for reason, count in sorted(kept.items())]
