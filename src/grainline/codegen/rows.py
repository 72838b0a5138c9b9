"""The packet-local mapping: one packet runs one program, lanes along the one tile axis n.

A program is a sequence of passes over n (see `plan.row_schedule`). A pass is a main loop over W * unroll elements, a
loop over W, and one masked packet for the rest, all with the same arithmetic per element. Partial sums: element i of
the main loop belongs to lane i mod (W * unroll); the lanes merge in halves to W, take the remaining packets, and merge
in halves to one.
"""

from __future__ import annotations

from collections.abc import Callable

from grainline.base.dtypes import I64
from grainline.codegen import memory
from grainline.codegen.accumulators import Accumulator
from grainline.codegen.emit import FunctionText, Reg, i64
from grainline.codegen.evaluate import Evaluator
from grainline.codegen.row_streams import RowStreams
from grainline.plan.row_schedule import RowPass, RowSchedule, Spill
from grainline.tile.access import operands_of
from grainline.tile.ir import Operation

SLOT_ALIGNMENT = 64


class RowBody:
    """Emits the passes of one program into the current block; root coordinates must be bound in the evaluator.

    `ends` of the axis (main stop, full stop, tail mask) are computed by `prepare`, once per kernel.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        schedule: RowSchedule,
        width: int,
        unroll: int,
        scratch: str,
        streams: RowStreams | None = None,
    ) -> None:
        self.ev = evaluator
        self.f: FunctionText = evaluator.f
        self.schedule = schedule
        self.width = width
        self.lanes = width * unroll
        self.scratch = scratch
        self.streams = streams
        self.is_shifted = False  # packets begin anywhere, not at multiples of the width
        self.spilled = {spill.tile.id: spill for spill in schedule.spills}
        self.written: set[int] = set()
        self.scalar_loads = [o.result for o in evaluator.program.body if self._is_scalar_load(o) and o.result]

    def _is_scalar_load(self, operation: Operation) -> bool:
        """Whether a load waits for nothing: neither for the coordinate of a lane nor for a reduction."""
        flow = self.ev.flow
        cone = flow.cone(operands_of(operation))
        is_free = self.schedule.axis not in flow.axes_of(operation) and all(o.op != "reduce" for o in cone)
        return operation.op == "load" and is_free

    def prepare(self, count: Reg | None = None) -> None:
        """Computes what depends on n only; call before the loop over programs. `count` elements of n, or all."""
        f, axis = self.f, self.schedule.axis
        self.count = self.ev.arguments.extent(axis.extent) if count is None else count
        self.main_stop = self._floor(self.count, self.lanes)
        self.full_stop = self._floor(self.count, self.width)
        self.rest = f.sub(self.count, self.full_stop)
        self.has_tail = self.rest.text != "0"
        self.tail_mask = f.mask_below(self.rest, self.width) if self.has_tail else None
        self.slot_elements = self._floor(f.add(self.count, SLOT_ALIGNMENT - 1), SLOT_ALIGNMENT)

    def emit(self, led: list[Reg] | None = None, follow: Callable[[], None] | None = None) -> None:
        """All passes, then the scalar stores. Opens its own scope for the program's values.

        `led` are the results of the first pass, where `lead` has computed them; `follow` is called before the last, or
        behind it where that one writes past the caches: rows that come from far are better read one at a time.
        """
        self.ev.lane_axis = self.schedule.axis
        self.written = set()
        for load in self.scalar_loads:  # a snapshot: before anything is stored
            self.ev.value(load)
        if self.streams is not None:
            self.streams.locate()
        for number, row_pass in enumerate(self.schedule.passes):
            if led is not None and number == 0:
                self._remember_results(row_pass, led)
            else:
                self._pass(row_pass, follow if row_pass is self.schedule.passes[-1] else None)
            self.written.update(spill.tile.id for spill in row_pass.spills)
        for store in self.schedule.scalar_stores:
            self.ev.store(store)

    def lead(self) -> list[Reg]:
        """The first pass alone, of a schedule that `has_lead`; returns the results of its reductions."""
        self.ev.lane_axis = self.schedule.axis
        self._pass(self.schedule.passes[0])
        return [self.ev.value(o.result) for o in self.schedule.passes[0].reductions if o.result is not None]

    def _remember_results(self, row_pass: RowPass, values: list[Reg]) -> None:
        for operation, value in zip(row_pass.reductions, values, strict=True):
            assert operation.result is not None
            self.ev.remember(operation.result, value)

    def _floor(self, value: Reg, multiple: int) -> Reg:
        if not value.text.startswith("%"):
            return i64(int(value.text) // multiple * multiple)
        return self.f.binary("and", value, i64(-multiple))

    def _pass(self, row_pass: RowPass, follow: Callable[[], None] | None = None) -> None:
        effects = (*row_pass.reductions, *row_pass.stores)
        if not effects and not row_pass.spills:
            if follow is not None:
                follow()
            return
        f = self.f
        self.ev.hoist((*effects, *self._spill_roots(row_pass)), self.schedule.axis)
        streams = self.streams
        is_streamed = streams is not None and streams.streams(row_pass)
        if streams is not None and is_streamed:
            f.when(streams.is_large, [], lambda: self._streamed(row_pass, streams))
        if follow is not None:
            follow()
        if streams is None or not is_streamed:
            self._loops(row_pass)
            return
        f.when(streams.is_small, [], lambda: self._loops(row_pass))

    def _streamed(self, row_pass: RowPass, streams: RowStreams) -> list[Reg]:
        """The last pass with stores past the caches: up to the first line, whole lines, and the rest."""
        f = self.f
        head = streams.elements_before_line(self.count)
        rest = f.add(head, self._floor(f.sub(self.count, head), self.lanes))

        def part(_number: Reg, ends: list[Reg]) -> list[Reg]:
            """Short packets between the ends, then whole lines: none are left the second time."""
            start, stop = ends

            def packet(index: Reg, _carried: list[Reg]) -> list[Reg]:
                return self._packet(row_pass, index, [], self.width, f.mask_below(f.sub(stop, index), self.width))

            f.loop(start, stop, self.width, [], packet)
            self.ev.streamed = streams.store
            f.loop(stop, rest, self.lanes, [], self._packets(row_pass, self.lanes))
            self.ev.streamed = None
            return [rest, self.count]

        self.is_shifted = True
        f.loop(i64(0), i64(2), 1, [i64(0), head], part)
        self.is_shifted = False
        return []

    def _loops(self, row_pass: RowPass) -> list[Reg]:
        f = self.f
        sums = self._accumulators(row_pass)
        wide = [register for each in sums for register in each.start(self.lanes)]
        wide = f.loop(i64(0), self.main_stop, self.lanes, wide, self._packets(row_pass, self.lanes))
        states = self._split(sums, wide, self.lanes)
        narrow = [register for each, state in zip(sums, states, strict=True) for register in each.narrowed(state)]
        if self.lanes != self.width:
            narrow = f.loop(self.main_stop, self.full_stop, self.width, narrow, self._packets(row_pass, self.width))
        if self.has_tail:
            narrow = self._tail(row_pass, narrow)
        for each, state in zip(sums, self._split(sums, narrow, self.width), strict=True):
            assert each.operation.result is not None
            self.ev.remember(each.operation.result, each.finish(state, self.count))
        return []

    def _accumulators(self, row_pass: RowPass) -> list[Accumulator]:
        return [Accumulator(self.f, operation, self.width) for operation in row_pass.reductions]

    def _split(self, sums: list[Accumulator], registers: list[Reg], lanes: int) -> list[list[Reg]]:
        """The state of each reduction among the registers of all, for packets of `lanes`."""
        rest = iter(registers)
        return [[next(rest) for _ in each.start(lanes)] for each in sums]

    def _spill_roots(self, row_pass: RowPass) -> list[Operation]:
        """The definitions of spilled values, as effects whose operands must be ready."""
        return [self.ev.flow.define(spill.tile) for spill in row_pass.spills]

    def _packets(self, row_pass: RowPass, lanes: int) -> Callable[[Reg, list[Reg]], list[Reg]]:
        return lambda index, carried: self._packet(row_pass, index, carried, lanes, None)

    def _tail(self, row_pass: RowPass, carried: list[Reg]) -> list[Reg]:
        some = self.f.compare("icmp sgt", self.rest, i64(0)) if self.rest.text.startswith("%") else Reg("true", I64)
        return self.f.when(
            some, carried, lambda: self._packet(row_pass, self.full_stop, carried, self.width, self.tail_mask)
        )

    def _packet(self, row_pass: RowPass, index: Reg, carried: list[Reg], lanes: int, mask: Reg | None) -> list[Reg]:
        """One packet of a pass: values first, then spills and stores, then the new accumulators."""
        ev, f = self.ev, self.f
        ev.enter({self.schedule.axis: index})
        ev.lanes, ev.mask = lanes, mask
        if self.streams is not None and lanes == self.lanes and mask is None:
            self.streams.fetch_following(row_pass)
            if ev.streamed is None:
                self.streams.claim_results(row_pass)
        self._load_spills(row_pass)
        kept = [ev.vector(spill.tile) for spill in row_pass.spills]
        for store in row_pass.stores:
            ev.value(store.operands[0])
        results = self._accumulate(row_pass, carried)
        for spill, value in zip(row_pass.spills, kept, strict=True):
            place = self._spill_address(spill, index)
            memory.store(f, place, value, self._spill_mask(spill), is_private=spill.row is None)
        for store in row_pass.stores:
            ev.store(store)
        ev.lanes, ev.mask = 0, None
        ev.leave()
        return results

    def _accumulate(self, row_pass: RowPass, carried: list[Reg]) -> list[Reg]:
        ev, sums = self.ev, self._accumulators(row_pass)
        after: list[Reg] = []
        for each, state in zip(sums, self._split(sums, carried, ev.lanes), strict=True):
            after += each.step(state, ev.vector(each.operation.operands[0]), ev.mask)
        return after

    def _load_spills(self, row_pass: RowPass) -> None:
        """Reads the spilled values that this pass uses."""
        roots = [tile for o in (*row_pass.reductions, *row_pass.stores) for tile in operands_of(o)]
        stack = [*roots, *(spill.tile for spill in row_pass.spills)]
        seen: set[int] = set()
        while stack:
            tile = stack.pop()
            if tile.id in seen or self.ev.known(tile) is not None:
                continue
            seen.add(tile.id)
            if tile.id in self.written:
                spill = self.spilled[tile.id]
                index = self.ev.coordinate(self.schedule.axis)
                assert index is not None
                place = self._spill_address(spill, index)
                mask = self._spill_mask(spill)
                self.ev.remember(tile, memory.load(self.f, place, tile.dtype, self.ev.lanes, mask, spill.row is None))
                continue
            stack.extend(operands_of(self.ev.flow.define(tile)))

    def _spill_mask(self, spill: Spill) -> Reg | None:
        """Slots of the scratch have room for whole packets from multiples of the width on."""
        if self.is_shifted:
            return self.ev.mask
        is_roomy = spill.row is None or spill.row.view == self.ev.roomy
        return None if is_roomy else self.ev.mask

    def _spill_address(self, spill: Spill, index: Reg) -> str:
        if spill.row is not None:
            return self.ev.address(spill.row)
        size = spill.tile.dtype.size_bytes
        start = self.f.mul(self.slot_elements, 8 * spill.slot)
        base = self.f.pointer(self.scratch, start, 1)
        return self.f.pointer(base, index, size)
