"""Packs the Main container of a valid ExecuteGraph into the flat tables of a native Program.

`pack(graph)` gives a `Packed`: one array of i64 that holds all tables in `TABLES` order, each preceded by its number of
rows; a table of strings; and the kernel keys whose addresses the native side needs, in order. The reader is
`native/exec/program.cpp`; change both together and raise `FORMAT`.

Tilings are not nodes of the Program: their extents are known once their InferShape group is, so that node runs them,
and only when the shapes changed.

The rows of `nodes` stand in the static order (`order.py`); a worker runs its own nodes in that order. An *execution
id* is the number of a row. Edges and relations are columns over execution ids (`schedule.py`).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grainline.base import dims
from grainline.execgraph.frames import path
from grainline.execgraph.ir import ExecuteGraph, ExecuteNode, LaunchTable, Shape, Slot, Variant
from grainline.execgraph.order import entries, execution_order
from grainline.execgraph.pack_copies import COPY_FLOW_CHAIN, H2D_CHAIN, CopyFlow, CopyTables, TensorCopy
from grainline.execgraph.registry import SLOT_KINDS
from grainline.execgraph.schedule import build_schedule
from grainline.execgraph.values import ValueTable
from grainline.execgraph.verify import host_slots

MAGIC, FORMAT = 0x4E4C5247, 8

#: table -> numbers per row, in the order of the blob
TABLES = {
    "constants": 1,  # value
    "instructions": 3,  # operation, a, b
    "groups": 10,  # begin and end of: instructions, checks, group_launches, dims, sources
    "checks": 6,  # kind, observed, expected, place, text, note
    "group_launches": 1,  # launch
    "sources": 3,  # slot, rank, first dim
    "slots": 7,  # kind, rank (-1 unknown), first of dim_values (-1 none), itemsize, label, is_on_host, stream
    "dim_values": 1,  # value
    "inputs": 6,  # name, slot, rank (-1 unknown), first dim, slot of the default (-1 none), is_object
    "outputs": 3,  # name, slot, is_object
    "launches": 10,  # begin and end of: variants, words, views; key, tiling slot, copy flow (-1 none), table (-1 none)
    "variants": 8,  # key number, blocks, cost, scratch, traffic, cost of a task, begin and end of words
    "launch_tables": 3,  # begin and end of axes, begin of rows
    "table_axes": 3,  # value, begin and end of extents
    "table_extents": 1,  # a representative extent
    "table_rows": 5,  # variant for one thread, variant for more, its blocks here, blocks of a task, threads
    "words": 1,  # value
    "views": 2,  # slot, offset
    "host_calls": 5,  # host op, begin and end of: arguments, results (slot_lists)
    "slot_lists": 1,  # slot or -1
    "copies": 5,  # source, its offset, target, its offset, size
    "tensor_copies": 5,  # source, target, size, begin and end of positions
    "copy_flows": 3,  # launch, begin and end of tensor_copies
    "positions": 1,  # argument position of a launch
    "turns": 4,  # turn, limit; slots of the trips and of the condition (-1: none)
    "nodes": 8,  # kernel, a, b, c, d, node id, kernel name, compute node
    "frames": 2,  # begin and end of the execution ids of an If or a loop of the graph itself, with all inside
    "event_lists": 1,  # number of an event
    "node_streams": 1,  # per node the stream that it submits to; no rows: one stream
    "node_workers": 2,  # number in registry.WORKERS of the worker; of the worker when there are exactly three
    "watcher_offsets": 1,  # per node and the end: its first entry in watchers
    "watchers": 1,  # execution id of a node that waits for this one, one entry per edge
    "relation_offsets": 1,  # per node and the end: its first entry in relation_launches
    "relation_launches": 1,  # execution id of a launch that a Free without an edge belongs to
}

#: kernel -> number in the blob; equals enum Kernel of native/exec/program.h
KERNEL_NUMBERS = {
    "InferShape": 0,
    "AllocMemory": 1,
    "AllocModelOutput": 2,
    "AllocWorkspace": 3,
    "Launch": 4,
    "HostCall": 5,
    "ExtentsTensor": 6,
    "CopyMemory": 7,
    "FreeMemory": 8,
    "FreeMemoryHoldAddr": 9,
    "SwitchNotify": 10,
    "BranchPivot": 11,
    "BranchDone": 12,
    "WaitAnyone": 13,
    "Enter": 14,
    "Exit": 15,
    "MoveSlot": 16,
    "AllocMemHost": 17,
    "CopyH2D": 18,
    "MakeSureTensorAtDevice": 19,
    "CalcDeviceCopySizes": 20,
    "AllocMemHbm": 21,
    "ShareH2DCopyResult": 22,
    "LaunchH2DCopy": 23,
    "CopyFlowLaunch": 24,
    "CalcCopyFlowAllocSizes": 25,
    "AllocCopyFlowHbm": 26,
    "PrepareCopyFlowResult": 27,
    "LaunchCopyFlowH2D": 28,
    "CopyD2H": 29,
    "EnsureTensorAtOutMemory": 30,
    "SwitchTurn": 31,
    "PassExtents": 32,
    "EmptySlot": 33,
    "GrowMemory": 34,
    "SendEvents": 35,
    "WaitEvents": 36,
    "AccessMemCrossStream": 37,
}


@dataclass(frozen=True, slots=True)
class Packed:
    """What `_native.Program` is made of.

    `symbols` maps each symbol to the number of its value; `tile_kernels` maps the id of each launch to the keys of its
    variants, `results` to the shapes of what it writes.
    """

    blob: bytes
    strings: tuple[str, ...]
    keys: tuple[str, ...]
    symbols: dict[str, int]
    tile_kernels: dict[int, tuple[str, ...]]
    results: dict[int, tuple[Shape, ...]]


def pack(graph: ExecuteGraph) -> Packed:
    """The packed Main container. UnsupportedError says which extent cannot be expressed; ValueError also which node
    no executor can run, and which relation is wrong."""
    _require_known(graph)
    return _Packer(graph).pack()


def _require_known(graph: ExecuteGraph) -> None:
    owners = {0, *(frame.owner for frame in graph.frames)}
    for node in graph.main:
        if node.kernel not in KERNEL_NUMBERS and node.kernel != "Tiling":
            raise ValueError(f"node {node.id}: no executor knows the kernel {node.kernel!r}")
        if node.owner not in owners:
            raise ValueError(f"node {node.id} ({node.kernel}) belongs to graph {node.owner}, which has no frame")


def _stream(node: ExecuteNode) -> int:
    return int(node.attributes.get("stream", 0))


class _Packer:
    def __init__(self, graph: ExecuteGraph) -> None:
        self.graph = graph
        self.order = execution_order(graph.main, graph.frames)
        self.values = ValueTable()
        self.rows: dict[str, list[tuple[int, ...]]] = {name: [] for name in TABLES}
        self.strings: dict[str, int] = {}
        self.keys: dict[str, int] = {}
        self.tilings = {node.outputs[0]: node for node in self.order if node.kernel == "Tiling"}
        self.launch_of_tiling: dict[int, int] = {}
        self.launch_group: list[int] = []
        self.slot_dims: dict[int, int] = {}
        self.tile_kernels: dict[int, tuple[str, ...]] = {}
        self.results: dict[int, tuple[Shape, ...]] = {}
        self.on_host = host_slots(self.order)
        self.slot_streams = {slot: _stream(node) for node in graph.main for slot in node.outputs}
        self.copies = CopyTables(graph)
        self.frames = {frame.owner: frame for frame in graph.frames}
        self.passed_dims: dict[int, int] = {}

    def pack(self) -> Packed:
        infers = sorted(
            (node for node in self.order if node.kernel == "InferShape"), key=lambda n: n.attributes["group"]
        )
        ranges = [self._bind(node) for node in infers]
        for guard in self.graph.guards:
            self._enter(guard.owner)
            place = f"{guard.reason} (node {guard.node!r})" if guard.node else guard.reason
            self.values.require(guard.left, guard.right, place)
        for limit in self.graph.limits:
            self._enter(limit.owner)
            self.values.at_most(limit.extent, limit.greatest, limit.what)
        for output in self.graph.outputs:
            is_object = self.graph.slots[output.slot].kind == "object"
            self._row("outputs", self._string(output.name), output.slot, int(is_object))
        for node in self.order:
            if node.kernel == "Launch":
                self._enter(node.owner)
                self._launch(node)
        for flow in self.copies.flows:
            self._copy_flow(flow)
        for copy in self.copies.tensors:
            self._enter(copy.owner)
            self._tensor_copy(copy)
        nodes = [node for node in self.order if node.kernel != "Tiling"]
        for node in nodes:
            self._enter(node.owner)
            self._node(node)
        self._frames(nodes)
        if any(map(_stream, nodes)):
            self.rows["node_streams"] = [(_stream(node),) for node in nodes]
        self.schedule = build_schedule(self.graph, nodes)
        for slot in self.graph.slots:
            self._slot(slot)
        return self._finish(ranges)

    def _frames(self, nodes: list[ExecuteNode]) -> None:
        entry = entries(nodes, self.graph.frames)
        sizes = Counter(entry.values())
        for number, node in enumerate(nodes):
            if entry.get(node.id) == node.id:
                self._row("frames", number, number + sizes[node.id])

    def _enter(self, owner: int) -> None:
        around = path(self.frames, owner)
        self.values.enter(tuple(self.frames[each].group if each else 0 for each in around))

    # ---- rows --------------------------------------------------------------------------------------------------

    def _row(self, table: str, *numbers: int) -> int:
        assert len(numbers) == TABLES[table], table
        self.rows[table].append(numbers)
        return len(self.rows[table]) - 1

    def _string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))

    def _list(self, table: str, numbers: list[int]) -> tuple[int, int]:
        begin = len(self.rows[table])
        self.rows[table].extend((number,) for number in numbers)
        return begin, begin + len(numbers)

    def _bind(self, node: ExecuteNode) -> tuple[int, int, int, int]:
        """Rows for the observed slots of one InferShape; begin and end of its dims and sources."""
        self._enter(node.owner)
        group = node.attributes["group"]
        dim_begin = dim = self.rows_of_dims()
        source_begin = len(self.rows["sources"])
        sources = []
        for position, (slot, shape) in enumerate(zip(node.inputs, node.attributes["shapes"], strict=True)):
            what = self._describe(node, position)
            rank = -1 if shape is None else len(shape)
            if group == 0:
                self._input(position, rank, dim)
            else:
                self._row("sources", slot, rank, dim)
            if shape is not None:
                sources.append((what, shape, dim))
                dim += len(shape)
        passed = node.attributes.get("passed", ())
        self.passed_dims[group] = dim
        sources.append((f"what is passed to node {node.compute_node!r}", passed, dim))
        dim += len(passed)
        self._dims = dim
        self.values.bind(group, sources)
        return dim_begin, dim, source_begin, len(self.rows["sources"])

    _dims = 0

    def rows_of_dims(self) -> int:
        return self._dims

    def _describe(self, node: ExecuteNode, position: int) -> str:
        if node.attributes["group"] == 0:
            return f"input {self.graph.inputs[position].name!r}"
        return f"result {self.graph.slots[node.inputs[position]].label!r} of node {node.compute_node!r}"

    def _input(self, position: int, rank: int, dim: int) -> None:
        graph_input = self.graph.inputs[position]
        default = -1
        if graph_input.default is not None:
            loads = (n for n in self.graph.init if n.kernel == "LoadWeight")
            default = next(n.outputs[0] for n in loads if n.attributes["weight"] == graph_input.default)
        is_object = graph_input.kind != "tensor" or graph_input.dtype.kind == "s"
        name = self._string(graph_input.name)
        self._row("inputs", name, graph_input.slot, rank, dim if rank >= 0 else -1, default, int(is_object))

    def _slot(self, slot: Slot) -> None:
        itemsize = 0 if slot.dtype is None else slot.dtype.size_bytes
        rank = -1 if slot.shape is None else len(slot.shape)
        first = self.slot_dims.get(slot.id, -1)
        label, is_on_host = self._string(slot.label), int(slot.id in self.on_host)
        stream = self.slot_streams.get(slot.id, 0)
        self._row("slots", SLOT_KINDS.index(slot.kind), rank, first, itemsize, label, is_on_host, stream)

    def _need_dims(self, slot_id: int) -> None:
        """The native side needs the shape of this slot as values."""
        slot = self.graph.slots[slot_id]
        if slot_id in self.slot_dims or slot.shape is None or slot.kind in ("object", "input"):
            return
        what = f"an extent of {slot.label!r}"
        values = [self.values.size(extent, what) for extent in slot.shape]
        self.slot_dims[slot_id] = self._list("dim_values", values)[0]

    def _launch(self, node: ExecuteNode) -> None:
        name = node.compute_node or node.attributes["key"]
        tiling = self.tilings[node.inputs[0]]
        words = [self.values.extent(word) for word in node.attributes["words"]]
        used = list(words)
        word_range = self._list("words", words)
        view_begin = len(self.rows["views"])
        for view in node.attributes["views"]:
            # Not used by the tiling, and so no reason to tile later than who embeds tensors behind its words.
            self._row("views", view.slot, self.values.size(view.offset_bytes, f"an offset of node {name!r}"))
        self.tile_kernels[node.id] = tuple(variant.key for variant in tiling.attributes["variants"])
        written = (self.graph.slots[v.slot].shape for v in node.attributes["views"] if "write" in v.access)
        self.results[node.id] = tuple(shape for shape in written if shape is not None)
        variant_begin = len(self.rows["variants"])
        for variant in tiling.attributes["variants"]:
            used += self._variant(variant, name)
        table, read = self._launch_table(tiling.attributes.get("table"))
        used += read
        launch = self._row(
            "launches",
            *(variant_begin, len(self.rows["variants"])),
            *word_range,
            *(view_begin, len(self.rows["views"])),
            self._string(node.attributes["key"]),
            node.inputs[0],
            self.copies.flow_of_tiling.get(node.inputs[0], -1),
            table,
        )
        self.launch_of_tiling[node.inputs[0]] = launch
        self.launch_group.append(max((self.values.group_of[v] for v in used), default=0))

    def _launch_table(self, table: LaunchTable | None) -> tuple[int, list[int]]:
        """The number of a table, -1 for none, and the values that it reads."""
        if table is None:
            return -1, []
        read = [self.values.extent(extent) for extent, _ in table.axes]
        ranges = [self._list("table_extents", list(extents)) for _, extents in table.axes]
        axis_begin = len(self.rows["table_axes"])
        for value, places in zip(read, ranges, strict=True):
            self._row("table_axes", value, *places)
        row_begin = len(self.rows["table_rows"])
        for row in table.rows:
            self._row("table_rows", *row)
        return self._row("launch_tables", axis_begin, len(self.rows["table_axes"]), row_begin), read

    def _variant(self, variant: Variant, name: str) -> list[int]:
        """Adds the row of one variant of the launch of node `name`; the values that it reads."""
        words = [self.values.extent(word) for word in variant.words]
        sizes = [
            self.values.size(extent, f"{what} of node {name!r}")
            for what, extent in (
                ("the block count", variant.blocks),
                ("the predicted cost", variant.cost_ps),
                ("the scratch size", variant.scratch_bytes),
                ("the traffic", variant.traffic_bytes),
                ("the cost of a task", variant.task_ps),
            )
        ]
        key = self.keys.setdefault(variant.key, len(self.keys))
        self._row("variants", key, *sizes, *self._list("words", words))
        return words + sizes

    def _node(self, node: ExecuteNode) -> None:
        operands = _OPERANDS[node.kernel](self, node)
        padded = (*operands, 0, 0, 0, 0)[:4]
        kernel, name = self._string(node.kernel), self._string(node.compute_node)
        self._row("nodes", KERNEL_NUMBERS[node.kernel], *padded, node.id, kernel, name)

    def _infer_shape(self, node: ExecuteNode) -> tuple[int, ...]:
        return (node.attributes["group"],)

    def _alloc_memory(self, node: ExecuteNode) -> tuple[int, ...]:
        label = self.graph.slots[node.outputs[0]].label
        return node.outputs[0], self._value(self.values.size(node.attributes["size_bytes"], f"the size of {label!r}"))

    def _alloc_output(self, node: ExecuteNode) -> tuple[int, ...]:
        slot = self.graph.slots[node.outputs[0]]
        assert slot.shape is not None and slot.dtype is not None
        self._need_dims(slot.id)
        size_bytes = dims.product(slot.shape) * slot.dtype.size_bytes
        value = self.values.size(size_bytes, f"the size of output {slot.label!r}")
        return slot.id, node.attributes["output"], self._value(value)

    def _alloc_workspace(self, node: ExecuteNode) -> tuple[int, ...]:
        return node.outputs[0], self.launch_of_tiling[node.inputs[0]]

    def _run_launch(self, node: ExecuteNode) -> tuple[int, ...]:
        workspace = node.inputs[1] if node.attributes["workspace"] else -1
        return self.launch_of_tiling[node.inputs[0]], workspace

    def _host_call(self, node: ExecuteNode) -> tuple[int, ...]:
        for slot in node.inputs:
            self._need_dims(slot)
        arguments = self._list("slot_lists", list(node.attributes["arguments"]))
        results = self._list("slot_lists", list(node.outputs))
        return (self._row("host_calls", node.attributes["host_op"], *arguments, *results),)

    def _extents_tensor(self, node: ExecuteNode) -> tuple[int, ...]:
        offset = self.values.size(node.attributes["offset_bytes"], "an offset of ExtentsTensor")
        begin, end = self._list("words", [self.values.extent(extent) for extent in node.attributes["values"]])
        return node.inputs[0], self._value(offset), begin, end

    def _copy_memory(self, node: ExecuteNode) -> tuple[int, ...]:
        size = self.values.size
        source, target = node.inputs
        source_offset = size(node.attributes["source_offset"], "the source offset of CopyMemory")
        target_offset = size(node.attributes["target_offset"], "the target offset of CopyMemory")
        size_bytes = size(node.attributes["size_bytes"], "the size of CopyMemory")
        return (self._row("copies", source, source_offset, target, target_offset, size_bytes),)

    def _copy_flow(self, flow: CopyFlow) -> None:
        self._row("copy_flows", self.launch_of_tiling[flow.tiling], flow.begin, flow.end)

    def _tensor_copy(self, copy: TensorCopy) -> None:
        label = self.graph.slots[copy.target].label
        size = self.values.size(copy.size_bytes, f"the size of {label!r}")
        self._row("tensor_copies", copy.source, copy.target, size, *self._list("positions", list(copy.positions)))

    def _copy_tensors(self, node: ExecuteNode) -> tuple[int, ...]:
        return self.copies.tensors_of(node)

    def _copy_chain(self, node: ExecuteNode) -> tuple[int, ...]:
        return (self.copies.tensor_of(node),)

    def _copy_flow_part(self, node: ExecuteNode) -> tuple[int, ...]:
        return (self.copies.flow_of(node),)

    def _copy_home(self, node: ExecuteNode) -> tuple[int, ...]:
        target = (*node.inputs, *node.outputs)[1]
        size = self.values.size(node.attributes["size_bytes"], f"the size of {self.graph.slots[target].label!r}")
        return node.inputs[0], target, self._value(size)

    def _free_memory(self, node: ExecuteNode) -> tuple[int, ...]:
        slot = self.graph.slots[node.released_slot]
        return slot.id, int(slot.kind == "object")

    def _switch(self, node: ExecuteNode) -> tuple[int, ...]:
        dtype = self.graph.slots[node.inputs[0]].dtype
        return node.inputs[0], node.attributes["branches"], int(dtype is not None and dtype.kind == "b")

    def _pivot(self, node: ExecuteNode) -> tuple[int, ...]:
        return (node.attributes["branch"],)

    def _point(self, node: ExecuteNode) -> tuple[int, ...]:
        return ()

    def _move(self, node: ExecuteNode) -> tuple[int, ...]:
        return node.inputs[0], node.inputs[1]

    def _turn_switch(self, node: ExecuteNode) -> tuple[int, ...]:
        turn, limit = (self.values.extent(node.attributes[name]) for name in ("turn", "limit"))
        return self._row("turns", turn, limit, node.attributes["trips"], node.attributes["condition"]), 2

    def _pass_extents(self, node: ExecuteNode) -> tuple[int, ...]:
        begin, end = self._list("words", [self.values.extent(extent) for extent in node.attributes["extents"]])
        turn = self.values.extent(node.attributes["turn"])
        return self.passed_dims[node.attributes["group"]] + node.attributes["first"], begin, end, self._value(turn)

    def _grow(self, node: ExecuteNode) -> tuple[int, ...]:
        label = self.graph.slots[node.inputs[0]].label
        names = ("size_bytes", "turn", "limit")
        values = (self.values.size(node.attributes[name], f"the {name} of {label!r}") for name in names)
        return node.inputs[0], *(self._value(value) for value in values)

    def _access(self, node: ExecuteNode) -> tuple[int, ...]:
        return node.inputs[0], node.outputs[0]

    def _events(self, node: ExecuteNode) -> tuple[int, ...]:
        return _stream(node), *self._list("event_lists", list(node.attributes["events"]))

    def _value(self, number: int) -> int:
        """Marks a node operand as a value so that `_finish` renumbers it (values are encoded as ~number until then)."""
        return ~number

    # ---- end ---------------------------------------------------------------------------------------------------

    def _finish(self, ranges: list[tuple[int, int, int, int]]) -> Packed:
        groups = max(len(ranges), 1)
        launches_of: list[list[int]] = [[] for _ in range(groups)]
        for launch, group in enumerate(self.launch_group):
            launches_of[group].append(launch)
        constants, code, starts, final = self.values.layout(groups)
        self.rows["constants"] = [(value,) for value in constants]
        self.rows["instructions"] = list(code)
        for group in range(groups):
            check_begin = len(self.rows["checks"])
            for check in self.values.checks[group] if group < len(self.values.checks) else ():
                texts = (self._string(text) for text in (check.place, check.text, check.note))
                self._row("checks", check.kind, final[check.observed], final[check.expected], *texts)
            check_end = len(self.rows["checks"])
            launches = self._list("group_launches", launches_of[group])
            instructions = (starts[group], starts[group + 1])
            self._row("groups", *instructions, check_begin, check_end, *launches, *ranges[group])
        self._renumber(final)
        symbols = {name: final[number] for name, number in self.values.symbol.items()}
        return Packed(self._blob(), tuple(self.strings), tuple(self.keys), symbols, self.tile_kernels, self.results)

    def _renumber(self, final: list[int]) -> None:
        rows = self.rows
        for table in ("dim_values", "words"):
            rows[table] = [(final[value],) for (value,) in rows[table]]
        rows["table_axes"] = [(final[value], *places) for value, *places in rows["table_axes"]]
        rows["views"] = [(slot, final[offset]) for slot, offset in rows["views"]]
        rows["variants"] = [(row[0], *(final[value] for value in row[1:-2]), *row[-2:]) for row in rows["variants"]]
        rows["turns"] = [(final[turn], final[limit], *slots) for turn, limit, *slots in rows["turns"]]
        rows["copies"] = [(s, final[so], t, final[to], final[n]) for s, so, t, to, n in rows["copies"]]
        rows["tensor_copies"] = [(s, t, final[n], *positions) for s, t, n, *positions in rows["tensor_copies"]]
        rows["nodes"] = [
            (row[0], *(_operand(row[0], position, row[1 + position], final) for position in range(4)), *row[5:])
            for row in rows["nodes"]
        ]

    def _blob(self) -> bytes:
        numbers = array("q", (MAGIC, FORMAT))
        for name in TABLES:
            if name in self.schedule.COLUMNS:
                column = getattr(self.schedule, name)
                numbers.append(len(column))
                numbers.frombytes(column.tobytes())
                continue
            numbers.append(len(self.rows[name]))
            for row in self.rows[name]:
                numbers.extend(row)
        return numbers.tobytes()


#: (kernel number, operand position) of operands that are values
_VALUE_OPERANDS = {
    (KERNEL_NUMBERS["AllocMemory"], 1),
    (KERNEL_NUMBERS["AllocModelOutput"], 2),
    (KERNEL_NUMBERS["ExtentsTensor"], 1),
    (KERNEL_NUMBERS["AllocMemHost"], 1),
    (KERNEL_NUMBERS["CopyD2H"], 2),
    (KERNEL_NUMBERS["EnsureTensorAtOutMemory"], 2),
    (KERNEL_NUMBERS["PassExtents"], 3),
    *((KERNEL_NUMBERS["GrowMemory"], position) for position in (1, 2, 3)),
}


def _operand(kernel: int, position: int, number: int, final: list[int]) -> int:
    return final[~number] if (kernel, position) in _VALUE_OPERANDS else number


_OPERANDS: dict[str, Callable[[Any, ExecuteNode], tuple[int, ...]]] = {
    "InferShape": _Packer._infer_shape,
    "AllocMemory": _Packer._alloc_memory,
    "AllocModelOutput": _Packer._alloc_output,
    "AllocWorkspace": _Packer._alloc_workspace,
    "Launch": _Packer._run_launch,
    "HostCall": _Packer._host_call,
    "ExtentsTensor": _Packer._extents_tensor,
    "CopyMemory": _Packer._copy_memory,
    "FreeMemory": _Packer._free_memory,
    "FreeMemoryHoldAddr": _Packer._free_memory,
    "SwitchNotify": _Packer._switch,
    "BranchPivot": _Packer._pivot,
    "BranchDone": _Packer._point,
    "WaitAnyone": _Packer._point,
    "Enter": _Packer._point,
    "Exit": _Packer._point,
    "MoveSlot": _Packer._move,
    "AllocMemHost": _Packer._alloc_memory,
    **dict.fromkeys(("CopyH2D", "MakeSureTensorAtDevice"), _Packer._copy_tensors),
    **dict.fromkeys(H2D_CHAIN, _Packer._copy_chain),
    **dict.fromkeys(("CopyFlowLaunch", *COPY_FLOW_CHAIN), _Packer._copy_flow_part),
    **dict.fromkeys(("CopyD2H", "EnsureTensorAtOutMemory"), _Packer._copy_home),
    "SwitchTurn": _Packer._turn_switch,
    "PassExtents": _Packer._pass_extents,
    "EmptySlot": _Packer._point,
    "GrowMemory": _Packer._grow,
    "SendEvents": _Packer._events,
    "WaitEvents": _Packer._events,
    "AccessMemCrossStream": _Packer._access,
}
