"""max and min along a row: a NaN anywhere is the result, lanes that do not exist count for nothing, and what is known
to be at most 0 is computed with the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Compiled, check
from test_math import avx2_target

from grainline.base.dims import symbol
from grainline.base.dtypes import BF16, F16, F32, F64
from grainline.plan.target import Target, host_target
from grainline.plan.types import PlannerOptions
from grainline.tile.access import Dataflow, is_nonpositive
from grainline.tile.build import ProgramBuilder

M, N = symbol("M"), symbol("N")
TARGETS = {"host": host_target, "avx2": avx2_target, "baseline": lambda: Target("x86-64", "", 16, 1)}
LONGEST = 150  # two wide packets, a narrow one and a tail


def extremes(dtype=F32):
    """low[r], high[r] = min, max of x[r, n] / x[r, n] * x[r, n]; lanes outside the row are 0 / 0."""
    p = ProgramBuilder("extremes")
    r, n = p.root("r", M), p.axis("n", N)
    x = p.view("x", dtype, (M, N))
    low, high = (p.view(name, dtype, (M,), access="write") for name in ("low", "high"))
    t = p.load(x, (r, n))
    t = t / t * t
    p.store(low, (r,), p.min(t, n))
    p.store(high, (r,), p.max(t, n))
    return p.finish()


@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16], ids=str)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("width", [1, 2, 16])
def test_a_nan_at_any_place_is_the_result_and_nothing_else_is(dtype, target, width):
    if dtype == F16 and target == "baseline":
        pytest.skip("LLVM converts half floats by its own library where the processor cannot")
    compiled = Compiled(extremes(dtype), PlannerOptions(mapping="local", packet_width=width), TARGETS[target]())
    for n in (1, 5, 16, 17, 64, 79, LONGEST):
        x = (np.random.default_rng(n).normal(size=(n + 2, n)) + 20).astype(dtype.numpy)
        x[np.arange(n), np.arange(n)] = np.nan  # a NaN at place r of row r; the last two rows have none
        x[n + 1, 0], x[n + 1, -1] = 100, -100
        outputs = [np.zeros(n + 2, dtype.numpy) for _ in range(2)]
        found = check(extremes(dtype), [x, *outputs], {"M": n + 2, "N": n}, compiled=compiled)
        for each in found[1:]:
            assert np.isnan(each[:n].astype(np.float64)).all(), f"n={n}: a NaN was lost"
            assert not np.isnan(each[n:].astype(np.float64)).any(), f"n={n}: a NaN out of nothing"


@pytest.mark.parametrize("target", TARGETS)
def test_infinities_are_extremes_like_others(target):
    compiled = Compiled(maximum_of_loads(), PlannerOptions(mapping="local"), TARGETS[target]())
    for n in (1, 16, 65, LONGEST):
        x = np.full((4, n), -np.inf, np.float32)
        x[1], x[2, n // 2], x[3, -1] = np.inf, 3, np.nan
        check(maximum_of_loads(), [x, np.zeros(4, np.float32)], {"M": 4, "N": n}, compiled=compiled)


def maximum_of_loads():
    p = ProgramBuilder("maximum")
    r, n = p.root("r", M), p.axis("n", N)
    x, y = p.view("x", F32, (M, N)), p.view("y", F32, (M,), access="write")
    p.store(y, (r,), p.max(p.load(x, (r, n)), n))
    return p.finish()


def exponentials(kind):
    """y = exp(t - a bound): of t itself, of another row, of its least element."""
    p = ProgramBuilder(f"exp_{kind}")
    r, n = p.root("r", M), p.axis("n", N)
    x, u, y = p.view("x", F32, (M, N)), p.view("u", F32, (M, N)), p.view("y", F32, (M, N), access="write")
    t, other = p.load(x, (r, n)), p.load(u, (r, n))
    bound = {"own": p.max(t, n), "other": p.max(other, n), "least": p.min(t, n)}[kind]
    p.store(y, (r, n), p.exp(t - bound))
    return p.finish()


@pytest.mark.parametrize("kind", ["own", "other", "least"])
@pytest.mark.parametrize("mapping", ["local", "whole"])
def test_exponentials_overflow_unless_nothing_is_above_the_bound(kind, mapping):
    program = exponentials(kind)
    flow = Dataflow(program)
    (argument,) = next(o for o in program.body if o.op == "exp").operands
    assert is_nonpositive(flow, argument) == (kind == "own")
    random = np.random.default_rng(3)
    for scale in (1.0, 100.0, 1e37):
        x = (random.normal(size=(6, 66)) * scale).astype(np.float32)
        u = (random.normal(size=(6, 66)) * scale - 3 * scale).astype(np.float32)
        x[0, 3], x[1, :], x[2, 65], x[3, 7] = np.nan, -np.inf, np.inf, -0.0
        data = [x, u, np.zeros_like(x)]
        found = check(program, data, {"M": 6, "N": 66}, PlannerOptions(mapping=mapping))[-1]
        assert np.isinf(found).any() == (kind != "own"), f"{kind} {scale}"
