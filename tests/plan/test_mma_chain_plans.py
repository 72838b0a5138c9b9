"""Which programs of two products are realised as a chain, why others are not, and what a chain is predicted to cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from grainline.base.dims import Expr, evaluate, symbol
from grainline.base.dtypes import F32
from grainline.plan.mma_chain import GROUP_STRIPS, Chain, describe_chain, refusal_of
from grainline.plan.planner import plan
from grainline.plan.target import Target
from grainline.plan.types import MMA, WHOLE, PlanError, PlannerOptions
from grainline.tile.build import ProgramBuilder, Value
from grainline.tile.ir import TileProgram

TARGET = Target("znver3", "+avx2,+fma", 32, 2)
H, M, N = symbol("H"), symbol("M"), symbol("N")


class Parts:
    """A chain under construction, to be varied by a test: a[h, m, k] b[h, k, n] -> rows -> c[h, n, e]."""

    def __init__(self, keys: int | Expr = N, packed: bool = False) -> None:
        p = self.p = ProgramBuilder("chain")
        self.h, self.m = p.root("h", H), p.root("m", M)
        self.k, self.n, self.e = p.axis("k", 32), p.axis("n", keys), p.axis("e", 24)
        left = p.load(p.view("a", F32, (H, M, 32)), (self.h, self.m, self.k))
        if packed:
            right = p.load(p.view("b", F32, (32, keys), layout="panels", panel=16), (self.k, self.n))
        else:
            right = p.load(p.view("b", F32, (H, 32, keys)), (self.h, self.k, self.n))
        self.scores = p.mma(left, right, self.k)
        self.total = p.sum(self.scores, self.n)
        self.values = p.load(p.view("c", F32, (H, keys, 24)), (self.h, self.n, self.e))

    def finish(self, result: Value) -> TileProgram:
        self.p.store(self.p.view("out", F32, (H, M, 24), access="write"), (self.h, self.m, self.e), result)
        return self.p.finish()


def plain(x: Parts) -> TileProgram:
    return x.finish(x.p.mma(x.scores / x.total, x.values, x.n))


def row_of_the_first_after(x: Parts) -> TileProgram:
    return x.finish(x.p.mma(x.scores, x.values, x.n) / x.total)


def right_side(x: Parts) -> TileProgram:
    other = x.p.load(x.p.view("w", F32, (32, 24)), (x.k, x.e))
    return x.finish(x.p.mma(x.p.load(x.p.view("d", F32, (M, 32)), (x.m, x.k)), other, x.k) + x.total)


def computed_values(x: Parts) -> TileProgram:
    return x.finish(x.p.mma(x.scores, x.values * 2.0, x.n))


@pytest.mark.parametrize(
    "build,reason",
    (
        (row_of_the_first_after, "reads rows of the first"),
        (right_side, "not made from rows of the first"),
        (computed_values, "the second product: an operand of the product is computed"),
    ),
)
def test_a_refusal_says_why(build: Callable[[Parts], TileProgram], reason: str) -> None:
    program = build(Parts())
    assert reason in (refusal_of(program) or "")
    found = plan(program, TARGET)
    assert {each.mapping.kind for each in found.variants} == {WHOLE} and reason in found.refusals[0].reason
    with pytest.raises(PlanError, match=reason):
        plan(program, TARGET, PlannerOptions(mapping=MMA))


def test_weights_that_are_packed_ahead_are_not_chained() -> None:
    assert "packed ahead" in (refusal_of(plain(Parts(packed=True))) or "")


def test_a_chain_needs_its_scratch() -> None:
    assert refusal_of(plain(Parts(keys=4096))) is None
    assert "MiB of scratch" in (refusal_of(plain(Parts(keys=40_000))) or "")


def test_the_stages_of_a_chain() -> None:
    chain = describe_chain(plain(Parts()))
    assert isinstance(chain, Chain)
    assert chain.first.n is chain.second.k and chain.first.m is chain.second.m
    assert (chain.first.epilogue_form, chain.second.epilogue_form) == ("strip", "registers")
    assert not any(o.op == "reduce" for o in chain.second.epilogue)


def test_larger_blocks_pack_less_often() -> None:
    """Blocks of one strip for parallelism, whole matrices for the least work; all with the same arithmetic."""
    plans = {p.mapping.details.form: p for p in plan(plain(Parts()), TARGET).variants}
    env = {"H": 3, "M": 6 * GROUP_STRIPS + 1, "N": 128}
    assert {form: evaluate(p.blocks, env) for form, p in plans.items()} == {"strips": 27, "groups": 6, "batches": 3}
    costs = [evaluate(plans[form].cost_ps, env) for form in ("batches", "groups", "strips")]
    assert costs == sorted(costs) and len(set(costs)) == 3
    assert len({p.signature for p in plans.values()}) == 1


def test_a_task_holds_heads_that_lie_side_by_side() -> None:
    """A head alone is a bad task, and one task per home leaves nothing to balance with."""
    native = pytest.importorskip("grainline._native", reason="the native core is not built")
    whole = next(p for p in plan(plain(Parts()), TARGET).variants if p.mapping.details.form == "batches")
    env = {"H": 96, "M": 128, "N": 128}
    blocks = evaluate(whole.blocks, env)
    costs = (evaluate(whole.cost_ps, env), 0, evaluate(whole.task_ps, env), blocks, 2, True, native.MachineCosts())
    grain, homes, _ = native.choose_launch(*costs)
    assert homes == 2 and 1 < grain < blocks // homes
