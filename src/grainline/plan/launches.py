"""What a launch of compiled variants may choose among, with the terms of each: the objective of a run, laid open.

A matrix product is not searched: its variants follow from its operands, all have one numeric signature, and a launch
takes variant, homes and grain by its extents. `launch_candidates` lists that choice as a search would.
"""

from __future__ import annotations

from collections.abc import Mapping as Table
from collections.abc import Sequence
from dataclasses import replace

from grainline import _native
from grainline.base.dims import evaluate
from grainline.plan.machine import Machine
from grainline.plan.policy import ExecutionCost, ExecutionTarget, count_work
from grainline.plan.search import task_grains
from grainline.plan.types import DEFAULT_OPTIONS, Candidate, Plan, PlanResult, ScoredCandidate


def with_launches(
    result: PlanResult, target: ExecutionTarget, machine: Machine, extents: Table[str, int]
) -> PlanResult:
    """`result`, which has variants only, with the candidates of its launches and the one that a run takes."""
    candidates, best = launch_candidates(result.variants, target, machine, extents)
    return PlanResult(result.variants, candidates, result.refusals, result.reason, best, result.table)


def launch_candidates(
    variants: Sequence[Plan], target: ExecutionTarget, machine: Machine, extents: Table[str, int]
) -> tuple[tuple[ScoredCandidate, ...], ScoredCandidate]:
    """Every variant in every grain of a search, and in the one that a launch gives it; then what a launch takes.

    Work is per block, since only a product's emitter knows packets. Times are picoseconds.
    """
    found: list[ScoredCandidate] = []
    chosen: list[tuple[float, ScoredCandidate]] = []
    for variant in variants:
        blocks = evaluate(variant.blocks, extents)
        work = tuple(evaluate(e, extents) for e in (variant.cost_ps, variant.traffic_bytes, variant.task_ps))
        homes = target.worker_count
        taken, active, time_ps = _native.choose_launch(*work, blocks, homes, target.is_hot, machine.costs())
        for grain in sorted({*task_grains(blocks, target, DEFAULT_OPTIONS), taken}):
            on = replace(target, worker_count=active if grain == taken else homes)
            found.append(_scored(variant, work, blocks, grain, on, machine))
            if grain == taken:
                chosen.append((time_ps, found[-1]))
    return tuple(found), min(chosen, key=lambda each: each[0])[1]


def _scored(
    variant: Plan, work: Sequence[int], blocks: int, grain: int, target: ExecutionTarget, machine: Machine
) -> ScoredCandidate:
    cost_ps, traffic_bytes, task_ps = work
    launch = (cost_ps, traffic_bytes, task_ps, 0.0, blocks, grain, target.worker_count)
    *terms, time_ps = _native.launch_terms(*launch, target.is_hot, machine.costs())
    counts = count_work(target, (cost_ps / max(blocks, 1), 0.0), blocks, blocks, 1, grain)
    candidate = Candidate(variant.mapping, (), 1, variant.block, grain, blocks)
    return ScoredCandidate(candidate, counts, ExecutionCost(*terms, time_ps))
