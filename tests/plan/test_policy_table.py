"""What a policy says is tabulated: equal to asking it at every point, and asked for nothing once there is a plan."""

from __future__ import annotations

import gc
import random
import weakref
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from grainline.base.dims import evaluate, symbol
from grainline.base.dtypes import F32
from grainline.kernels import pointwise, rows
from grainline.plan.cost import CalibratedExecutionCostPolicy
from grainline.plan.planner import plan
from grainline.plan.policy import (
    AnalyticExecutionCostPolicy,
    CostCoefficients,
    ExecutionCost,
    ExecutionCostPolicy,
    ExecutionTarget,
    ExecutionWork,
)
from grainline.plan.policy_table import MOST_POINTS, points_of, representative
from grainline.plan.search import MAX_PROGRAMS, MOST_VARIANTS, pick, search
from grainline.plan.target import host_target
from grainline.plan.types import Candidate, PlanError, PlannerOptions, PlanResult, TableRow
from grainline.tile.build import ProgramBuilder
from grainline.tile.ir import TileProgram

HOST = host_target()
TARGET = ExecutionTarget(16, 4, block_widths=(16, 64, 256))
M, N = symbol("M"), symbol("N")
SEED = 20_261_130


class Priced(AnalyticExecutionCostPolicy):
    """The prior's formula with prices of one's own."""

    def __init__(self, activation: float, task: float, block: float) -> None:
        self.prices = {"worker_activation": activation, "task_dispatch": task, "block_dispatch": block}

    def coefficients(self, target: ExecutionTarget, prior: CostCoefficients) -> CostCoefficients:
        return replace(prior, **self.prices)


class Crowded(ExecutionCostPolicy):
    """An objective of its own: packets over the square root of the threads, and a toll that grows with both."""

    def __init__(self, toll: float) -> None:
        self.toll = toll

    def evaluate(
        self, target: ExecutionTarget, candidate: Candidate, work: ExecutionWork, coefficients: CostCoefficients
    ) -> ExecutionCost:
        score = work.packet_count / work.active_workers**0.5 + self.toll * work.active_workers + work.task_count
        return ExecutionCost(
            0, 0, 0, 0, 0, 0, score * (2 if candidate.mapping.is_local else 1 + work.packet_count / 99)
        )


def policies(chance: random.Random) -> list[ExecutionCostPolicy]:
    priced = [Priced(10 ** chance.uniform(0, 7), 10 ** chance.uniform(0, 4), 128) for _ in range(3)]
    return [*priced, Crowded(10 ** chance.uniform(0, 4)), CalibratedExecutionCostPolicy()]


def planned(program: TileProgram, policy: ExecutionCostPolicy, **options: int) -> PlanResult:
    return plan(program, HOST, PlannerOptions(cost_policy=policy, **options), execution=TARGET)  # type: ignore[arg-type]


def rows_at(found: PlanResult) -> dict[tuple[int, ...], TableRow]:
    assert found.table is not None
    return dict(zip(product(*(extents for _, extents in found.table.axes)), found.table.rows, strict=True))


@pytest.mark.parametrize("kernel", [rows.softmax, rows.rms_norm, pointwise.gelu])
@pytest.mark.parametrize("shape", [(M, 768), (129, N), (M, N)], ids=str)
def test_a_row_is_what_the_policy_says_there(kernel, shape) -> None:  # type: ignore[no-untyped-def]
    chance = random.Random(SEED)
    for policy in policies(chance):
        found = planned(kernel(*shape), policy)
        program, table = found.variants[0].program, rows_at(found)
        kept = [(each.mapping, each.block) for each in found.variants]
        for point in chance.sample(sorted(table), min(len(table), 9)):
            assert found.table is not None
            extents = dict(zip((name for name, _ in found.table.axes), point, strict=True))
            if evaluate(product_of_roots(program), extents) > MAX_PROGRAMS:
                continue
            for target in (TARGET, replace(TARGET, worker_count=1)):
                options = PlannerOptions(cost_policy=policy)
                candidates = search(program, HOST, target, options, policy, extents).candidates
                said = pick([c for c in candidates if form(c.candidate) in kept], policy.tie)
                row, wanted = table[point], kept.index(form(said.candidate))
                if target.worker_count == 1:
                    assert row.alone == wanted, f"seed {SEED}: {policy} at {extents}"
                    continue
                work = said.work
                wanted_row = (wanted, work.block_count, work.blocks_per_task, work.active_workers)
                assert (row.variant, row.blocks, row.grain, row.homes) == wanted_row, f"seed {SEED}: at {extents}"
                assert row.blocks == evaluate(found.variants[row.variant].blocks, extents)


def form(candidate: Candidate) -> tuple[object, int]:
    width = candidate.mapping.width if candidate.mapping.is_local else 1
    return candidate.mapping, max(candidate.block_size // width, 1)


def product_of_roots(program: TileProgram):  # type: ignore[no-untyped-def]
    total = 1
    for axis in program.roots:
        total = total * axis.extent
    return total


def test_variants_share_bits_and_are_few() -> None:
    chance = random.Random(SEED)
    for policy in policies(chance):
        found = planned(rows.softmax(M, N), policy)
        assert len(found.variants) <= MOST_VARIANTS and len({each.signature for each in found.variants}) == 1
        numbers = {n for row in rows_at(found).values() for n in (row.alone, row.variant)}
        assert numbers <= set(range(len(found.variants)))


def test_a_static_program_has_one_row_and_it_is_the_best_candidate() -> None:
    for policy in policies(random.Random(SEED)):
        found = planned(rows.softmax(129, 768), policy)
        assert found.table is not None and found.best is not None
        (row,) = found.table.rows
        work = found.best.work
        assert (row.variant, row.blocks, row.grain) == (0, work.block_count, work.blocks_per_task)
        assert row.homes == work.active_workers
    assert plan(rows.softmax(129, 768), HOST).table is None, "the calibrated policy is native: it needs no table"


def test_extents_that_were_given_are_rows() -> None:
    policy = Priced(1e5, 100, 128)
    options = PlannerOptions(cost_policy=policy)
    found = plan(rows.softmax(M, N), HOST, options, extents={"M": 77, "N": 770}, execution=TARGET)
    assert found.table is not None and found.best is not None
    assert all(given in extents for (_, extents), given in zip(found.table.axes, (77, 770), strict=True))
    work = found.best.work
    row = rows_at(found)[77, 770]
    assert (row.blocks, row.grain, row.homes) == (work.block_count, work.blocks_per_task, work.active_workers)


def test_a_grain_that_was_asked_for_is_in_no_proportion() -> None:
    found = planned(rows.softmax(M, 70), Priced(0, 0, 128), blocks_per_task=3)
    assert {(row.blocks, row.grain) for row in rows_at(found).values()} == {(0, 3)}


@pytest.mark.parametrize("count", range(12))
def test_representative_extents_are_few_and_spread(count: int) -> None:
    names = [f"s{i}" for i in range(count)]
    axes = representative(names, {})
    assert [name for name, _ in axes] == names
    points = np.prod([len(extents) for _, extents in axes]) if axes else 1
    assert points <= MOST_POINTS
    for _, extents in axes:
        assert list(extents) == sorted(set(extents)) and extents[0] >= 1
        assert len({b / a for a, b in zip(extents, extents[1:], strict=False)}) <= 1, "equal steps"
    assert count == 0 or count > 7 or axes[0][1][-1] == 1 << 16


def test_points_hold_no_more_programs_than_a_launch() -> None:
    program = pointwise.gelu(M, N)
    axes = representative(("M", "N"), {})
    for point, extents in zip(product(*(e for _, e in axes)), points_of(program, axes), strict=True):
        total = evaluate(product_of_roots(program), extents)
        assert total <= MAX_PROGRAMS
        assert tuple(extents.values()) == point or total * 2 > MAX_PROGRAMS, "and as many as can be"


def test_products_follow_a_policy_too() -> None:
    """Their variants are fixed by register tiles; with tasks that cost nothing a launch uses all threads, else one."""
    p = ProgramBuilder("product")
    m, n, k = p.root("m", M), p.axis("n", 256), p.axis("k", 64)
    a, b = p.view("a", F32, (M, 64)), p.view("b", F32, (64, 256))
    p.store(p.view("y", F32, (M, 256), access="write"), (m, n), p.mma(p.load(a, (m, k)), p.load(b, (k, n)), k))
    program = p.finish()
    cheap, dear = planned(program, Priced(0, 0, 1)), planned(program, Priced(1e18, 0, 1))
    assert [str(each.mapping) for each in cheap.variants] == [str(each.mapping) for each in dear.variants]
    assert {row.homes for row in rows_at(dear).values()} == {1}
    assert max(row.homes for row in rows_at(cheap).values()) == TARGET.worker_count
    for point, row in rows_at(cheap).items():
        assert row.blocks == evaluate(cheap.variants[row.variant].blocks, {"M": point[0]})


# ---- the policy is borrowed ---------------------------------------------------------------------------------------


def test_a_number_that_is_no_cost_anywhere_is_an_error() -> None:
    class Sometimes(Priced):
        def evaluate(self, target, candidate, work, coefficients):  # type: ignore[no-untyped-def]
            cost = super().evaluate(target, candidate, work, coefficients)
            return cost._replace(score=float("nan")) if work.block_count == 1024 else cost

    with pytest.raises(PlanError, match="Sometimes: cost score"):
        planned(rows.softmax(M, 70), Sometimes(0, 0, 128))


def test_nothing_to_do_is_asked_of_nobody() -> None:
    class Never(Priced):
        def evaluate(self, target, candidate, work, coefficients):  # type: ignore[no-untyped-def]
            assert work.packet_count > 0 and work.active_workers > 0
            return super().evaluate(target, candidate, work, coefficients)

    p = ProgramBuilder("tiles")
    r = p.root("r", M // 64)
    x, y = p.view("x", F32, (M // 64,)), p.view("y", F32, (M // 64,), access="write")
    p.store(y, (r,), p.exp(p.load(x, (r,))))
    found = planned(p.finish(), Never(0, 0, 128))
    assert rows_at(found)[1,] == TableRow(0, 0, 0, 1, 1)


def test_a_policy_is_not_kept_with_its_table() -> None:
    policy = Priced(1e4, 10, 128)
    found = planned(rows.softmax(M, N), policy)
    alive = weakref.ref(policy)
    del policy
    gc.collect()
    assert alive() is None and found.table is not None
