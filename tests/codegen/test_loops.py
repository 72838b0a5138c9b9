"""Loops, carried values, private arrays and strict folds: the whole-program mapping against the interpreter."""

from __future__ import annotations

import math

import numpy as np
import pytest
from harness import Compiled, check

from grainline.base.dims import symbol
from grainline.base.dtypes import BF16, F16, F32, F64, I32, I64
from grainline.plan.types import PlannerOptions
from grainline.tile.build import ProgramBuilder, affine
from grainline.tile.interp import interpret
from grainline.tile.passes import simplify
from grainline.tile.text import canonical, from_text, to_text
from grainline.tile.verify import verify

M, N, K = symbol("M"), symbol("N"), symbol("K")
ROWS = (1, 5, 16, 37)


def floats(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def round_trip(program):
    """The program again, through its text, its canonical form and the passes."""
    assert to_text(from_text(to_text(program))) == to_text(program)
    verify(canonical(program)[0])
    verify(simplify(program))
    return program


def horner():
    """y[m] = ((c0 * x + c1) * x + c2) ..., and how often a partial result was negative."""
    p = ProgramBuilder("horner")
    r, k = p.root("rows", M), p.axis("k", K)
    x, c, y = p.view("x", F32, (M,)), p.view("c", F32, (K,)), p.view("y", F32, (M,), access="write")
    n = p.view("n", I64, (M,), access="write")
    at = p.load(x, (r,))

    def step(total, negative):
        total = total * at + p.load(c, (k,))
        return total, negative + p.cast(total < 0, I64)

    total, negative = p.serial(k, (p.const(0.0), p.const(0, I64)), step)
    p.store(y, (r,), total)
    p.store(n, (r,), negative)
    return p.finish()


@pytest.mark.parametrize("k", [0, 1, 2, 9])
def test_scalars_are_carried_in_order(k):
    compiled = Compiled(round_trip(horner()))
    for m in ROWS:
        arrays = [floats(m), floats(k, seed=1), np.ones(m, np.float32), np.ones(m, np.int64)]
        check(horner(), arrays, {"M": m, "K": k}, compiled=compiled, rtol=0, atol=0)


def swapped(kind):
    """After an odd number of iterations the two tiles have changed places; both are stored."""
    p = ProgramBuilder("swap")
    r, k, a = p.root("rows", M), p.axis("k", K), p.axis("n", N)
    x, y, z = (p.view(v, F32, (M, N), access="readwrite") for v in "xyz")
    loop = p.serial if kind == "serial" else lambda *args: p.pipeline(*args, stages=2)
    one, two = loop(k, (p.load(x, (r, a)), p.load(y, (r, a))), lambda u, v: (v, u))
    p.store(z, (r, a), one - two)
    p.store(x, (r, a), one)
    p.store(y, (r, a), two)
    return p.finish()


@pytest.mark.parametrize("kind", ["serial", "pipeline"])
@pytest.mark.parametrize("k", [0, 1, 2, 5])
def test_carried_tiles_change_places_at_once(kind, k):
    program = round_trip(swapped(kind))
    compiled = Compiled(program)
    for m, n in ((1, 1), (3, 7), (20, 33)):
        arrays = [floats(m, n, seed=s) for s in range(3)]
        check(program, arrays, {"M": m, "N": n, "K": k}, compiled=compiled, rtol=0, atol=0)


def test_no_turns_leave_the_initial_values():
    """Written down, not interpreted: in the interpreter and in what is compiled. Lanes run no loops."""
    n, m, k = 7, 5, 0
    ones = np.ones(m, np.float32), np.ones(m, np.int64)
    values = [floats(m, n, seed=seed) for seed in range(3)]
    for program, arrays, expected in (
        (horner(), [floats(m), floats(0), *ones], [np.zeros(m, np.float32), np.zeros(m, np.int64)]),
        (swapped("serial"), values, [values[0], values[1], values[0] - values[1]]),
        (swapped("pipeline"), values, [values[0], values[1], values[0] - values[1]]),
    ):
        env = {"M": m, "N": n, "K": k}
        meant = [array.copy() for array in arrays]
        assert interpret(program, meant, env) == 0
        found = check(program, arrays, env, rtol=0, atol=0)
        for one in (meant, found):
            for array, want in zip(one[-len(expected) :], expected, strict=True):
                np.testing.assert_array_equal(array, want)


def emptied():
    """Of no elements: a sum from 3, a maximum from -inf, and a row that has nothing to write."""
    p = ProgramBuilder("emptied")
    r, a = p.root("rows", M), p.axis("n", N)
    x, y = p.view("x", F32, (M, N)), p.view("y", F32, (M, N), access="write")
    views = [p.view(name, F32, (M,), access="write") for name in ("total", "top")]
    tile = p.load(x, (r, a))
    total, top = p.reduce("add", tile, a, init=3.0), p.reduce("max", tile, a, init=-math.inf)
    p.store(y, (r, a), tile - total)
    for view, value in zip(views, (total, top), strict=True):
        p.store(view, (r,), value)
    return p.finish()


@pytest.mark.parametrize("mapping", ["whole", "local"])
def test_reductions_over_nothing_are_their_initial_values(mapping):
    compiled = Compiled(round_trip(emptied()), PlannerOptions(mapping=mapping))
    for m in ROWS:
        arrays = [floats(m, 0), floats(m, 0), np.ones(m, np.float32), np.ones(m, np.float32)]
        _, _, total, top = check(emptied(), arrays, {"M": m, "N": 0}, compiled=compiled)
        assert (total == 3).all() and (top == -math.inf).all()


def attention(policy="serial"):
    """One query per instance, keys in blocks of 4 in an online softmax: carried scalars and a carried tile."""
    p = ProgramBuilder("attention")
    q = p.root("q", M)
    block, key, d, e = p.axis("block", K), p.axis("key", 4), p.axis("d", 6), p.axis("e", N)
    queries, keys = p.view("q", F32, (M, 6)), p.view("k", F32, (K * 4, 6))
    values, out = p.view("v", F32, (K * 4, N)), p.view("o", F32, (M, N), access="write")
    query = p.load(queries, (q, d))

    def step(top, total, row):
        if policy == "pipeline":
            p.stage("load")
        number = affine((block, 4), (key, 1))
        scores = p.mma(query, p.load(keys, (number, d)), d)
        higher = p.max(top, p.max(scores, key))
        if policy == "pipeline":
            p.stage("weigh")
        old, weights = p.exp(top - higher), p.exp(scores - higher)
        row = row * old + p.mma(weights, p.load(values, (number, e)), key)
        return higher, total * old + p.sum(weights, key), row

    start = (p.const(-math.inf), p.const(0.0), p.splat(p.const(0.0), (e,)))
    loop = p.serial if policy == "serial" else lambda *args: p.pipeline(*args, stages=3)
    _top, total, row = loop(block, start, step)
    p.store(out, (q, e), row / total)
    return p.finish()


@pytest.mark.parametrize("policy", ["serial", "pipeline"])
def test_attention_with_an_online_softmax_is_one_whole_program(policy):
    program = round_trip(attention(policy))
    compiled = Compiled(program, PlannerOptions(mapping="whole"))
    for m, n, k in ((1, 1, 1), (5, 7, 3), (33, 16, 2)):
        arrays = [floats(m, 6), floats(k * 4, 6, seed=1), floats(k * 4, n, seed=2), np.ones((m, n), np.float32)]
        found = check(program, arrays, {"M": m, "N": n, "K": k}, compiled=compiled, rtol=1e-5, atol=1e-6)
        scores = arrays[0].astype(np.float64) @ arrays[1].T
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        np.testing.assert_allclose(found[3], weights / weights.sum(-1, keepdims=True) @ arrays[2], rtol=1e-5, atol=1e-6)


def test_loops_nest_and_store_inside():
    p = ProgramBuilder("nested")
    r, i, j = p.root("rows", M), p.axis("i", N), p.axis("j", K)
    x, y = p.view("x", F32, (M, N, K)), p.view("y", F32, (M, N), access="write")

    def outer(total):
        (inner,) = p.serial(j, (total * 0.5,), lambda t: t + p.load(x, (r, i, j)) * p.cast(p.coord(j), F32))
        p.store(y, (r, i), inner)
        return inner

    p.serial(i, (p.const(1.0),), outer)
    program = round_trip(p.finish())
    compiled = Compiled(program)
    for m, n, k in ((1, 0, 2), (2, 3, 0), (19, 4, 3)):
        check(program, [floats(m, n, k), np.ones((m, n), np.float32)], {"M": m, "N": n, "K": k}, compiled=compiled)


@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16, I32], ids=str)
@pytest.mark.parametrize("policy", ["ordered_tree", "fold_left", "fold_right"])
@pytest.mark.parametrize("init", [None, 3])
def test_strict_folds_keep_operand_order(policy, init, dtype):
    p = ProgramBuilder("folds")
    r, a = p.root("rows", M), p.axis("n", N)
    x = p.view("x", dtype, (M, N))
    kinds = ("add", "mul", "min", "max")
    views = [p.view(k, dtype, (M,), access="write") for k in kinds]
    for kind, view in zip(kinds, views, strict=True):
        p.store(view, (r,), p.reduce(kind, p.load(x, (r, a)), a, init=init, policy=policy))
    program = round_trip(p.finish())
    compiled = Compiled(program)
    exact = policy != "ordered_tree"
    for m, n in ((1, 1), (5, 0), (21, 9)):
        data = (floats(m, n, seed=n) * 3).astype(dtype.numpy)
        arrays = [data, *(np.ones(m, dtype.numpy) for _ in kinds)]
        tolerance = 0 if exact else {"f16": 2e-2, "bf16": 2e-1}.get(dtype.name, 1e-5)
        check(program, arrays, {"M": m, "N": n}, compiled=compiled, rtol=tolerance, atol=tolerance / 10)


def test_tiles_are_read_at_other_places():
    """Reversal, a run-time permutation with a fallback, and one element of a tile that two others share."""
    p = ProgramBuilder("places")
    r, a = p.root("rows", M), p.axis("n", 12)
    x, index = p.view("x", F32, (M, 12)), p.view("i", I64, (M, 12))
    y, z, w = (p.view(v, F32, (M, 12), access="write") for v in "yzw")
    t = p.exp(p.load(x, (r, a)))
    p.store(y, (r, a), t.at(affine((a, -1), offset=11)))
    p.store(z, (r, a), p.gather(t, a, p.load(index, (r, a)), fallback=-1.0))
    p.store(w, (r, a), t + t.at(3) * p.cast(p.map((a,), lambda i: i * i), F32))
    program = round_trip(p.finish())
    compiled = Compiled(program, PlannerOptions(mapping="whole"))
    for m in ROWS:
        places = np.random.default_rng(m).integers(-3, 15, (m, 12))
        check(
            program,
            [floats(m, 12), places, *(np.ones((m, 12), np.float32) for _ in "yzw")],
            {"M": m},
            compiled=compiled,
        )


def test_running_sums_feed_reductions_and_two_stores():
    p = ProgramBuilder("ranks")
    r, a, b = p.root("rows", M), p.axis("n", N), p.axis("k", 3)
    x, y, z = (
        p.view("x", F32, (M, N, 3)),
        p.view("y", F32, (M, N, 3), access="write"),
        p.view("z", F32, (M, 3), access="write"),
    )
    sums = p.scan(p.load(x, (r, a, b)), a)
    p.store(y, (r, a, b), sums - p.max(sums, a))
    p.store(z, (r, b), p.sum(sums, a))
    program = round_trip(p.finish())
    compiled = Compiled(program)
    for m, n in ((1, 1), (4, 0), (17, 8)):
        arrays = [floats(m, n, 3), np.ones((m, n, 3), np.float32), np.ones((m, 3), np.float32)]
        check(program, arrays, {"M": m, "N": n}, compiled=compiled, rtol=1e-5, atol=1e-5)


def test_dear_values_of_several_nests_are_computed_once():
    p = ProgramBuilder("shared")
    r, a = p.root("rows", M), p.axis("n", 20)
    x, y = p.view("x", F32, (M, 20)), p.view("y", F32, (M, 20), access="write")
    e = p.exp(p.load(x, (r, a)))
    p.store(y, (r, a), e / p.sum(e, a))
    compiled = Compiled(p.finish(), PlannerOptions(mapping="whole"))
    assert compiled.emitted.facts.math_calls["exp"] == 2, "once in the full packet and once in the tail"
    assert compiled.plan.scratch_bytes == 20 * 4 * compiled.plan.mapping.lanes
    check(compiled.plan.program, [floats(37, 20), np.zeros((37, 20), np.float32)], {"M": 37}, compiled=compiled)


def test_dear_values_before_a_loop_are_computed_once():
    p = ProgramBuilder("powers")
    r, k, a = p.root("rows", M), p.axis("k", K), p.axis("n", N)
    x, y = p.view("x", F32, (M, N)), p.view("y", F32, (M, N), access="write")
    step = p.exp(p.load(x, (r, a)) * 0.25)
    (total,) = p.serial(k, (p.splat(p.const(1.0), (a,)),), lambda t: t * step)
    p.store(y, (r, a), total)
    compiled = Compiled(round_trip(p.finish()))
    assert compiled.emitted.facts.math_calls["exp"] == 3, "before the loop, in full, masked and narrow packets"
    for m, n, count in ((1, 3, 0), (18, 5, 7)):
        arrays = [floats(m, n), np.ones((m, n), np.float32)]
        check(compiled.plan.program, arrays, {"M": m, "N": n, "K": count}, compiled=compiled)
