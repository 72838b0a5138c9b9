"""What the operations of a program depend on, and the addresses of its accesses as linear forms in coordinates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from grainline.base.dims import Expr
from grainline.base.memo import kept_with_first
from grainline.tile.ir import Affine, Axis, Operation, Region, Tile, TileProgram


@dataclass(frozen=True, slots=True)
class LinearAccess:
    """Element address = offset + sum(coefficients[axis] * coordinate) + sum(stride * run-time index)."""

    coefficients: Mapping[Axis, int | Expr]
    offset: int | Expr
    dynamic: tuple[tuple[Tile, int | Expr], ...]

    def coefficient(self, axis: Axis) -> int | Expr:
        return self.coefficients.get(axis, 0)


def linear_access(operation: Operation) -> LinearAccess:
    """The linear form of a load or store of a strided view."""
    assert operation.view is not None
    coefficients: dict[Axis, int | Expr] = {}
    offset: int | Expr = 0
    dynamic = []
    for item, stride in zip(operation.index, operation.view.strides, strict=True):
        if isinstance(item, Tile):
            dynamic.append((item, stride))
            continue
        offset = offset + stride * item.offset
        for axis, coefficient in item.terms:
            coefficients[axis] = coefficients.get(axis, 0) + stride * coefficient
    return LinearAccess(coefficients, offset, tuple(dynamic))


def same_elements(a: Operation, b: Operation) -> bool:
    """Whether two accesses have the same address form."""
    one, two = linear_access(a), linear_access(b)
    axes = {*one.coefficients, *two.coefficients}
    same = all(one.coefficient(axis) == two.coefficient(axis) for axis in axes)
    return same and one.offset == two.offset and not one.dynamic and not two.dynamic


def clobbers(load: Operation, store: Operation, may_alias: bool, together: bool, bound: Collection[Axis]) -> bool:
    """Whether a store of the same instance may change elements that a load has to find unchanged.

    `together` says that both happen element by element in one loop nest, the load of an element first. `may_alias`:
    different views may share memory, in any way.
    """
    if load.view == store.view:
        return not (together and same_elements(load, store)) and not are_disjoint(load, store, bound)
    return may_alias


def is_zero(value: int | Expr) -> bool:
    """Whether a coefficient or an offset is known to be 0."""
    return isinstance(value, int) and value == 0


def is_inside(operation: Operation, dimension: int) -> bool:
    """Whether index item `dimension` provably lies in the view."""
    assert operation.view is not None
    return is_within(operation.index[dimension], operation.view.shape[dimension])


def is_within(item: Affine | Tile, extent: int | Expr) -> bool:
    """The interval proof 0 <= offset + sum(c * axis) < extent.

    Every partial sum of the index lies between the proven ends, so its 64-bit arithmetic does not overflow.
    """
    if isinstance(item, Tile):
        return False
    low: int | Expr = item.offset
    high: int | Expr = item.offset
    for axis, coefficient in item.terms:
        if not isinstance(coefficient, int):
            return False
        if coefficient < 0:
            low = low + coefficient * (axis.extent - 1)
        else:
            high = high + coefficient * (axis.extent - 1)
    room = extent - high
    return isinstance(low, int) and low >= 0 and isinstance(room, int) and room >= 1


def operands_of(operation: Operation) -> tuple[Tile, ...]:
    """Every tile that an operation reads: operands and run-time indices."""
    if not operation.index:  # most operations, and half of what planning takes is asking this
        return operation.operands
    return (*operation.operands, *[item for item in operation.index if isinstance(item, Tile)])


def index_axes(operation: Operation) -> tuple[Axis, ...]:
    """The axes of the affine part of an access, in order of first appearance."""
    found = [axis for item in operation.index if not isinstance(item, Tile) for axis, _ in item.terms]
    return tuple(dict.fromkeys(found))


def effect_axes(operation: Operation, bound: Collection[Axis]) -> tuple[Axis, ...]:
    """The tile axes that a store runs over, or that an operation's value spans, outermost first."""
    if operation.result is not None:
        return operation.result.space
    found = dict.fromkeys(index_axes(operation))
    for tile in operands_of(operation):
        found.update(dict.fromkeys(tile.space))
    return tuple(axis for axis in found if axis not in bound)


def store_groups(stores: Sequence[Operation], bound: Collection[Axis], may_alias: bool) -> list[list[Operation]]:
    """Those of `stores` that share one loop nest, in an order that is allowed when no load lies between them.

    Stores that commute and run over the same tile axes form one group, scalar stores last. Where two do not commute,
    the program's order stays: only neighbours form a group, and only where the order of each element stays too.
    """
    axes = [frozenset(effect_axes(o, bound)) for o in stores]
    if all(commute(a, b, may_alias, bound) for a, b in combinations(stores, 2)):
        order = sorted(dict.fromkeys(axes), key=lambda found: not found)
        return [[o for o, found in zip(stores, axes, strict=True) if found == wanted] for wanted in order]
    groups: list[list[Operation]] = []
    for position, operation in enumerate(stores):
        is_near = position > 0 and axes[position] == axes[position - 1]
        if is_near and all(commute(o, operation, may_alias, bound) or _same_place(o, operation) for o in groups[-1]):
            groups[-1].append(operation)
        else:
            groups.append([operation])
    return groups


def commute(a: Operation, b: Operation, may_alias: bool, bound: Collection[Axis]) -> bool:
    """Whether two stores of one instance never write the same element."""
    return are_disjoint(a, b, bound) if a.view == b.view else not may_alias


def _same_place(a: Operation, b: Operation) -> bool:
    return a.view == b.view and same_elements(a, b)


def are_disjoint(a: Operation, b: Operation, bound: Collection[Axis]) -> bool:
    """Whether two accesses of one view, in one instance, provably touch different elements.

    The law: addresses c*i and d + c*j over one tile axis of extent n differ when c does not divide d, or |d| >= c*n.
    """
    one, two = linear_access(a), linear_access(b)
    moving = {axis for form in (one, two) for axis, c in form.coefficients.items() if not is_zero(c)}
    if one.dynamic or two.dynamic or any(one.coefficient(x) != two.coefficient(x) for x in moving):
        return False
    step, extent = _one_tile_step(a, b, bound)
    apart = one.offset - two.offset
    if not isinstance(step, int) or step <= 0:
        return False
    if isinstance(apart, int) and apart % step:
        return True
    rooms = (apart - extent * step, -1 * apart - extent * step)
    return any(isinstance(room, int) and room >= 0 for room in rooms)


def _one_tile_step(a: Operation, b: Operation, bound: Collection[Axis]) -> tuple[int | Expr, int | Expr]:
    """(step, extent) of the only tile axis that two accesses run over; step 0 when there are more or none.

    The coordinates of bound axes are equal in both accesses.
    """
    axes = {axis for o in (a, b) for axis in index_axes(o) if axis not in bound}
    if len(axes) != 1:
        return 0, 0
    (axis,) = axes
    return linear_access(a).coefficient(axis), axis.extent


class Dataflow:
    """Definitions, users and dependences of one program, computed once."""

    def __init__(self, program: TileProgram) -> None:
        self.body = program.body
        self.definition: dict[int, Operation] = {}
        self.users: defaultdict[int, list[Operation]] = defaultdict(list)
        self.depends: dict[int, frozenset[Axis]] = {}
        self.operations = program.operations()
        self._axes: dict[int, frozenset[Axis]] = {}
        self._read(program.body)
        for operation in self.operations:
            if id(operation) not in self._axes:
                self._axes[id(operation)] = self._axes_of(operation)
            for tile in (*operands_of(operation), *(operation.region.yields if operation.region is not None else ())):
                self.users[tile.id].append(operation)

    def _read(self, body: Sequence[Operation]) -> None:
        for operation in body:
            if operation.region is not None:
                self._read_loop(operation, operation.region)
            elif operation.result is not None:
                axes = self._axes[id(operation)] = self._axes_of(operation)
                self._define(operation.result, operation, axes)

    def _read_loop(self, loop: Operation, region: Region) -> None:
        """A carried value varies over what any iteration's varies over: repeated until nothing is added."""
        axes = [self.depends[tile.id] for tile in loop.operands]
        while True:
            for tile, found in zip(region.carried, axes, strict=True):
                self._define(tile, loop, found)
            self._read(region.body)
            after = [a | self.depends[t.id] - {loop.axis} for a, t in zip(axes, region.yields, strict=True)]
            if after == axes:
                break
            axes = after
        for tile, found in zip(loop.results, axes, strict=True):
            self._define(tile, loop, found)

    def _define(self, tile: Tile, operation: Operation, axes: Iterable[Axis]) -> None:
        self.definition[tile.id] = operation
        self.depends[tile.id] = axes if isinstance(axes, frozenset) else frozenset(axes)

    def axes_of(self, operation: Operation) -> frozenset[Axis]:
        """Every axis, root axes included, that the operation's value or effect varies over."""
        known = self._axes.get(id(operation))
        return self._axes_of(operation) if known is None else known

    def _axes_of(self, operation: Operation) -> frozenset[Axis]:
        axes = set(index_axes(operation))
        for tile in operands_of(operation):
            axes |= self.depends[tile.id]
        if operation.op == "coord" and operation.axis is not None:
            axes.add(operation.axis)
        if operation.op in ("reduce", "mma") and operation.axis is not None:
            axes.discard(operation.axis)
        if operation.op == "splat" and operation.result is not None:
            axes.update(operation.result.space)
        if operation.op == "extract":
            axes = {a for a in axes if a not in operation.operands[0].space} | set(index_axes(operation))
            axes.update(a for item in operation.index if isinstance(item, Tile) for a in self.depends[item.id])
        return frozenset(axes)

    def define(self, tile: Tile) -> Operation:
        return self.definition[tile.id]

    def cone(self, tiles: Iterable[Tile]) -> list[Operation]:
        """The operations that `tiles` need, in program order."""
        needed: set[int] = set()
        stack = [tile.id for tile in tiles]
        while stack:
            number = stack.pop()
            if number not in needed:
                needed.add(number)
                stack.extend(tile.id for tile in operands_of(self.definition[number]))
        return [o for o in self.operations if o.result is not None and o.result.id in needed]


@kept_with_first  # the rules, schedules and counts of one plan ask again and again
def dataflow(program: TileProgram) -> Dataflow:
    """The dataflow of a program, which nobody changes."""
    return Dataflow(program)


def is_nonpositive(flow: Dataflow, tile: Tile) -> bool:
    """Whether a value is at most 0, or NaN, by its form: t - max(t)."""
    definition = flow.define(tile)
    if definition.op != "sub":
        return False
    value, least = definition.operands
    bound = flow.define(least)
    return bound.op == "reduce" and bound.attributes["kind"] == "max" and bound.operands[0] == value


@kept_with_first
def tile_axes(program: TileProgram) -> tuple[Axis, ...]:
    """The axes that are not bound, in order of first appearance."""
    found: dict[Axis, None] = {}
    bound = program.bound_axes
    for operation in program.operations():
        spaces = [tile.space for tile in operands_of(operation)]
        spaces.append(operation.result.space if operation.result is not None else index_axes(operation))
        found.update(dict.fromkeys(a for space in spaces for a in space if a not in bound))
    return tuple(found)
