"""Evaluates the operations of a tile program into registers, on demand, whatever the mapping.

One axis is the *lane axis*: in a packet of W lanes its coordinate is base + lane. A value that varies over the lane
axis is a vector, any other a scalar. Values are remembered per scope; a scope is a loop body or a packet. Before a loop
opens, `hoist` evaluates in the enclosing scope what does not vary over the loop's axis, addresses included.

The mappings (`rows`, `whole`) decide the loops and call `value` and `store`; reductions that are not yet remembered
go to `reduce_here`, which a mapping sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from grainline.base.dtypes import BOOL, F32, I32, I64
from grainline.codegen import memory
from grainline.codegen.elementwise import FAULT_INDEX, SIGNED_COMPARE, Faults, apply, cast, exp_of_nonpositive, rounded
from grainline.codegen.emit import FunctionText, Reg, constant, i64
from grainline.codegen.private import Array
from grainline.codegen.words import Arguments
from grainline.tile.access import (
    Dataflow,
    LinearAccess,
    is_inside,
    is_nonpositive,
    is_within,
    linear_access,
    operands_of,
)
from grainline.tile.ir import Axis, Operation, Tile, TileProgram, View


@dataclass(slots=True)
class Scope:
    """Values and partial addresses that hold inside one loop body or packet; `coordinates` are scalars (i64)."""

    values: dict[int, Reg] = field(default_factory=dict)
    bases: dict[int, tuple[str, frozenset[Axis]]] = field(default_factory=dict)
    coordinates: dict[Axis, Reg] = field(default_factory=dict)
    checked: set[int] = field(default_factory=set)


class Evaluator:
    """The state of emitting one program: scopes, the lane axis, the packet's width and active-lane mask."""

    def __init__(self, f: FunctionText, program: TileProgram, arguments: Arguments) -> None:
        self.f = f
        self.program = program
        self.arguments = arguments
        self.flow = Dataflow(program)
        self.scopes: list[Scope] = [Scope()]
        self.lane_axis: Axis | None = None
        self.lanes = 0
        self.mask: Reg | None = None
        # A view in scratch whose rows have room for whole packets. Its accesses are not masked: the loads that follow
        # a masked store wait until it has left the core.
        self.roomy: View | None = None
        # Tiles that lie in private arrays: they are read there instead of being evaluated.
        self.arrays: dict[int, Array] = {}
        # The store whose packets are written past the caches; its addresses are then aligned to lines.
        self.streamed: Operation | None = None
        self.reduce_here: Callable[[Operation], None] | None = None
        self.load_here: Callable[[Operation], Reg | None] | None = None
        self._linear: dict[int, LinearAccess] = {}

    # ---- scopes ----

    @property
    def scope(self) -> Scope:
        return self.scopes[-1]

    def enter(self, coordinates: dict[Axis, Reg] | None = None) -> Scope:
        self.scopes.append(Scope(coordinates=dict(coordinates or {})))
        return self.scope

    def leave(self) -> None:
        self.scopes.pop()

    def known(self, tile: Tile) -> Reg | None:
        for scope in reversed(self.scopes):
            if tile.id in scope.values:
                return scope.values[tile.id]
        return None

    def remember(self, tile: Tile, value: Reg) -> None:
        self.scope.values[tile.id] = value

    def coordinate(self, axis: Axis) -> Reg | None:
        for scope in reversed(self.scopes):
            if axis in scope.coordinates:
                return scope.coordinates[axis]
        return None

    def bound_axes(self) -> frozenset[Axis]:
        return frozenset(axis for scope in self.scopes for axis in scope.coordinates)

    # ---- values ----

    def value(self, tile: Tile) -> Reg:
        """The register of a tile in the current scope; evaluates what is missing, operands first."""
        found = self.known(tile)
        if found is None and tile.id in self.arrays:
            found = self.arrays[tile.id].read([self.axis_value(axis) for axis in tile.space])
            self.remember(tile, found)
        elif found is None:
            self._evaluate(self.flow.define(tile))
            found = self.known(tile)
        assert found is not None, f"{tile} was not evaluated"
        return found

    def vector(self, tile: Tile) -> Reg:
        """Like `value`, splat over the packet."""
        return self.f.splat(self.value(tile), self.lanes)

    def _evaluate(self, operation: Operation) -> None:
        result = operation.result
        assert result is not None
        if operation.op in ("reduce", "mma"):
            assert self.reduce_here is not None, "a reduction where the mapping has none"
            self.reduce_here(operation)
            return
        self.remember(result, self._compute(operation, result))

    def _compute(self, operation: Operation, result: Tile) -> Reg:
        if operation.op == "const":
            return rounded(self.f, constant(operation.attributes["value"], result.dtype))
        if operation.op == "coord":
            assert operation.axis is not None
            return self.axis_value(operation.axis)
        if operation.op == "extent":
            return self.arguments.extent(operation.attributes["value"])
        if operation.op == "load":
            replaced = self.load_here(operation) if self.load_here is not None else None
            return self.load(operation) if replaced is None else replaced
        if operation.op == "extract":
            return self._extract(operation)
        if operation.op in SIGNED_COMPARE and (found := self._lanes_against(operation)) is not None:
            return found
        args = self._operands(operation.operands)
        if operation.op == "splat":
            return args[0]
        if operation.op == "cast":
            return cast(self.f, args[0], result.dtype)
        if operation.op == "exp" and is_nonpositive(self.flow, operation.operands[0]):
            return exp_of_nonpositive(self.f, args[0])
        return apply(self.f, operation.op, args, Faults(self.mask))

    def _lanes_against(self, operation: Operation) -> Reg | None:
        """The coordinate of the lanes compared with a scalar: numbers of lanes with the scalar's distance, in 32 bits.

        A distance outside of the packet is cut to one lane before or behind it, which no comparison tells apart.
        """
        f, sides = self.f, list(operation.operands)
        ours = [self._is_lane_coordinate(tile) for tile in sides]
        if not self.lanes or self.lane_axis is None or ours.count(True) != 1:
            return None
        other, base = self.value(sides[ours.index(False)]), self.coordinate(self.lane_axis)
        if other.lanes or base is None:
            return None
        distance = f.intrinsic("smax", f.intrinsic("ssub.sat", other, base), i64(-1))
        near = f.convert("trunc", f.minimum(distance, i64(self.lanes)), I32)
        pair = [f.iota(self.lanes, I32), f.splat(near, self.lanes)]
        return f.compare(f"icmp {SIGNED_COMPARE[operation.op]}", *(pair if ours[0] else reversed(pair)))

    def _is_lane_coordinate(self, tile: Tile) -> bool:
        definition = self.flow.definition.get(tile.id)
        return definition is not None and definition.op == "coord" and definition.axis is self.lane_axis

    def _extract(self, operation: Operation) -> Reg:
        """An element of a private array, or of the operand itself at its own coordinates."""
        (operand,) = operation.operands
        if operand.id not in self.arrays:
            return self.value(operand)
        array = self.arrays[operand.id]
        coordinates = [self._index_value(operation, dimension) for dimension in range(len(operation.index))]
        is_proven = all(is_within(i, axis.extent) for i, axis in zip(operation.index, operand.space, strict=True))
        inside = None
        if operation.attributes["bounds"] == "zero" and not is_proven:
            inside = array.inside(coordinates)
        if any(coordinate.lanes for coordinate in coordinates):
            inside = self._join(inside, self.mask)
        return array.read(coordinates, inside)

    def _operands(self, tiles: Iterable[Tile]) -> tuple[Reg, ...]:
        """Registers of equal lane count: vectors as soon as one of them is."""
        values = [self.value(tile) for tile in tiles]
        lanes = max(value.lanes for value in values)
        return tuple(self.f.splat(value, lanes) for value in values)

    def axis_value(self, axis: Axis) -> Reg:
        base = self.coordinate(axis)
        assert base is not None, f"the axis {axis} is not bound"
        if axis is self.lane_axis and self.lanes:
            return self.f.lane_index(base, self.lanes)
        return base

    # ---- hoisting ----

    def hoist(self, effects: Iterable[Operation], axis: Axis) -> None:
        """Evaluates here what the cone of `effects` (reductions or stores) needs and what does not vary over `axis`.

        Addresses are advanced by the coordinates bound so far.
        """
        effects = list(effects)
        roots = [tile for effect in effects for tile in operands_of(effect)]
        for operation in self.needed(roots):
            assert operation.result is not None
            if axis not in self.flow.depends[operation.result.id]:
                if not self._waits_for_axes(operation.result):
                    self.value(operation.result)
            elif operation.op == "load" and self.load_here is None:
                self._base(operation)
                self._check_early(operation, axis)
        for effect in effects:
            if effect.op == "store":
                self._base(effect)
                self._check_early(effect, axis)

    def needed(self, roots: Iterable[Tile]) -> list[Operation]:
        """Operations that `roots` need and that are not remembered; cones of pending reductions are left out."""
        wanted: set[int] = set()
        stack = list(roots)
        while stack:
            tile = stack.pop()
            if tile.id in wanted or tile.id in self.arrays or self.known(tile) is not None:
                continue
            wanted.add(tile.id)
            definition = self.flow.define(tile)
            if definition.op not in ("reduce", "mma") and definition.region is None:
                stack.extend(operands_of(definition))
        return [o for o in self.flow.operations if o.result is not None and o.result.id in wanted]

    def _waits_for_axes(self, tile: Tile) -> bool:
        """Whether the value varies over an axis that no open loop binds."""
        return bool(self.flow.depends[tile.id] - self.bound_axes())

    # ---- accesses ----

    def load(self, operation: Operation) -> Reg:
        """Emits a load; a scalar when its address does not vary over the lanes."""
        view, result = operation.view, operation.result
        assert view is not None and result is not None
        guard = self._guard(operation)
        offsets, step = self._lane_offsets(operation)
        pointer = self.address(operation)
        varies = offsets is not None or step is not None or (guard is not None and guard.lanes)
        if not varies:
            return self._scalar_load(pointer, operation, guard)
        mask = self._join(guard, self._mask_of(view))
        if offsets is None and step == 1:
            return memory.load(self.f, pointer, view.dtype, self.lanes, mask)
        if offsets is None and step is None:
            offsets = constant(0, I64, self.lanes)
        return memory.gather(self.f, pointer, self._full_offsets(offsets, step), view.dtype, mask)

    def store(self, operation: Operation) -> None:
        """Emits a store of the operand's value in the current packet (or of a scalar)."""
        view = operation.view
        assert view is not None
        value = self.value(operation.operands[0])
        guard = self._guard(operation)
        offsets, step = self._lane_offsets(operation)
        pointer = self.address(operation)
        if offsets is None and step is None and not value.lanes:
            self._scalar_store(pointer, value, guard)
            return
        value = self.f.splat(value, self.lanes)
        mask = self._join(guard, self._mask_of(view))
        if offsets is None and step == 1:
            if operation is self.streamed and mask is None:
                memory.store_past_caches(self.f, pointer, value)
            else:
                memory.store(self.f, pointer, value, mask)
            return
        if offsets is None and step is None:
            offsets = constant(0, I64, self.lanes)
        memory.scatter(self.f, pointer, self._full_offsets(offsets, step), value, mask)

    def _mask_of(self, view: View) -> Reg | None:
        return None if view == self.roomy else self.mask

    def _scalar_load(self, pointer: str, operation: Operation, guard: Reg | None) -> Reg:
        dtype = operation.result.dtype if operation.result is not None else F32
        if guard is None:
            return memory.load(self.f, pointer, dtype)
        zero = constant(0, dtype)
        return self.f.when(guard, [zero], lambda: [memory.load(self.f, pointer, dtype)])[0]

    def _scalar_store(self, pointer: str, value: Reg, guard: Reg | None) -> None:
        def write() -> list[Reg]:
            memory.store(self.f, pointer, value)
            return []

        self.f.when(guard if guard is not None else Reg("true", BOOL), [], write)

    def linear(self, operation: Operation) -> LinearAccess:
        if id(operation) not in self._linear:
            self._linear[id(operation)] = linear_access(operation)
        return self._linear[id(operation)]

    def _base(self, operation: Operation) -> tuple[str, frozenset[Axis]]:
        """Pointer that includes every bound coordinate so far, remembered in this scope, and the axes it includes."""
        form, bound = self.linear(operation), self.bound_axes()
        pointer, done = self._known_base(operation)
        size = operation.view.dtype.size_bytes if operation.view is not None else 1
        if pointer is None:
            assert operation.view is not None
            pointer = self.arguments.pointer(operation.view)
            pointer = self.f.pointer(pointer, self.arguments.extent(form.offset), size)
        for axis, coefficient in form.coefficients.items():
            if axis in done or axis not in bound or (isinstance(coefficient, int) and coefficient == 0):
                continue
            coordinate = self.coordinate(axis)
            assert coordinate is not None
            step = self.f.mul(coordinate, self.arguments.extent(coefficient))
            pointer = self.f.pointer(pointer, step, size)
        entry = (pointer, done | bound)
        self.scope.bases[id(operation)] = entry
        return entry

    def _known_base(self, operation: Operation) -> tuple[str | None, frozenset[Axis]]:
        for scope in reversed(self.scopes):
            if id(operation) in scope.bases:
                return scope.bases[id(operation)]
        return None, frozenset()

    def address(self, operation: Operation) -> str:
        """The base plus scalar run-time indices."""
        pointer, _ = self._base(operation)
        assert operation.view is not None
        for tile, stride in self.linear(operation).dynamic:
            value = self.value(tile)
            if not value.lanes:
                step = self.f.mul(value, self.arguments.extent(stride))
                pointer = self.f.pointer(pointer, step, operation.view.dtype.size_bytes)
        return pointer

    def _lane_offsets(self, operation: Operation) -> tuple[Reg | None, int | Reg | None]:
        """(vector of run-time offsets or None, step per lane: 1, a scalar register, or None for no variation)."""
        form = self.linear(operation)
        offsets: Reg | None = None
        for tile, stride in form.dynamic:
            value = self.value(tile)
            if value.lanes:
                part = self.f.mul(value, self.arguments.extent(stride))
                offsets = part if offsets is None else self.f.add(offsets, part)
        if self.lane_axis is None or not self.lanes:
            return offsets, None
        coefficient = form.coefficient(self.lane_axis)
        if isinstance(coefficient, int) and coefficient in (0, 1):
            return offsets, 1 if coefficient == 1 else None
        return offsets, self.arguments.extent(coefficient)

    def _full_offsets(self, offsets: Reg | None, step: int | Reg | None) -> Reg:
        """Offsets of every lane in elements: run-time part plus lane * step."""
        if step is None:
            assert offsets is not None
            return offsets
        width = i64(step) if isinstance(step, int) else step
        lanes = self.f.iota(self.lanes)
        walked = lanes if width.text == "1" else self.f.binary("mul", self.f.splat(width, self.lanes), lanes)
        return walked if offsets is None else self.f.binary("add", offsets, walked)

    def _check_early(self, operation: Operation, axis: Axis) -> None:
        """Emits the check of policy "error" before the loop over `axis` when nothing it checks varies over it."""
        if operation.attributes["bounds"] != "error":
            return
        for dimension, item in enumerate(operation.index):
            if not is_inside(operation, dimension):
                axes = self.flow.depends[item.id] if isinstance(item, Tile) else {a for a, _ in item.terms}
                if axis in axes or axes - self.bound_axes():
                    return
        self._guard(operation)
        self.scope.checked.add(id(operation))

    def _guard(self, operation: Operation) -> Reg | None:
        """Lanes (or the scalar) whose index is inside, None when no check is needed; "error" leaves on a bad one."""
        bounds = operation.attributes["bounds"]
        if bounds == "assume" or any(id(operation) in scope.checked for scope in self.scopes):
            return None
        assert operation.view is not None
        inside: Reg | None = None
        for dimension, extent in enumerate(operation.view.shape):
            if is_inside(operation, dimension):
                continue
            index = self._index_value(operation, dimension)
            limit = self.f.splat(self.arguments.extent(extent), index.lanes)
            inside = self._join(inside, self.f.compare("icmp ult", index, limit))
        if inside is None or bounds == "zero":
            return inside
        outside = self.f.binary("xor", inside, constant(True, BOOL, inside.lanes))
        if self.mask is not None and outside.lanes:
            outside = self.f.binary("and", outside, self.mask)
        self.f.fail_if(self.f.any(outside), FAULT_INDEX)
        return None

    def _index_value(self, operation: Operation, dimension: int) -> Reg:
        item = operation.index[dimension]
        if isinstance(item, Tile):
            return self.value(item)
        total = self.arguments.extent(item.offset)
        for axis, coefficient in item.terms:
            part = self.f.mul(self.axis_value(axis), self.arguments.extent(coefficient))
            lanes = max(total.lanes, part.lanes)
            total = self.f.add(self.f.splat(part, lanes), self.f.splat(total, lanes))
        return total

    def _join(self, a: Reg | None, b: Reg | None) -> Reg | None:
        if a is None or b is None:
            return a if b is None else b
        lanes = max(a.lanes, b.lanes)
        return self.f.binary("and", self.f.splat(a, lanes), self.f.splat(b, lanes))
