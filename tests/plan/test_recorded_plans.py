"""The uncalibrated prior gives the recorded scores to the last digit, and every recorded choice of a plan."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grainline.plan.policy import AnalyticExecutionCostPolicy, CostCoefficients, ExecutionTarget
from grainline.plan.search import Search, search
from grainline.plan.target import host_target
from grainline.plan.types import PlannerOptions
from tests.plan.recorded_operators import OPERATORS

RECORD = json.loads((Path(__file__).parent.parent / "golden" / "plans.json").read_text())
TARGET = ExecutionTarget(packet_width=8, worker_count=8, task_chunks_per_worker=32)
BASE = replace(PlannerOptions.origin(), packet_width=8)


class ActivationPolicy(AnalyticExecutionCostPolicy):
    """The two prices of the recorded joint search, which were fixed before measuring."""

    def coefficients(self, target: ExecutionTarget, prior: CostCoefficients) -> CostCoefficients:
        return replace(prior, worker_activation=1_000_000, task_dispatch=128)


VARIANTS = {
    "whole": BASE,
    "local": replace(BASE, local_lanes=8),
    "joint_legacy": replace(BASE, local_lanes=0),
    "joint_tasks": replace(BASE, local_lanes=0, search_task_grain=True, cost_policy=ActivationPolicy()),
}


def searched(operator: str, shape: list[int], options: PlannerOptions) -> Search:
    assert options.cost_policy is not None
    return search(OPERATORS[operator](*shape), host_target(), TARGET, options, options.cost_policy, {})


@pytest.mark.parametrize("row", RECORD["scores"], ids=lambda row: row["operator"])
def test_the_prior_gives_the_recorded_score(row: dict[str, Any]) -> None:
    options = replace(BASE, local_lanes=row["local_lanes"], block_size=row["block"])
    best = searched(row["operator"], row["shape"], options).best
    assert best.work.arithmetic_per_packet == row["arithmetic_per_packet"]
    assert best.work.memory_per_packet == row["memory_per_packet"]
    assert best.cost.score == row["score"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_recorded_choice_is_chosen(variant: str) -> None:
    rows = [row for row in RECORD["plans"] if row["variant"] == variant]
    assert len(rows) == len(RECORD["plans"]) / len(VARIANTS) == 29
    for row in rows:
        chosen = searched(row["operator"], row["shape"], VARIANTS[variant]).best.candidate
        found = (chosen.local_lanes, chosen.block_size, chosen.blocks_per_task)
        wanted = (row["local_lanes"], row["block"], row["blocks_per_task"])
        assert found == wanted, f"{row['operator']} {row['shape']}: expected {wanted}, found {found}"


def test_no_price_of_activation_orders_the_recorded_operators() -> None:
    """Where the model turns to the caller at 129x768 contradicts what was measured: caller or pool was faster."""
    turns = {name: _turning_point(name) for name in OPERATORS}
    recorded = {
        "swiglu": 978_304,
        "rope": 1_128_832,
        "rmsnorm": 1_269_840,
        "gelu_residual": 1_548_160,
        "layernorm": 2_313_792,
        "masked_softmax": 2_636_016,
    }
    assert turns == recorded
    caller_was_faster = {"rmsnorm", "rope", "layernorm"}
    needed_above = max(turns[name] for name in caller_was_faster)
    needed_below = min(turns[name] for name in set(turns) - caller_was_faster)
    assert needed_above > needed_below, "one price would do"


def _turning_point(operator: str) -> float:
    """The activation price above which the best candidate of one worker beats the best of several."""
    candidates = searched(operator, [129, 768], replace(VARIANTS["joint_tasks"], local_lanes=8)).candidates
    caller = min(c.cost.score for c in candidates if c.work.active_workers == 1)
    pool = min(c.cost.score - c.cost.worker_activation for c in candidates if c.work.active_workers > 1)
    return caller - pool
