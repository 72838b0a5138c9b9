"""Runs an ExecuteGraph slowly and obviously, in NumPy, one node after the other: the meaning that the native executor
must reproduce.

Kernels are Python callables by key: `kernel(arguments, begin, end, scratch)` with `arguments` a list of one uint8
array per view (from its offset to the end of its block) followed by one int per word. The block range is cut into
pieces so that a kernel that depends on being called once is found out.

On the "cpu" device all memory is at one place. On the "discrete" device a launch reads and writes device memory alone
and a host call host memory alone; whatever crosses goes through a copy kernel (`interp_copies.py`). Launches run where
they stand in the order, as on a stream that completes at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from grainline.base import dims
from grainline.base.dims import Extent
from grainline.base.dtypes import BOOL
from grainline.execgraph.argument_block import ArgumentBlock
from grainline.execgraph.ir import ExecuteGraph, ExecuteNode, Shape, Slot
from grainline.execgraph.memory_model import DEVICE, HOST, Block, Bytes, OutOfCapacity, Pool
from grainline.execgraph.order import execution_order, predecessors

TileCallable = Callable[[Sequence[Any], int, int, np.ndarray[Any, Any]], None]

_HOMES = 2  # how many scratch areas a workspace has here


class InterpError(Exception):
    """A run that the native executor must refuse too."""


class PlaceError(AssertionError):
    """A kernel touched memory that its processor cannot reach: the graph is wrong."""


def interpret(
    graph: ExecuteGraph,
    feeds: Mapping[str, Any],
    kernels: Mapping[str, TileCallable],
    order: Sequence[ExecuteNode] | None = None,
    *,
    device: str = "cpu",
    capacity_bytes: int | None = None,
) -> list[Any]:
    """The outputs in the model's order. `order` overrides the execution order (it must respect the edges)."""
    run = Interpreter(graph, feeds, kernels, device=device, capacity_bytes=capacity_bytes)
    return run.run(execution_order(graph.main, graph.frames) if order is None else order)


class Interpreter:
    """The state of one run. `device_pool` and `host_pool` tell afterwards what lived when."""

    def __init__(
        self,
        graph: ExecuteGraph,
        feeds: Mapping[str, Any],
        kernels: Mapping[str, TileCallable],
        *,
        device: str = "cpu",
        capacity_bytes: int | None = None,
    ) -> None:
        self.graph = graph
        self.kernels = kernels
        self.is_discrete = device == "discrete"
        self.device_pool = Pool(capacity_bytes)
        self.host_pool = Pool() if self.is_discrete else self.device_pool
        self.env: dict[str, int] = {}
        self.bytes: dict[int, Bytes] = {}
        self.owned: dict[int, Block] = {}
        self.place: dict[int, str] = {}
        self.objects: dict[int, Any] = {}
        self.tilings: dict[int, Any] = {}
        self.sizes: dict[int, Any] = {}
        self.vectors: dict[int, list[Block | None]] = {}
        self.argument_blocks: dict[int, ArgumentBlock] = {}
        self.copied: list[tuple[str, int]] = []
        self.choices: dict[int, int] = {}
        self.passed: dict[tuple[int, int], int] = {}
        self.bound: dict[int, set[str]] = {}
        for node in execution_order(graph.init):
            INTERPRETED[node.kernel](self, node)
        self._feed(feeds)

    def _feed(self, feeds: Mapping[str, Any]) -> None:
        loaded = {n.attributes["weight"]: n.outputs[0] for n in self.graph.init if n.kernel == "LoadWeight"}
        for graph_input in self.graph.inputs:
            if graph_input.name in feeds:
                self.put(graph_input.slot, feeds[graph_input.name])
            elif graph_input.default is not None:
                self.put(graph_input.slot, self.objects[loaded[graph_input.default]])
            else:
                raise InterpError(f"no feed for {graph_input.name!r}")

    def run(self, order: Sequence[ExecuteNode]) -> list[Any]:
        self.walk(order)
        self.synchronise()
        return self.results()

    def walk(self, order: Sequence[ExecuteNode]) -> None:
        """Runs some nodes, or, when there are sub-graphs, all that become ready, the earliest in `order` first."""
        if self.graph.frames:
            return self._walk_frames(order)
        for node in order:
            self._run(node)

    def _run(self, node: ExecuteNode) -> None:
        try:
            INTERPRETED[node.kernel](self, node)
        except OutOfCapacity as problem:
            raise InterpError(f"node {node.id} ({node.kernel}): {problem}") from problem

    def _walk_frames(self, order: Sequence[ExecuteNode]) -> None:
        before = predecessors(order)
        waits_for = {node.id: [*before[node.id], *node.attributes.get("again", ())] for node in order}
        missing = {node.id: list(waits_for[node.id]) for node in order}
        place = {node.id: number for number, node in enumerate(order)}
        ready = [place[node.id] for node in order if not missing[node.id]]
        while ready:
            node = order[heapq.heappop(ready)]
            self._run(node)
            for later in order:
                if node.id not in missing[later.id] or self._is_closed(node, later):
                    continue
                missing[later.id].remove(node.id)
                if not missing[later.id] or later.kernel == "WaitAnyone":
                    missing[later.id] = list(waits_for[later.id])
                    heapq.heappush(ready, place[later.id])

    def _is_closed(self, switch: ExecuteNode, pivot: ExecuteNode) -> bool:
        """Whether the pivot begins another branch than the one that the switch chose."""
        return pivot.kernel == "BranchPivot" and pivot.attributes["branch"] != self.choices[switch.id]

    def results(self) -> list[Any]:
        return [self._output(output.slot) for output in self.graph.outputs]

    # ---- memory ------------------------------------------------------------------------------------------------

    def put(self, slot: int, value: Any) -> None:
        """A host value."""
        self.objects[slot] = value
        self.place[slot] = HOST
        if isinstance(value, np.ndarray) and value.dtype.kind != "O":
            self.bytes[slot] = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8).copy()

    def allocate(self, slot: int, size_bytes: int, place: str = DEVICE) -> None:
        self.own(slot, self.take(size_bytes, place), size_bytes, place)

    def take(self, size_bytes: int, place: str = DEVICE) -> Block:
        """A block that nobody owns yet."""
        return (self.device_pool if place == DEVICE else self.host_pool).allocate(size_bytes)

    def own(self, slot: int, block: Block, size_bytes: int, place: str = DEVICE) -> None:
        """Makes `slot` an owner of `block`; what it owned before goes back first."""
        self.release(slot)
        self.owned[slot], self.bytes[slot], self.place[slot] = block, block.data[:size_bytes], place

    def share(self, source: int, target: int) -> None:
        """`target` becomes one more owner of what `source` holds (an owner of nothing shares the address)."""
        block = self.owned.get(source)
        if block is not None:
            block.users += 1
        self.release(target)
        if block is not None:
            self.owned[target] = block
        self.bytes[target], self.place[target] = self.contents(source), self.place[source]
        if source in self.objects:
            self.objects[target] = self.objects[source]

    def release(self, slot: int) -> None:
        block = self.owned.pop(slot, None)
        if block is not None:
            (self.host_pool if self.place[slot] == HOST else self.device_pool).free(block)

    def contents(self, slot: int) -> Bytes:
        return self.bytes.get(slot, np.zeros(0, np.uint8))

    def on(self, place: str, slot: int, node: ExecuteNode) -> Bytes:
        """The bytes of a slot that must lie at `place` (on the cpu device every place is the same)."""
        if self.is_discrete and self.place[slot] != place:
            label = self.graph.slots[slot].label
            raise PlaceError(
                f"node {node.id} ({node.kernel}) needs {label!r} on the {place}, not the {self.place[slot]}"
            )
        return self.bytes[slot]

    def _output(self, slot: int) -> Any:
        return self.objects[slot] if slot in self.objects else self._tensor(self.graph.slots[slot])

    def _tensor(self, slot: Slot) -> np.ndarray[Any, Any]:
        assert slot.dtype is not None and slot.shape is not None
        shape = tuple(self.extent(extent) for extent in slot.shape)
        count = int(np.prod(shape, dtype=np.int64))
        return self.bytes[slot.id][: count * slot.dtype.size_bytes].view(slot.dtype.numpy).reshape(shape)

    def extent(self, extent: Extent) -> int:
        return dims.evaluate(extent, self.env)

    def size(self, extent: Extent) -> int:
        value = self.extent(extent)
        if value < 0:
            raise InterpError(f"the extent {extent} is negative: {value}")
        return value

    # ---- kernels -----------------------------------------------------------------------------------------------

    def load_weight(self, node: ExecuteNode) -> None:
        weight = self.graph.weights[node.attributes["weight"]]
        assert weight.load is not None
        self.put(node.outputs[0], weight.load() if weight.pack is None else weight.pack(weight.load()))

    def infer_shape(self, node: ExecuteNode) -> None:
        for name in self.bound.pop(node.id, ()):
            del self.env[name]
        known = set(self.env)
        group, passed = node.attributes["group"], node.attributes.get("passed", ())
        pairs: list[tuple[Extent, int]] = [(extent, self.passed[group, at]) for at, extent in enumerate(passed)]
        for slot, shape in zip(node.inputs, node.attributes["shapes"], strict=True):
            if shape is not None:
                pairs += self._axes(slot, shape)
        while any(self._bind(extent, found) for extent, found in pairs):
            pass
        for extent, found in pairs:
            if self.extent(extent) != found:
                raise InterpError(f"expected {extent} = {self.extent(extent)}, found {found}")
        self.bound[node.id] = set(self.env) - known

    def _axes(self, slot: int, shape: Shape) -> list[tuple[Extent, int]]:
        found = np.shape(self.objects[slot])
        if len(found) != len(shape):
            raise InterpError(f"expected rank {len(shape)}, found {len(found)}")
        return list(zip(shape, found))

    def _bind(self, extent: Extent, found: int) -> bool:
        unknown = [name for name in dims.symbols(extent) if name not in self.env]
        if len(unknown) != 1:
            return False
        at = [dims.evaluate(extent, {**self.env, unknown[0]: value}) for value in (0, 1)]
        slope = at[1] - at[0]
        if slope == 0 or (found - at[0]) % slope or (found - at[0]) // slope < 0:
            raise InterpError(f"nothing solves {extent} = {found}")
        self.env[unknown[0]] = (found - at[0]) // slope
        return True

    def alloc_memory(self, node: ExecuteNode) -> None:
        self.allocate(node.outputs[0], self.size(node.attributes["size_bytes"]))

    def alloc_host_memory(self, node: ExecuteNode) -> None:
        self.allocate(node.outputs[0], self.size(node.attributes["size_bytes"]), HOST)

    def alloc_model_output(self, node: ExecuteNode) -> None:
        slot = self.graph.slots[node.outputs[0]]
        assert slot.dtype is not None and slot.shape is not None
        count = dims.product(tuple(self.size(extent) for extent in slot.shape))
        self.bytes[slot.id] = np.full(self.extent(count) * slot.dtype.size_bytes, 0xA5, np.uint8)
        self.place[slot.id] = HOST

    def tiling(self, node: ExecuteNode) -> None:
        self.tilings[node.outputs[0]] = min(node.attributes["variants"], key=lambda v: self.size(v.cost_ps))

    def alloc_workspace(self, node: ExecuteNode) -> None:
        variant = self.tilings[node.inputs[0]]
        self.allocate(node.outputs[0], self.size(variant.scratch_bytes) * _HOMES)

    def launch(self, node: ExecuteNode) -> None:
        variant = self.tilings[node.inputs[0]]
        views = node.attributes["views"]
        arguments: list[Any] = [self.on(DEVICE, v.slot, node)[self.size(v.offset_bytes) :] for v in views]
        arguments += [self.extent(word) for word in (*node.attributes["words"], *variant.words)]
        blocks, scratch_bytes = self.size(variant.blocks), self.size(variant.scratch_bytes)
        middle = blocks // 2
        for home, (begin, end) in enumerate(((0, middle), (middle, blocks))):
            scratch = np.zeros(0, np.uint8)
            if node.attributes["workspace"]:
                scratch = self.bytes[node.inputs[1]][home * scratch_bytes : (home + 1) * scratch_bytes]
            if begin < end:
                self.submit(node, partial(self.kernels[variant.key], arguments, begin, end, scratch))

    def submit(self, node: ExecuteNode, work: Callable[[], None]) -> None:
        """Device work of a node; its arguments are bound already."""
        work()

    def synchronise(self) -> None:
        """Waits until everything that was submitted is done."""

    def host_call(self, node: ExecuteNode) -> None:
        self.synchronise()
        op = self.graph.host_ops[node.attributes["host_op"]]
        assert op.call is not None
        arguments = [None if slot < 0 else self._argument(slot, node) for slot in node.attributes["arguments"]]
        for slot, result in zip(node.outputs, op.call(*arguments), strict=True):
            self.put(slot, result)

    def _argument(self, slot: int, node: ExecuteNode) -> Any:
        if slot in self.objects:
            return self.objects[slot]
        self.on(HOST, slot, node)
        return self._tensor(self.graph.slots[slot]).copy()

    def extents_tensor(self, node: ExecuteNode) -> None:
        values = np.array([self.extent(extent) for extent in node.attributes["values"]], np.int64)
        offset = self.size(node.attributes["offset_bytes"])
        target = self.on(HOST, node.inputs[0], node)[offset : offset + values.nbytes]
        self.submit(node, partial(np.copyto, target, values.view(np.uint8)))

    def copy_memory(self, node: ExecuteNode) -> None:
        source, target = (self.on(DEVICE, slot, node) for slot in node.inputs)
        size = self.size(node.attributes["size_bytes"])
        begin, to = self.size(node.attributes["source_offset"]), self.size(node.attributes["target_offset"])
        self.submit(node, partial(np.copyto, target[to : to + size], source[begin : begin + size]))

    def free_memory(self, node: ExecuteNode) -> None:
        slot = node.released_slot
        self.release(slot)
        self.bytes.pop(slot, None)
        self.objects.pop(slot, None)

    def free_memory_hold_addr(self, node: ExecuteNode) -> None:
        self.release(node.released_slot)

    def empty_slot(self, node: ExecuteNode) -> None:
        (slot,) = node.outputs
        self.bytes[slot], self.place[slot] = np.zeros(0, np.uint8), DEVICE

    def move_slot(self, node: ExecuteNode) -> None:
        """The target takes over what the source holds."""
        source, target = node.inputs
        self.share(source, target)
        self.release(source)

    def switch_notify(self, node: ExecuteNode) -> None:
        chosen = self._number(node.inputs[0], node)
        is_bool = self.graph.slots[node.inputs[0]].dtype == BOOL
        last = node.attributes["branches"] - 1
        self.choices[node.id] = int(not chosen) if is_bool else (chosen if 0 <= chosen <= last else last)

    def switch_turn(self, node: ExecuteNode) -> None:
        turn, trips, condition = self.extent(node.attributes["turn"]), *self._bounds(node)
        goes_on = turn < self.extent(node.attributes["limit"]) and turn < trips and condition
        self.choices[node.id] = 0 if goes_on else 1

    def _bounds(self, node: ExecuteNode) -> tuple[float, bool]:
        trips, condition = node.attributes["trips"], node.attributes["condition"]
        return np.inf if trips < 0 else self._number(trips, node), condition < 0 or bool(self._number(condition, node))

    def _number(self, slot: int, node: ExecuteNode) -> int:
        """The first element of a slot that holds i64 or bool."""
        self.synchronise()
        dtype = self.graph.slots[slot].dtype
        assert dtype is not None
        return int(self.on(HOST, slot, node)[: dtype.size_bytes].view(dtype.numpy)[0])

    def pass_extents(self, node: ExecuteNode) -> None:
        first, turn = node.attributes["first"], self.extent(node.attributes["turn"])
        for at, extent in enumerate(node.attributes["extents"], first):
            key, value = (node.attributes["group"], at), self.extent(extent)
            if turn and self.passed[key] != value:
                raise InterpError(f"what a loop collects has an extent of {self.passed[key]}, then of {value}")
            self.passed[key] = value

    def grow_memory(self, node: ExecuteNode) -> None:
        (slot,), kept = node.inputs, self.on(DEVICE, node.inputs[0], node).copy()
        size = self.size(node.attributes["size_bytes"]) * (self.extent(node.attributes["turn"]) + 1)
        self.allocate(slot, size)
        self.bytes[slot][: min(len(kept), size)] = kept[:size]

    def nothing(self, node: ExecuteNode) -> None:
        """Events order streams; here every stream completes at once. Control frames only order."""


def _interpreted() -> dict[str, Callable[[Interpreter, ExecuteNode], None]]:
    from grainline.execgraph.interp_copies import COPIES

    run = Interpreter
    return {
        "LoadWeight": run.load_weight,
        "InferShape": run.infer_shape,
        "AllocMemory": run.alloc_memory,
        "AllocMemHost": run.alloc_host_memory,
        "AllocHostCpuOutputMemory": run.alloc_host_memory,
        "AllocModelOutput": run.alloc_model_output,
        "Tiling": run.tiling,
        "ExecuteOpPrepare": run.tiling,
        "AllocWorkspace": run.alloc_workspace,
        **dict.fromkeys(("Launch", "LaunchHcom", "ExecuteOpLaunch", "ExecuteOpFunc", "ExecuteCustomOp"), run.launch),
        "HostCall": run.host_call,
        "ExtentsTensor": run.extents_tensor,
        "CopyMemory": run.copy_memory,
        **dict.fromkeys(("FreeMemory", "FreeMemHbm", "FreeTensorMemory"), run.free_memory),
        **dict.fromkeys(("FreeMemoryHoldAddr", "FreeMemHbmHoldAddr"), run.free_memory_hold_addr),
        **dict.fromkeys(("SendEvents", "WaitEvents"), run.nothing),
        "EmptySlot": run.empty_slot,
        "MoveSlot": run.move_slot,
        "SwitchNotify": run.switch_notify,
        "SwitchTurn": run.switch_turn,
        "PassExtents": run.pass_extents,
        "GrowMemory": run.grow_memory,
        **dict.fromkeys(("BranchPivot", "BranchDone", "WaitAnyone", "Enter", "Exit"), run.nothing),
        **COPIES,
    }


INTERPRETED = _interpreted()
