"""Derives the execution order of a container from its edges.

Priorities (smaller = earlier). An *anchor* is a node that submits work or stands for itself (launches, copies, host
calls); its priority is its id, so anchors keep the order in which lowering created them unless an edge says otherwise.
Every other node is needed first by some anchor and stands right before it; a guarder stands right behind the last node
it depends on, and so does the sending of an event. The order is a topological sort that always takes the ready node
with the smallest priority.

The order is *static*: each worker of an executor runs its nodes in it, which is what the proofs of `gate.py` rest on.
The nodes of an If or a loop of the graph itself stand together, because an executor runs them as one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import replace

from grainline.execgraph.frames import Frame, outermost
from grainline.execgraph.ir import ExecuteNode
from grainline.execgraph.registry import KERNELS, LAUNCH, Traits

_BEFORE, _ANCHOR, _BEHIND = 0, 1, 2
_NEVER = 1 << 62


def predecessors(nodes: Iterable[ExecuteNode]) -> dict[int, tuple[int, ...]]:
    """For each node id the ids of the nodes that must come first, by data and control edges, each once.

    Data that crosses into a sub-graph is no edge: its entry waits for it (`frames.py`).
    """
    nodes = tuple(nodes)
    producer = {(slot, node.owner): node.id for node in nodes for slot in node.outputs}
    made = ((node, [producer.get((slot, node.owner)) for slot in node.inputs]) for node in nodes)
    return {
        node.id: tuple(dict.fromkeys((*(maker for maker in makers if maker is not None), *node.controls)))
        for node, makers in made
    }


def with_closed_frames(nodes: Iterable[ExecuteNode]) -> tuple[ExecuteNode, ...]:
    """A BranchDone waits for every node of its frame that no other node of the frame waits for."""
    nodes = tuple(nodes)
    ends = {node.owner: node.id for node in nodes if node.kernel == "BranchDone"}
    before = predecessors(nodes) if ends else {}
    owner = {node.id: node.owner for node in nodes}
    waited = {earlier for later, found in before.items() for earlier in found if owner.get(earlier) == owner[later]}
    leaves: dict[int, set[int]] = {}
    for node in nodes:
        if node.owner in ends and node.id not in waited and node.id != ends[node.owner]:
            leaves.setdefault(ends[node.owner], set()).add(node.id)
    return tuple(
        replace(node, controls=tuple(sorted(leaves[node.id].union(node.controls)))) if node.id in leaves else node
        for node in nodes
    )


def execution_order(nodes: Iterable[ExecuteNode], frames: Iterable[Frame] = ()) -> tuple[ExecuteNode, ...]:
    """The nodes in execution order. ValueError when the edges form a cycle."""
    by_id = {node.id: node for node in nodes}
    before = predecessors(by_id.values())
    key = _priorities(by_id, before)
    order = _sort(by_id, before, key)
    entry = entries(by_id.values(), frames)
    place = {node_id: number for number, node_id in enumerate(order)}

    def place_of(node_id: int) -> int:
        # Only its entry waits for nodes outside of a frame, so all of it may stand where that one does.
        return place[entry.get(node_id, node_id)]

    order.sort(key=place_of)
    return tuple(by_id[node_id] for node_id in order)


def entries(nodes: Iterable[ExecuteNode], frames: Iterable[Frame]) -> dict[int, int]:
    """For each node of a control frame of the graph itself, entry and exit included: the id of its entry."""
    around = outermost(frames)
    ends = {end: frame.entry for frame in around.values() for end in (frame.entry, frame.exit)}
    return ends | {node.id: around[node.owner].entry for node in nodes if node.owner in around}


def _priorities(by_id: dict[int, ExecuteNode], before: dict[int, tuple[int, ...]]) -> dict[int, tuple[int, int, int]]:
    plain = {node_id: (0, 0, node_id) for node_id in by_id}
    some_order = _sort(by_id, before, plain)
    needed_by = {i: i if _is_anchor(node) else _NEVER for i, node in by_id.items()}
    for node_id in reversed(some_order):
        if _follows(by_id[node_id]):
            continue
        for earlier in before[node_id]:
            needed_by[earlier] = min(needed_by[earlier], needed_by[node_id])
    key = {}
    for node_id in some_order:
        node = by_id[node_id]
        if _follows(node):
            last = max((needed_by[i] for i in before[node_id]), default=0)
            key[node_id] = (last, _BEHIND, node_id)
        else:
            key[node_id] = (needed_by[node_id], _ANCHOR if _is_anchor(node) else _BEFORE, node_id)
    return key


def _follows(node: ExecuteNode) -> bool:
    return node.kernel == "SendEvents" or (node.kernel in KERNELS and node.is_guarder)


def _is_anchor(node: ExecuteNode) -> bool:
    kernel = KERNELS.get(node.kernel)
    return kernel is not None and (
        kernel.section == LAUNCH or bool(kernel.traits & (Traits.LAUNCH | Traits.FREE_STANDING))
    )


def _sort(
    by_id: dict[int, ExecuteNode], before: dict[int, tuple[int, ...]], key: dict[int, tuple[int, int, int]]
) -> list[int]:
    waiting = {node_id: len(earlier) for node_id, earlier in before.items()}
    after: dict[int, list[int]] = {node_id: [] for node_id in by_id}
    for node_id, earlier in before.items():
        for other in earlier:
            after[other].append(node_id)
    ready = [key[node_id] for node_id, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        node_id = heapq.heappop(ready)[2]
        order.append(node_id)
        for later in after[node_id]:
            waiting[later] -= 1
            if waiting[later] == 0:
                heapq.heappush(ready, key[later])
    if len(order) != len(by_id):
        stuck = sorted(set(by_id) - set(order))
        raise ValueError(f"the edges of nodes {stuck} form a cycle")
    return order
