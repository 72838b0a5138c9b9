"""Builds an ExecuteGraph and derives every edge.

The caller states what runs (launches, host calls, copies) and which slots each reads and writes, in a valid sequential
order. From that the builder makes the order explicit: read after write, write after read and write after write become
control edges, a node waits for the InferShape groups that bind its symbols, and each allocated slot gets its guarder at
once, which is released after every user. Afterwards the order of the calls carries no meaning beyond priority.

Sub-graphs are built by `flow.py` in between; what is stated while one is open belongs to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from grainline.base import dims
from grainline.base.dims import Extent
from grainline.base.dtypes import DType
from grainline.execgraph.frames import Frame, lifted
from grainline.execgraph.ir import (
    RELEASE_INDEX,
    ExecuteGraph,
    ExecuteNode,
    Guard,
    HostOp,
    Input,
    LaunchTable,
    Limit,
    Output,
    Shape,
    Slot,
    Variant,
    View,
    Weight,
)
from grainline.execgraph.order import with_closed_frames

ABSENT = -1


@dataclass(frozen=True, slots=True)
class Result:
    """One result of a host call; `shape` None = rank unknown. New symbols in the shape are bound by the result."""

    dtype: DType | None
    shape: Shape | None
    label: str = ""


@dataclass(slots=True)
class _Use:
    """Who touched the contents of a slot so far."""

    writer: int | None = None
    readers: list[int] = field(default_factory=list)
    guarder: int | None = None


@dataclass(slots=True)
class Scope:
    """The sub-graph that nodes are added to. `entry`: the InferShape that its nodes wait for; `last_infer`: the newest
    one inside, or what must come before the first."""

    owner: int = 0
    entry: int = 0
    last_infer: int = 0


class GraphBuilder:
    """Collects nodes; `finish()` gives the graph. Methods that make a slot return its id, others the node id."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._slots: list[Slot] = []
        self._nodes: dict[int, dict[str, Any]] = {}
        self._containers: dict[str, list[int]] = {"init": [], "main": [], "deinit": []}
        self._inputs: list[Input] = []
        self._outputs: list[Output] = []
        self._weights: list[Weight] = []
        self._host_ops: list[HostOp] = []
        self._guards: list[Guard] = []
        self._limits: dict[tuple[Extent, int], Limit] = {}
        self._uses: dict[int, _Use] = {}
        self._binder: dict[str, int] = {}
        self._groups = 0
        self._owners = 0
        self._frames: dict[int, Frame] = {}
        self._inner_edges: set[tuple[int, int]] = set()
        self.scope = Scope()
        self._infer_inputs = self.infer_shape((), "inputs")

    # ---- slots -------------------------------------------------------------------------------------------------

    def input(
        self, name: str, dtype: DType, shape: Shape | None, *, default: Weight | None = None, kind: str = "tensor"
    ) -> int:
        """A graph input. Its new symbols are bound by the fed shape; `default` stands in for a missing feed."""
        slot = self._slot("input", name, dtype, shape)
        index = None if default is None else self._load(default)[1]
        self._inputs.append(Input(name, dtype, shape, slot, index, kind))
        for extent in shape or ():
            for symbol in dims.symbols(extent):
                self._binder.setdefault(symbol, self._infer_inputs)
        return slot

    def weight(
        self,
        label: str,
        dtype: DType,
        shape: tuple[int, ...],
        load: Callable[[], np.ndarray[Any, Any]] | None,
        *,
        pack: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]] | None = None,
        identity: str = "",
        layout: str = "dense",
    ) -> int:
        """A constant that Init loads. `dtype` and `shape` describe the packed array."""
        return self._load(Weight(label, dtype, shape, identity, layout, load, pack))[0]

    def memory(self, dtype: DType | None, shape: Shape | None, size_bytes: Extent, label: str = "") -> int:
        """A block of the run's allocator, allocated right before its first use and freed behind its last."""
        slot = self._slot("memory", label, dtype, shape)
        self._add("main", "AllocMemory", {"size_bytes": size_bytes}, label, outputs=(slot,), extents=(size_bytes,))
        self._guard(slot, label)
        return slot

    def model_output(self, name: str, dtype: DType, shape: Shape) -> int:
        """The memory of a returned array: dense, row-major."""
        slot = self._slot("output", name, dtype, shape)
        self._add("main", "AllocModelOutput", {"output": len(self._outputs)}, name, outputs=(slot,), extents=shape)
        self._outputs.append(Output(name, dtype, shape, slot))
        return slot

    def object_output(self, name: str, dtype: DType, slot: int, kind: str = "tensor") -> None:
        """A graph output that is the result of a host call, returned as it is, or a fed or constant object."""
        self._outputs.append(Output(name, dtype, self._slots[slot].shape, slot, kind))
        guarder, self._uses[slot].guarder = self._uses[slot].guarder, None
        if guarder is not None:
            self._containers["main"].remove(guarder)

    # ---- nodes -------------------------------------------------------------------------------------------------

    def launch(
        self,
        key: str,
        variants: Sequence[Variant],
        views: Sequence[View],
        words: Sequence[Extent] = (),
        compute_node: str = "",
        table: LaunchTable | None = None,
    ) -> int:
        """Runs one tile kernel. Arguments of the native function: addresses of views, words, words of the variant.

        `table`: what chooses among the variants, else their predicted times do.
        """
        extents = [*words, *(extent for variant in variants for extent in variant.extents)]
        attributes: dict[str, Any] = {"variants": tuple(variants)}
        if table is not None:
            attributes["table"] = table
            extents += [extent for extent, _ in table.axes]
        tiling = self._slot("tiling", compute_node or key)
        self._add("main", "Tiling", attributes, compute_node, outputs=(tiling,), extents=extents)
        workspace: tuple[int, ...] = ()
        if any(variant.scratch_bytes != 0 for variant in variants):
            workspace = (self._slot("workspace", compute_node or key),)
            self._add("main", "AllocWorkspace", {}, compute_node, inputs=(tiling,), outputs=workspace)
            self._guard(workspace[0], compute_node)
        node = self._add(
            "main",
            "Launch",
            {"key": key, "views": tuple(views), "words": tuple(words), "workspace": len(workspace)},
            compute_node,
            inputs=(tiling, *workspace, *dict.fromkeys(view.slot for view in views)),
            extents=[*words, *(view.offset_bytes for view in views)],
        )
        self._touch(node, workspace, ())
        self._touch(node, [v.slot for v in views if "read" in v.access], [v.slot for v in views if "write" in v.access])
        return node

    def host_call(
        self,
        name: str,
        call: Callable[..., tuple[Any, ...]] | None,
        arguments: Sequence[int],
        results: Sequence[Result],
        compute_node: str = "",
    ) -> tuple[int, ...]:
        """Runs a Python callable on the slots in `arguments` (ABSENT = None). Gives one object slot per result."""
        outputs = tuple(self._slot("object", result.label, result.dtype, result.shape) for result in results)
        present = tuple(dict.fromkeys(slot for slot in arguments if slot != ABSENT))
        self._host_ops.append(HostOp(name, call))
        shapes = [extent for slot in present for extent in self._slots[slot].shape or ()]
        node = self._add(
            "main",
            "HostCall",
            {"host_op": len(self._host_ops) - 1, "arguments": tuple(arguments)},
            compute_node or name,
            inputs=present,
            outputs=outputs,
            extents=shapes,
        )
        self._touch(node, present, ())
        for slot in outputs:
            self._guard(slot, compute_node or name)
            self._uses[slot].writer = node
        self._infer_results(outputs, compute_node or name)
        return outputs

    def extents_tensor(
        self, slot: int, values: Sequence[Extent], offset_bytes: Extent = 0, compute_node: str = ""
    ) -> int:
        """Writes extents as i64 into the block of `slot`."""
        attributes = {"values": tuple(values), "offset_bytes": offset_bytes}
        extents = [*values, offset_bytes]
        node = self._add("main", "ExtentsTensor", attributes, compute_node, inputs=(slot,), extents=extents)
        self._touch(node, (), (slot,))
        return node

    def copy(
        self,
        source: int,
        target: int,
        size_bytes: Extent,
        *,
        source_offset: Extent = 0,
        target_offset: Extent = 0,
        compute_node: str = "",
    ) -> int:
        """Copies bytes between two different slots."""
        attributes = {"size_bytes": size_bytes, "source_offset": source_offset, "target_offset": target_offset}
        extents = tuple(attributes.values())
        node = self._add("main", "CopyMemory", attributes, compute_node, inputs=(source, target), extents=extents)
        self._touch(node, (source,), (target,))
        return node

    def empty_slot(self, kind: str, dtype: DType | None, shape: Shape | None, label: str = "") -> int:
        """A slot of kind "memory" or "object" that holds nothing until something is moved into it."""
        slot = self._slot(kind, label, dtype, shape)
        self._add("main", "EmptySlot", {}, label, outputs=(slot,))
        self._guard(slot, label)
        return slot

    def move(self, source: int, target: int, compute_node: str = "") -> int:
        """What `source` owns becomes the property of `target`, whose own goes back."""
        node = self._add("main", "MoveSlot", {}, compute_node, inputs=(source, target))
        self._touch(node, (), (source, target))
        return node

    def grow(self, slot: int, size_bytes: Extent, turn: Extent, limit: Extent = 0, compute_node: str = "") -> int:
        """Makes room for `turn + 1` pieces in an empty slot's memory, or at once for `limit` (0: not known)."""
        attributes = {"size_bytes": size_bytes, "turn": turn, "limit": limit}
        extents = tuple(attributes.values())
        node = self._add("main", "GrowMemory", attributes, compute_node, inputs=(slot,), extents=extents)
        self._touch(node, (), (slot,))
        return node

    def pass_extents(
        self, group: int | None, first: int, extents: Sequence[Extent], turn: Extent = 0, compute_node: str = ""
    ) -> int:
        """Extents for the InferShape `group` (None: given later by `infer_shape(fed_by=...)`), see `ir.py`."""
        attributes = {"group": group, "first": first, "extents": tuple(extents), "turn": turn}
        return self._add("main", "PassExtents", attributes, compute_node, extents=(*extents, turn))

    def infer_shape(
        self, checked: tuple[int, ...], compute_node: str, *, passed: Shape = (), fed_by: Iterable[int] = ()
    ) -> int:
        """An InferShape: checks the shapes of results, binds their symbols and those of `passed`, which the PassExtents
        nodes `fed_by` give.

        Groups run in the order of their numbers: what two of them determine together belongs to the later one.
        """
        shapes = tuple(self._slots[slot].shape for slot in checked)
        names = [name for shape in (*shapes, passed) for extent in shape or () for name in dims.symbols(extent)]
        attributes: dict[str, Any] = {"group": self._groups, "shapes": shapes}
        if passed:
            attributes["passed"] = passed
        known = [dims.symbol(name) for name in names if name in self._binder]
        node = self._add("main", "InferShape", attributes, compute_node, inputs=checked, extents=known)
        self._nodes[node]["controls"].update({self.scope.last_infer, *fed_by} - {node})
        self.scope.last_infer = node
        for feeder in fed_by:
            self._nodes[feeder]["attributes"]["group"] = self._groups
        self._groups += 1
        for name in names:
            self._binder.setdefault(name, node)
        return node

    def binds(self, symbol: str) -> bool:
        """Whether a shape that was stated so far has the symbol."""
        return symbol in self._binder

    def kind_of(self, slot: int) -> str:
        return self._slots[slot].kind

    def guard(self, left: Extent, right: Extent, reason: str, node: str = "") -> None:
        """The run ends with an error unless the two extents are equal."""
        self._guards.append(Guard(left, right, reason, node, self.scope.owner))

    def limit(self, extent: Extent, greatest: int, what: str) -> None:
        """The run ends with an error when `extent` is greater than `greatest`."""
        owner = self.scope.owner
        self._limits.setdefault((extent, owner), Limit(extent, greatest, what, owner))

    def finish(self, output_order: Iterable[str] | None = None) -> ExecuteGraph:
        """The graph. `output_order` gives the outputs' names in the model's order."""
        infer = self._nodes[self._infer_inputs]
        infer["inputs"] = tuple(graph_input.slot for graph_input in self._inputs)
        infer["attributes"] = {"group": 0, "shapes": tuple(graph_input.shape for graph_input in self._inputs)}
        self._lift_edges()
        init, main, deinit = (tuple(map(self._node, self._containers[c])) for c in ("init", "main", "deinit"))
        graph = ExecuteGraph(
            self.name,
            tuple(self._inputs),
            tuple(self._outputs),
            tuple(self._slots),
            init,
            with_closed_frames(main) if self._frames else main,
            deinit,
            tuple(self._weights),
            tuple(self._host_ops),
            tuple(self._guards),
            tuple(self._limits.values()),
            frames=tuple(self._frames.values()),
        )
        return graph if output_order is None else with_output_order(graph, tuple(output_order))

    # ---- for flow.py -------------------------------------------------------------------------------------------

    @property
    def next_group(self) -> int:
        """The group of the next InferShape."""
        return self._groups

    def control(
        self,
        kernel: str,
        attributes: dict[str, Any],
        compute_node: str,
        *,
        inputs: tuple[int, ...] = (),
        extents: Iterable[Extent] = (),
    ) -> int:
        """A node of a control frame. Pivots and joins wait for nothing but what `inner_edge` says."""
        node = self._add("main", kernel, attributes, compute_node, inputs=inputs, extents=extents)
        if kernel in ("BranchPivot", "WaitAnyone"):
            self._nodes[node]["controls"].clear()
        return node

    def reads(self, node: int, slots: Iterable[int]) -> None:
        """The node reads these slots."""
        self._touch(node, slots, ())

    def order(self, earlier: int, later: int) -> None:
        """An edge, which means what `frames.lifted` says where it crosses the border of a sub-graph."""
        self._nodes[later]["controls"].add(earlier)

    def inner_edge(self, earlier: int, later: int) -> None:
        """An edge of a control frame itself, which stays as it is."""
        self.order(earlier, later)
        self._inner_edges.add((earlier, later))

    def again(self, done: int, join: int) -> None:
        """The end of a turn notifies the join at the head of its loop."""
        self._nodes[join]["attributes"]["again"] = (done,)

    def new_owner(self) -> int:
        self._owners += 1
        return self._owners

    def add_frame(self, frame: Frame) -> None:
        self._frames[frame.owner] = frame

    # ---- inside ------------------------------------------------------------------------------------------------

    def _slot(self, kind: str, label: str, dtype: DType | None = None, shape: Shape | None = None) -> int:
        slot = Slot(len(self._slots), kind, label, dtype, shape)
        self._slots.append(slot)
        self._uses[slot.id] = _Use()
        return slot.id

    def _add(
        self,
        container: str,
        kernel: str,
        attributes: dict[str, Any],
        compute_node: str,
        *,
        inputs: tuple[int, ...] = (),
        outputs: tuple[int, ...] = (),
        extents: Iterable[Extent] = (),
    ) -> int:
        node_id = len(self._nodes)
        names = {symbol for extent in extents for symbol in dims.symbols(extent)}
        controls = {self._binder.get(symbol, 0) for symbol in names}
        if container == "main" and node_id:
            controls.add(self.scope.entry)
        self._nodes[node_id] = dict(
            kernel=kernel,
            inputs=inputs,
            outputs=outputs,
            controls=controls,
            attributes=attributes,
            compute_node=compute_node,
            owner=self.scope.owner if container == "main" else 0,
        )
        self._containers[container].append(node_id)
        return node_id

    def _node(self, node_id: int) -> ExecuteNode:
        record = self._nodes[node_id]
        return ExecuteNode(id=node_id, **{**record, "controls": tuple(sorted(record["controls"]))})

    def _load(self, weight: Weight) -> tuple[int, int]:
        index = len(self._weights)
        self._weights.append(weight)
        slot = self._slot("weight", weight.label, weight.dtype, weight.shape)
        self._add("init", "LoadWeight", {"weight": index}, weight.label, outputs=(slot,))
        self._add("deinit", "ReleaseWeight", {RELEASE_INDEX: 0}, weight.label, inputs=(slot,))
        return slot, index

    def _guard(self, slot: int, compute_node: str) -> None:
        self._uses[slot].guarder = self._add("main", "FreeMemory", {RELEASE_INDEX: 0}, compute_node, inputs=(slot,))

    def _touch(self, node: int, reads: Iterable[int], writes: Iterable[int]) -> None:
        """Adds the order edges of a node that reads and writes these slots, and releases their guarders after it."""
        reads, writes = dict.fromkeys(reads), dict.fromkeys(writes)
        controls = self._nodes[node]["controls"]
        for slot in (*reads, *writes):
            use = self._uses[slot]
            if use.writer is not None:
                controls.add(use.writer)
            if use.guarder is not None:
                self._nodes[use.guarder]["controls"].add(node)
        for slot in writes:
            controls.update(self._uses[slot].readers)
            self._uses[slot].writer, self._uses[slot].readers = node, []
        for slot in reads:
            if slot not in writes:
                self._uses[slot].readers.append(node)
        controls.discard(node)

    def _infer_results(self, slots: tuple[int, ...], compute_node: str) -> None:
        """An InferShape behind a host call: checks its results, binds their symbols."""
        checked = tuple(slot for slot in slots if self._slots[slot].shape is not None)
        if not checked:
            return
        node = self.infer_shape(checked, compute_node)
        for slot in checked:
            # The check must be over before anyone looks at the memory, so it counts as the writer.
            use = self._uses[slot]
            if use.guarder is not None:
                self._nodes[use.guarder]["controls"].add(node)
            use.writer = node

    def _lift_edges(self) -> None:
        """Edges that cross the border of a sub-graph become edges of its entry and exit."""
        if not self._frames:
            return
        owner = {node_id: record["owner"] for node_id, record in self._nodes.items()}
        main = self._containers["main"]
        producer = {slot: node_id for node_id in main for slot in self._nodes[node_id]["outputs"]}
        controls: dict[int, set[int]] = {node_id: set() for node_id in main}
        for node_id in main:
            record = self._nodes[node_id]
            makers = (producer[slot] for slot in record["inputs"] if slot in producer)
            for earlier in {*record["controls"], *(maker for maker in makers if owner[maker] != owner[node_id])}:
                edge: tuple[int, int] | None = (earlier, node_id)
                if (earlier, node_id) not in self._inner_edges:
                    edge = lifted(self._frames, (earlier, owner[earlier]), (node_id, owner[node_id]))
                if edge is not None:
                    controls[edge[1]].add(edge[0])
        for node_id in main:
            self._nodes[node_id]["controls"] = controls[node_id]


def with_output_order(graph: ExecuteGraph, names: tuple[str, ...]) -> ExecuteGraph:
    """The same graph with its outputs in the order of `names` (a permutation of the outputs' names)."""
    order = {name: position for position, name in enumerate(names)}
    outputs = tuple(sorted(graph.outputs, key=lambda output: order[output.name]))
    moved = {old: outputs.index(output) for old, output in enumerate(graph.outputs)}
    main = tuple(
        replace(node, attributes={"output": moved[node.attributes["output"]]})
        if node.kernel == "AllocModelOutput"
        else node
        for node in graph.main
    )
    return replace(graph, outputs=outputs, main=main)
