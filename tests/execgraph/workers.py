"""Workers that run a graph by the rules of the multi-worker executor, at their most unlucky.

Every worker runs its nodes in the static order and waits, at each, for the edges into it. *Every* allocation takes the
slow path: it waits until all launches are submitted whose Free has run. Whatever can run stays able to run until it
does (only the memory worker activates launches, and it does so between its own tasks), so one simulation, in any order,
decides whether a graph can hang.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

from grainline.execgraph.ir import ExecuteGraph, ExecuteNode
from grainline.execgraph.order import execution_order, predecessors
from grainline.execgraph.registry import worker_of


class Hang(AssertionError):
    """Nobody can go on; the message names the nodes that stand at the heads of the queues."""


def interleaving(graph: ExecuteGraph, threads: int, seed: int) -> list[ExecuteNode]:
    """An order in which `threads` workers may run the Main container. Hang when they cannot finish."""
    rng = random.Random(seed)
    before = predecessors(graph.main)
    queues = _queues(execution_order(graph.main), threads)
    launches_of = defaultdict(set)
    for free, launch in graph.relations.pairs():
        launches_of[free].add(launch)
    done: set[int] = set()
    activated: set[int] = set()
    order: list[ExecuteNode] = []
    while any(queues.values()):
        heads = [(name, node) for name, queue in queues.items() for node in queue[: _width(name, threads)]]
        ready = [(name, node) for name, node in heads if set(before[node.id]) <= done]
        able = [(name, node) for name, node in ready if not (_allocates(node) and activated - done)]
        if not able:
            raise Hang(f"{[(name, node.id, node.kernel) for name, node in heads]} wait for {sorted(activated - done)}")
        name, node = rng.choice(able)
        queues[name].remove(node)
        done.add(node.id)
        activated |= launches_of[node.id]
        order.append(node)
    return order


def _allocates(node: ExecuteNode) -> bool:
    return node.kernel.startswith("Alloc")


def _queues(order: Sequence[ExecuteNode], threads: int) -> dict[str, list[ExecuteNode]]:
    queues: dict[str, list[ExecuteNode]] = {"memory": [], "launch": [], "normal": []}
    for node in order:
        worker = worker_of(node.kernel, threads)
        queues["normal" if threads == 2 and worker == "launch" else worker].append(node)
    return queues


def _width(name: str, threads: int) -> int:
    """How many threads take from a queue."""
    return max(1, threads - 2) if name == "normal" else 1
