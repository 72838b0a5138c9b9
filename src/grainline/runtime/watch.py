"""Subscribers: told of a run and its nodes while they happen.

A subscriber has any of the methods of `Subscriber`. With several, each event goes to them in their order, so whoever
observes stands before whoever acts. A subscriber that raises ends its own part: the run goes on, and the exception
comes out of the call when it is over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grainline.base.dims import evaluate, symbols
from grainline.base.log import logger
from grainline.execgraph.ir import ExecuteGraph, ExecuteNode
from grainline.execgraph.registry import trace


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """`kind`: node_started, node_ended, node_failed, node_parked or node_resumed (an allocation that has to wait).

    `read(slot)` gives a copy of the tensor in a slot, in the order in which it is stored, or None where there is no
    tensor or its extents are not known yet; only while the event is being told.
    """

    kind: str
    worker: int
    node: ExecuteNode
    graph: ExecuteGraph
    read: Callable[[int], np.ndarray[Any, Any] | None]

    @property
    def name(self) -> str:
        """The operator, or the kernel of a node that belongs to none."""
        return self.node.compute_node or self.node.kernel


class Subscriber:
    """Told of one run after the other. Events of several workers come one at a time, each on its worker's thread."""

    def run_started(self, graph: ExecuteGraph, feeds: Mapping[str, Any]) -> None:
        """Before the first node."""

    def on_node(self, event: NodeEvent) -> None:
        """At every event of a node."""

    def run_ended(self, graph: ExecuteGraph, error: BaseException | None) -> None:
        """Behind the last node; `error` is what the run raised."""


class KernelTrace(Subscriber):
    """One line for every node that ended or failed, by `write` or as INFO of the logger 'grainline'.

    A line has the kernel, the operator, and what the registry says a trace prints.
    """

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = logger().info if write is None else write

    def on_node(self, event: NodeEvent) -> None:
        if event.kind not in ("node_ended", "node_failed"):
            return
        node = event.node
        facts = " ".join(trace(node.kernel, node.inputs, node.outputs, node.attributes))
        outcome = " failed" if event.kind == "node_failed" else ""
        self._write(f"[KernelTrace][{node.kernel}] {event.name} worker={event.worker} {facts}{outcome}")


def teller(
    graph: ExecuteGraph, order: Sequence[ExecuteNode], extents: Mapping[str, int], subscribers: Sequence[Subscriber]
) -> Callable[[str, int, int, Any], None]:
    """The native core's callable: `order` gives the node of every node number, `extents` the symbols of the feeds."""

    def shape_of(slot: int) -> list[int] | None:
        shape = graph.slots[slot].shape
        if shape is None or any(name not in extents for extent in shape for name in symbols(extent)):
            return None
        return [evaluate(extent, extents) for extent in shape]

    def tell(kind: str, worker: int, number: int, read: Any) -> None:
        def read_slot(slot: int) -> np.ndarray[Any, Any] | None:
            shape = shape_of(slot)
            return None if shape is None else read(slot, shape)

        event = NodeEvent(kind, worker, order[number], graph, read_slot)
        for subscriber in subscribers:
            subscriber.on_node(event)

    return tell
