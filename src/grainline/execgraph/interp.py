"""Runs an ExecuteGraph slowly and obviously, in NumPy, one node after the other: the meaning that the native executor
must reproduce.

Kernels are Python callables by key: `kernel(arguments, begin, end, scratch)` with `arguments` a list of one uint8
array per view (from its offset to the end of its block) followed by one int per word. The block range is cut into
pieces so that a kernel that depends on being called once is found out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from grainline.base import dims
from grainline.execgraph.ir import ExecuteGraph, ExecuteNode, Extent, Shape, Slot
from grainline.execgraph.order import execution_order

TileCallable = Callable[[Sequence[Any], int, int, np.ndarray[Any, Any]], None]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_HOMES = 2  # how many scratch areas a workspace has here


class InterpError(Exception):
    """A run that the native executor must refuse too."""


def interpret(
    graph: ExecuteGraph,
    feeds: Mapping[str, Any],
    kernels: Mapping[str, TileCallable],
    order: Sequence[ExecuteNode] | None = None,
) -> list[Any]:
    """The outputs in the model's order. `order` overrides the execution order (it must respect the edges)."""
    return _Run(graph, feeds, kernels).run(execution_order(graph.main) if order is None else order)


class _Run:
    def __init__(self, graph: ExecuteGraph, feeds: Mapping[str, Any], kernels: Mapping[str, TileCallable]) -> None:
        self.graph = graph
        self.kernels = kernels
        self.env: dict[str, int] = {}
        self.blocks: dict[int, Bytes] = {}
        self.objects: dict[int, Any] = {}
        self.tilings: dict[int, Any] = {}
        for node in graph.init:
            weight = graph.weights[node.attributes["weight"]]
            assert weight.load is not None
            array = weight.load() if weight.pack is None else weight.pack(weight.load())
            self._put(node.outputs[0], array)
        loaded = {node.attributes["weight"]: node.outputs[0] for node in graph.init}
        for graph_input in graph.inputs:
            if graph_input.name in feeds:
                self._put(graph_input.slot, feeds[graph_input.name])
            elif graph_input.default is not None:
                self._put(graph_input.slot, self.objects[loaded[graph_input.default]])
            else:
                raise InterpError(f"no feed for {graph_input.name!r}")

    def run(self, order: Sequence[ExecuteNode]) -> list[Any]:
        for node in order:
            _KERNELS[node.kernel](self, node)
        return [self._output(output.slot) for output in self.graph.outputs]

    def _put(self, slot: int, value: Any) -> None:
        self.objects[slot] = value
        if isinstance(value, np.ndarray) and value.dtype.kind != "O":
            self.blocks[slot] = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8).copy()

    def _output(self, slot: int) -> Any:
        return self.objects[slot] if slot in self.objects else self._tensor(self.graph.slots[slot])

    def _tensor(self, slot: Slot) -> np.ndarray[Any, Any]:
        assert slot.dtype is not None and slot.shape is not None
        shape = tuple(self.extent(extent) for extent in slot.shape)
        count = int(np.prod(shape, dtype=np.int64))
        return (
            self.blocks[slot.id].view(np.uint8)[: count * slot.dtype.size_bytes].view(slot.dtype.numpy).reshape(shape)
        )

    def extent(self, extent: Extent) -> int:
        return dims.evaluate(extent, self.env)

    def size(self, extent: Extent) -> int:
        value = self.extent(extent)
        if value < 0:
            raise InterpError(f"the extent {extent} is negative: {value}")
        return value

    # ---- kernels -----------------------------------------------------------------------------------------------

    def infer_shape(self, node: ExecuteNode) -> None:
        pairs: list[tuple[Extent, int]] = []
        for slot, shape in zip(node.inputs, node.attributes["shapes"], strict=True):
            if shape is not None:
                pairs += self._axes(slot, shape)
        while any(self._bind(extent, found) for extent, found in pairs):
            pass
        for extent, found in pairs:
            if self.extent(extent) != found:
                raise InterpError(f"expected {extent} = {self.extent(extent)}, found {found}")

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
        self.blocks[node.outputs[0]] = np.full(self.size(node.attributes["size_bytes"]), 0xA5, np.uint8)

    def alloc_model_output(self, node: ExecuteNode) -> None:
        slot = self.graph.slots[node.outputs[0]]
        assert slot.dtype is not None and slot.shape is not None
        count = dims.product(tuple(self.size(extent) for extent in slot.shape))
        self.blocks[slot.id] = np.full(self.extent(count) * slot.dtype.size_bytes, 0xA5, np.uint8)

    def tiling(self, node: ExecuteNode) -> None:
        self.tilings[node.outputs[0]] = min(node.attributes["variants"], key=lambda v: self.size(v.cost_ps))

    def alloc_workspace(self, node: ExecuteNode) -> None:
        variant = self.tilings[node.inputs[0]]
        self.blocks[node.outputs[0]] = np.full(self.size(variant.scratch_bytes) * _HOMES, 0xA5, np.uint8)

    def launch(self, node: ExecuteNode) -> None:
        variant = self.tilings[node.inputs[0]]
        arguments: list[Any] = [self.blocks[v.slot][self.size(v.offset_bytes) :] for v in node.attributes["views"]]
        arguments += [self.extent(word) for word in (*node.attributes["words"], *variant.words)]
        blocks, scratch_bytes = self.size(variant.blocks), self.size(variant.scratch_bytes)
        middle = blocks // 2
        for home, (begin, end) in enumerate(((0, middle), (middle, blocks))):
            scratch = np.zeros(0, np.uint8)
            if node.attributes["workspace"]:
                scratch = self.blocks[node.inputs[1]][home * scratch_bytes : (home + 1) * scratch_bytes]
            if begin < end:
                self.kernels[variant.key](arguments, begin, end, scratch)

    def host_call(self, node: ExecuteNode) -> None:
        op = self.graph.host_ops[node.attributes["host_op"]]
        assert op.call is not None
        arguments = [None if slot < 0 else self._argument(slot) for slot in node.attributes["arguments"]]
        for slot, result in zip(node.outputs, op.call(*arguments), strict=True):
            self._put(slot, result)

    def _argument(self, slot: int) -> Any:
        return self.objects[slot] if slot in self.objects else self._tensor(self.graph.slots[slot]).copy()

    def extents_tensor(self, node: ExecuteNode) -> None:
        values = np.array([self.extent(extent) for extent in node.attributes["values"]], np.int64)
        offset = self.size(node.attributes["offset_bytes"])
        self.blocks[node.inputs[0]][offset : offset + values.nbytes] = values.view(np.uint8)

    def copy_memory(self, node: ExecuteNode) -> None:
        source, target = (self.blocks[slot] for slot in node.inputs)
        size = self.size(node.attributes["size_bytes"])
        begin, to = self.size(node.attributes["source_offset"]), self.size(node.attributes["target_offset"])
        target[to : to + size] = source[begin : begin + size]

    def free_memory(self, node: ExecuteNode) -> None:
        self.blocks.pop(node.released_slot, None)
        self.objects.pop(node.released_slot, None)


_KERNELS: dict[str, Callable[[_Run, ExecuteNode], None]] = {
    "InferShape": _Run.infer_shape,
    "AllocMemory": _Run.alloc_memory,
    "AllocModelOutput": _Run.alloc_model_output,
    "Tiling": _Run.tiling,
    "AllocWorkspace": _Run.alloc_workspace,
    "Launch": _Run.launch,
    "HostCall": _Run.host_call,
    "ExtentsTensor": _Run.extents_tensor,
    "CopyMemory": _Run.copy_memory,
    "FreeMemory": _Run.free_memory,
}
