"""A draft: an ExecuteGraph that a pass takes apart and puts together again.

The graph itself is never changed, so a pass that fails leaves nothing half done. Nodes are replaced by id; new nodes
and slots get fresh numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from grainline.execgraph.frames import lifted
from grainline.execgraph.ir import ExecuteGraph, ExecuteNode, Slot
from grainline.execgraph.order import with_closed_frames

CONTAINERS = ("init", "main", "deinit")


class Draft:
    """`nodes` maps ids to nodes, `container` says where each belongs; both keep the order of the graph."""

    def __init__(self, graph: ExecuteGraph) -> None:
        self.graph = graph
        self.nodes: dict[int, ExecuteNode] = {}
        self.container: dict[int, str] = {}
        self.slots = list(graph.slots)
        self.frames = {frame.owner: frame for frame in graph.frames}
        self.relations = graph.relations
        self._readers: dict[int, dict[int, None]] = defaultdict(dict)
        self._waiting: dict[int, dict[int, None]] = defaultdict(dict)
        for name in CONTAINERS:
            for node in getattr(graph, name):
                self.container[node.id] = name
                self._put(node)
        self._next_id = max(self.nodes, default=-1) + 1

    def _put(self, node: ExecuteNode) -> None:
        self.nodes[node.id] = node
        for slot in node.inputs:
            self._readers[slot][node.id] = None
        for control in node.controls:
            self._waiting[control][node.id] = None

    def _take(self, node_id: int) -> ExecuteNode:
        node = self.nodes[node_id]
        for slot in node.inputs:
            self._readers[slot].pop(node_id, None)
        for control in node.controls:
            self._waiting[control].pop(node_id, None)
        return node

    def main(self) -> list[ExecuteNode]:
        return [node for node_id, node in self.nodes.items() if self.container[node_id] == "main"]

    def slot(self, kind: str, like: Slot | None = None, label: str = "") -> int:
        """A new slot, with type and shape of `like`."""
        number = len(self.slots)
        if like is None:
            self.slots.append(Slot(number, kind, label))
        else:
            self.slots.append(replace(like, id=number, kind=kind, label=label or like.label))
        return number

    def add(
        self,
        kernel: str,
        inputs: Iterable[int] = (),
        outputs: Iterable[int] = (),
        controls: Iterable[int] = (),
        attributes: Mapping[str, Any] | None = None,
        *,
        like: ExecuteNode | None = None,
        compute_node: str = "",
        container: str = "main",
    ) -> int:
        """A new node of the owner graph, and by default of the compute node, of `like`; returns its id."""
        node_id, self._next_id = self._next_id, self._next_id + 1
        owner = 0 if like is None else like.owner
        node = ExecuteNode(
            node_id,
            kernel,
            tuple(inputs),
            tuple(outputs),
            tuple(sorted(set(controls))),
            dict(attributes or {}),
            compute_node or ("" if like is None else like.compute_node),
            owner,
        )
        self.container[node_id] = container
        self._put(node)
        return node_id

    def change(self, node_id: int, **fields: Any) -> None:
        self._put(replace(self._take(node_id), **fields))

    def order(self, earlier: int, later: int) -> None:
        """A control edge, once. One that would cross the border of a frame becomes one of its entry or exit."""
        owners = self.nodes[earlier].owner, self.nodes[later].owner
        if owners[0] != owners[1] and self.frames:
            edge = lifted(self.frames, (earlier, owners[0]), (later, owners[1]))
            if edge is None:
                return
            earlier, later = edge
        node = self.nodes[later]
        if earlier not in node.controls:
            self.change(later, controls=tuple(sorted((*node.controls, earlier))))

    def unorder(self, earlier: int, later: int) -> None:
        controls = self.nodes[later].controls
        self.change(later, controls=tuple(control for control in controls if control != earlier))

    def rewire(self, node_id: int, old: int, new: int) -> None:
        """Lets a node use another slot: as input, in its views, as an argument and as a bound of turns."""
        node = self.nodes[node_id]
        attributes = dict(node.attributes)
        if "views" in attributes:
            attributes["views"] = tuple(
                replace(view, slot=new) if view.slot == old else view for view in attributes["views"]
            )
        if "arguments" in attributes and node.kernel == "HostCall":
            attributes["arguments"] = tuple(new if slot == old else slot for slot in attributes["arguments"])
        if node.kernel == "SwitchTurn":
            attributes |= {name: new for name in ("trips", "condition") if attributes[name] == old}
        inputs = tuple(new if slot == old else slot for slot in node.inputs)
        self.change(node_id, inputs=inputs, attributes=attributes)

    def remove(self, node_id: int, *, pass_on: bool = False) -> None:
        """Removes a node and its control edges; `pass_on` lets its successors wait for what it waited for."""
        gone = self._take(node_id)
        del self.nodes[node_id], self.container[node_id]
        for other in self.waiting(node_id):
            kept = {control for control in self.nodes[other].controls if control != node_id}
            self.change(other, controls=tuple(sorted(kept | set(gone.controls) if pass_on else kept)))

    def move(self, node_id: int, container: str) -> None:
        self.container[node_id] = container

    def readers(self, slot: int) -> list[int]:
        """Ids of the nodes that list a slot as an input."""
        return list(self._readers.get(slot, ()))

    def waiting(self, node_id: int) -> list[int]:
        """Ids of the nodes that wait for a node by a control edge."""
        return list(self._waiting.get(node_id, ()))

    def guarders(self, slot: int) -> list[int]:
        """Ids of the nodes of Main that release what a slot holds."""
        readers = (self.nodes[reader] for reader in self.readers(slot) if self.container[reader] == "main")
        return [node.id for node in readers if node.is_guarder and node.released_slot == slot]

    def producers(self) -> dict[int, int]:
        return {slot: node.id for node in self.nodes.values() for slot in node.outputs}

    def finish(self, **fields: Any) -> ExecuteGraph:
        """The graph as it is now. The ends of its frames wait for what was added to them."""
        parts: dict[str, Any] = {
            name: tuple(node for node_id, node in self.nodes.items() if self.container[node_id] == name)
            for name in CONTAINERS
        }
        if self.graph.frames:
            parts["main"] = with_closed_frames(parts["main"])
        return replace(self.graph, slots=tuple(self.slots), relations=self.relations, **parts, **fields)
