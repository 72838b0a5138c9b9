"""The whole-program mapping: every lane runs one program, lanes along one root axis; tile axes are serial loops.

A block covers `block` consecutive programs along the lane axis for one choice of the other roots. Inside, packets of
W * unroll lanes, then of W, then one masked packet. Values of a program's own space are evaluated first, in program
order, then the stores: those over the same axes share one loop nest and happen after all their values are known.
Values over tile axes are evaluated inside the loop that needs them. (A load after a store to its view is not legal.)
"""

from __future__ import annotations

from grainline.base.dtypes import I64
from grainline.codegen import reduction
from grainline.codegen.elementwise import apply
from grainline.codegen.emit import FunctionText, Reg, constant, i64
from grainline.codegen.evaluate import Evaluator
from grainline.tile.access import effect_axes, operands_of, store_groups
from grainline.tile.ir import Axis, Operation, Tile


class WholeBody:
    """Emits the body of all programs of one packet; coordinates and lanes are set in the evaluator."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.ev = evaluator
        self.f: FunctionText = evaluator.f
        self.program = evaluator.program
        evaluator.reduce_here = self._reduce

    def packet(self) -> None:
        """The whole body for the current packet, stores included."""
        roots = self.program.roots
        for operation in self.program.body:
            if operation.result is not None and not effect_axes(operation, roots):
                self.ev.value(operation.result)
        for group in store_groups(self.program):
            self._store_nest(group, list(effect_axes(group[0], roots)))

    def _store_nest(self, stores: list[Operation], axes: list[Axis]) -> None:
        if not axes:
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

    def _scan_start(self, scan: Operation) -> Reg:
        """0, or for inclusive floats -0.0, which leaves the first element as it is."""
        operand = scan.operands[0]
        zero = -0.0 if operand.dtype.is_float and not scan.attributes["exclusive"] else 0
        return constant(zero, operand.dtype, self.ev.lanes if self._varies(operand) else 0)

    def _scanned(self, scan: Operation, total: Reg) -> Reg:
        """Remembers the running sum at this element; gives the sum that the next one starts from."""
        assert scan.result is not None
        value = self.f.splat(self.ev.value(scan.operands[0]), total.lanes)
        after = apply(self.f, "add", (total, value))
        self.ev.remember(scan.result, total if scan.attributes["exclusive"] else after)
        return after

    def _in_order(self, effects: list[Operation], axis: Axis) -> None:
        """Evaluates pending reductions that the loop over `axis` needs and that do not vary over it."""
        roots = [tile for effect in effects for tile in operands_of(effect)]
        for operation in self.ev.needed(roots):
            result = operation.result
            if operation.op == "reduce" and result is not None:
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
        lanes = [self.ev.lanes if self._varies(o.operands[0]) else 0 for o in group]
        initial = [reduction.start(o, n) for o, n in zip(group, lanes, strict=True)]

        def step(index: Reg, totals: list[Reg]) -> list[Reg]:
            self.ev.enter({axis: index})
            merged = [self._accumulate(o, total) for o, total in zip(group, totals, strict=True)]
            self.ev.leave()
            return merged

        count = self.ev.arguments.extent(axis.extent)
        totals = self.f.loop(i64(0), count, 1, initial, step)
        for member, total in zip(group, totals, strict=True):
            assert member.result is not None
            self.ev.remember(member.result, reduction.finish(self.f, member, total, count))

    def _accumulate(self, operation: Operation, total: Reg) -> Reg:
        value = self.f.splat(self.ev.value(operation.operands[0]), total.lanes)
        value = reduction.contribution(self.f, operation, value)
        return reduction.combine(self.f, operation.attributes["kind"], total, value)

    def _varies(self, tile: Tile) -> bool:
        return self.ev.lanes > 0 and self.ev.lane_axis in self.ev.flow.depends[tile.id]

    def _companions(self, operation: Operation) -> list[Operation]:
        """Other pending reductions over the same axis, bound otherwise, that wait for none of the group."""
        found = []
        bound = self.ev.bound_axes()
        for other in self.program.body:
            if other.op != "reduce" or other is operation or other.axis is not operation.axis:
                continue
            assert other.result is not None
            if self.ev.known(other.result) is not None or self.ev.flow.depends[other.result.id] - bound:
                continue
            pending = [o for o in self.ev.flow.cone(other.operands) if o.op == "reduce"]
            if all(self.ev.known(o.result) is not None for o in pending if o.result is not None):
                found.append(other)
        return found


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
    if rest.text == "0":
        return
    some = f.compare("icmp sgt", rest, i64(0)) if rest.text.startswith("%") else Reg("true", I64)
    f.when(some, [], lambda: run(width, f.mask_below(rest, width), full))


def _floor(f: FunctionText, value: Reg, multiple: int) -> Reg:
    if not value.text.startswith("%"):
        return i64(int(value.text) // multiple * multiple)
    return f.binary("and", value, i64(-multiple))
