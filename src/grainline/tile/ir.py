"""Tile programs: HOW one kernel computes.

A `TileProgram` states which independent program instances exist (`roots`, the root parallel nest) and what each
computes (`body`, SSA in order). Nothing here says how instances map to SIMD lanes, blocks or threads: that is `plan`.

* `Axis` has identity, not a name: two axes of equal label and extent are different. Root axes have one coordinate per
  instance, loop axes one per iteration: both are *bound*. Every other axis spans tiles.
* `Tile` is an immutable SSA value over an index space (ordered axes; () = scalar). Bound axes never appear in a space.
  Elementwise operands broadcast by axis identity: the result's space is the union, in order of first appearance.
* `View` is a buffer argument: element type, logical shape, strides in elements (any extent, 0 allowed), access.
* A load is a snapshot: a later store, also through another view, does not change the loaded tile. Effects keep their
  order inside an instance. Instances are independent by contract; the compiler does not re-prove it.
* Indices are signed 64-bit. An `Index` is affine in axis coordinates, or a scalar/tile of dtype i64 computed at run
  time.
* Bounds: "assume" (the index is inside), "zero" (outside reads give 0 and touch no memory, outside stores do
  nothing), "error" (an index outside ends the kernel with fault INDEX_OUT_OF_BOUNDS and touches no memory).

Operations (`Operation.op`), with operands and attributes:
* `const` value · `coord` axis -> i64 (scalar for a root axis, else a tile over that axis)
* `extent` value(Extent) -> i64 scalar
* `load` view, index, bounds -> tile · `store` view, index, bounds, operand (no result)
* elementwise (names of `ELEMENTWISE`) · `cast` (to = dtype of the result) · `select`(cond, a, b): both are computed
* `splat` operand -> tile over more axes, equal along the new ones
* `extract` operand, index (one item per axis of the operand), bounds -> tile over the axes of the index: element
  operand[index]; a coordinate outside gives 0 ("zero") or is a promise that it never is ("assume")
* `reduce` kind in {add, mul, min, max}, policy, axis, operand -> tile without that axis. An empty axis gives `init`,
  which otherwise enters exactly once when `use_init`, and never when not; no identity is invented. min/max pass NaN
  through. Policies: unordered_tree (contributions may be regrouped and permuted), ordered_tree (regrouped only),
  fold_left ((init + x0) + x1)..., fold_right x0 + (x1 + (... + init)): strict, in the operand's type.
* `scan` axis, exclusive, operand over that axis -> tile over the same axes: ordered sums along the axis in the
  operand's type; sum i takes elements 0..i in increasing order, without element i (and from 0) when exclusive
* `mma` axis, operands (a, b) -> sum over `axis` of a*b: f32, one FMA chain per element in increasing k from 0. Where b
  is a cast load of layout "quads": a is rounded to 24 bits of its row's maximum or less, the sum is one of integers.
  With `skips_hidden`, terms whose a is a 0 that a `select` chose may be left out: what they would meet, NaN too, then
  counts for nothing.
* `serial` axis, operands = initial values, region -> results: the region runs once per coordinate of `axis`, in order;
  `region.carried` are the values at the start of an iteration, `region.yields` become the next ones, all at once. An
  empty axis gives the initial values. `pipeline` is the same with attributes stages and initiation_interval, and
  `stage` operations in its region: cuts over which nothing is moved or merged; no overlap is promised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grainline.base.dims import Expr
from grainline.base.dtypes import DType
from grainline.base.memo import kept_with_first

ARITHMETIC = (
    *("add", "sub", "mul", "div", "mod", "fmod", "pow", "min", "max", "neg", "abs", "sign", "relu"),
    *("exp", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "tanh", "erf", "sigmoid", "softplus", "sin", "cos"),
    *("floor", "ceil", "round"),
)
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf")
LOGICAL = ("and", "or", "xor", "not", "bitand", "bitor", "bitxor", "shl", "shr")
ELEMENTWISE = frozenset((*ARITHMETIC, *COMPARISONS, *LOGICAL, "cast", "select"))
LOOPS = ("serial", "pipeline")
UNORDERED, ORDERED, FOLD_LEFT, FOLD_RIGHT = POLICIES = ("unordered_tree", "ordered_tree", "fold_left", "fold_right")


@dataclass(frozen=True, eq=False, slots=True)
class Axis:
    """A dimension. Compared by identity; `label` is for people."""

    label: str
    extent: int | Expr

    def __repr__(self) -> str:
        return f"{self.label}<{self.extent}>"


@dataclass(frozen=True, slots=True)
class View:
    """A buffer argument. `access` is "read", "write" or "readwrite".

    layout "strided": element (i0, i1, ...) lies at sum(i*stride).
    layout "panels": a packed matrix B[K, N] as [ceil(N/panel)][K][panel], the last panel padded with zeros;
    `shape` is (K, N), `strides` is () and `panel` the panel width.
    layout "quads": an i8 matrix packed as [ceil(N/panel)][ceil(K/4)][panel][4] bytes, the top bit of each flipped: a
    byte is q + 128, unsigned as integer products want it; padded with zeros; the rest as for "panels".
    """

    name: str
    dtype: DType
    shape: tuple[int | Expr, ...]
    strides: tuple[int | Expr, ...]
    access: str = "read"
    layout: str = "strided"
    panel: int = 0


@dataclass(frozen=True, slots=True)
class Affine:
    """offset + sum of coefficient * coordinate(axis)."""

    terms: tuple[tuple[Axis, int | Expr], ...] = ()
    offset: int | Expr = 0


@dataclass(frozen=True, eq=False, slots=True)
class Tile:
    """An SSA value; `id` is its position-independent number, unique in the program."""

    id: int
    dtype: DType
    space: tuple[Axis, ...]

    def __repr__(self) -> str:
        return f"%{self.id}"


Index = "Affine | Tile"


@dataclass(frozen=True, eq=False, slots=True)
class Region:
    """What one iteration of a loop computes. `carried`, `yields` and the loop's operands and results correspond."""

    carried: tuple[Tile, ...]
    body: tuple[Operation, ...]
    yields: tuple[Tile, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Operation:
    """One SSA operation. `result` is None for a store, a stage cut and a loop, which has `results` and a `region`."""

    op: str
    operands: tuple[Tile, ...]
    result: Tile | None
    view: View | None = None
    index: tuple[Affine | Tile, ...] = ()
    axis: Axis | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    results: tuple[Tile, ...] = ()
    region: Region | None = None

    @property
    def defined(self) -> tuple[Tile, ...]:
        """Every tile that exists after the operation."""
        return self.results if self.result is None else (self.result,)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class TileProgram:
    """`views` in argument order. `symbols()` in `text.py` order are the run-time extents the kernel needs.

    `scope` says who may run an instance: "automatic" leaves it to the planner, "worker" asks for one lane.
    """

    name: str
    views: tuple[View, ...]
    roots: tuple[Axis, ...]
    body: tuple[Operation, ...]
    scope: str = "automatic"

    def operations(self) -> tuple[Operation, ...]:
        """Every operation, a loop before those of its region."""
        return _operations(self)

    @property
    def bound_axes(self) -> frozenset[Axis]:
        """Root axes and loop axes."""
        return _bound_axes(self)


@kept_with_first
def _operations(program: TileProgram) -> tuple[Operation, ...]:
    return tuple(walk(program.body))


@kept_with_first
def _bound_axes(program: TileProgram) -> frozenset[Axis]:
    loops = (o.axis for o in program.operations() if o.op in LOOPS and o.axis is not None)
    return frozenset((*program.roots, *loops))


def walk(body: Sequence[Operation]) -> Iterator[Operation]:
    """The operations of a body, a loop before those of its region."""
    for operation in body:
        yield operation
        if operation.region is not None:
            yield from walk(operation.region.body)
