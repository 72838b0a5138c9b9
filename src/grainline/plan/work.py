"""Realised facts of a mapping: how each operation really runs, counted per lane packet, not per semantic operation.

`Work` splits by where it happens: once per program, and once per element of the tile loops (as an extent). The cost
table of `cost.py` turns kinds of work into time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from grainline.base.dims import Expr, product
from grainline.plan.row_schedule import DEAR, schedule_rows
from grainline.plan.types import LOCAL, Mapping
from grainline.tile.access import Dataflow, index_axes, linear_access
from grainline.tile.ir import Axis, Operation, TileProgram


@dataclass(slots=True)
class Work:
    """Counts of (kind, bytes) items: `terms[extent]` are items done once per program and per unit of that extent.

    Kinds: contiguous, broadcast, strided (memory, per element in `lanes` or alone), cheap, or the name of a dear op.
    """

    terms: dict[int | Expr, Counter[str]] = field(default_factory=dict)

    def add(self, times: int | Expr, kind: str, amount: int = 1) -> None:
        self.terms.setdefault(times, Counter())[kind] += amount


def realised_work(program: TileProgram, mapping: Mapping) -> Work:
    """The work of one program."""
    if mapping.kind == LOCAL:
        return _local_work(program, mapping)
    return _whole_work(program, mapping)


def _local_work(program: TileProgram, mapping: Mapping) -> Work:
    axis = mapping.lane_axis
    assert axis is not None
    work, flow, schedule = Work(), Dataflow(program), schedule_rows(program, axis)
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


def _whole_work(program: TileProgram, mapping: Mapping) -> Work:
    work, flow = Work(), Dataflow(program)
    lane = mapping.lane_axis
    uses = _loop_evaluations(program, flow)
    for operation in program.body:
        times = uses.get(id(operation), 1)
        varies = lane is not None and lane in flow.axes_of(operation)
        if operation.op == "reduce":
            volume = product(a.extent for a in operation.operands[0].space)
            work.add(volume, "cheap")
            continue
        if not varies and operation.op != "store":
            continue
        space = operation.result.space if operation.result is not None else index_axes(operation)
        volume = product(a.extent for a in space if a not in program.roots)
        for _ in range(times):
            _charge(work, volume, operation, access_kind(operation, flow, lane))
    return work


def _loop_evaluations(program: TileProgram, flow: Dataflow) -> dict[int, int]:
    """How many loops evaluate each tile operation: one per reduction or store over tile axes that reaches it."""
    counts: dict[int, int] = {}
    for effect in program.body:
        if effect.op not in ("reduce", "store"):
            continue
        stack, seen = list(effect.operands), set()
        while stack:
            tile = stack.pop()
            if tile.id in seen or not tile.space:
                continue
            seen.add(tile.id)
            operation = flow.define(tile)
            counts[id(operation)] = counts.get(id(operation), 0) + 1
            if operation.op != "reduce":
                stack.extend(operation.operands)
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
