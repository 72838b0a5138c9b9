"""Puts an execution graph on a device with memory of its own.

Lowering speaks of one memory. On a discrete device launches and device copies touch device memory alone, host calls,
switches and `ExtentsTensor` host memory alone, and what crosses is copied:

* an input, a weight or a host result that a launch uses   -> `CopyH2D`, or `MakeSureTensorAtDevice` for host results;
* memory of a launch that a host call or a switch reads    -> `CopyD2H`, once per call;
* a returned array that launches produce                   -> device memory, then `EnsureTensorAtOutMemory`;
* extents that a launch uses                               -> host memory, then `CopyH2D`.

Which slots cross follows from their users alone. Everything else stays where it is, and so does every order edge.

A slot that moves fill (results of branches, what turns of a loop carry and collect) has one place for all of them: the
device where something there uses it or moves it on to such a slot, else the host, and then each move is of a copy that
was brought home. So the condition of a loop is copied once per turn and its trip count once per loop. What comes from
outside is copied where it was made, not in the frame that uses it: once, also when a loop reads it in every turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from grainline.base import dims
from grainline.base.dims import Extent
from grainline.execgraph.draft import Draft
from grainline.execgraph.ir import RELEASE_INDEX, ExecuteGraph, ExecuteNode
from grainline.execgraph.registry import is_launch_node
from grainline.execgraph.verify import binders, infer_shapes

FREE = {RELEASE_INDEX: 0}
HOST_READERS = ("HostCall", "SwitchNotify", "SwitchTurn")


def place_on_discrete(graph: ExecuteGraph) -> ExecuteGraph:
    """The graph for the discrete device; the one given is not changed."""
    placing = _Placing(graph)
    for node in placing.nodes("ExtentsTensor"):
        placing.write_extents_on_the_host(node)
    for node in placing.nodes("HostCall", "SwitchNotify"):
        placing.bring_arguments_home(node)
    for node in placing.nodes("SwitchTurn"):
        placing.bring_trips_home(node)
    for node in placing.nodes("MoveSlot"):
        placing.bring_moved_home(node)
    placing.look_again()
    for slot in range(len(graph.slots)):
        placing.bring_to_the_device(slot)
    for node in placing.nodes("AllocModelOutput"):
        placing.produce_on_the_device(node)
    return placing.draft.finish()


def works_on_device(node: ExecuteNode) -> bool:
    return is_launch_node(node.kernel) or node.kernel in ("CopyMemory", "GrowMemory")


class _Placing:
    def __init__(self, graph: ExecuteGraph) -> None:
        self.draft = Draft(graph)
        infers = infer_shapes(graph)
        self.infers = {node.id for node in infers}
        #: owner -> the InferShape that runs first in every turn of the frame
        self.entries = {frame.owner: infers[frame.group].id for frame in graph.frames}
        self.binders = binders(infers)
        self.moved = _moved_on_the_device(graph)
        self.look_again()

    def look_again(self) -> None:
        """Producers as they are now; what a stage adds makes slots of its own."""
        self.producers = self.draft.producers()

    def nodes(self, *kernels: str) -> list[ExecuteNode]:
        self.look_again()
        return [node for node in self.draft.main() if node.kernel in kernels]

    # ---- questions ---------------------------------------------------------------------------------------------

    def device_users(self, slot: int) -> list[ExecuteNode]:
        users = (self.draft.nodes[node_id] for node_id in self.draft.readers(slot))
        return [node for node in users if works_on_device(node) or self._moves_to_the_device(node)]

    def _moves_to_the_device(self, node: ExecuteNode) -> bool:
        return node.kernel == "MoveSlot" and node.inputs[1] in self.moved

    def lies_on_the_device(self, slot: int) -> bool:
        """Of memory that a host call, a switch or a move reads."""
        if self.draft.slots[slot].kind not in ("memory", "output"):
            return False
        maker = self.draft.nodes.get(self.producers.get(slot, -1))
        if maker is not None and maker.kernel == "EmptySlot":
            return slot in self.moved
        return bool(self.device_users(slot))

    def size_bytes(self, slot: int) -> Extent:
        """Bytes of the tensor in a slot: of the allocation, whose views may have many shapes, else of its shape."""
        producer = self.draft.nodes.get(self.producers.get(slot, -1))
        if producer is not None and "size_bytes" in producer.attributes:
            size: Extent = producer.attributes["size_bytes"]
            return size
        found = self.draft.slots[slot]
        assert found.dtype is not None and found.shape is not None, f"slot {slot} is no tensor"
        return dims.product(found.shape) * found.dtype.size_bytes

    def shape_controls(self, node: ExecuteNode) -> set[int]:
        """The nodes that make the extents known which `node` waits for."""
        return {control for control in node.controls if control in self.infers}

    # ---- changes -----------------------------------------------------------------------------------------------

    def add(
        self,
        kernel: str,
        inputs: Iterable[int],
        outputs: Iterable[int],
        behind: Iterable[int],
        attributes: Mapping[str, Any],
        like: ExecuteNode,
    ) -> int:
        """A node in the frame of `like`, behind the nodes `behind`, the entry of the frame and what its size needs."""
        node = self.draft.add(kernel, inputs, outputs, (), attributes, like=like)
        sizes = (*attributes.get("sizes", ()), attributes.get("size_bytes", 0))
        known = {self.binders[symbol].id for size in sizes for symbol in dims.symbols(size)}
        entry = {self.entries[like.owner]} if like.owner else set()
        for earlier in sorted({*behind, *known, *entry}):
            self.draft.order(earlier, node)
        return node

    def rewire(self, node: int, old: int, new: int, maker: int) -> None:
        """Lets a node use what `maker` makes; within a frame the data orders them."""
        self.draft.rewire(node, old, new)
        if self.draft.nodes[node].owner != self.draft.nodes[maker].owner:
            self.draft.order(maker, node)

    def free_behind(self, slot: int, users: Iterable[int], like: ExecuteNode) -> None:
        free = self.draft.add("FreeMemory", (slot,), (), (), FREE, like=like)
        for user in users:
            self.draft.order(user, free)

    def release_after(self, slot: int, user: int) -> None:
        for guarder in self.draft.guarders(slot):
            self.draft.order(user, guarder)

    def write_extents_on_the_host(self, node: ExecuteNode) -> None:
        """ExtentsTensor writes a host block; what stood in its place is a copy of it."""
        (target,) = node.inputs
        if not self.device_users(target):
            self._keep_on_the_host(target)
            return
        draft = self.draft
        size = 8 * len(node.attributes["values"])
        like = replace(draft.slots[target], shape=(len(node.attributes["values"]),))
        host, device = draft.slot("memory", like), draft.slot("memory", like)
        known = self.shape_controls(node)
        self.add("AllocMemHost", (), (host,), known, {"size_bytes": size}, node)
        copy = self.add("CopyH2D", (host,), (device,), {*known, node.id}, {"sizes": (size,)}, node)
        attributes = {"size_bytes": size, "source_offset": 0, "target_offset": node.attributes["offset_bytes"]}
        place = self.add("CopyMemory", (device, target), (), node.controls, attributes, node)
        for waiting in draft.waiting(node.id):
            if waiting not in (copy, place):
                draft.unorder(node.id, waiting)
                draft.order(place, waiting)
        written = {**node.attributes, "offset_bytes": 0}
        draft.change(node.id, inputs=(host,), controls=tuple(sorted(known)), attributes=written)
        self.free_behind(host, [node.id, copy], node)
        self.free_behind(device, [place], node)

    def _keep_on_the_host(self, slot: int) -> None:
        producer = self.draft.nodes[self.producers[slot]]
        if producer.kernel == "AllocMemory":
            self.draft.change(producer.id, kernel="AllocMemHost")

    def bring_arguments_home(self, node: ExecuteNode) -> None:
        """A host call and a switch read copies of what lies on the device."""
        for slot in dict.fromkeys(node.inputs):
            if self.lies_on_the_device(slot):
                self._bring_home(node, slot, self.size_bytes(slot), node)

    def bring_trips_home(self, node: ExecuteNode) -> None:
        """The trip count of a loop, in front of it. Its condition, where it has one, is moved home in every turn."""
        trips = node.attributes["trips"]
        if trips >= 0 and self.lies_on_the_device(trips):
            enter = self.draft.nodes[self.draft.frames[node.owner].entry]
            self._bring_home(node, trips, self.size_bytes(trips), enter)

    def bring_moved_home(self, node: ExecuteNode) -> None:
        """What is moved into a slot of the host, and lies on the device."""
        source, target = node.inputs
        if target in self.moved or not self.lies_on_the_device(source):
            return
        is_allocated = "size_bytes" in self.draft.nodes[self.producers[source]].attributes
        self._bring_home(node, source, self.size_bytes(source if is_allocated else target), node)

    def _bring_home(self, node: ExecuteNode, slot: int, size_bytes: Extent, like: ExecuteNode) -> None:
        """`node` reads a copy on the host, made in the frame of `like` behind all that `like` waits for."""
        host = self.draft.slot("memory", self.draft.slots[slot])
        copy = self.add("CopyD2H", (slot,), (host,), like.controls, {"size_bytes": size_bytes}, like)
        self.draft.rewire(node.id, slot, host)
        self.draft.order(copy, node.id)
        self.release_after(slot, copy)
        self.free_behind(host, [node.id], like)

    def bring_to_the_device(self, slot: int) -> None:
        """Inputs, weights and host results that launches use are copied once, and read from the copy."""
        kind = self.draft.slots[slot].kind
        users = self.device_users(slot) if kind in ("input", "weight", "object") else []
        if not users:
            return
        draft = self.draft
        device = draft.slot("memory", draft.slots[slot])
        kernel = "MakeSureTensorAtDevice" if kind == "object" else "CopyH2D"
        maker = draft.nodes[self.producers[slot]] if kind == "object" else None
        like = replace(users[0], owner=0 if maker is None else maker.owner)
        # An InferShape checks what may be copied.
        known = {node_id for node_id in self.infers if slot in draft.nodes[node_id].inputs}
        copy = self.add(kernel, (slot,), (device,), known, {"sizes": (self.size_bytes(slot),)}, like)
        for user in users:
            self.rewire(user.id, slot, device, copy)
        self.release_after(slot, copy)
        self.free_behind(device, [user.id for user in users], replace(users[-1], owner=like.owner))

    def produce_on_the_device(self, node: ExecuteNode) -> None:
        """Launches write device memory; the last thing that happens to it is the copy into the returned array."""
        (output,) = node.outputs
        users = self.device_users(output)
        if not users:
            return
        draft = self.draft
        device = draft.slot("memory", draft.slots[output])
        size = self.size_bytes(output)
        allocation = self.add("AllocMemory", (), (device,), node.controls, {"size_bytes": size}, node)
        others = [user for user in draft.readers(output) if draft.nodes[user].kernel == "CopyD2H"]
        for user_id in (*(user.id for user in users), *others):
            self.rewire(user_id, output, device, allocation)
        waits = {*node.controls, *(user.id for user in users)}
        copy = self.add("EnsureTensorAtOutMemory", (device, output), (), waits, {"size_bytes": size}, node)
        self.free_behind(device, [*(user.id for user in users), *others, copy], node)


def _moved_on_the_device(graph: ExecuteGraph) -> set[int]:
    """The memory slots that moves fill and that lie on the device. One that nobody reads needs no copy there."""
    filled = {slot for node in graph.main if node.kernel == "EmptySlot" for slot in node.outputs}
    filled = {slot for slot in filled if graph.slots[slot].kind == "memory"}
    moves = [node.inputs for node in graph.main if node.kernel == "MoveSlot"]
    by_host = {slot for node in graph.main if node.kernel in HOST_READERS for slot in node.inputs}
    found = filled - by_host - {source for source, _ in moves}
    found |= {slot for node in graph.main if works_on_device(node) for slot in node.inputs if slot in filled}
    while True:
        more = {source for source, target in moves if target in found and source in filled} - found
        if not more:
            return found
        found |= more
