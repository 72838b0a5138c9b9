"""Group -> tile program.

A group becomes one program: its loops but the reduced axis (or the columns of a matrix product) are the root nest, its
nodes are operations in order, values from outside are loads and values that leave are stores. What the program means
is stated once, here; how it maps to lanes and threads is for `plan`.

The stages of a chain share all axes but the last. They are built over the joint space [shared..., last of the first
stage, last of the second]; "space", "rank" and the axes of nodes always mean those of the current stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from grainline.base.dims import Expr, Extent
from grainline.base.dtypes import BY_NAME, F32, I8, I64
from grainline.graph.ir import Node, Shape
from grainline.graph.ir import Value as GraphValue
from grainline.graph.passes.fuse import Group
from grainline.lower.access import Access, Place, Unaddressable, aligned, loops_of
from grainline.lower.layout import merge
from grainline.tile.build import ProgramBuilder, affine
from grainline.tile.build import Value as TileValue
from grainline.tile.ir import Affine, Axis, TileProgram, View

TILE_NAMES = {"where": "select"}
REDUCTIONS = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


@dataclass(frozen=True)
class Argument:
    """What the launch passes for one view of the program."""

    place: Place
    write: bool


@dataclass(frozen=True)
class GroupProgram:
    """What a group computes, and what its launch passes for each view of the program."""

    program: TileProgram
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Sources:
    """What a kernel asks of its surroundings.

    `place` finds where a value from outside lies; `scalar` gives the number of a one-element constant, or None;
    `panels` gives the packed place of a constant matrix [K, N], or None; `quads` that of its integers and the place of
    their scale per column, where it is made of such; `target` says where a result that leaves the group is stored, or
    None when it stays inside.
    """

    place: Callable[[GraphValue], Place]
    scalar: Callable[[GraphValue], Any]
    panels: Callable[[GraphValue], Place | None]
    quads: Callable[[GraphValue], tuple[Place, Place] | None]
    target: Callable[[GraphValue], Place | None]
    panel: int = 16


def build_program(group: Group, sources: Sources) -> GroupProgram:
    """The tile program of a compiled group. Raises Unaddressable when an operand must be copied first."""
    return _GroupBuilder(group, sources).build()


class _GroupBuilder:
    def __init__(self, group: Group, sources: Sources) -> None:
        self.group = group
        self.sources = sources
        self.stages = group.stages()
        self.rank = len(group.space)
        self.made = group.values()
        self.stage_of: dict[int, int] = {}
        self.accesses: dict[tuple[str, str], Access] = {}
        self.order: list[tuple[Access, str]] = []
        self.program = ProgramBuilder(_label(group))
        self.tiles: dict[str, TileValue] = {}
        self.roots: list[Axis] = []
        self.views: dict[int, tuple[View, list[int]]] = {}

    def build(self) -> GroupProgram:
        for node in self._each_node():
            _COLLECT.get(node.op, _collect_pointwise)(self, node)
        for node in self._each_node():
            self._collect_stores(node)
        self._nest()
        for node in self._each_node():
            self.tiles[node.output.name] = self._emit(node)
        for node in self._each_node():
            self._store(node)
        arguments = tuple(Argument(access.place, access.write) for access, _ in self.order)
        return GroupProgram(self.program.finish(), arguments)

    def _each_node(self) -> Iterator[Node]:
        """The nodes of all stages in order; the stage of a node is the current one while it is looked at."""
        for number, stage in enumerate(self.stages):
            self.stage = number
            self.space = stage.space
            self.column = self._column(stage)
            yield from stage.nodes

    def _column(self, stage: Group) -> int | None:
        """The axis of the joint space that the rows of a stage run over."""
        return self.joint(self.rank - 1) if stage.kind == "matmul" else stage.axis

    def joint(self, axis: int) -> int:
        """The axis of the joint space for one of the current stage."""
        return axis + self.stage if axis == self.rank - 1 else axis

    # ---- accesses ----------------------------------------------------------------------------------------------

    def _collect_stores(self, node: Node) -> None:
        for value in node.outputs:
            target = self.sources.target(value)
            if target is not None:
                access = aligned(target, self.rank)
                access.write = True
                self._add(("store", value.name), access)

    def _add(self, key: tuple[str, str], access: Access) -> Access:
        if key not in self.accesses:
            access.axes = {self.joint(axis): factors for axis, factors in access.axes.items()}
            self.stage_of[id(access)] = self.stage
            self.accesses[key] = access
            self.order.append((access, f"v{len(self.order)}"))
        return self.accesses[key]

    def add_external(self, value: GraphValue, shift: int = 0) -> None:
        """A load of a value from outside, right-aligned to the space less its last `shift` axes."""
        if value.name in self.made or self.sources.scalar(value) is not None:
            return
        access = aligned(self.sources.place(value), self.rank - shift)
        self._add(("load", self._load_key(value, shift)), access)

    def _load_key(self, value: GraphValue, shift: int) -> str:
        return f"{value.name}@{shift}@{self.stage}"

    # ---- loops and views ---------------------------------------------------------------------------------------

    def _nest(self) -> None:
        pinned = {self.joint(a) for node in self._each_node() for a in _pinned(node)}
        columns = self._columns()
        whole = set(columns)
        if self.group.kind == "matmul" and self.group.space[-2] == 1:
            whole.add(self.rank - 2)
        accesses = [access for access, _ in self.order]
        space = (*self.group.space, *(stage.space[-1] for stage in self.stages[1:]))
        self.loops = loops_of(space, accesses, whole, pinned)
        self._keep_unit_columns(accesses)
        self.axes: list[Axis] = []
        for position, loop in enumerate(self.loops):
            if loop.axis in columns:
                self.axes.append(self.program.axis("nd"[columns.index(loop.axis)], loop.extent))
            else:
                axis = self.program.root(f"r{position}", loop.extent)
                self.roots.append(axis)
                self.axes.append(axis)
        if not self.roots:
            self.roots.append(self.program.root("r", 1))
        for access, name in self.order:
            self.views[id(access)] = self._view(access, name)

    def _columns(self) -> list[int]:
        """The columns of all stages, as axes of the joint space."""
        found: list[int] = []
        for _ in self._each_node():
            if self.column is not None and self.column not in found:
                found.append(self.column)
        return found

    def _keep_unit_columns(self, accesses: list[Access]) -> None:
        """A column axis of extent 1 stays visible in results and in the right operand of a product."""
        products = {self.accesses.get(("right", n.output.name)) for n in self.group.nodes if n.op == "matmul"}
        for number, column in enumerate(self._columns()):
            for position, loop in enumerate(self.loops):
                if loop.axis != column or loop.extent != 1:
                    continue
                for access in accesses:
                    if self.stage_of[id(access)] == number and (access.write or access in products):
                        access.strides[position] = 1

    def _view(self, access: Access, name: str) -> tuple[View, list[int]]:
        """The view: the access' own axes first, then the loops that move it."""
        if access.panels is not None:
            dtype, layout = access.place.dtype, "quads" if access.place.dtype is I8 else "panels"
            view = self.program.view(name, dtype, access.panels, layout=layout, panel=self.sources.panel)
            return view, []
        moving = [i for i, stride in enumerate(access.strides) if stride != 0]
        shape = [e for e, _ in access.inner] + [self.loops[i].extent for i in moving]
        strides = [s for _, s in access.inner] + [access.strides[i] for i in moving]
        mode = "write" if access.write else "read"
        return self.program.view(name, access.place.dtype, shape, strides, access=mode), moving

    def index(self, access: Access, inner: list[Any] | None = None) -> tuple[View, list[Any]]:
        view, moving = self.views[id(access)]
        return view, [*(inner or []), *(self.axes[i] for i in moving)]

    def axis_of(self, space_axis: int) -> Axis | None:
        """The loop of a pinned or whole space axis; None when its extent is 1."""
        for loop, axis in zip(self.loops, self.axes, strict=True):
            if loop.axis == self.joint(space_axis):
                return axis
        return None

    # ---- operations --------------------------------------------------------------------------------------------

    def operand(self, value: GraphValue, shift: int = 0) -> TileValue:
        if value.name in self.tiles:
            return self.tiles[value.name]
        number = self.sources.scalar(value)
        if number is not None:
            return self.program.const(number, value.dtype)
        key = self._load_key(value, shift)
        if key not in self.tiles:
            self.tiles[key] = self.program.load(*self.index(self.accesses["load", key]))
        return self.tiles[key]

    def _emit(self, node: Node) -> TileValue:
        emit = _EMIT.get(node.op)
        if emit is not None:
            return emit(self, node)
        operands = [self.operand(v) for v in node.inputs]
        return self.program.elementwise(TILE_NAMES.get(node.op, node.op), *operands)

    def spread(self, tile: TileValue, axis: Axis | None = None) -> TileValue:
        """The same numbers as a tile over `axis` (the column axis), for values that do not vary along it."""
        axis = axis or self.axes[[loop.axis for loop in self.loops].index(self.column or 0)]
        if axis in tile.space:
            return tile
        inside = self.program.elementwise("ge", self.program.coord(axis), 0)
        return self.program.select(inside, tile, tile)

    def _store(self, node: Node) -> None:
        for value in node.outputs:
            access = self.accesses.get(("store", value.name))
            if access is None:
                continue
            view, items = self.index(access)
            tile = self.tiles[value.name]
            moving = self.views[id(access)][1]
            if self.column is not None and any(self.loops[i].axis == self.column for i in moving):
                tile = self.spread(tile)
            self.program.store(view, items, tile)


def _label(group: Group) -> str:
    names = dict.fromkeys(node.op for node in group.nodes)
    return "_".join([group.kind, *list(names)[:6]])


def _pinned(node: Node) -> set[int]:
    """Space axes whose coordinate the node needs."""
    if node.op == "iota":
        return {node.attributes["axis"]}
    if node.op == "pad":
        shape = node.inputs[0].shape or ()
        out = node.output.shape or ()
        before = node.attributes["before"]
        return {a for a, d in enumerate(shape) if before[a] != 0 or out[a] != d}
    return set()


# ---- one function per operator family: what it reads, and what it computes --------------------------------------


def _collect_pointwise(kernel: _GroupBuilder, node: Node) -> None:
    for value in node.inputs:
        kernel.add_external(value)


def _nothing(kernel: _GroupBuilder, node: Node) -> None:
    del kernel, node


def _emit_cast(kernel: _GroupBuilder, node: Node) -> TileValue:
    return kernel.program.cast(kernel.operand(node.inputs[0]), BY_NAME[node.attributes["to"]])


def _emit_reduce(kernel: _GroupBuilder, node: Node) -> TileValue:
    axis = kernel.axis_of(node.attributes["axes"][0])
    operand = kernel.operand(node.inputs[0])
    assert axis is not None
    return kernel.program.reduce(REDUCTIONS[node.attributes["kind"]], kernel.spread(operand), axis)


def _emit_cumsum(kernel: _GroupBuilder, node: Node) -> TileValue:
    axis = kernel.axis_of(node.attributes["axis"])
    assert axis is not None
    operand = kernel.spread(kernel.operand(node.inputs[0]))
    return kernel.program.scan(operand, axis, exclusive=node.attributes["exclusive"])


def _emit_iota(kernel: _GroupBuilder, node: Node) -> TileValue:
    p, dtype = kernel.program, node.output.dtype
    start, step = node.attributes["start"], node.attributes["step"]
    axis = kernel.axis_of(node.attributes["axis"])
    number = _number(kernel, start, dtype)
    if axis is None:
        return number
    return number + p.cast(p.coord(axis), dtype) * _number(kernel, step, dtype)


def _number(kernel: _GroupBuilder, value: Any, dtype: Any) -> TileValue:
    if isinstance(value, Expr):
        return kernel.program.cast(kernel.program.extent(value), dtype)
    return kernel.program.const(value, dtype)


def _emit_extents(kernel: _GroupBuilder, node: Node) -> TileValue:
    return kernel.program.extent(node.attributes["values"][0])


def _collect_gather(kernel: _GroupBuilder, node: Node) -> None:
    data, indices = node.inputs
    axis, count = node.attributes["axis"], len(indices.shape or ())
    place = kernel.sources.place(data)
    access = Access(place, {})
    for position, factors in enumerate(place.layout.axes):
        if position != axis:
            access.axes[position if position < axis else position + count - 1] = factors
    extent = (data.shape or ())[axis]
    access.inner = [(extent, _single_stride(access, place.layout.axes[axis]))]
    kernel._add(("gather", node.output.name), access)
    kernel.add_external(indices, kernel.rank - axis - count)


def _single_stride(access: Access, factors: tuple[Any, ...]) -> Extent:
    single = merge(list(factors))
    if len(single) > 1:
        raise Unaddressable(access)
    return single[0][1] if single else 0


def _wrapped(kernel: _GroupBuilder, index: TileValue, extent: Extent) -> TileValue:
    """A possibly negative index as an i64 from the start of the axis."""
    p = kernel.program
    wide = p.cast(index, I64)
    size = p.extent(extent) if isinstance(extent, Expr) else p.const(extent, I64)
    return p.select(p.elementwise("lt", wide, 0), wide + size, wide)


def _emit_gather(kernel: _GroupBuilder, node: Node) -> TileValue:
    data, indices = node.inputs
    axis, count = node.attributes["axis"], len(indices.shape or ())
    index = kernel.operand(indices, kernel.rank - axis - count)
    item = _wrapped(kernel, index, (data.shape or ())[axis])
    view, items = kernel.index(kernel.accesses["gather", node.output.name], [item])
    return kernel.program.load(view, items, bounds="error")


def _collect_gather_nd(kernel: _GroupBuilder, node: Node) -> None:
    data, *indices = node.inputs
    place = kernel.sources.place(data)
    trailing = len(data.shape or ()) - len(indices)
    access = Access(place, {})
    for position in range(len(indices), len(data.shape or ())):
        access.axes[kernel.rank - trailing + position - len(indices)] = place.layout.axes[position]
    access.inner = [((data.shape or ())[k], _single_stride(access, place.layout.axes[k])) for k in range(len(indices))]
    kernel._add(("gather", node.output.name), access)
    for value in indices:
        kernel.add_external(value, trailing)


def _emit_gather_nd(kernel: _GroupBuilder, node: Node) -> TileValue:
    data, *indices = node.inputs
    shape: Shape = data.shape or ()
    trailing = len(shape) - len(indices)
    items = [_wrapped(kernel, kernel.operand(v, trailing), shape[k]) for k, v in enumerate(indices)]
    view, rest = kernel.index(kernel.accesses["gather", node.output.name], items)
    return kernel.program.load(view, rest, bounds="error")


def _collect_pad(kernel: _GroupBuilder, node: Node) -> None:
    place = kernel.sources.place(node.inputs[0])
    moved = sorted(_pinned(node))
    access = Access(place, {})
    for position, factors in enumerate(place.layout.axes):
        if position not in moved:
            access.axes[position] = factors
    shape = node.inputs[0].shape or ()
    access.inner = [(shape[a], _single_stride(access, place.layout.axes[a])) for a in moved]
    kernel._add(("pad", node.output.name), access)


def _emit_pad(kernel: _GroupBuilder, node: Node) -> TileValue:
    p, value = kernel.program, node.attributes["value"]
    shape = node.inputs[0].shape or ()
    items: list[Any] = []
    inside: TileValue | None = None
    for a in sorted(_pinned(node)):
        axis, before = kernel.axis_of(a), node.attributes["before"][a]
        items.append(affine((axis, 1), offset=-before) if axis is not None else Affine((), -before))
        if value != 0:
            place = p.const(0, I64) if axis is None else p.coord(axis)
            place = place - _number(kernel, before, I64)
            size = _number(kernel, shape[a], I64)
            here = p.elementwise("and", place >= 0, place < size)
            inside = here if inside is None else p.elementwise("and", inside, here)
    view, rest = kernel.index(kernel.accesses["pad", node.output.name], items)
    loaded = p.load(view, rest, bounds="zero")
    return loaded if inside is None else p.select(inside, loaded, p.const(value, loaded.dtype))


def _collect_matmul(kernel: _GroupBuilder, node: Node) -> None:
    left, right = node.inputs
    rank = kernel.rank
    k_extent = (left.shape or ())[-1]
    if left.name not in kernel.made:
        a = aligned(kernel.sources.place(left), rank)
        k_stride = _single_stride(a, a.axes.pop(rank - 1, ()))
        if k_stride != 1 and k_extent != 1:
            raise Unaddressable(a)
        a.inner = [(k_extent, k_stride)]
        kernel._add(("left", node.output.name), a)
    quads = kernel.sources.quads(right)
    if quads is not None:
        packed, scale = quads
        kernel._add(("quads", node.output.name), Access(packed, {}, panels=(k_extent, kernel.space[-1])))
        kernel._add(("scale", node.output.name), aligned(scale, rank))
        return
    packed = kernel.sources.panels(right)
    if packed is not None:
        b = Access(packed, {}, panels=(k_extent, kernel.space[-1]))
    else:
        b = aligned(kernel.sources.place(right), rank)
        if kernel.space[-1] != 1 and all(stride == 0 for _, stride in b.axes.get(rank - 1, ())):
            raise Unaddressable(b)
        b.inner = [(k_extent, _single_stride(b, b.axes.pop(rank - 2, ())))]
    kernel._add(("panels" if packed is not None else "right", node.output.name), b)


def _emit_matmul(kernel: _GroupBuilder, node: Node) -> TileValue:
    p, name = kernel.program, node.output.name
    k, a = _left_operand(kernel, node)
    if ("quads", name) in kernel.accesses:
        view, _ = kernel.views[id(kernel.accesses["quads", name])]
        integers = p.load(view, (k, kernel.axis_of(kernel.rank - 1)))
        return p.mma(a, p.cast(integers, F32), k) * p.load(*kernel.index(kernel.accesses["scale", name]))
    if ("panels", name) in kernel.accesses:
        view, _ = kernel.views[id(kernel.accesses["panels", name])]
        b = p.load(view, (k, kernel.axis_of(kernel.rank - 1)))
    else:
        view, items = kernel.index(kernel.accesses["right", name], [k])
        b = p.load(view, items)
    return p.mma(a, b, k)


def _left_operand(kernel: _GroupBuilder, node: Node) -> tuple[Axis, TileValue]:
    """The contracted axis and the tile over it: loaded as [k, roots...], or the rows of the stage before."""
    left = node.inputs[0]
    if left.name in kernel.made:
        axis = kernel.axes[[loop.axis for loop in kernel.loops].index(kernel.rank - 1)]
        return axis, kernel.spread(kernel.tiles[left.name], axis)
    k = kernel.program.axis("k", (left.shape or ())[-1])
    view, items = kernel.index(kernel.accesses["left", node.output.name], [k])
    return k, kernel.program.load(view, items)


_COLLECT: dict[str, Callable[[_GroupBuilder, Node], None]] = {
    "iota": _nothing,
    "extents": _nothing,
    "gather": _collect_gather,
    "gather_nd": _collect_gather_nd,
    "pad": _collect_pad,
    "matmul": _collect_matmul,
}

_EMIT: dict[str, Callable[[_GroupBuilder, Node], TileValue]] = {
    "cast": _emit_cast,
    "reduce": _emit_reduce,
    "cumsum": _emit_cumsum,
    "iota": _emit_iota,
    "extents": _emit_extents,
    "gather": _emit_gather,
    "gather_nd": _emit_gather_nd,
    "pad": _emit_pad,
    "matmul": _emit_matmul,
}
