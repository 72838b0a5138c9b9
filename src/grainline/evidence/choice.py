"""What a variant's settings choose for one program: a plan, and the grain that goes with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grainline.evidence.suites import PACKET, Settings
from grainline.plan.planner import plan
from grainline.plan.target import Target, host_target
from grainline.plan.types import LOCAL, Plan, PlannerOptions
from grainline.tile.ir import TileProgram


@dataclass(frozen=True)
class Choice:
    """`blocks_per_task` as asked for: 0 is the pool's heuristic."""

    plan: Plan
    local_lanes: int
    block_size: int
    blocks_per_task: int
    candidates: int

    def description(self) -> dict[str, Any]:
        return {
            "mapping": str(self.plan.mapping),
            "local_lanes": self.local_lanes,
            "block_size": self.block_size,
            "blocks_per_task": self.blocks_per_task,
            "candidates": self.candidates,
        }


def choose(program: TileProgram, settings: Settings, homes: int, target: Target | None = None) -> Choice:
    target = target or host_target()
    lanes = target.packet_width if settings.local_lanes == PACKET else settings.local_lanes
    options = PlannerOptions(
        local_lanes=lanes,
        block_size=settings.block_size,
        blocks_per_task=settings.blocks_per_task,
        search_task_grain=False,
    )
    result = plan(program, target, options)
    best = result.variants[0]
    lanes = best.mapping.width if best.mapping.kind == LOCAL else 1
    return Choice(best, lanes, best.block * lanes, settings.blocks_per_task, len(result.candidates))
