"""What a variant's settings choose for one program, and what the planner chooses by itself.

Variants plan with the uncalibrated prior over the block widths of `plan.policy`, so that their choices are those of a
fixed model; the automatic choice is made exactly as a launch makes it: the plan first, then homes and grain. No
calibration of the user steers either: whoever measures says whose prices are meant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from grainline.base.dims import evaluate
from grainline.evidence.suites import PACKET, Settings
from grainline.plan.legal import packet_shape
from grainline.plan.machine import Machine, shipped_machine
from grainline.plan.planner import plan
from grainline.plan.policy import AnalyticExecutionCostPolicy, CostCoefficients, ExecutionTarget
from grainline.plan.policy_table import ProductSpace
from grainline.plan.search import pick
from grainline.plan.target import Target, host_target
from grainline.plan.types import Plan, PlannerOptions, PlanResult, ScoredCandidate
from grainline.tile.ir import TileProgram


class UncalibratedPolicy(AnalyticExecutionCostPolicy):
    """The prior with two coefficients of its own."""

    def __init__(self, worker_activation: float, task_dispatch: float) -> None:
        self.worker_activation = worker_activation
        self.task_dispatch = task_dispatch

    def coefficients(self, target: ExecutionTarget, prior: CostCoefficients) -> CostCoefficients:
        return replace(prior, worker_activation=self.worker_activation, task_dispatch=self.task_dispatch)


@dataclass(frozen=True)
class Choice:
    """`blocks_per_task` as asked for: 0 is the pool's heuristic."""

    plan: Plan
    picked: ScoredCandidate
    blocks_per_task: int
    candidates: int

    def description(self) -> dict[str, Any]:
        """The part of a record that the planner decides: what was chosen, among how many, by which terms."""
        return {
            "mapping": str(self.plan.mapping),
            "local_lanes": self.picked.candidate.local_lanes,
            "block_size": self.picked.candidate.block_size,
            "blocks_per_task": self.blocks_per_task,
            "candidates": self.candidates,
            "cost": self.picked.cost._asdict(),
            "counts": self.picked.work._asdict(),
        }


def options_of(program: TileProgram, settings: Settings, target: Target) -> tuple[PlannerOptions, ExecutionTarget]:
    """The planner's options for a variant; `PACKET` becomes the packet width of the target."""
    width, _ = packet_shape(program, target, PlannerOptions())
    options = PlannerOptions(
        local_lanes=width if settings.local_lanes == PACKET else settings.local_lanes,
        block_size=settings.block_size,
        blocks_per_task=settings.blocks_per_task,
        search_task_grain=settings.search_task_grain,
        cost_policy=UncalibratedPolicy(settings.worker_activation, settings.task_dispatch),
    )
    return options, ExecutionTarget(packet_width=width)


def choose(program: TileProgram, settings: Settings, homes: int, target: Target | None = None) -> Choice:
    """What the settings leave to the prior, chosen for `homes` threads."""
    target = target or host_target()
    options, execution = options_of(program, settings, target)
    execution = replace(execution, worker_count=homes)
    result = plan(program, target, options, execution=execution, machine=shipped_machine(target))
    candidates = result.candidates or _grains_of_product(result, options, execution)
    picked = result.best or pick(list(candidates), tie=0)
    return Choice(result.variants[0], picked, picked.candidate.blocks_per_task, len(candidates))


def _grains_of_product(
    result: PlanResult, options: PlannerOptions, execution: ExecutionTarget
) -> list[ScoredCandidate]:
    """The grains that the prior may choose among for a matrix product, whose blocks follow from its register tiles."""
    assert options.cost_policy is not None
    return ProductSpace.of(result.variants[:1], execution, options, options.cost_policy).candidates_at({})


@dataclass(frozen=True)
class Launch:
    """What a launch does by itself: `homes` threads, `grain` blocks per task, and the time that it expects."""

    grain: int
    homes: int
    predicted_ns: float


def automatic(program: TileProgram, target: Target, machine: Machine, *, is_hot: bool = True) -> Plan:
    """The plan that nobody steered, by the prices of `machine`, for threads that stay awake inside a run or not."""
    return plan(program, target, machine=machine, is_hot=is_hot).variants[0]


def launch_of(chosen: Plan, homes: int, is_hot: bool, machine: Machine) -> Launch:
    """Homes and grain of a launch of this plan, from the same native function that a run calls."""
    from grainline import _native  # type: ignore[attr-defined,unused-ignore]

    cost, traffic, task = (evaluate(e, {}) for e in (chosen.cost_ps, chosen.traffic_bytes, chosen.task_ps))
    found = _native.choose_launch(cost, traffic, task, evaluate(chosen.blocks, {}), homes, is_hot, machine.costs())
    return Launch(int(found[0]), int(found[1]), found[2] / 1e3)
