"""The whole-program mapping: every lane runs one program, lanes along one root axis; tile axes are serial loops.

A block covers `block` consecutive programs along the lane axis for one choice of the other roots. Inside, packets of
W * unroll lanes, then of W, then one masked packet. A packet runs the segments of `plan.whole_schedule`: scalars and
private arrays where they are defined, then the stores - those over the same axes share one loop nest and happen after
all their values are known - then the segment's loop. Everything else is evaluated inside the loop that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from grainline.base.dtypes import I64
from grainline.codegen import memory, reduction
from grainline.codegen.elementwise import apply
from grainline.codegen.emit import FunctionText, Reg, constant, i64
from grainline.codegen.evaluate import Evaluator
from grainline.codegen.private import Array
from grainline.plan.whole_schedule import PrivateArray, Segment, WholeSchedule
from grainline.tile.access import effect_axes, operands_of, tile_axes
from grainline.tile.ir import FOLD_RIGHT, Axis, Operation, Region, Tile


class WholeBody:
    """Emits the body of all programs of one packet; coordinates and lanes are set in the evaluator."""

    def __init__(self, evaluator: Evaluator, schedule: WholeSchedule, scratch: str) -> None:
        self.ev = evaluator
        self.f: FunctionText = evaluator.f
        self.schedule = schedule
        self.scratch = scratch
        self.bound = evaluator.program.bound_axes
        self.is_flat = not tile_axes(evaluator.program) and len(schedule.segments) == 1
        self.segment = schedule.segments[0]
        evaluator.reduce_here = self._reduce
        evaluator.arrays.clear()  # another form's: what is prepared before the first packet would read them

    def packet(self) -> None:
        """The whole body for the current packet, stores included."""
        self.ev.arrays.clear()
        self._run(self.schedule.segments)

    def effects(self) -> list[Operation]:
        """What may be prepared before the first packet: nothing is stored before the first segment."""
        first = self.schedule.segments[0]
        return [*(o for o in first.values if o.op == "reduce"), *(o for group in first.groups for o in group)]

    def _run(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            self.segment = segment
            for operation in segment.values:
                assert operation.result is not None
                if operation.result.id in self.schedule.arrays:
                    self._fill(self._array(operation.result), operation)
                else:
                    self.ev.value(operation.result)
            for group in segment.groups:
                self._store_nest(list(group), list(effect_axes(group[0], self.bound)))
            if segment.loop is not None and segment.loop.region is not None:
                self._loop(segment.loop, segment.loop.region, segment.inner)

    # ---- stores ----

    def _store_nest(self, stores: list[Operation], axes: list[Axis]) -> None:
        if not axes:
            self._claim(stores)
            for store in stores:
                for tile in operands_of(store):
                    self.ev.value(tile)
            for store in stores:
                self.ev.store(store)
            return
        axis, inner = axes[0], axes[1:]
        self._in_order(stores, axis)
        self.ev.hoist(stores, axis)
        scans = [o for o in self.ev.needed([t for s in stores for t in operands_of(s)]) if o.op == "scan"]

        def step(index: Reg, totals: list[Reg]) -> list[Reg]:
            self.ev.enter({axis: index})
            after = [self._scanned(o, total) for o, total in zip(scans, totals, strict=True)]
            self._store_nest(stores, inner)
            self.ev.leave()
            return after

        initial = [self._scan_start(o) for o in scans]
        self.f.loop(i64(0), self.ev.arguments.extent(axis.extent), 1, initial, step)

    def _claim(self, stores: list[Operation]) -> None:
        """Asks for the lines that packets soon write, where they follow one another in memory."""
        if not self.is_flat or self.ev.mask is not None or self.ev.lane_axis is None:
            return
        for store in stores:
            assert store.view is not None
            form, size_bytes = self.ev.linear(store), self.ev.lanes * store.view.dtype.size_bytes
            if form.coefficient(self.ev.lane_axis) == 1 and not form.dynamic and size_bytes >= memory.LINE_BYTES:
                memory.claim(self.f, self.ev.address(store), size_bytes)

    def _scan_start(self, scan: Operation) -> Reg:
        """0, or for inclusive floats -0.0, which leaves the first element as it is."""
        operand = scan.operands[0]
        zero = -0.0 if operand.dtype.is_float and not scan.attributes["exclusive"] else 0
        return constant(zero, operand.dtype, self._lanes_of(operand))

    def _scanned(self, scan: Operation, total: Reg) -> Reg:
        """Remembers the running sum at this element; gives the sum that the next one starts from."""
        assert scan.result is not None
        value = self.f.splat(self.ev.value(scan.operands[0]), total.lanes)
        after = apply(self.f, "add", (total, value))
        self.ev.remember(scan.result, total if scan.attributes["exclusive"] else after)
        return after

    # ---- private arrays ----

    def _array(self, tile: Tile) -> Array:
        planned = self.schedule.arrays[tile.id]
        extents = tuple(self.ev.arguments.extent(axis.extent) for axis in tile.space)
        return Array(self.f, tile, self._base(planned), extents, self._lanes_of(tile))

    def _base(self, planned: PrivateArray) -> str:
        return self.f.pointer(self.scratch, self.ev.arguments.extent(planned.first_bytes), max(self.ev.lanes, 1))

    def _fill(self, array: Array, operation: Operation) -> None:
        """Evaluates every element of a kept tile; from here on it is read from the array."""
        if operation.op == "scan":
            self._fill_scan(array, operation, [axis for axis in array.tile.space if axis is not operation.axis])
        else:
            self._copy(array, array.tile, list(array.tile.space))
        self.ev.arrays[array.tile.id] = array

    def _copy(self, array: Array, tile: Tile, axes: list[Axis]) -> None:
        """Writes `tile`, of the array's space, element by element."""
        if not axes:
            array.write([self._coordinate(axis) for axis in array.tile.space], self.ev.value(tile))
            return
        self._each(axes[0], [self.ev.flow.define(tile)], lambda: self._copy(array, tile, axes[1:]))

    def _fill_scan(self, array: Array, scan: Operation, axes: list[Axis]) -> None:
        if axes:
            self._each(axes[0], [scan], lambda: self._fill_scan(array, scan, axes[1:]))
            return
        axis = scan.axis
        assert axis is not None and scan.result is not None
        result = scan.result

        def step(index: Reg, totals: list[Reg]) -> list[Reg]:
            self.ev.enter({axis: index})
            after = self._scanned(scan, totals[0])
            array.write([self._coordinate(a) for a in array.tile.space], self.ev.value(result))
            self.ev.leave()
            return [after]

        self._in_order([scan], axis)
        self.f.loop(i64(0), self.ev.arguments.extent(axis.extent), 1, [self._scan_start(scan)], step)

    def _each(self, axis: Axis, needed_inside: list[Operation], body: Callable[[], None]) -> None:
        """A loop over `axis`; what it needs and does not vary over it is evaluated before."""
        needed_inside = [o for o in needed_inside if o.region is None]
        self._in_order(needed_inside, axis)
        self.ev.hoist(needed_inside, axis)

        def step(index: Reg, _none: list[Reg]) -> list[Reg]:
            self.ev.enter({axis: index})
            body()
            self.ev.leave()
            return []

        self.f.loop(i64(0), self.ev.arguments.extent(axis.extent), 1, [], step)

    def _coordinate(self, axis: Axis) -> Reg:
        found = self.ev.coordinate(axis)
        assert found is not None
        return found

    # ---- loops ----

    def _loop(self, loop: Operation, region: Region, inner: Sequence[Segment]) -> None:
        """Carried scalars are registers. A carried tile alternates between two arrays: iteration i reads i mod 2."""
        ev, axis = self.ev, loop.axis
        assert axis is not None
        count = ev.arguments.extent(axis.extent)
        tiles = [tile for tile in region.carried if tile.space]
        scalars = [tile for tile in region.carried if not tile.space]
        rows = list(zip(region.carried, loop.operands, region.yields, loop.results, strict=True))
        for tile, start, _next, _result in rows:
            if tile.space:
                self._copy(self._half(tile, i64(0)), start, list(tile.space))
        initial = [self._as_carried(tile, start) for tile, start, _next, _result in rows if not tile.space]

        def step(index: Reg, registers: list[Reg]) -> list[Reg]:
            ev.enter({axis: index})
            half = self.f.binary("and", index, i64(1))
            ev.arrays.update((tile.id, self._half(tile, half)) for tile in tiles)
            for tile, register in zip(scalars, registers, strict=True):
                ev.remember(tile, register)
            self._run(inner)
            after = [self._as_carried(tile, following) for tile, _s, following, _r in rows if not tile.space]
            other = self.f.binary("xor", half, i64(1))
            for tile, _start, following, _result in rows:
                if tile.space:
                    self._copy(self._half(tile, other), following, list(tile.space))
            ev.leave()
            return after

        last = iter(self.f.loop(i64(0), count, 1, initial, step))
        for tile, _start, _next, result in rows:
            if tile.space:
                ev.arrays[result.id] = self._half(tile, self.f.binary("and", count, i64(1)))
            else:
                ev.remember(result, next(last))

    def _as_carried(self, tile: Tile, value: Tile) -> Reg:
        return self.f.splat(self.ev.value(value), self._lanes_of(tile))

    def _half(self, tile: Tile, half: Reg) -> Array:
        """The array of a carried tile that `half` (0 or 1) selects."""
        array, planned = self._array(tile), self.schedule.arrays[tile.id]
        step = self.f.mul(half, self.ev.arguments.extent(planned.copy_bytes))
        return replace(array, base=self.f.pointer(array.base, step, max(self.ev.lanes, 1)))

    # ---- reductions ----

    def _in_order(self, effects: list[Operation], axis: Axis) -> None:
        """Evaluates pending reductions that the loop over `axis` needs and that do not vary over it."""
        roots = [tile for effect in effects for tile in operands_of(effect)]
        for operation in self.ev.needed(roots):
            result = operation.result
            if operation.op in ("reduce", "mma") and result is not None:
                free = self.ev.flow.depends[result.id] - self.ev.bound_axes()
                if not free and self.ev.known(result) is None:
                    self.ev.value(result)

    def _reduce(self, operation: Operation) -> None:
        """Serial loop over the reduction's axis; reductions over the same axis that are ready join it."""
        group = [operation, *self._companions(operation)]
        axis = operation.axis
        assert axis is not None
        self._in_order(group, axis)
        self.ev.hoist(group, axis)
        initial = [reduction.start(o, max(self._lanes_of(tile) for tile in o.operands)) for o in group]
        count = self.ev.arguments.extent(axis.extent)
        from_right = operation.attributes.get("policy") == FOLD_RIGHT

        def step(index: Reg, totals: list[Reg]) -> list[Reg]:
            self.ev.enter({axis: self.f.sub(self.f.sub(count, index), 1) if from_right else index})
            values = [[self.ev.value(tile) for tile in o.operands] for o in group]
            merged = [reduction.accumulate(self.f, *row) for row in zip(group, totals, values, strict=True)]
            self.ev.leave()
            return merged

        totals = self.f.loop(i64(0), count, 1, initial, step)
        for member, total in zip(group, totals, strict=True):
            assert member.result is not None
            self.ev.remember(member.result, reduction.finish(self.f, member, total, count))

    def _lanes_of(self, tile: Tile) -> int:
        varies = self.ev.lane_axis in self.ev.flow.depends[tile.id]
        return self.ev.lanes if varies else 0

    def _companions(self, operation: Operation) -> list[Operation]:
        """Other pending reductions over the same axis, bound otherwise, that wait for none of the group."""
        found = []
        bound = self.ev.bound_axes()
        for other in self.segment.operations:
            if other.op != "reduce" or other is operation or other.axis is not operation.axis:
                continue
            assert other.result is not None
            if self.ev.known(other.result) is not None or self.ev.flow.depends[other.result.id] - bound:
                continue
            if _direction(other) == _direction(operation) and all(self._is_ready(o) for o in self._pending(other)):
                found.append(other)
        return found

    def _pending(self, operation: Operation) -> list[Operation]:
        cone = self.ev.flow.cone(operation.operands)
        return [o for o in cone if o.op in ("reduce", "mma", "scan") or self._is_kept(o)]

    def _is_kept(self, operation: Operation) -> bool:
        return operation.result is not None and operation.result.id in self.schedule.arrays

    def _is_ready(self, operation: Operation) -> bool:
        assert operation.result is not None
        return self.ev.known(operation.result) is not None or operation.result.id in self.ev.arrays


def _direction(operation: Operation) -> bool:
    return operation.attributes.get("policy") == FOLD_RIGHT


def block_bounds(f: FunctionText, number: Reg, block: int, extent: Reg) -> tuple[Reg, Reg]:
    """[low, high) of the lane axis that inner block `number` covers."""
    low = f.mul(number, block)
    return low, f.minimum(f.add(low, block), extent)


def packets(ev: Evaluator, body: WholeBody, low: Reg, high: Reg, width: int, unroll: int, axis: Axis) -> None:
    """Runs the lanes [low, high) of the lane axis: wide packets, packets, one masked packet."""
    f, wide = ev.f, width * unroll
    span = f.sub(high, low)
    main = f.add(low, _floor(f, span, wide))
    full = f.add(low, _floor(f, span, width))

    def run(lanes: int, mask: Reg | None, index: Reg) -> list[Reg]:
        ev.enter({axis: index})
        ev.lanes, ev.mask = lanes, mask
        body.packet()
        ev.lanes, ev.mask = 0, None
        ev.leave()
        return []

    f.loop(low, main, wide, [], lambda index, _c: run(wide, None, index))
    if unroll > 1:
        f.loop(main, full, width, [], lambda index, _c: run(width, None, index))
    rest = f.sub(high, full)
    if width == 1 or rest.text == "0":
        return
    some = f.compare("icmp sgt", rest, i64(0)) if rest.text.startswith("%") else Reg("true", I64)
    f.when(some, [], lambda: run(width, f.mask_below(rest, width), full))


def _floor(f: FunctionText, value: Reg, multiple: int) -> Reg:
    if not value.text.startswith("%"):
        return i64(int(value.text) // multiple * multiple)
    return f.binary("and", value, i64(-multiple))
