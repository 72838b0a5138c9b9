"""Puts an execution graph on a device with memory of its own.

Lowering speaks of one memory. On a discrete device launches and device copies touch device memory alone, host calls
and `ExtentsTensor` host memory alone, and what crosses is copied:

* an input, a weight or a host result that a launch uses   -> `CopyH2D`, or `MakeSureTensorAtDevice` for host results;
* memory of a launch that a host call uses                 -> `CopyD2H`, once per call;
* a returned array that launches produce                   -> device memory, then `EnsureTensorAtOutMemory`;
* extents that a launch uses                               -> host memory, then `CopyH2D`.

Which slots cross follows from their users alone. Everything else stays where it is, and so does every order edge.
"""

from __future__ import annotations

from dataclasses import replace

from grainline.base import dims
from grainline.base.dims import Extent
from grainline.base.errors import UnsupportedError
from grainline.execgraph.draft import Draft
from grainline.execgraph.ir import RELEASE_INDEX, ExecuteGraph, ExecuteNode
from grainline.execgraph.registry import KERNELS, Traits, is_launch_node

FREE = {RELEASE_INDEX: 0}


def place_on_discrete(graph: ExecuteGraph) -> ExecuteGraph:
    """The graph for the discrete device; the one given is not changed. UnsupportedError for control flow."""
    _refuse_control_flow(graph)
    placing = _Placing(graph)
    for node in placing.nodes("ExtentsTensor"):
        placing.write_extents_on_the_host(node)
    for node in placing.nodes("HostCall"):
        placing.bring_arguments_home(node)
    placing.look_again()
    for slot in range(len(graph.slots)):
        placing.bring_to_the_device(slot)
    for node in placing.nodes("AllocModelOutput"):
        placing.produce_on_the_device(node)
    return placing.draft.finish()


def works_on_device(node: ExecuteNode) -> bool:
    return is_launch_node(node.kernel) or node.kernel == "CopyMemory"


def _refuse_control_flow(graph: ExecuteGraph) -> None:
    """A switch decides on the host, and what crosses the border of a turn may lie at either place."""
    for node in graph.main:
        if node.kernel in KERNELS and Traits.CONTROL in KERNELS[node.kernel].traits:
            raise UnsupportedError(
                "a model with control flow does not run on the device 'discrete'",
                node=node.compute_node,
                found=node.kernel,
                remedy="Load it for the device 'cpu'.",
            )


class _Placing:
    def __init__(self, graph: ExecuteGraph) -> None:
        self.draft = Draft(graph)
        self.infers = {node.id for node in graph.main if node.kernel == "InferShape"}
        self.look_again()

    def look_again(self) -> None:
        """Producers as they are now; what a stage adds makes slots of its own."""
        self.producers = self.draft.producers()

    def nodes(self, kernel: str) -> list[ExecuteNode]:
        self.look_again()
        return [node for node in self.draft.main() if node.kernel == kernel]

    # ---- questions ---------------------------------------------------------------------------------------------

    def device_users(self, slot: int) -> list[ExecuteNode]:
        users = (self.draft.nodes[node_id] for node_id in self.draft.readers(slot))
        return [node for node in users if works_on_device(node)]

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

    def free_behind(self, slot: int, users: list[int], like: ExecuteNode) -> None:
        self.draft.add("FreeMemory", (slot,), (), users, FREE, like=like)

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
        draft.add("AllocMemHost", (), (host,), known, {"size_bytes": size}, like=node)
        copy = draft.add("CopyH2D", (host,), (device,), {*known, node.id}, {"sizes": (size,)}, like=node)
        attributes = {"size_bytes": size, "source_offset": 0, "target_offset": node.attributes["offset_bytes"]}
        place = draft.add("CopyMemory", (device, target), (), node.controls, attributes, like=node)
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
        """A host call reads copies of what lies on the device."""
        draft = self.draft
        for slot in dict.fromkeys(node.inputs):
            if draft.slots[slot].kind not in ("memory", "output") or not self.device_users(slot):
                continue
            host = draft.slot("memory", draft.slots[slot])
            attributes = {"size_bytes": self.size_bytes(slot)}
            copy = draft.add("CopyD2H", (slot,), (host,), node.controls, attributes, like=node)
            draft.rewire(node.id, slot, host)
            draft.order(copy, node.id)
            self.release_after(slot, copy)
            self.free_behind(host, [node.id], node)

    def bring_to_the_device(self, slot: int) -> None:
        """Inputs, weights and host results that launches use are copied once, and read from the copy."""
        kind = self.draft.slots[slot].kind
        users = self.device_users(slot) if kind in ("input", "weight", "object") else []
        if not users:
            return
        draft = self.draft
        device = draft.slot("memory", draft.slots[slot])
        kernel = "MakeSureTensorAtDevice" if kind == "object" else "CopyH2D"
        known = set() if kind == "weight" else self._shape_is_known(slot, users)
        copy = draft.add(kernel, (slot,), (device,), known, {"sizes": (self.size_bytes(slot),)}, like=users[0])
        for user in users:
            draft.rewire(user.id, slot, device)
        self.release_after(slot, copy)
        self.free_behind(device, [user.id for user in users], users[-1])

    def _shape_is_known(self, slot: int, users: list[ExecuteNode]) -> set[int]:
        """InferShape of the inputs, and of the host call that made the slot: it checks what may be copied."""
        own = {node_id for node_id in self.infers if slot in self.draft.nodes[node_id].inputs}
        return own | set.intersection(*(self.shape_controls(user) for user in users))

    def produce_on_the_device(self, node: ExecuteNode) -> None:
        """Launches write device memory; the last thing that happens to it is the copy into the returned array."""
        (output,) = node.outputs
        users = self.device_users(output)
        if not users:
            return
        draft = self.draft
        device = draft.slot("memory", draft.slots[output])
        size = self.size_bytes(output)
        draft.add("AllocMemory", (), (device,), node.controls, {"size_bytes": size}, like=node)
        others = [user for user in draft.readers(output) if draft.nodes[user].kernel == "CopyD2H"]
        for user_id in (*(user.id for user in users), *others):
            draft.rewire(user_id, output, device)
        waits = {*node.controls, *(user.id for user in users)}
        copy = draft.add("EnsureTensorAtOutMemory", (device, output), (), waits, {"size_bytes": size}, like=node)
        self.free_behind(device, [*(user.id for user in users), *others, copy], node)
