"""The search is finite, exact and deterministic; its counts are those of dealing tasks out one by one."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from grainline.base.dims import symbol
from grainline.base.dtypes import F32
from grainline.kernels import pointwise, rows
from grainline.plan.policy import (
    BLOCK_WIDTHS,
    AnalyticExecutionCostPolicy,
    CostCoefficients,
    ExecutionCost,
    ExecutionTarget,
    ExecutionWork,
)
from grainline.plan.search import Search, search, task_grains
from grainline.plan.target import host_target
from grainline.plan.types import Candidate, PlanError, PlannerOptions
from grainline.tile.build import ProgramBuilder
from grainline.tile.ir import TileProgram

ORIGIN = replace(PlannerOptions.origin(), packet_width=8)
TARGET = ExecutionTarget(8, 8)
SEED = 20_260_908
FIELDS = ("arithmetic", "memory", "block_dispatch", "imbalance", "task_dispatch", "worker_activation", "score")


class Recording(AnalyticExecutionCostPolicy):
    """Counts the calls of every hook and can replace what it gives."""

    def __init__(self, cost: ExecutionCost | None = None, prices: CostCoefficients | None = None) -> None:
        self.cost, self.prices = cost, prices
        self.asked = self.evaluated = 0

    def coefficients(self, target: ExecutionTarget, prior: CostCoefficients) -> CostCoefficients:
        self.asked += 1
        return self.prices or prior

    def evaluate(
        self, target: ExecutionTarget, candidate: Candidate, work: ExecutionWork, coefficients: CostCoefficients
    ) -> ExecutionCost:
        self.evaluated += 1
        return self.cost or super().evaluate(target, candidate, work, coefficients)


def run(
    program: TileProgram, options: PlannerOptions = ORIGIN, target: ExecutionTarget = TARGET, **extents: int
) -> Search:
    assert options.cost_policy is not None
    return search(program, host_target(), target, options, options.cost_policy, extents)


def transpose(rows: int, columns: int) -> TileProgram:
    p = ProgramBuilder("transpose")
    r, c = p.root("r", rows), p.root("c", columns)
    x, y = p.view("x", F32, (columns, rows)), p.view("y", F32, (rows, columns), access="write")
    p.store(y, (r, c), p.load(x, (c, r)))
    return p.finish()


# ---- the space ---------------------------------------------------------------------------------------------------


def test_the_space_is_the_product_of_its_axes() -> None:
    joint = replace(ORIGIN, local_lanes=0)
    assert len(run(rows.softmax(129, 768), joint).candidates) == 2 * len(BLOCK_WIDTHS) == 12
    assert len(run(transpose(129, 768)).candidates) == 2 * len(BLOCK_WIDTHS) == 12
    assert len(run(rows.softmax(129, 768)).candidates) == len(BLOCK_WIDTHS) == 6


def test_candidates_come_in_the_declared_order() -> None:
    options = replace(ORIGIN, local_lanes=0, search_task_grain=True)
    found = [
        (c.candidate.root_axis_order, c.candidate.local_lanes, c.candidate.block_size, c.candidate.blocks_per_task)
        for c in run(rows.softmax(129, 768), options).candidates
    ]
    assert found == sorted(found) and len(set(found)) == len(found)


def test_the_first_of_equals_is_chosen_and_the_minimum_is_exact() -> None:
    flat = Recording(cost=ExecutionCost(0, 0, 0, 0, 0, 0, 5.0))
    options = replace(ORIGIN, local_lanes=0, search_task_grain=True, cost_policy=flat)
    found = run(rows.softmax(129, 768), options)
    assert found.best is found.candidates[0] and found.best.cost.score == 5.0
    exact = run(rows.softmax(129, 768), replace(options, cost_policy=AnalyticExecutionCostPolicy()))
    assert exact.best is min(exact.candidates, key=lambda each: each.cost.score)


def test_grains_are_powers_of_two_the_heuristic_and_the_whole() -> None:
    options = replace(ORIGIN, search_task_grain=True)
    for blocks in range(1, 301):
        wanted = {2**k for k in range(12) if 2**k < blocks} | {(blocks - 1) // (32 * 8) + 1, blocks}
        assert task_grains(blocks, TARGET, options) == tuple(sorted(wanted))
        assert task_grains(blocks, TARGET, replace(options, blocks_per_task=3)) == (3,), "an explicit grain wins"
        assert task_grains(blocks, TARGET, ORIGIN) == (0,), "without a search the pool decides"


def test_an_explicit_grain_stays_as_it_was_asked_for() -> None:
    for grain in (1, 3, 2**32 - 1):
        options = replace(ORIGIN, blocks_per_task=grain, block_size=32, local_lanes=8)
        assert run(rows.softmax(129, 768), options).best.candidate.blocks_per_task == grain


def test_a_space_above_the_budget_is_an_error_and_no_prefix_is_searched() -> None:
    joint = replace(ORIGIN, local_lanes=0)
    assert run(rows.softmax(129, 768), replace(joint, max_candidates=12)).best
    silent = Recording()
    with pytest.raises(PlanError, match="more than 11 candidates"):
        run(rows.softmax(129, 768), replace(joint, max_candidates=11, cost_policy=silent))
    assert silent.evaluated == 0
    with pytest.raises(PlanError, match="more than 12 candidates"):
        run(rows.softmax(129, 768), replace(joint, max_candidates=12, search_task_grain=True))


def test_the_lanes_of_a_transpose_follow_the_stores() -> None:
    """Both orders have a strided side; a forced one is kept, another permutation is refused."""
    for order in ((0, 1), (1, 0)):
        assert run(transpose(64, 96), replace(ORIGIN, root_axis_order=order)).best.candidate.root_axis_order == order
    with pytest.raises(PlanError, match="permutation of 2 axes"):
        run(transpose(64, 96), replace(ORIGIN, root_axis_order=(0, 0)))


# ---- options and targets that mean nothing -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_candidates": 0}, "max_candidates"),
        ({"max_unrolled_tile_elements": -1}, "max_unrolled_tile_elements"),
        ({"reduction_partitions": 17}, "reduction_partitions"),
        ({"reduction_partitions": -1}, "reduction_partitions"),
        ({"blocks_per_task": -1}, "blocks_per_task"),
        ({"local_lanes": 3}, "local_lanes: expected 0, 1 or 8"),
        ({"block_size": 33}, "block_size"),
        ({"block_size": 1}, "block_size"),
        ({"block_size": 2048}, "block_size"),
        ({"root_axis_order": (1,)}, "root_axis_order"),
    ],
)
def test_wrong_options_are_errors_before_anything_is_evaluated(change: dict[str, object], message: str) -> None:
    silent = Recording()
    options = replace(ORIGIN, cost_policy=silent, **change)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=message):
        run(rows.softmax(129, 768), options)
    assert silent.evaluated == 0


@pytest.mark.parametrize(
    "target", [ExecutionTarget(3, 8), ExecutionTarget(0, 8), ExecutionTarget(8, 0), ExecutionTarget(8, 8, 0)]
)
def test_wrong_targets_are_errors_before_the_policy_is_asked(target: ExecutionTarget) -> None:
    silent = Recording()
    with pytest.raises(PlanError, match="expected"):
        run(rows.softmax(129, 768), replace(ORIGIN, cost_policy=silent), target)
    assert silent.asked == 0


def test_a_forced_mapping_that_is_not_legal_is_an_error_and_a_searched_one_is_left_out() -> None:
    assert not run(pointwise.gelu(129, 768), replace(ORIGIN, local_lanes=0)).best.candidate.mapping.is_local
    with pytest.raises(PlanError, match="0 tile axes"):
        run(pointwise.gelu(129, 768), replace(ORIGIN, local_lanes=8))


def test_too_many_programs_are_an_error() -> None:
    with pytest.raises(PlanError, match="programs"):
        run(rows.softmax(2**32, 8))


# ---- policies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_numbers_that_are_no_cost_are_errors(value: float) -> None:
    for name in CostCoefficients.__slots__:
        prices = replace(CostCoefficients(), **{name: value})
        with pytest.raises(PlanError, match=f"coefficient {name}"):
            run(rows.softmax(9, 70), replace(ORIGIN, cost_policy=Recording(prices=prices)))
    for name in FIELDS:
        cost = ExecutionCost(0, 0, 0, 0, 0, 0, 0)._replace(**{name: value})
        with pytest.raises(PlanError, match=f"cost {name}"):
            run(rows.softmax(9, 70), replace(ORIGIN, cost_policy=Recording(cost=cost)))


def test_coefficients_are_asked_once_and_reach_the_work() -> None:
    dear = Recording(prices=replace(CostCoefficients(), gathered_lane=20))
    cheap = Recording()
    options = replace(ORIGIN, block_size=32, local_lanes=8)
    ten = run(rows.softmax(129, 768), replace(options, cost_policy=dear)).best
    one = run(rows.softmax(129, 768), replace(options, cost_policy=cheap)).best
    assert dear.asked == cheap.asked == 1
    assert ten.work.memory_per_packet > 5 * one.work.memory_per_packet
    assert ten.work.arithmetic_per_packet == one.work.arithmetic_per_packet


def test_a_policy_is_not_kept_and_its_names_do_not_matter() -> None:
    policy = Recording()
    options = replace(ORIGIN, cost_policy=policy)
    first = run(rows.softmax(129, 768), options).best
    renamed = replace(rows.softmax(129, 768), name="something else")
    assert run(renamed, options).best.cost == first.cost
    alive = weakref.ref(policy)
    del policy, options
    gc.collect()
    assert alive() is None and first.cost.score > 0


def test_terms_are_those_of_the_formula() -> None:
    prices = CostCoefficients(block_dispatch=100, task_dispatch=7, worker_activation=1000)
    options = replace(ORIGIN, local_lanes=0, search_task_grain=True, cost_policy=Recording(prices=prices))
    for each in run(rows.softmax(129, 768), options).candidates:
        work, cost = each.work, each.cost
        share = work.packet_count / work.active_workers
        total = work.arithmetic_per_packet + work.memory_per_packet
        assert cost.arithmetic == work.arithmetic_per_packet * share
        assert cost.memory == work.memory_per_packet * share
        assert cost.imbalance == max(0.0, work.critical_packets - share) * total
        assert cost.block_dispatch == 100 * work.critical_blocks
        assert cost.task_dispatch == 7 * work.critical_tasks
        assert cost.worker_activation == (1000 if work.active_workers > 1 else 0)
        assert cost.score == pytest.approx(sum(getattr(cost, name) for name in FIELDS[:-1]), rel=1e-15)


# ---- counts ------------------------------------------------------------------------------------------------------


def dealt(work: ExecutionWork, packets_per_block: int, asked: int, target: ExecutionTarget) -> tuple[int, ...]:
    """(G, tasks, workers, most packets, blocks and tasks of a worker) when task k goes to worker k mod h."""
    blocks, workers = work.block_count, target.worker_count
    grain = min(asked or -(-blocks // (workers * target.task_chunks_per_worker)), blocks)
    tasks = -(-blocks // grain)
    used = min(tasks, workers)
    if used == 1:
        return blocks, 1, 1, work.packet_count, blocks, 1
    shares = np.zeros((used, 3), np.int64)
    for k in range(tasks):
        begin, end = k * grain, min((k + 1) * grain, blocks)
        packets = min(end * packets_per_block, work.packet_count) - begin * packets_per_block
        shares[k % used] += (packets, end - begin, 1)
    return grain, tasks, used, *map(int, shares.max(axis=0))


def check_counts(programs: int, width: int, workers: int, grain: int, block: int) -> None:
    target = ExecutionTarget(width, workers)
    options = replace(ORIGIN, packet_width=width, blocks_per_task=grain, block_size=block)
    work = run(rows.softmax(programs, 70), options, target).best.work
    assert work.packet_count == -(-programs // width) and work.block_count == -(-programs // block)
    found = (work.blocks_per_task, work.task_count, work.active_workers)
    found += (work.critical_packets, work.critical_blocks, work.critical_tasks)
    label = f"programs {programs}, W {width}, H {workers}, G {grain}, B {block}"
    assert found == dealt(work, block // width, grain, target), label


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("workers", [1, 3, 8])
def test_counts_equal_dealing_task_by_task(width: int, workers: int) -> None:
    for programs in (1, 7, 8, 9, 31, 32, 33, 65, 127, 257, 4097):
        for grain in (0, 1, 2, 3, 16, 2**32 - 1):
            check_counts(programs, width, workers, grain, 32)


def test_counts_equal_dealing_for_random_launches() -> None:
    random = np.random.default_rng(SEED)
    for _ in range(150):
        width = int(2 ** random.integers(0, 5))
        programs, workers = int(random.integers(1, 20_000)), int(random.integers(1, 100))
        check_counts(programs, width, workers, int(random.integers(0, 70)), int(random.choice(BLOCK_WIDTHS)))


def test_packet_local_programs_fill_a_packet_each() -> None:
    options = replace(ORIGIN, local_lanes=8, block_size=32)
    best = run(rows.softmax(symbol("M"), 768), options, M=129).best
    assert best.candidate.dispatch_size == 129 * 8
    assert (best.work.packet_count, best.work.block_count) == (129, 33)
