"""What the operations of a program depend on, and the addresses of its accesses as linear forms in coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from grainline.base.dims import Expr
from grainline.tile.ir import Axis, Operation, Tile, TileProgram


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


def may_overlap(load: Operation, store: Operation) -> bool:
    """Whether a store may change the elements of a load of the same instance.

    True for one view; for two views when a caller may have given them the same memory in place: elements of equal size
    that vary over the same axes (the steps may be spelled differently and still be equal at run time).
    """
    assert load.view is not None and store.view is not None
    if load.view == store.view:
        return True
    if load.view.dtype.size_bytes != store.view.dtype.size_bytes:
        return False
    one, two = linear_access(load), linear_access(store)
    moving = [{axis for axis, c in form.coefficients.items() if not _is_zero(c)} for form in (one, two)]
    return moving[0] == moving[1] and not one.dynamic and not two.dynamic


def _is_zero(value: int | Expr) -> bool:
    return isinstance(value, int) and value == 0


def is_inside(operation: Operation, dimension: int) -> bool:
    """Whether index item `dimension` provably lies in the view: 0 <= offset + sum(c * axis) < shape."""
    assert operation.view is not None
    item, extent = operation.index[dimension], operation.view.shape[dimension]
    if isinstance(item, Tile):
        return False
    last: int | Expr = item.offset
    if not isinstance(item.offset, int) or item.offset < 0:
        return False
    for axis, coefficient in item.terms:
        if not isinstance(coefficient, int) or coefficient < 0:
            return False
        last = last + coefficient * (axis.extent - 1)
    room = extent - last
    return isinstance(room, int) and room >= 1


def operands_of(operation: Operation) -> tuple[Tile, ...]:
    """Every tile that an operation reads: operands and run-time indices."""
    return (*operation.operands, *(item for item in operation.index if isinstance(item, Tile)))


def index_axes(operation: Operation) -> tuple[Axis, ...]:
    """The axes of the affine part of an access, in order of first appearance."""
    found = [axis for item in operation.index if not isinstance(item, Tile) for axis, _ in item.terms]
    return tuple(dict.fromkeys(found))


def effect_axes(operation: Operation, roots: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The tile axes that a store runs over, or that an operation's value spans, outermost first."""
    if operation.result is not None:
        return operation.result.space
    found = dict.fromkeys(index_axes(operation))
    for tile in operands_of(operation):
        found.update(dict.fromkeys(tile.space))
    return tuple(axis for axis in found if axis not in roots)


def store_groups(program: TileProgram) -> list[list[Operation]]:
    """Stores that share one loop nest, in an order that is allowed.

    Stores to different views commute, so all stores over the same tile axes form one group, scalar stores last. When a
    view is stored to twice, only neighbours form a group and the program's order stays.
    """
    stores = [o for o in program.body if o.op == "store"]
    axes = [frozenset(effect_axes(o, program.roots)) for o in stores]
    if len({o.view.name for o in stores if o.view is not None}) == len(stores):
        order = sorted(dict.fromkeys(axes), key=lambda found: not found)
        return [[o for o, found in zip(stores, axes, strict=True) if found == wanted] for wanted in order]
    groups: list[list[Operation]] = []
    for position, operation in enumerate(stores):
        if position and axes[position] == axes[position - 1]:
            groups[-1].append(operation)
        else:
            groups.append([operation])
    return groups


class Dataflow:
    """Definitions, users and dependences of one program, computed once."""

    def __init__(self, program: TileProgram) -> None:
        self.program = program
        self.definition: dict[int, Operation] = {}
        self.users: dict[int, list[Operation]] = {}
        self.depends: dict[int, frozenset[Axis]] = {}
        for operation in program.body:
            for tile in operands_of(operation):
                self.users[tile.id].append(operation)
            if operation.result is not None:
                self.definition[operation.result.id] = operation
                self.users[operation.result.id] = []
                self.depends[operation.result.id] = self.axes_of(operation)

    def axes_of(self, operation: Operation) -> frozenset[Axis]:
        """Every axis, root axes included, that the operation's value or effect varies over."""
        axes = set(index_axes(operation))
        for tile in operands_of(operation):
            axes |= self.depends[tile.id]
        if operation.op == "coord" and operation.axis is not None:
            axes.add(operation.axis)
        if operation.op in ("reduce", "mma") and operation.axis is not None:
            axes.discard(operation.axis)
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
        return [o for o in self.program.body if o.result is not None and o.result.id in needed]


def tile_axes(program: TileProgram) -> tuple[Axis, ...]:
    """The non-root axes in order of first appearance."""
    found: dict[Axis, None] = {}
    for operation in program.body:
        spaces = [tile.space for tile in operands_of(operation)]
        spaces.append(operation.result.space if operation.result is not None else index_axes(operation))
        found.update(dict.fromkeys(a for space in spaces for a in space if a not in program.roots))
    return tuple(found)
