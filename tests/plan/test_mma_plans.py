"""Which products are realised, how many blocks they have, what they are predicted to cost, and how weights are packed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from grainline.base.dims import evaluate, symbol
from grainline.base.dtypes import F32, F64
from grainline.plan.machine import REFERENCE, shipped_machine
from grainline.plan.mma import MmaRefusal, Product, describe, range_panels
from grainline.plan.panels import PANEL, pack_panels
from grainline.plan.planner import plan
from grainline.plan.target import Target
from grainline.plan.types import MMA, WHOLE, Plan, PlanError, PlannerOptions
from grainline.tile.build import ProgramBuilder, Value
from grainline.tile.ir import Axis, TileProgram

TARGET = Target("znver3", "+avx2,+fma", 32, 2)
M, K, N = symbol("M"), symbol("K"), symbol("N")


class Parts:
    """A product under construction: axes, operands and the builder, to be varied by a test."""

    def __init__(self) -> None:
        self.p = ProgramBuilder("product")
        self.m, self.n, self.k = self.p.root("m", M), self.p.axis("n", 64), self.p.axis("k", 32)

    def left(self) -> Value:
        return self.p.load(self.p.view("a", F32, (M, 32)), (self.m, self.k))

    def right(self) -> Value:
        return self.p.load(self.p.view("b", F32, (32, 64)), (self.k, self.n))

    def finish(self, result: Value) -> TileProgram:
        self.p.store(self.p.view("c", result.dtype, (M, 64), access="write"), (self.m, self.n), result)
        return self.p.finish()


def computed_left(x: Parts) -> TileProgram:
    return x.finish(x.p.mma(x.left() * 2.0, x.right(), x.k))


def strided_left(x: Parts) -> TileProgram:
    left = x.p.load(x.p.view("a", F32, (M, 32), (1, M)), (x.m, x.k))
    return x.finish(x.p.mma(left, x.right(), x.k))


def guarded_right(x: Parts) -> TileProgram:
    right = x.p.load(x.p.view("b", F32, (30, 64)), (x.k, x.n), bounds="zero")
    return x.finish(x.p.mma(x.left(), right, x.k))


def doubles(x: Parts) -> TileProgram:
    left = x.p.load(x.p.view("a", F64, (M, 32)), (x.m, x.k))
    right = x.p.load(x.p.view("b", F64, (32, 64)), (x.k, x.n))
    return x.finish(x.p.mma(left, right, x.k))


def two_products(x: Parts) -> TileProgram:
    a, b = x.left(), x.right()
    return x.finish(x.p.mma(a, b, x.k) + x.p.mma(a, b, x.k))


def narrow_panels(x: Parts) -> TileProgram:
    right = x.p.load(x.p.view("b", F32, (32, 64), layout="panels", panel=8), (x.k, x.n))
    return x.finish(x.p.mma(x.left(), right, x.k))


@pytest.mark.parametrize(
    "build,words",
    (
        (computed_left, "must be a load"),
        (strided_left, "it must be 1"),
        (guarded_right, "guarded"),
        (doubles, "f32"),
        (two_products, "2 matrix products"),
        (narrow_panels, "panels of 8"),
    ),
)
def test_a_refusal_says_why(build: Callable[[Parts], TileProgram], words: str) -> None:
    program = build(Parts())
    refusal = describe(program)
    assert isinstance(refusal, MmaRefusal)
    assert words in refusal.reason
    if build is narrow_panels:  # nothing else reads packed operands
        with pytest.raises(PlanError, match=r"no legal mapping.*panels of 8.*; .*layout panels"):
            plan(program, TARGET)
        return
    found = plan(program, TARGET)
    assert {each.mapping.kind for each in found.variants} == {WHOLE}
    assert found.refusals[0].mapping == MMA
    assert build is two_products or words in found.refusals[0].reason  # two are refused as a chain
    with pytest.raises(PlanError, match="no legal mapping"):
        plan(program, TARGET, PlannerOptions(mapping=MMA))


def product_of(
    batch: int | None, form: str, wide: int = 1536, after: Callable[..., Value] | None = None, depth: int = 384
) -> TileProgram:
    p = ProgramBuilder(form)
    outer: list[Axis] = [p.root("h", batch)] if batch else []
    m, n, k = p.root("m", M), p.axis("n", wide), p.axis("k", depth)
    lead: list[int] = [batch] if batch else []
    left = p.load(p.view("a", F32, (*lead, M, depth)), (*outer, m, k))
    if form == "panels":
        right = p.load(p.view("b", F32, (depth, wide), layout="panels", panel=PANEL), (k, n))
    elif form == "rows":
        right = p.load(p.view("b", F32, (*lead, depth, wide)), (*outer, k, n))
    else:
        right = p.load(p.view("b", F32, (*lead, wide, depth)), (*outer, n, k))
    result = p.mma(left, right, k)
    result = result if after is None else after(p, result, n)
    p.store(p.view("c", F32, (*lead, M, wide), access="write"), (*outer, m, n), result)
    return p.finish()


def forms(program: TileProgram) -> dict[str, Plan]:
    return {p.mapping.details.form: p for p in plan(program, TARGET).variants}


@pytest.mark.parametrize("form", ("panels", "rows", "columns"))
def test_operand_forms_are_recognised(form: str) -> None:
    product = describe(product_of(None, form))
    assert isinstance(product, Product) and product.b_form == form


def test_weights_offer_column_ranges_and_batches_offer_whole_matrices() -> None:
    assert set(forms(product_of(None, "panels"))) == {"strips", "columns"}
    assert set(forms(product_of(None, "panels", 64))) == {"strips"}
    assert set(forms(product_of(12, "columns"))) == {"strips", "batches"}


def test_a_reduction_over_the_columns_keeps_them_together() -> None:
    program = product_of(None, "panels", after=lambda p, x, n: x - p.max(x, n))
    assert set(forms(program)) == {"strips"}


@pytest.mark.parametrize("rows", (0, 1, 6, 7, 128))
def test_blocks_count_strips_ranges_and_matrices(rows: int) -> None:
    strips = -(-rows // 6)
    weights, heads = forms(product_of(None, "panels")), forms(product_of(12, "columns"))
    ranges = -(-1536 // (range_panels(1536) * PANEL))
    assert evaluate(weights["strips"].blocks, {"M": rows}) == strips
    assert evaluate(weights["columns"].blocks, {"M": rows}) == strips * ranges
    assert evaluate(heads["strips"].blocks, {"M": rows}) == 12 * strips
    assert evaluate(heads["batches"].blocks, {"M": rows}) == 12


@pytest.mark.parametrize("mapping", ["", WHOLE, MMA])
def test_a_product_whose_memory_may_be_shared_is_a_whole_program(mapping: str) -> None:
    """A tile reads what its epilogue adds row by row, while it writes, and writes a row twice that a strip lacks."""
    options, x = PlannerOptions(mapping=mapping, may_alias=True), Parts()
    program = x.finish(x.p.mma(x.left(), x.right(), x.k))
    if mapping == MMA:
        with pytest.raises(PlanError, match="may be that of its operands"):
            plan(program, TARGET, options)
        return
    assert {each.mapping.kind for each in plan(program, TARGET, options).variants} == {WHOLE}


def test_all_plans_of_a_product_have_one_signature() -> None:
    for program in (product_of(None, "panels"), product_of(12, "columns")):
        assert len({p.signature for p in plan(program, TARGET).variants}) == 1


def test_predicted_cost_grows_with_the_work() -> None:
    cost = forms(product_of(None, "panels"))["strips"].cost_ps
    at = [evaluate(cost, {"M": rows}) for rows in (1, 6, 12, 128, 1024)]
    assert at == sorted(at) and len(set(at)) == len(at)
    seconds = at[3] / 1e12
    assert 1e-3 < seconds < 4e-3, "128x384x1536 takes about two milliseconds on one core of the reference machine"


def test_whole_matrices_are_cheaper_than_packing_for_every_strip() -> None:
    heads = forms(product_of(12, "columns"))
    env = {"M": 128}
    assert evaluate(heads["batches"].cost_ps, env) < evaluate(heads["strips"].cost_ps, env)


@pytest.mark.parametrize("n", (1, 15, 16, 17, 96, 97, 1536, 30000))
def test_column_ranges_are_whole_tile_groups(n: int) -> None:
    assert range_panels(n) % 6 == 0
    assert range_panels(n) * PANEL < n or range_panels(n) == 0


@pytest.mark.parametrize("k,n", ((1, 1), (3, 16), (7, 33), (64, 100), (0, 20)))
@pytest.mark.parametrize("is_transposed", (False, True))
def test_panels_hold_columns_and_zeros(k: int, n: int, is_transposed: bool) -> None:
    flat = np.arange(1, k * n + 1, dtype=np.float32)
    matrix = flat.reshape(n, k).T if is_transposed else flat.reshape(k, n)
    packed = pack_panels(matrix)
    assert packed.shape == (-(-n // PANEL), k, PANEL) and packed.flags.c_contiguous
    unpacked = packed.transpose(1, 0, 2).reshape(k, len(packed) * PANEL)
    assert np.array_equal(unpacked[:, :n], matrix)
    assert not unpacked[:, n:].any()


@pytest.mark.parametrize("is_transposed", (False, True))
def test_packing_costs_little_more_than_copying(is_transposed: bool) -> None:
    matrix = np.ones((3072, 768), np.float32).T if is_transposed else np.ones((768, 3072), np.float32)
    times = []
    for _ in range(3):
        start = time.thread_time()
        pack_panels(matrix)
        times.append(time.thread_time() - start)
    assert min(times) < 0.05, "9 MB; a guard against element-wise packing, not a benchmark"


WIDE = replace(TARGET, cpu="x86-64-v4", features="+avx512f,+avx512bw,+avx512vl,+avx2,+fma", vector_bytes=64)


@pytest.mark.parametrize("rows", (0, 1, 6, 7, 12, 13, 24, 25, 100, 128, 1000))
def test_wide_strips_are_one_or_an_even_number(rows: int) -> None:
    plans = {p.mapping.details.form: p for p in plan(product_of(None, "panels"), WIDE).variants}
    assert set(plans) == {"strips", "half strips", "columns"}
    for form, most in (("strips", 12), ("half strips", 6)):
        strips = evaluate(plans[form].blocks, {"M": rows})
        assert strips == (-(-rows // most) if rows <= most else 2 * -(-rows // (2 * most)))


def test_streaming_b_beyond_the_private_cache_makes_tasks_dear() -> None:
    """What a task pays for B grows with the price of the cache that B lies in."""
    slow = replace(REFERENCE, shared_byte_ps=10 * REFERENCE.shared_byte_ps)
    for n, ratio in ((64, 1), (1 << 14, 10)):
        costs = [plan(product_of(None, "panels", n), TARGET, machine=m).variants[0].task_ps for m in (REFERENCE, slow)]
        assert costs[1] == pytest.approx(ratio * costs[0], rel=0.2)


@pytest.mark.parametrize("cpu", ["znver4", "sapphirerapids"])
@pytest.mark.parametrize("depth", [384, 1536])
@pytest.mark.parametrize("rows", [384, 1024, 4096])
def test_many_rows_are_worth_whole_strips(rows: int, depth: int, cpu: str) -> None:
    """Strips of half the rows read B twice as often, and many rows can be shared without them."""
    native = pytest.importorskip("grainline._native")
    machine = shipped_machine(replace(WIDE, cpu=cpu))
    times = {}
    for variant in plan(product_of(None, "panels", 1920 - depth, depth=depth), WIDE, machine=machine).variants:
        extents = (variant.cost_ps, variant.traffic_bytes, variant.task_ps, variant.blocks)
        costs = [evaluate(extent, {"M": rows}) for extent in extents]
        times[variant.mapping.details.form] = native.choose_launch(*costs, 2, True, machine.costs())[2]
    assert times["strips"] < times["half strips"]
