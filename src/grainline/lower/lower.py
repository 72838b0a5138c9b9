"""Graph -> ExecuteGraph.

Each group of `fuse` becomes one launch, a host call, or copies. This file decides where values live:

* a graph output is produced directly in the returned array;
* a value whose only reader is a concat is produced inside the concat's buffer;
* a value that is read only through one transpose is stored in that order, if rows stay contiguous;
* views are addressing, never nodes; where no addressing exists (`Unaddressable`) the value is copied once, densely;
* what a launch writes is memory of its own: it reads nothing from there, and its results do not overlap. Kernels are
  planned on that (`PlannerOptions.may_alias`).

`Backend` is what lowering needs from planning and code generation; `pipeline.py` supplies it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from grainline.base.dims import Extent, product, symbol, symbols
from grainline.base.dtypes import F32, I8, I64
from grainline.base.errors import ModelError, OutOfMemory, UnsupportedError
from grainline.base.memory import memory_bytes
from grainline.execgraph.builder import ABSENT, GraphBuilder, Result
from grainline.execgraph.ir import ExecuteGraph, LaunchTable, Variant, View
from grainline.graph.interp import evaluate_node
from grainline.graph.ir import Constant, Graph, Node, Shape, Value
from grainline.graph.ops import is_view
from grainline.graph.passes.fuse import Group, fuse
from grainline.graph.scaled import ScaledIntegers, scaled_integers
from grainline.graph.symbols import free_symbols
from grainline.lower import layout as lay
from grainline.lower.access import Place, Unaddressable
from grainline.lower.flow import is_flow, lower_flow
from grainline.lower.kernel import GroupProgram, Sources, build_program
from grainline.tile.ir import TileProgram


@dataclass(frozen=True)
class Backend:
    """`plan(program)` gives the kernel key, the variants in the program's symbols and what chooses among them, if not
    their predicted times; `pack` packs a [1..., K, N] matrix into column panels of width `panel`; `refuses(program)`
    says why a chain of products is not realised, if so; `quads(k)` gives how an i8 matrix of `k` rows is packed where
    products with it are computed in integers, else None.
    """

    plan: Callable[[TileProgram], tuple[str, tuple[Variant, ...], LaunchTable | None]]
    pack: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
    panel: int
    refuses: Callable[[TileProgram], str | None]
    quads: Callable[[int], Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]] | None]


@dataclass(frozen=True)
class Lowered:
    """`notes` tells, per group in order, what it became, for `explain`."""

    graph: ExecuteGraph
    notes: tuple[str, ...]


def lower(graph: Graph, backend: Backend) -> Lowered:
    """The execution graph of `graph`. The compute graph is not changed."""
    return _Lowering(graph, backend).run()


class _Lowering:
    """One graph on its way. A sub-graph has a lowering of its own, with the builder of the graph around it."""

    def __init__(self, graph: Graph, backend: Backend, around: _Lowering | None = None) -> None:
        self.graph = graph
        self.backend = backend
        self.builder = GraphBuilder(graph.name) if around is None else around.builder
        self.readers = graph.consumers()
        self.producers = graph.producers()
        self.places: dict[str, Place] = {}
        self.dense: dict[str, Place] = {}
        self.packed: dict[str, Place] = {}
        self.quads: dict[str, tuple[Place, Place] | None] = {}
        self.objects: dict[str, int] = {}
        self.inside: dict[str, set[str]] = {}
        #: output of a concat -> where each of its inputs begins along the axis
        self.parts: dict[str, list[Extent]] = {}
        self.notes: list[str] = [] if around is None else around.notes
        self.output_of: dict[str, str] = {}
        self.slot_shapes: dict[int, Shape | None] = {} if around is None else around.slot_shapes
        self.own_slots: set[int] = set()

    def run(self) -> Lowered:
        for value in self.graph.inputs:
            self._input(value)
        groups = fuse(self.graph)
        compiled = {name for g in groups if g.nodes[0].op != "host" for name in g.values()}
        for name, value in self.graph.outputs:
            if value.name in compiled:
                self.output_of.setdefault(value.name, name)
        self._groups(groups)
        for name, value in self.graph.outputs:
            if self.output_of.get(value.name) != name:
                self._extra_output(name, value)
        graph = self.builder.finish([name for name, _ in self.graph.outputs])
        return Lowered(graph, tuple(self.notes))

    def lower_nodes(self) -> None:
        """The nodes of a sub-graph; whoever asks places its inputs and takes its outputs."""
        self._groups(fuse(self.graph))

    def _groups(self, groups: tuple[Group, ...]) -> None:
        for guard in self.graph.guards:
            self.builder.guard(guard.left, guard.right, guard.reason, guard.node)
        for group in groups:
            self._group(group)

    # ---- sub-graphs --------------------------------------------------------------------------------------------

    def child(self, graph: Graph, captured: Sequence[tuple[Value, Value]]) -> _Lowering:
        """The lowering of a sub-graph, `captured` being pairs (its input, the value of this graph)."""
        child = _Lowering(graph, self.backend, self)
        for inner, outer in captured:
            if outer.shape is None or outer.kind != "tensor" or outer.dtype.kind in "sc":
                child.objects[inner.name] = self.dense_slot(outer)
                continue
            child.places[inner.name] = self._place_or_copy(outer)
            if outer.name in self.objects:
                child.objects[inner.name] = self.objects[outer.name]
        return child

    def addressed(self, value: Value) -> Place:
        """Where the value lies."""
        return self._place_or_copy(value)

    def dense_place(self, value: Value) -> Place:
        return self._dense(value)

    def dense_slot(self, value: Value) -> int:
        """A slot that holds the value from its first byte on, or the object that it is."""
        return self._object(value)

    def owned_slot(self, value: Value) -> int | None:
        """The slot, if it is a block of this graph and holds nothing but the value."""
        place = self._place_or_copy(value)
        is_alone = place.slot in self.own_slots and self.slot_shapes.get(place.slot) == value.shape
        return place.slot if is_alone and place.layout == lay.dense(value.shape or ()) else None

    def store(self, value: Value, target: Place) -> None:
        """Copies the value to a place."""
        source = self._place_or_copy(value)
        if not source.layout.is_dense():
            return self._copy(value, source, target)
        item = value.dtype.size_bytes
        offsets = (source.layout.offset * item, target.layout.offset * item)
        self.builder.copy(
            source.slot, target.slot, product(value.shape or ()) * item, source_offset=offsets[0],
            target_offset=offsets[1], compute_node=value.name,
        )  # fmt: skip

    def new_memory(self, value: Value) -> Place:
        return self._memory(value, lay.dense(value.shape or ()))

    def put_place(self, value: Value, place: Place, shape: Shape | None = None) -> None:
        """Says where a value lies that this lowering did not compute; `shape`: what fills the slot."""
        self.places[value.name] = place
        if shape is not None:
            self.slot_shapes[place.slot] = shape

    def put_object(self, value: Value, slot: int) -> None:
        self.objects[value.name] = slot
        if value.shape is not None and value.kind == "tensor" and value.dtype.kind not in "sc":
            self.places[value.name] = Place(slot, value.dtype, lay.dense(value.shape))

    # ---- inputs, constants, outputs ----------------------------------------------------------------------------

    def _input(self, value: Value) -> None:
        default = self.graph.defaults.get(value.name)
        weight = None if default is None else self._weight(value, default)
        slot = self.builder.input(value.name, value.dtype, value.shape, default=weight, kind=value.kind)
        self.objects[value.name] = slot
        self.slot_shapes[slot] = value.shape
        if value.shape is not None and value.kind == "tensor":
            self.places[value.name] = Place(slot, value.dtype, lay.dense(value.shape))

    def _weight(self, value: Value, constant: Constant) -> Any:
        from grainline.execgraph.ir import Weight

        return Weight(value.name, value.dtype, _static(value), constant.identity, "dense", constant.load)

    def _constant(self, value: Value) -> Place:
        constant = self.graph.constants[value.name]
        slot = self.builder.weight(value.name, value.dtype, _static(value), constant.load, identity=constant.identity)
        self.slot_shapes[slot] = value.shape
        return Place(slot, value.dtype, lay.dense(_static(value)))

    def _extra_output(self, name: str, value: Value) -> None:
        """An output that no kernel writes directly: an input, a constant, a view, a second name, a host result."""
        made = self.objects.get(value.name)
        if made is not None and self.builder.kind_of(made) == "object":
            self.builder.object_output(name, value.dtype, made, value.kind)
            return
        if value.shape is None or value.kind != "tensor" or value.dtype.kind in "sc":
            self.builder.object_output(name, value.dtype, self._object(value), value.kind)
            return
        slot = self.builder.model_output(name, value.dtype, value.shape)
        source = self._place_or_copy(value)
        if source.layout.is_dense():
            size = product(value.shape) * value.dtype.size_bytes
            offset = source.layout.offset * value.dtype.size_bytes
            self.builder.copy(source.slot, slot, size, source_offset=offset, compute_node=name)
        else:
            self._copy(value, source, Place(slot, value.dtype, lay.dense(value.shape)))

    # ---- places ------------------------------------------------------------------------------------------------

    def place(self, value: Value) -> Place:
        """Where `value` lies, through views; copies where a view has no addressing."""
        found = self.places.get(value.name)
        if found is not None:
            return found
        if value.name in self.graph.constants:
            place = self._constant(value)
        else:
            node = self.producers[value.name]
            assert is_view(node.op), f"{value} is read before it is made"
            place = self._view_place(node)
        self.places[value.name] = place
        return place

    def _view_place(self, node: Node) -> Place:
        source = self.place(node.inputs[0])
        shape = node.output.shape or ()
        layout = _view_layout(node, source.layout, shape)
        if layout is None:
            source = self._dense(node.inputs[0])
            layout = _view_layout(node, source.layout, shape)
            layout = layout or _same_elements(node, shape, source.layout.offset)
        return Place(source.slot, source.dtype, layout)

    def _place_or_copy(self, value: Value) -> Place:
        return self.dense.get(value.name) or self.place(value)

    def _dense(self, value: Value) -> Place:
        """A dense copy of `value` (or the value itself if it is dense), made once."""
        if value.name not in self.dense:
            source = self.place(value)
            if source.layout.is_dense():
                self.dense[value.name] = source
            else:
                target = self._memory(value, lay.dense(value.shape or ()))
                self._copy(value, source, target)
                self.dense[value.name] = target
        return self.dense[value.name]

    def _copy(self, value: Value, source: Place, target: Place) -> None:
        """Launches the identity of `value` from `source` to `target`."""
        shape = value.shape or ()
        result = Value(f"{value.name}__copy", value.dtype, shape)
        node = Node("cast", (value,), (result,), {"to": value.dtype.name}, f"copy of {value.name}")
        group = Group(-1, "pointwise", shape, [node])
        self._launch(group, {value.name: source}, {result.name: target})

    def _memory(self, value: Value, layout: lay.Layout) -> Place:
        shape = value.shape or ()
        size = product(shape) * value.dtype.size_bytes
        slot = self.builder.memory(value.dtype, shape, size, value.name)
        self.own_slots.add(slot)
        self.slot_shapes[slot] = shape if layout.is_dense() else None
        return Place(slot, value.dtype, layout)

    def _object(self, value: Value) -> int:
        """The slot of `value` for a host call: dense, from the slot's first byte."""
        if value.name in self.objects:
            return self.objects[value.name]
        place = self._dense(value)
        if place.layout.offset != 0:
            target = self._memory(value, lay.dense(value.shape or ()))
            self._copy(value, place, target)
            place = self.dense[value.name] = target
        if self.slot_shapes.get(place.slot) == value.shape:
            self.objects[value.name] = place.slot
        else:
            target = self._memory(value, lay.dense(value.shape or ()))
            size = product(value.shape or ()) * value.dtype.size_bytes
            self.builder.copy(place.slot, target.slot, size, compute_node=value.name)
            self.objects[value.name] = target.slot
        return self.objects[value.name]

    # ---- groups ------------------------------------------------------------------------------------------------

    def _group(self, group: Group) -> None:
        node = group.nodes[0]
        if node.op == "host" and is_flow(node):
            lower_flow(self, node)
        elif node.op == "host":
            self._host(node)
        elif node.op == "concat":
            self._concat(node)
        elif group.kind == "single":
            self._extents(node)
        else:
            self._compiled(group)

    def _host(self, node: Node) -> None:
        arguments = [ABSENT if v.name == "" else self._object(v) for v in node.inputs]
        results = [Result(v.dtype, v.shape, v.name) for v in node.outputs]
        name = node.attributes["op_type"]
        extents = free_symbols(node)
        if extents:
            arguments.append(self.builder.memory(I64, (len(extents),), 8 * len(extents), "extents"))
            self.builder.extents_tensor(arguments[-1], [symbol(each) for each in extents], compute_node=node.name)
        call = partial(_call_host, node, extents)
        slots = self.builder.host_call(name, call, arguments, results, node.name or name)
        for value, slot in zip(node.outputs, slots, strict=True):
            self.objects[value.name] = slot
            if value.shape is not None and value.kind == "tensor" and value.dtype.kind not in "sc":
                self.places[value.name] = Place(slot, value.dtype, lay.dense(value.shape))
        self.notes.append(f"host {name} ({node.name}): {node.attributes['reason']}")

    def _extents(self, node: Node) -> None:
        place = self._target(node.output)
        assert place is not None
        self.builder.extents_tensor(place.slot, node.attributes["values"], place.layout.offset * 8, node.name)
        assert node.output.dtype == I64

    def _concat(self, node: Node) -> None:
        for value in dict.fromkeys(node.inputs):
            if value.name not in self.inside.get(node.output.name, ()):
                self._fill(node, value)
        self._concat_home(node)

    def _fill(self, node: Node, value: Value) -> None:
        """Copies `value` to every position it has in the concat."""
        source = self._place_or_copy(value)
        for position, item in enumerate(node.inputs):
            if item == value:
                self._copy(value, source, self._concat_part(node, position))

    def _concat_home(self, node: Node) -> Place:
        if node.output.name not in self.places:
            place = self._target(node.output) or self._memory(node.output, lay.dense(node.output.shape or ()))
            self.places[node.output.name] = place
        return self.places[node.output.name]

    def _concat_part(self, node: Node, position: int) -> Place:
        home = self._concat_home(node)
        axis = node.attributes["axis"]
        shape = node.inputs[position].shape or ()
        if node.output.name not in self.parts:
            lengths = ((v.shape or ())[axis] for v in node.inputs)
            self.parts[node.output.name] = list(accumulate(lengths, initial=0))
        start = self.parts[node.output.name][position]
        starts = tuple(start if a == axis else 0 for a in range(len(shape)))
        layout = lay.slice_(home.layout, starts, (1,) * len(shape), shape)
        assert layout is not None, "a concat's buffer has one stride per axis"
        return Place(home.slot, home.dtype, layout)

    def _compiled(self, group: Group) -> None:
        for stage in group.stages():
            self._bound(stage)
        targets = {v.name: t for n in group.nodes for v in n.outputs if (t := self._leaves(group, v))}
        self._launch(group, {}, targets)

    def _bound(self, group: Group) -> None:
        """A space that memory could not hold is an error, even where fusion would never store it."""
        volume = product(group.space)
        name = group.nodes[0].name or group.nodes[0].op
        greatest = memory_bytes() // max(1, group.nodes[0].output.dtype.size_bytes)
        if isinstance(volume, int) and volume > greatest:
            raise OutOfMemory(
                "a node works on more elements than memory holds", node=name,
                expected=f"at most {greatest}", found=f"{list(group.space)}",
            )  # fmt: skip
        if not isinstance(volume, int):
            self.builder.limit(volume, greatest, f"the number of elements of node {name!r}")

    def _leaves(self, group: Group, value: Value) -> Place | None:
        inside = {id(n) for n in group.nodes}
        outside = any(id(n) not in inside for n in self.readers.get(value.name, ()))
        return self._target(value) if outside or value.name in self.graph.output_names() else None

    def _target(self, value: Value) -> Place:
        """Chooses and remembers where a computed value is stored."""
        if value.name in self.places:
            return self.places[value.name]
        place = self._output_place(value) or self._place_in_concat(value)
        if place is None:
            perm = self._wanted_order(value)
            shape = value.shape or ()
            place = self._memory(value, lay.permuted(shape, perm) if perm else lay.dense(shape))
        self.places[value.name] = place
        return place

    def _output_place(self, value: Value) -> Place | None:
        name = self.output_of.get(value.name)
        if name is None:
            return None
        shape = value.shape or ()
        slot = self.builder.model_output(name, value.dtype, shape)
        self.slot_shapes[slot] = shape
        return Place(slot, value.dtype, lay.dense(shape))

    def _place_in_concat(self, value: Value) -> Place | None:
        readers = self.readers.get(value.name, ())
        if len(readers) != 1 or readers[0].op != "concat" or readers[0].inputs.count(value) != 1:
            return None
        node = readers[0]
        if not all(self.builder.binds(name) for extent in node.output.shape or () for name in symbols(extent)):
            return None  # nobody knows yet how large the concat is
        self.inside.setdefault(node.output.name, set()).add(value.name)
        return self._concat_part(node, node.inputs.index(value))

    def _wanted_order(self, value: Value) -> tuple[int, ...] | None:
        """The physical order that makes every reader's transpose a row-major view; None = row-major."""
        readers = self.readers.get(value.name, ())
        perms = {tuple(n.attributes["perm"]) if n.op == "transpose" else None for n in readers}
        if len(perms) != 1:
            return None
        (perm,) = perms
        return perm if perm is not None and perm[-1] == len(perm) - 1 else None

    def _launch(self, group: Group, known: Mapping[str, Place], targets: Mapping[str, Place]) -> None:
        copies = dict(known)
        sources = Sources(
            place=lambda v: copies.get(v.name) or self._place_or_copy(v),
            scalar=self._scalar,
            panels=self._panels,
            quads=self._quads,
            target=lambda v: targets.get(v.name),
            panel=self.backend.panel,
        )
        while True:
            try:
                built = build_program(group, sources)
                break
            except Unaddressable as refused:
                value = self._value_at(group, refused.access.place, copies)
                assert value.name not in copies, f"{value} has no addressing, dense as it is"
                target = self._memory(value, lay.dense(value.shape or ()))
                self._copy(value, copies.get(value.name) or self._place_or_copy(value), target)
                copies[value.name] = target
        reason = self.backend.refuses(built.program) if group.second is not None else None
        if reason is None:
            self._add_launch(group, built)
            return
        self.notes.append(f"two launches for a chain of products: {reason}")
        for stage in group.stages():
            self._compiled(stage)

    def _value_at(self, group: Group, place: Place, copies: Mapping[str, Place]) -> Value:
        """The operand of `group` that lies at `place`."""
        for node in group.nodes:
            for value in node.inputs:
                known = copies.get(value.name) or self.places.get(value.name)
                if known is place or self.dense.get(value.name) is place:
                    return value
        raise AssertionError("a result of the kernel has no addressing")

    def _add_launch(self, group: Group, built: GroupProgram) -> None:
        names = [n.name for n in group.nodes if n.name]
        label = names[0] if names else built.program.name
        try:
            key, variants, table = self.backend.plan(built.program)
        except UnsupportedError as refusal:
            raise UnsupportedError(refusal.sentence, node=label) from refusal
        views = [
            View(
                a.place.slot,
                a.place.layout.offset * a.place.dtype.size_bytes,
                "write" if a.write else "read",
            )
            for a in built.arguments
        ]
        read = {view.slot for view in views if view.access == "read"}
        assert all(view.slot not in read for view in views if view.access == "write"), f"{label} reads what it writes"
        self.builder.launch(key, variants, views, (), label, table)
        ops = " ".join(n.op for n in group.nodes)
        space = ", ".join(str(d) for d in group.space)
        self.notes.append(f"{key}: {group.kind} [{space}] <- {ops}")

    def _scalar(self, value: Value) -> Any:
        constant = self.graph.constants.get(value.name)
        if constant is None or any(d != 1 for d in value.shape or ()):
            return None
        return constant.load().reshape(-1)[0].item()

    def _panels(self, value: Value) -> Place | None:
        constant = self.graph.constants.get(value.name)
        shape = value.shape or ()
        if constant is None or any(d != 1 for d in shape[:-2]) or 0 in shape:
            return None
        if value.name not in self.packed:
            rows, columns = (int(d) for d in shape[-2:])  # type: ignore[arg-type]
            width = self.backend.panel
            panels = -(-columns // width)
            slot = self.builder.weight(
                value.name,
                value.dtype,
                (panels, rows, width),
                constant.load,
                pack=self.backend.pack,
                identity=constant.identity,
                layout=f"panels{width}",
            )
            self.packed[value.name] = Place(slot, value.dtype, lay.dense((panels, rows, width)))
        return self.packed[value.name]

    def _quads(self, value: Value) -> tuple[Place, Place] | None:
        """The integers and the column scales that a constant matrix is the product of."""
        constant = self.graph.constants.get(value.name)
        if constant is None:
            return None
        if value.name not in self.quads:
            found = scaled_integers(constant)
            self.quads[value.name] = None if found is None else self._pack_quads(value, found)
        return self.quads[value.name]

    def _pack_quads(self, value: Value, scaled: ScaledIntegers) -> tuple[Place, Place] | None:
        rows, columns = _static(value)[-2:]
        width, pack = self.backend.panel, self.backend.quads(rows)
        if pack is None:
            return None
        shape = (-(-columns // width), -(-rows // 4), width, 4)
        quads = self.builder.weight(
            value.name, I8, shape, scaled.integers.load, pack=pack, identity=scaled.integers.identity,
            layout=f"quads{width}",
        )  # fmt: skip
        scale = self.builder.weight(
            f"{value.name}__scale", F32, scaled.scale_shape, scaled.scale.load, identity=scaled.scale.identity
        )
        return Place(quads, I8, lay.dense(shape)), Place(scale, F32, lay.dense((scaled.scale_shape or (1,))[-1:]))


def _same_elements(node: Node, shape: tuple[Extent, ...], offset: Extent) -> lay.Layout:
    """A reshape of a dense value whose counts no algebra matches: a guard holds them equal in every run."""
    source = node.inputs[0].shape or ()
    if isinstance(product(source), int) and isinstance(product(shape), int):
        raise ModelError(
            "a reshape changes the number of elements", node=node.name or node.op, expected=f"{list(source)}",
            found=f"{list(shape)}",
        )  # fmt: skip
    return lay.dense(shape, offset)


def _call_host(node: Node, extents: tuple[str, ...], *arguments: Any) -> tuple[Any, ...]:
    """`extents` names what the last argument has, when there are any."""
    env = dict(zip(extents, arguments[-1].tolist(), strict=True)) if extents else {}
    return tuple(evaluate_node(node, list(arguments[: len(node.inputs)]), env))


def _static(value: Value) -> tuple[int, ...]:
    return tuple(int(d) for d in value.shape or ())  # type: ignore[arg-type]


def _view_layout(node: Node, source: lay.Layout, shape: tuple[Extent, ...]) -> lay.Layout | None:
    if node.op == "transpose":
        return lay.transpose(source, tuple(node.attributes["perm"]))
    if node.op == "expand":
        return lay.expand(source, shape)
    if node.op == "slice":
        return lay.slice_(source, tuple(node.attributes["starts"]), tuple(node.attributes["steps"]), shape)
    if node.op == "windows":
        axis = node.attributes["axis"]
        return lay.windows(
            source, axis, node.attributes["step"], node.attributes["dilation"], (shape[axis], shape[axis + 1])
        )
    return lay.reshape(source, shape)
