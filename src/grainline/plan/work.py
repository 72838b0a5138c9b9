"""Realised facts of a mapping: how each operation really runs, counted per lane packet, not per semantic operation.

`Work` splits by where it happens: once per program, and once per element of the tile loops (as an extent). The cost
table of `cost.py` turns kinds of work into time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from grainline.base.dims import Expr, product
from grainline.base.memo import kept_with_first
from grainline.plan.row_schedule import DEAR, schedule_rows
from grainline.plan.types import LOCAL, Mapping
from grainline.plan.whole_schedule import schedule_whole
from grainline.tile.access import Dataflow, dataflow, index_axes, linear_access, operands_of
from grainline.tile.ir import Axis, Operation, Tile, TileProgram


@dataclass(slots=True)
class Work:
    """Counts of (kind, bytes) items: `terms[extent]` are items done once per program and per unit of that extent.

    Kinds: contiguous, broadcast, strided (memory, per element in `lanes` or alone), cheap, or the name of a dear op.
    """

    terms: dict[int | Expr, Counter[str]] = field(default_factory=dict)

    def add(self, times: int | Expr, kind: str, amount: int = 1) -> None:
        terms = self.terms.get(times)
        if terms is None:
            terms = self.terms[times] = Counter()
        terms[kind] += amount


def realised_work(program: TileProgram, mapping: Mapping) -> Work:
    """The work of one program. The order of the root axes and the packet width do not change it."""
    return _realised_work(program, mapping.kind == LOCAL, mapping.lane_axis)


@kept_with_first  # a search asks for every mapping again and again
def _realised_work(program: TileProgram, is_local: bool, lane: Axis | None) -> Work:
    if is_local:
        assert lane is not None
        return _local_work(program, lane)
    return _whole_work(program, lane)


def _local_work(program: TileProgram, axis: Axis) -> Work:
    work, flow, schedule = Work(), dataflow(program), schedule_rows(program, axis)
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
                work.add(axis.extent, "contiguous", tile.dtype.size_bytes)
                continue
            operation = flow.define(tile)
            _charge(work, axis.extent, operation, access_kind(operation, flow, axis))
            stack.extend(operation.operands)
        for store in row_pass.stores:
            _charge(work, axis.extent, store, access_kind(store, flow, axis))
        for spill in row_pass.spills:
            work.add(axis.extent, "contiguous", spill.tile.dtype.size_bytes)
        for _ in row_pass.reductions:
            work.add(axis.extent, "cheap")
            work.add(1, "lane_fold")
    for operation in program.body:
        if operation.result is not None and axis not in flow.depends[operation.result.id]:
            kind = "scalar_dear" if operation.op in DEAR else "scalar_cheap"
            work.add(1, kind, operation.op != "reduce")
    return work


def _whole_work(program: TileProgram, lane: Axis | None) -> Work:
    """Recipes count in every loop nest that evaluates them; kept tiles once, with what is written and read of them."""
    work, flow, bound = Work(), dataflow(program), program.bound_axes
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
        varies = lane is not None and lane in flow.axes_of(operation)
        if operation.op == "stage" or (not varies and operation.op != "store"):
            continue
        space = operation.result.space if operation.result is not None else index_axes(operation)
        volume = product(a.extent for a in space if a not in bound) * repeats
        for _ in range(uses.get(id(operation), 1)):
            _charge(work, volume, operation, access_kind(operation, flow, lane))
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


def access_kind(operation: Operation, flow: Dataflow, lane: Axis | None) -> str:
    """The access kind, with run-time indices that vary over the lanes counted as strided."""
    if operation.op not in ("load", "store"):
        return ""
    form = linear_access(operation)
    if any(lane in flow.depends[tile.id] for tile, _ in form.dynamic):
        return "strided"
    step = form.coefficient(lane) if lane is not None else 0
    if isinstance(step, int) and step == 0:
        return "broadcast"
    return "contiguous" if isinstance(step, int) and step == 1 else "strided"


def _charge(work: Work, times: int | Expr, operation: Operation, kind: str) -> None:
    if operation.op in ("load", "store"):
        assert operation.view is not None
        size = operation.view.dtype.size_bytes
        work.add(times, kind, size if kind == "contiguous" else 1)
        if operation.op == "store" and kind == "strided":
            work.add(times, "scatter")
    elif operation.op in DEAR:
        work.add(times, operation.op)
    elif operation.op not in ("const", "extent", "coord"):
        work.add(times, "cheap")
