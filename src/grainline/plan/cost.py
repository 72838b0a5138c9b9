"""Predicted time of a launch on one thread: sum over kinds of work of price * count, in picoseconds.

    whole:  lanes * per_lane + blocks * block             lanes of whole packets, idle ones included
    local:  programs * (program + per_program + per_element * n)    n rounded up to whole packets

A packet costs the same however few of its lanes have something to do. So packets of one lane, which programs without
roots have, and those whose private arrays leave no room for more, pay for W lanes each.

Strided and gathered elements are dearer by level: those that reach beyond the first cache, and beyond the core's own,
pay for each (see `plan.reach`).

`CalibratedExecutionCostPolicy` adds what other threads change: the native `launch_time`, which a run uses too.
"""

from __future__ import annotations

from collections.abc import Mapping as Table

from grainline import _native
from grainline.base.dims import Expr, evaluate, floordiv, minimum, product, symbols
from grainline.base.memo import kept_with_first
from grainline.plan.machine import REFERENCE, Machine
from grainline.plan.policy import CostCoefficients, ExecutionCost, ExecutionCostPolicy, ExecutionTarget, ExecutionWork
from grainline.plan.types import Candidate, Mapping
from grainline.plan.whole_workspace import whole_workspace
from grainline.plan.work import realised_work, whole_packets
from grainline.tile.ir import TileProgram

TYPICAL_EXTENT = 128


class CalibratedExecutionCostPolicy(ExecutionCostPolicy):
    """Picoseconds from realised facts and the costs of a machine.

    A packet's arithmetic is the predicted time of its code with data in the nearest caches. The objective is the time
    of the launch: `memory` is what lies beyond those caches, `imbalance` what late starts and rounding lose.
    """

    is_measured = True

    def __init__(self, machine: Machine = REFERENCE) -> None:
        self.machine = machine
        self.tie = machine.tie
        self.costs = machine.costs()
        self.block_ps, self.launch_ps = machine.picoseconds["block"], machine.picoseconds["launch"]
        self.bytes = 0

    def per_packet(
        self,
        target: ExecutionTarget,
        program: TileProgram,
        mapping: Mapping,
        coefficients: CostCoefficients,
        extents: Table[str, int],
    ) -> tuple[float, float]:
        self.bytes = evaluate(traffic_bytes(program), extents)
        total = evaluate(launch_cost(program, mapping, 0, self.machine), extents)
        packets = _packets(program, mapping, extents)
        return (total - self.launch_ps) / max(packets, 1), 0.0

    def evaluate(
        self, target: ExecutionTarget, candidate: Candidate, work: ExecutionWork, coefficients: CostCoefficients
    ) -> ExecutionCost:
        blocks_ps = 0.0 if candidate.mapping.is_local else work.block_count * self.block_ps
        work_ps = round((work.packet_count * work.arithmetic_per_packet + blocks_ps) * _unevenness(work))
        grain = work.blocks_per_task or 1
        launch = (work_ps, self.bytes, 0, blocks_ps, work.block_count, grain, target.worker_count)
        *terms, time = _native.launch_terms(*launch, target.is_hot, self.costs)
        return ExecutionCost(*terms, time + self.launch_ps)


def _unevenness(work: ExecutionWork) -> float:
    """What the longest home has, against what it would have if all blocks held as much; the last may hold less."""
    if work.active_workers <= 1:
        return 1.0
    return max(work.critical_packets * work.block_count / (work.packet_count * work.critical_blocks), 1.0)


def launch_cost(program: TileProgram, mapping: Mapping, blocks: int | Expr, machine: Machine = REFERENCE) -> int | Expr:
    """Picoseconds of all blocks on one thread, as an extent of the program's symbols."""
    total: int | Expr = 0
    for times, amounts in launch_items(program, mapping, blocks, machine):
        total = total + times * round(sum(machine.picoseconds[kind] * amount for kind, amount in amounts.items()))
    return total


def launch_items(
    program: TileProgram, mapping: Mapping, blocks: int | Expr, machine: Machine
) -> list[tuple[int | Expr, Table[str, int]]]:
    """What a launch does: so many times these amounts of priced kinds, with caches as large as those of `machine`."""
    is_local = mapping.is_local
    lanes = _programs(program) if is_local else _whole_lanes(program, mapping)
    items: list[tuple[int | Expr, Table[str, int]]] = [(1, {"launch": 1})]
    work = realised_work(program, mapping)
    for times, amounts in work.terms.items():
        items.append((lanes * times, amounts))
    for (times, reach), amounts in work.reach.items():
        count = lanes * times
        for level, limit in (("private", machine.nearest_bytes), ("shared", machine.private_bytes)):
            far = {f"{kind}_{level}": amount for kind, amount in amounts.items()}
            items.append((count * _exceeds(reach, int(limit)), far))
    items.append((lanes, {"program": 1}) if is_local else (blocks, {"block": 1}))
    return items


def _exceeds(value: int | Expr, limit: int) -> int | Expr:
    """1 when `value` is greater than `limit`, else 0."""
    return minimum(floordiv(value, limit + 1), 1)


def typical(cost: int | Expr) -> int:
    """The value of an extent when every symbol has a typical size."""
    return evaluate(cost, dict.fromkeys(symbols(cost), TYPICAL_EXTENT))


@kept_with_first
def traffic_bytes(program: TileProgram) -> int | Expr:
    """Distinct bytes that a launch touches, when every view is touched whole."""
    total: int | Expr = 0
    for view in program.views:
        total = total + product(view.shape) * view.dtype.size_bytes
    return total


def _packets(program: TileProgram, mapping: Mapping, extents: Table[str, int]) -> int:
    programs = evaluate(product(axis.extent for axis in program.roots), extents)
    if mapping.is_local or mapping.lane_axis is None:
        return programs
    lane = evaluate(mapping.lane_axis.extent, extents)
    return programs // lane * -(-lane // mapping.width) if lane else 0


def _programs(program: TileProgram) -> int | Expr:
    return product(axis.extent for axis in program.roots)


def _whole_lanes(program: TileProgram, mapping: Mapping) -> int | Expr:
    """Lanes that are paid for: whole packets along the lane axis, or W for every program that has a packet of its own.

    Symbolic extents that decide between the two at launch decide here too.
    """
    lane, width = mapping.lane_axis, mapping.width
    alone = _programs(program) * width
    if lane is None:
        return alone
    wide = product(axis.extent for axis in program.roots if axis is not lane) * whole_packets(lane.extent, width)
    workspace = whole_workspace(program, width, may_alias=False)
    if len(workspace.widths) == 1:
        return wide if workspace.widths == (width,) else alone
    return wide + _exceeds(workspace.wide_bytes, workspace.budget_bytes) * (alone - wide)
