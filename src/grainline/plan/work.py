"""Realised facts of a mapping: how each operation really runs, counted per lane packet, not per semantic operation.

`Work` splits by where it happens: once per program, and once per element of the tile loops (as an extent). The cost
table of `cost.py` turns kinds of work into time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from grainline.base.dims import Expr, ceil_div, product
from grainline.base.memo import kept_with_first
from grainline.plan.reach import reach_bytes, walk_of
from grainline.plan.row_schedule import DEAR, schedule_rows
from grainline.plan.types import Mapping
from grainline.plan.whole_schedule import schedule_whole
from grainline.tile.access import Dataflow, LinearAccess, dataflow, index_axes, linear_access, operands_of
from grainline.tile.ir import Axis, Operation, Tile, TileProgram

#: kinds of access that are dearer the farther they reach
REACHING = ("strided", "scatter", "gathered")


@dataclass(slots=True)
class Work:
    """Counts of (kind, bytes) items: `terms[extent]` are items done once per program and per unit of that extent; of
    programs that run in a packet each, per element of the packets that their row takes.

    Kinds: contiguous, broadcast, strided, gathered (memory, per element in `lanes` or alone), scatter (what a store of
    the last two takes more), cheap, or the name of a dear op. `reach[extent, bytes]` counts those of REACHING that come
    back to a cache line when so many bytes were filled (see `plan.reach`).
    """

    terms: dict[int | Expr, Counter[str]] = field(default_factory=dict)
    reach: dict[tuple[int | Expr, int | Expr], Counter[str]] = field(default_factory=dict)

    def add(self, times: int | Expr, kind: str, amount: int = 1) -> None:
        terms = self.terms.get(times)
        if terms is None:
            terms = self.terms[times] = Counter()
        terms[kind] += amount

    def add_reach(self, times: int | Expr, reach: int | Expr, kind: str) -> None:
        self.reach.setdefault((times, reach), Counter())[kind] += 1


@kept_with_first  # a search asks for every mapping again and again
def realised_work(program: TileProgram, mapping: Mapping) -> Work:
    """The work of one program."""
    return _local_work(program, mapping) if mapping.is_local else _whole_work(program, mapping)


def whole_packets(extent: int | Expr, width: int) -> int | Expr:
    """The lanes of as many packets as `extent` elements take."""
    return ceil_div(extent, width) * width


def _local_work(program: TileProgram, mapping: Mapping) -> Work:
    axis = mapping.lane_axis
    assert axis is not None
    work, flow, schedule = Work(), dataflow(program), schedule_rows(program, axis)
    row = whole_packets(axis.extent, mapping.width)
    charge = Charge(work, program, mapping, flow)
    work.add(1, "packet", len(schedule.passes))
    spilled = {spill.tile.id: spill.written_in for spill in schedule.spills}
    for number, row_pass in enumerate(schedule.passes):
        stack = [t for o in (*row_pass.reductions, *row_pass.stores) for t in o.operands]
        stack += [spill.tile for spill in row_pass.spills]
        seen: set[int] = set()
        while stack:
            tile = stack.pop()
            if tile.id in seen or axis not in flow.depends[tile.id]:
                continue
            seen.add(tile.id)
            if tile.id in spilled and spilled[tile.id] < number:
                work.add(row, "contiguous", tile.dtype.size_bytes)
                continue
            operation = flow.define(tile)
            charge(row, operation)
            stack.extend(operation.operands)
        for store in row_pass.stores:
            charge(row, store)
        for spill in row_pass.spills:
            work.add(row, "contiguous", spill.tile.dtype.size_bytes)
        for _ in row_pass.reductions:
            work.add(row, "cheap")
            work.add(1, "lane_fold")
    for operation in program.body:
        if operation.result is not None and axis not in flow.depends[operation.result.id]:
            kind = "scalar_dear" if operation.op in DEAR else "scalar_cheap"
            work.add(1, kind, operation.op != "reduce")
    return work


def _whole_work(program: TileProgram, mapping: Mapping) -> Work:
    """Recipes count in every loop nest that evaluates them; kept tiles once, with what is written and read of them."""
    work, flow, bound, lane = Work(), dataflow(program), program.bound_axes, mapping.lane_axis
    charge = Charge(work, program, mapping, flow)
    kept = schedule_whole(program).arrays
    uses = _loop_evaluations(flow, kept)
    for operation, repeats in _with_repeats(program.body, 1):
        if operation.region is not None:
            for tile in operation.region.carried:
                _charge_private(work, repeats * _extent_of(operation.axis), tile)
            continue
        if operation.result is not None and operation.result.id in kept:
            _charge_private(work, repeats * (1 + uses.pop(id(operation), 0)), operation.result)
        if operation.op in ("reduce", "mma"):
            volume = product(a.extent for tile in operation.operands[:1] for a in tile.space)
            work.add(volume * repeats, "cheap")
            continue
        varies = lane is None or lane in flow.axes_of(operation)
        if operation.op == "stage" or (not varies and operation.op != "store"):
            continue
        space = operation.result.space if operation.result is not None else index_axes(operation)
        volume = product(a.extent for a in space if a not in bound) * repeats
        for _ in range(uses.get(id(operation), 1)):
            charge(volume, operation)
    return work


def _with_repeats(body: Sequence[Operation], repeats: int | Expr) -> Iterator[tuple[Operation, int | Expr]]:
    """Every operation with how often the loops around it run it."""
    for operation in body:
        yield operation, repeats
        if operation.region is not None:
            yield from _with_repeats(operation.region.body, repeats * _extent_of(operation.axis))


def _extent_of(axis: Axis | None) -> int | Expr:
    return 1 if axis is None else axis.extent


def _charge_private(work: Work, times: int | Expr, tile: Tile) -> None:
    """`times` copies of a tile between registers and its private array; carried scalars stay in registers."""
    if tile.space:
        work.add(times * product(axis.extent for axis in tile.space), "contiguous", tile.dtype.size_bytes)


def _loop_evaluations(flow: Dataflow, kept: Container[int]) -> dict[int, int]:
    """How many loop nests evaluate each tile operation, or read it where it is kept."""
    counts: dict[int, int] = {}
    for effect in flow.operations:
        is_kept = effect.result is not None and effect.result.id in kept
        if effect.op not in ("reduce", "mma", "store") and not is_kept:
            continue
        stack, seen = list(operands_of(effect)), set()
        while stack:
            tile = stack.pop()
            operation = flow.define(tile)
            if tile.id in seen or not tile.space or operation.region is not None:
                continue
            seen.add(tile.id)
            counts[id(operation)] = counts.get(id(operation), 0) + 1
            if operation.op not in ("reduce", "mma") and tile.id not in kept:
                stack.extend(operands_of(operation))
    return counts


def access_kind(form: LinearAccess, flow: Dataflow, lane: Axis | None) -> str:
    """How lanes find their elements; gathered when their indices are known at run time only."""
    if any(lane in flow.depends[tile.id] for tile, _ in form.dynamic):
        return "gathered"
    step = form.coefficient(lane) if lane is not None else 0
    if isinstance(step, int) and step == 0:
        return "broadcast"
    return "contiguous" if isinstance(step, int) and step == 1 else "strided"


@dataclass(frozen=True, slots=True)
class Charge:
    """Adds operations of a program under a mapping to its work."""

    work: Work
    program: TileProgram
    mapping: Mapping
    flow: Dataflow

    def __call__(self, times: int | Expr, operation: Operation) -> None:
        """`operation`, done `times` times."""
        if operation.op in ("load", "store"):
            self._access(times, operation)
        elif operation.op in DEAR:
            self.work.add(times, operation.op)
        elif operation.op not in ("const", "extent", "coord"):
            self.work.add(times, "cheap")

    def _access(self, times: int | Expr, operation: Operation) -> None:
        assert operation.view is not None
        form = linear_access(operation)
        kind = access_kind(form, self.flow, self.mapping.lane_axis)
        self.work.add(times, kind, operation.view.dtype.size_bytes if kind == "contiguous" else 1)
        if kind not in REACHING:
            return
        if operation.op == "store":
            kind = "scatter"
            self.work.add(times, kind)
        self.work.add_reach(times, reach_bytes(operation, form, walk_of(self.program, self.mapping, form)), kind)
