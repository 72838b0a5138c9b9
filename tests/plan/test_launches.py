"""What launches of products may choose among: every variant in every grain, by the objective of a run."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from grainline import _native
from grainline.base.dims import evaluate, symbol
from grainline.evidence import operators
from grainline.plan.launches import launch_candidates, with_launches
from grainline.plan.machine import REFERENCE
from grainline.plan.planner import execution_target, plan
from grainline.plan.target import host_target
from grainline.plan.types import DEFAULT_OPTIONS, Plan

TARGET = host_target()
SEED = 3


def products() -> list[Plan]:
    return list(plan(operators.find("matmul").program(70, 96, 400), TARGET, machine=REFERENCE).variants)


def priced(variant: Plan, seeded: random.Random) -> Plan:
    """The variant at any price, in any number of blocks."""
    cost, own = (int(10 ** seeded.uniform(3, 11)) for _ in range(2))
    return replace(
        variant,
        cost_ps=cost,
        traffic_bytes=int(10 ** seeded.uniform(2, 9)),
        task_ps=own // 100,
        blocks=seeded.choice((1, 2, 7, 300)),
    )


@pytest.mark.parametrize("homes", [1, 2, 8])
@pytest.mark.parametrize("is_hot", [True, False])
def test_the_pick_is_what_a_run_takes_and_every_score_is_its_prediction(homes: int, is_hot: bool) -> None:
    seeded, costs = random.Random(SEED), REFERENCE.costs()
    execution = replace(
        execution_target(products()[0].program, TARGET, DEFAULT_OPTIONS), worker_count=homes, is_hot=is_hot
    )
    for _ in range(40):
        variants = [priced(variant, seeded) for variant in products()]
        found, best = launch_candidates(variants, execution, REFERENCE, {})
        taken = [
            _native.choose_launch(v.cost_ps, v.traffic_bytes, v.task_ps, v.blocks, homes, is_hot, costs)
            for v in variants
        ]
        first = min(range(len(taken)), key=lambda k: taken[k][2])
        grain, active, time_ps = taken[first]
        assert best.cost.score == pytest.approx(time_ps), SEED
        assert best.candidate.mapping is variants[first].mapping, SEED
        assert (best.work.blocks_per_task, best.work.active_workers) == (grain, active), SEED
        by_mapping = {id(v.mapping): v for v in variants}
        for each in found:
            v, work = by_mapping[id(each.candidate.mapping)], each.work
            time = _native.expected_time(
                v.cost_ps,
                v.traffic_bytes,
                v.task_ps,
                v.blocks,
                work.blocks_per_task,
                work.active_workers,
                is_hot,
                costs,
            )
            assert each.cost.score == pytest.approx(time), SEED
            assert all(term >= 0 for term in each.cost), SEED


def test_a_task_that_does_something_anew_is_charged_for_each() -> None:
    costs = REFERENCE.costs()
    *once, _ = _native.launch_terms(10**9, 0, 7, 0.0, 8, 8, 1, True, costs)
    assert once[4] == 7, "one call does it once"
    for grain, tasks in ((8, 1), (4, 1), (2, 2), (1, 4)):
        homes = 1 if grain == 8 else 2
        *terms, time = _native.launch_terms(10**9, 0, 10**6, 0.0, 8, grain, homes, True, costs)
        assert terms[4] == tasks * (10**6 + (REFERENCE.task_ps if homes > 1 else 0)), grain
        assert sum(terms) == pytest.approx(time), grain


def test_symbols_take_the_extents_that_are_given() -> None:
    program = operators.find("matmul").program(symbol("M"), 96, 400)
    result = plan(program, TARGET, machine=REFERENCE)
    execution = execution_target(program, TARGET, DEFAULT_OPTIONS)
    for rows in (1, 1000):
        found = with_launches(result, execution, REFERENCE, {"M": rows})
        assert {each.work.block_count for each in found.candidates} == {
            evaluate(variant.blocks, {"M": rows}) for variant in result.variants
        }
        assert found.best in found.candidates and found.variants == result.variants
