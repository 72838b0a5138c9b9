"""Builds tile programs that read like the mathematics.

    p = ProgramBuilder("softmax")
    r, n = p.root("rows", M), p.axis("n", N)
    x, y = p.view("x", F32, (M, N)), p.view("y", F32, (M, N), access="write")
    t = p.load(x, (r, n))
    e = p.exp(t - p.max(t, n))
    p.store(y, (r, n), e / p.sum(e, n))
    program = p.finish()

`Value` wraps a `Tile` and carries the operators. Numbers mix with values and take the value's element type. An index
item is an axis, an extent, an `Affine` (see `affine`), or a `Value` of dtype i64 that is computed at run time.
`x.at(i, j)` is an element of a tile. A loop is a function of the carried values:

    k = p.axis("k", K)
    total, top = p.serial(k, (p.const(0.0), p.const(-inf)), lambda total, top: (total + row(k), p.max(top, row(k))))

`finish()` verifies the program and returns it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from grainline.base.dims import Expr, row_major_strides
from grainline.base.dtypes import BOOL, F32, I64, DType
from grainline.tile.ir import (
    COMPARISONS,
    ELEMENTWISE,
    UNORDERED,
    Affine,
    Axis,
    Operation,
    Region,
    Tile,
    TileProgram,
    View,
)


def affine(*terms: tuple[Axis, int | Expr], offset: int | Expr = 0) -> Affine:
    """offset + sum of coefficient * axis, for index positions that are not a single axis."""
    return Affine(tuple(terms), offset)


def as_affine(item: Any) -> Affine:
    """The affine index that an axis, an extent or an `Affine` stands for."""
    if isinstance(item, Affine):
        return item
    if isinstance(item, Axis):
        return Affine(((item, 1),))
    return Affine((), item)


def join_spaces(spaces: Sequence[tuple[Axis, ...]]) -> tuple[Axis, ...]:
    """Union of index spaces in order of first appearance."""
    return tuple(dict.fromkeys(axis for space in spaces for axis in space))


class Value:
    """A tile under construction. `a + b`, `a < b`, `-a` ... append operations to the builder."""

    __slots__ = ("builder", "tile")

    def __init__(self, tile: Tile, builder: ProgramBuilder) -> None:
        self.tile = tile
        self.builder = builder

    @property
    def dtype(self) -> DType:
        return self.tile.dtype

    @property
    def space(self) -> tuple[Axis, ...]:
        return self.tile.space

    def __add__(self, other: Any) -> Value:
        return self.builder.elementwise("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return self.builder.elementwise("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return self.builder.elementwise("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return self.builder.elementwise("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return self.builder.elementwise("mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return self.builder.elementwise("mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return self.builder.elementwise("div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return self.builder.elementwise("div", other, self)

    def __neg__(self) -> Value:
        return self.builder.elementwise("neg", self)

    def __lt__(self, other: Any) -> Value:
        return self.builder.elementwise("lt", self, other)

    def __le__(self, other: Any) -> Value:
        return self.builder.elementwise("le", self, other)

    def __gt__(self, other: Any) -> Value:
        return self.builder.elementwise("gt", self, other)

    def __ge__(self, other: Any) -> Value:
        return self.builder.elementwise("ge", self, other)

    def __and__(self, other: Any) -> Value:
        return self.builder.elementwise("and", self, other)

    def __or__(self, other: Any) -> Value:
        return self.builder.elementwise("or", self, other)

    def at(self, *index: Any, bounds: str = "assume") -> Value:
        """The elements at `index`, one item per axis of the tile; `bounds` "zero" gives 0 outside."""
        return self.builder.extract(self, index, bounds)

    def __repr__(self) -> str:
        return f"{self.tile!r}:{self.dtype}{list(self.space)}"


class ProgramBuilder:
    """Appends operations in SSA order. Every elementwise name of `ir.ELEMENTWISE` is also a method."""

    def __init__(self, name: str, scope: str = "automatic") -> None:
        self.name = name
        self.scope = scope
        self._roots: list[Axis] = []
        self._loops: list[Axis] = []
        self._views: list[View] = []
        self._body: list[Operation] = []
        self._next_id = 0

    def root(self, label: str, extent: int | Expr) -> Axis:
        """One more root axis, innermost so far."""
        axis = Axis(label, extent)
        self._roots.append(axis)
        return axis

    def parallel(self, *domain: tuple[str, int | Expr]) -> tuple[Axis, ...]:
        """The root nest at once: one axis per (label, extent), outermost first."""
        return tuple(self.root(label, extent) for label, extent in domain)

    def axis(self, label: str, extent: int | Expr) -> Axis:
        """A tile axis, or the axis of a loop."""
        return Axis(label, extent)

    def view(
        self,
        name: str,
        dtype: DType,
        shape: Sequence[int | Expr],
        strides: Sequence[int | Expr] | None = None,
        access: str = "read",
        layout: str = "strided",
        panel: int = 0,
    ) -> View:
        """The next buffer argument; dense row-major unless `strides` (in elements) says otherwise."""
        shape = tuple(shape)
        if layout != "strided":
            steps: tuple[int | Expr, ...] = ()
        else:
            steps = row_major_strides(shape) if strides is None else tuple(strides)
        view = View(name, dtype, shape, steps, access, layout, panel)
        self._views.append(view)
        return view

    def const(self, value: float | int | bool, dtype: DType = F32) -> Value:
        return self._append("const", (), dtype, (), attributes={"value": value})

    def coord(self, axis: Axis) -> Value:
        """The i64 coordinate of an axis: scalar for a root or loop axis, else a tile over it (iota)."""
        return self._append("coord", (), I64, () if axis in self._bound else (axis,), axis=axis)

    def map(self, space: Sequence[Axis], body: Callable[..., Value]) -> Value:
        """The tile over `space` whose element at each place is `body` of the coordinates."""
        return self.splat(body(*(self.coord(axis) for axis in space)), space)

    def splat(self, value: Value, space: Sequence[Axis]) -> Value:
        """`value` over the axes of `space` too."""
        joined = join_spaces([tuple(space), value.space])
        return value if joined == value.space else self._append("splat", (value.tile,), value.dtype, joined)

    def extract(self, value: Value, index: Sequence[Any], bounds: str = "assume") -> Value:
        """The elements of a tile at `index`, one item per axis of its space."""
        items = tuple(self._index(item) for item in index)
        space, attributes = self._space_of(items), {"bounds": bounds}
        return self._append("extract", (value.tile,), value.dtype, space, index=items, attributes=attributes)

    def gather(self, value: Value, axis: Axis, index: Value, fallback: Any = 0) -> Value:
        """`value` at `index` along `axis`; `fallback` where the index lies outside."""
        items = [index if other is axis else other for other in value.space]
        inside = (index >= 0) & (index < self.extent(axis.extent))
        return self.select(inside, value.at(*items, bounds="zero"), fallback)

    def serial(self, axis: Axis, initial: Sequence[Value], body: Callable[..., Any]) -> tuple[Value, ...]:
        """Runs `body` for every coordinate of `axis` in order; it takes the carried values and returns the next."""
        return self._loop("serial", axis, initial, body, {})

    def pipeline(
        self, axis: Axis, initial: Sequence[Value], body: Callable[..., Any], stages: int, initiation_interval: int = 1
    ) -> tuple[Value, ...]:
        """A serial loop whose body is cut into `stages` by `stage`."""
        attributes = {"stages": stages, "initiation_interval": initiation_interval}
        return self._loop("pipeline", axis, initial, body, attributes)

    def stage(self, label: str) -> None:
        """Cuts the body of a pipeline."""
        self._body.append(Operation("stage", (), None, attributes={"label": label}))

    def extent(self, value: int | Expr) -> Value:
        return self._append("extent", (), I64, (), attributes={"value": value})

    def load(self, view: View, index: Sequence[Any], bounds: str = "assume") -> Value:
        items = tuple(self._index(item) for item in index)
        return self._append(
            "load", (), view.dtype, self._space_of(items), view=view, index=items, attributes={"bounds": bounds}
        )

    def store(self, view: View, index: Sequence[Any], value: Any, bounds: str = "assume") -> None:
        items = tuple(self._index(item) for item in index)
        operand = self._value(value, view.dtype)
        self._body.append(
            Operation("store", (operand.tile,), None, view=view, index=items, attributes={"bounds": bounds})
        )

    def elementwise(self, op: str, *operands: Any) -> Value:
        """Any operation of `ir.ELEMENTWISE` but cast; numbers take the element type of the other operands."""
        if op not in ELEMENTWISE or op == "cast":
            raise ValueError(f"{op!r} is not an elementwise operation")
        if op == "select":
            condition, a, b = operands
            dtype = _common_dtype((a, b))
            values = [self._value(condition, BOOL), self._value(a, dtype), self._value(b, dtype)]
        else:
            dtype = _common_dtype(operands)
            values = [self._value(item, dtype) for item in operands]
        result = BOOL if op in COMPARISONS else dtype
        space = join_spaces([value.space for value in values])
        return self._append(op, tuple(value.tile for value in values), result, space)

    def cast(self, value: Value, to: DType) -> Value:
        if value.dtype == to:
            return value
        return self._append("cast", (value.tile,), to, value.space)

    def reduce(
        self, kind: str, value: Value, axis: Axis, init: float | int | None = None, policy: str = UNORDERED
    ) -> Value:
        """Folds `value` over `axis`. A given `init` enters once; otherwise an empty axis gives the identity."""
        neutral = neutral_element(kind, value.dtype) if init is None else init
        attributes = {"kind": kind, "init": neutral, "use_init": init is not None, "policy": policy}
        space = tuple(a for a in value.space if a is not axis)
        return self._append("reduce", (value.tile,), value.dtype, space, axis=axis, attributes=attributes)

    def scan(self, value: Value, axis: Axis, exclusive: bool = False) -> Value:
        """Running sums of `value` along `axis`, in order."""
        attributes = {"exclusive": exclusive}
        return self._append("scan", (value.tile,), value.dtype, value.space, axis=axis, attributes=attributes)

    def sum(self, value: Value, axis: Axis) -> Value:
        return self.reduce("add", value, axis)

    def mean(self, value: Value, axis: Axis) -> Value:
        count = self.cast(self.extent(axis.extent), value.dtype)
        return self.reduce("add", value, axis) / count

    def max(self, value: Value, other: Any) -> Value:
        """Reduction over an axis, or the elementwise maximum with another value."""
        return self._extremum("max", value, other)

    def min(self, value: Value, other: Any) -> Value:
        return self._extremum("min", value, other)

    def mma(self, a: Value, b: Value, axis: Axis, skips_hidden: bool = False) -> Value:
        """sum over `axis` of a * b. skips_hidden: what a 0 chosen by a `select` meets in b does not count, NaN too."""
        attributes = {"skips_hidden": True} if skips_hidden else {}
        space = tuple(x for x in join_spaces([a.space, b.space]) if x is not axis)
        return self._append("mma", (a.tile, b.tile), a.dtype, space, axis=axis, attributes=attributes)

    def finish(self) -> TileProgram:
        from grainline.tile.verify import verify

        program = TileProgram(self.name, tuple(self._views), tuple(self._roots), tuple(self._body), self.scope)
        verify(program)
        return program

    def __getattr__(self, op: str) -> Any:
        if op not in ELEMENTWISE and op.rstrip("_") not in ELEMENTWISE:
            raise AttributeError(op)
        return lambda *operands: self.elementwise(op.rstrip("_"), *operands)

    @property
    def _bound(self) -> list[Axis]:
        return [*self._roots, *self._loops]

    def _loop(
        self, op: str, axis: Axis, initial: Sequence[Value], body: Callable[..., Any], attributes: dict[str, Any]
    ) -> tuple[Value, ...]:
        carried = tuple(self._tile(value.dtype, value.space) for value in initial)
        outside, self._body = self._body, []
        self._loops.append(axis)
        yielded = body(*(Value(tile, self) for tile in carried))
        self._loops.remove(axis)
        inside, self._body = self._body, outside
        yields = (yielded,) if isinstance(yielded, Value) else tuple(yielded or ())
        region = Region(carried, tuple(inside), tuple(value.tile for value in yields))
        results = tuple(self._tile(value.dtype, value.space) for value in initial)
        starts = tuple(value.tile for value in initial)
        self._body.append(Operation(op, starts, None, None, (), axis, attributes, results, region))
        return tuple(Value(tile, self) for tile in results)

    def _extremum(self, kind: str, value: Value, other: Any) -> Value:
        if isinstance(other, Axis):
            return self.reduce(kind, value, other)
        return self.elementwise(kind, value, other)

    def _value(self, item: Any, dtype: DType) -> Value:
        return item if isinstance(item, Value) else self.const(item, dtype)

    def _index(self, item: Any) -> Affine | Tile:
        return item.tile if isinstance(item, Value) else as_affine(item)

    def _space_of(self, items: Sequence[Affine | Tile]) -> tuple[Axis, ...]:
        return index_space(items, self._bound)

    def _tile(self, dtype: DType, space: tuple[Axis, ...]) -> Tile:
        self._next_id += 1
        return Tile(self._next_id - 1, dtype, space)

    def _append(self, op: str, operands: tuple[Tile, ...], dtype: DType, space: tuple[Axis, ...], **rest: Any) -> Value:
        tile = self._tile(dtype, space)
        self._body.append(Operation(op, operands, tile, **rest))
        return Value(tile, self)


def index_space(items: Sequence[Affine | Tile], bound: Collection[Axis]) -> tuple[Axis, ...]:
    """The space that an access with these index items spans: its axes in order, bound axes left out."""
    spaces = []
    for item in items:
        axes = item.space if isinstance(item, Tile) else tuple(axis for axis, _ in item.terms)
        spaces.append(tuple(axis for axis in axes if axis not in bound))
    return join_spaces(spaces)


def neutral_element(kind: str, dtype: DType) -> float | int | bool:
    """The value of a reduction over an empty axis: 0, 1, or the far end of the type (min, max)."""
    if kind == "add":
        return 0
    if kind == "mul":
        return 1
    if dtype.is_float:
        return float("inf") if kind == "min" else float("-inf")
    if dtype.kind == "b":
        return kind == "min"
    bits = dtype.size_bytes * 8
    low = 0 if dtype.kind == "u" else -(1 << (bits - 1))
    high = (1 << bits) - 1 if dtype.kind == "u" else (1 << (bits - 1)) - 1
    return high if kind == "min" else low


def _common_dtype(operands: Sequence[Any]) -> DType:
    for item in operands:
        if isinstance(item, Value):
            return item.dtype
    raise TypeError("an elementwise operation needs at least one value")
