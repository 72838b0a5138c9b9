"""Independent branches on streams of their own, joined by events.

Every node that submits work gets a *stream*. Work of one stream runs in the order of submission; between streams order
comes from events alone, and memory that crosses streams is announced, so that it is not reused while one of them still
uses it:

    p (stream 1)      ->  p, SendEvents(stream 1)  ->  WaitEvents(stream 0), n
    n (stream 0)          slot                     ->  AccessMemCrossStream(stream 0)  ->  the slot that n uses

Submissions of one stream are chained by edges. A vector clock per stream says what it has waited for; an order that
follows from it needs no event. A node follows on
the stream of a predecessor that is the last there, else it opens an unused stream or joins the shortest one. Stream 0
is the caller's: the others start behind it, and it waits for all of them at the end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from grainline.execgraph.draft import Draft
from grainline.execgraph.ir import RELEASE_INDEX, ExecuteGraph, ExecuteNode
from grainline.execgraph.order import execution_order, predecessors
from grainline.execgraph.registry import is_copy_async, is_launch_consumer

Clock = tuple[int, ...]


@dataclass(frozen=True)
class AssignStreams:
    """Uses up to `streams` streams. Runs once, and never together with the passes for several workers."""

    streams: int = 2
    name: str = "assign_streams"

    def run(self, graph: ExecuteGraph) -> ExecuteGraph:
        """`graph` itself when all of its work follows on one stream, or when it has sub-graphs: which events a turn of
        a loop must send follows from no order known beforehand."""
        if graph.frames:
            return graph
        assignment = _Assignment(self.streams)
        before = predecessors(graph.main)
        order = execution_order(graph.main)
        for node in order:
            assignment.place(node, before[node.id])
        if not any(assignment.queues[1:]):
            return graph
        draft = Draft(graph)
        _connect(draft, assignment, next(node.id for node in order if node.kernel == "InferShape"))
        _announce(draft, assignment, order)
        return draft.finish()


def explain(graph: ExecuteGraph) -> list[str]:
    """How the launches lie on the streams; nothing for one stream."""
    counts = Counter(node.attributes.get("stream", 0) for node in graph.launches())
    if len(counts) < 2:
        return []
    shown = " and ".join(str(counts[stream]) for stream in sorted(counts))
    events = sum(len(node.attributes["events"]) for node in graph.main if node.kernel == "SendEvents")
    return [f"{len(counts)} streams: {shown} launches, {events} events between them"]


def submits(node: ExecuteNode) -> bool:
    """Whether a node puts work on a stream."""
    return is_launch_consumer(node.kernel) or is_copy_async(node.kernel)


@dataclass(slots=True)
class _Assignment:
    """`queues[s]` lists what stream s submits; `waits` what a node waits for, as (stream, position in its queue)."""

    streams: int
    queues: list[list[int]] = field(init=False)
    stream_of: dict[int, int] = field(default_factory=dict)
    waits: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    clocks: dict[int, Clock] = field(default_factory=dict)
    known: list[Clock] = field(init=False)

    def __post_init__(self) -> None:
        self.queues = [[] for _ in range(self.streams)]
        self.known = [self.none] * self.streams

    @property
    def none(self) -> Clock:
        return (0,) * self.streams

    def place(self, node: ExecuteNode, before: tuple[int, ...]) -> None:
        need = latest(self.none, *(self.clocks[earlier] for earlier in before))
        if submits(node):
            stream = self._choose(need)
            self._wait(node.id, stream, need)
            self.queues[stream].append(node.id)
            self.stream_of[node.id] = stream
            own = tuple(len(self.queues[stream]) if s == stream else 0 for s in range(self.streams))
            need = self.known[stream] = latest(need, self.known[stream], own)
        self.clocks[node.id] = need

    def _choose(self, need: Clock) -> int:
        lengths = [len(queue) for queue in self.queues]
        following = [s for s, length in enumerate(lengths) if length and need[s] == length]
        return following[0] if following else lengths.index(min(lengths))

    def _wait(self, node_id: int, stream: int, need: Clock) -> None:
        for other in range(self.streams):
            if other != stream and need[other] > self.known[stream][other]:
                self.waits[node_id].append((other, need[other] - 1))
                awaited = self.clocks[self.queues[other][need[other] - 1]]
                self.known[stream] = latest(self.known[stream], awaited)


def latest(*clocks: Clock) -> Clock:
    return tuple(map(max, zip(*clocks, strict=True)))


def _connect(draft: Draft, assignment: _Assignment, start: int) -> None:
    """SendEvents behind what is waited for, WaitEvents before who waits; the fork at the start, the join at the end."""
    sent: dict[tuple[int, int], int] = {}

    def event(stream: int, position: int) -> int:
        if (stream, position) not in sent:
            behind = start if position < 0 else assignment.queues[stream][position]
            attributes = {"stream": stream, "events": (len(sent),)}
            sent[stream, position] = draft.add("SendEvents", controls=(behind,), attributes=attributes)
        return sent[stream, position]

    def wait(stream: int, awaited: list[tuple[int, int]], after: tuple[int, ...] = ()) -> int:
        sends = [event(*one) for one in awaited]
        numbers = tuple(number for send in sends for number in draft.nodes[send].attributes["events"])
        return draft.add("WaitEvents", controls=(*sends, *after), attributes={"stream": stream, "events": numbers})

    for stream, queue in enumerate(assignment.queues):
        for earlier, later in zip(queue, queue[1:]):
            draft.order(earlier, later)
        for node_id in queue:
            first = [(0, -1)] if stream and node_id == queue[0] else []
            awaited = [*first, *assignment.waits.get(node_id, ())]
            if awaited:
                draft.order(wait(stream, awaited), node_id)
    tails = [(stream, len(queue) - 1) for stream, queue in enumerate(assignment.queues) if stream and queue]
    wait(0, tails, tuple(assignment.queues[0][-1:]))
    for node_id, stream in assignment.stream_of.items():
        draft.change(node_id, attributes={**draft.nodes[node_id].attributes, "stream": stream})


def _announce(draft: Draft, assignment: _Assignment, order: tuple[ExecuteNode, ...]) -> None:
    """Gives every block a stream to be born on, and every other stream that uses it an access of its own."""
    users: dict[int, list[int]] = defaultdict(list)
    for node in order:
        if node.id in assignment.stream_of:
            for slot in (*node.outputs, *node.inputs):
                users[slot].append(node.id)
    producers = draft.producers()
    guarders = {node.released_slot: node.id for node in draft.main() if node.is_guarder}
    for slot, guarder in guarders.items():
        if draft.slots[slot].kind not in ("memory", "workspace") or not users[slot]:
            continue
        birth = assignment.stream_of[users[slot][0]]
        for node_id in (producers[slot], guarder):
            draft.change(node_id, attributes={"stream": birth, **draft.nodes[node_id].attributes})
        strangers: dict[int, list[int]] = defaultdict(list)
        for user in dict.fromkeys(users[slot]):
            if assignment.stream_of[user] != birth:
                strangers[assignment.stream_of[user]].append(user)
        for stream, foreign in strangers.items():
            _cross(draft, slot, stream, foreign, guarder)


def _cross(draft: Draft, slot: int, stream: int, users: list[int], guarder: int) -> None:
    shared = draft.slot("memory", draft.slots[slot])
    known = [c for c in draft.nodes[users[0]].controls if draft.nodes[c].kernel == "InferShape"]
    access = draft.add(
        "AccessMemCrossStream", (slot,), (shared,), known, {"stream": stream}, like=draft.nodes[users[0]]
    )
    for user in users:
        draft.rewire(user, slot, shared)
        draft.unorder(user, guarder)
    draft.order(access, guarder)
    draft.add("FreeMemory", (shared,), (), users, {RELEASE_INDEX: 0, "stream": stream}, like=draft.nodes[users[-1]])
