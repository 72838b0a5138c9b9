"""Copies, transposes, gathers, guarded accesses, snapshots: the accesses that the whole-program mapping must realise."""

import numpy as np
import pytest
from harness import Compiled, check

from grainline.base.dims import symbol
from grainline.base.dtypes import BF16, BOOL, F16, F32, F64, I8, I32, I64
from grainline.kernels import pointwise
from grainline.plan.types import PlannerOptions
from grainline.tile.build import ProgramBuilder, affine
from grainline.tile.passes import simplify

M, N, K = symbol("M"), symbol("N"), symbol("K")
SIZES = [(1, 1), (3, 17), (5, 16), (16, 33), (7, 100)]


def floats(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(("m", "n"), SIZES)
@pytest.mark.parametrize("dtype", [F32, I8, I64, BOOL], ids=str)
def test_transpose(m, n, dtype):
    p = ProgramBuilder("transpose")
    i, j = p.root("i", M), p.root("j", N)
    x, y = p.view("x", dtype, (N, M)), p.view("y", dtype, (M, N), access="write")
    p.store(y, (i, j), p.load(x, (j, i)))
    data = (floats(n, m) * 50).astype(dtype.numpy)
    check(p.finish(), [data, np.zeros((m, n), dtype.numpy)], {"M": m, "N": n})


@pytest.mark.parametrize("simplified", [False, True])
def test_heads_move_before_the_sequence(simplified):
    p = ProgramBuilder("heads")
    b, h, s, d = (p.root(name, symbol(name)) for name in "bhsd")
    B, H, S, D = (symbol(name) for name in "bhsd")
    x, y = p.view("x", F32, (B, S, H, D)), p.view("y", F32, (B, H, S, D), access="write")
    p.store(y, (b, h, s, d), p.load(x, (b, s, h, d)))
    program = p.finish()
    program = simplify(program) if simplified else program
    compiled = Compiled(program)
    for shape in ((1, 1, 1, 1), (2, 3, 5, 32), (1, 12, 7, 17), (2, 0, 3, 4)):
        env = dict(zip("bhsd", shape, strict=True))
        B_, H_, S_, D_ = shape
        data = floats(B_, S_, H_, D_)
        arrays = [data, np.zeros((B_, H_, S_, D_), np.float32)]
        if simplified:
            arrays = [a.reshape(-1) for a in arrays]
        for parts in (1, 3):
            check(program, arrays, env, compiled=compiled, parts=parts)


@pytest.mark.parametrize("mapping", ["whole"])
def test_gather_rows_and_its_fault(mapping):
    program = pointwise.gather_rows(M, N, 20)
    compiled = Compiled(program, PlannerOptions(mapping=mapping))
    table, index = floats(11, 20), np.array([0, 10, -1, -11, 5, 5], np.int64)
    env = {"M": 6, "N": 11}
    check(program, [table, index, np.zeros((6, 20), np.float32)], env, compiled=compiled)
    for bad in (11, -12, 2**40, -(2**40)):
        index[4] = bad
        check(program, [table, index, np.zeros((6, 20), np.float32)], env, compiled=compiled)


@pytest.mark.parametrize("place", [0, 14, 16, 35])
def test_every_lane_of_an_index_vector_is_checked(place):
    p = ProgramBuilder("take")
    i = p.root("i", M)
    x, k, y = p.view("x", F32, (N,)), p.view("k", I64, (M,)), p.view("y", F32, (M,), access="write")
    p.store(y, (i,), p.load(x, (p.load(k, (i,)),), bounds="error"))
    program = p.finish()
    compiled = Compiled(program)
    index = np.arange(36, dtype=np.int64) % 9
    env = {"M": 36, "N": 9}
    arrays = [floats(9), index, np.zeros(36, np.float32)]
    check(program, arrays, env, compiled=compiled)
    index[place] = 9
    assert compiled.launch(arrays, env) == 1
    index[place] = -1
    assert compiled.launch(arrays, env) == 1


def test_padding_reads_zero_outside():
    p = ProgramBuilder("pad")
    i, j = p.root("i", M + 3), p.root("j", N + 4)
    x, y = p.view("x", F32, (M, N)), p.view("y", F32, (M + 3, N + 4), access="write")
    t = p.load(x, (affine((i, 1), offset=-1), affine((j, 1), offset=-2)), bounds="zero")
    p.store(y, (i, j), t)
    program = p.finish()
    compiled = Compiled(program)
    for m, n in ((1, 1), (4, 30), (3, 16), (0, 5)):
        check(program, [floats(m, n), np.ones((m + 3, n + 4), np.float32)], {"M": m, "N": n}, compiled=compiled)


def test_guarded_stores_do_nothing_outside():
    p = ProgramBuilder("crop")
    i = p.root("i", M)
    x, y = p.view("x", F32, (M,)), p.view("y", F32, (N,), access="write")
    p.store(y, (affine((i, 1), offset=-3),), p.load(x, (i,)), bounds="zero")
    program = p.finish()
    compiled = Compiled(program)
    for m, n in ((1, 1), (20, 10), (40, 100)):
        check(program, [floats(m), np.ones(n, np.float32)], {"M": m, "N": n}, compiled=compiled)


def test_pooling_over_a_window():
    p = ProgramBuilder("pool")
    c, i, j = p.root("c", K), p.root("i", M), p.root("j", N)
    u, v = p.axis("u", 3), p.axis("v", 3)
    x = p.view("x", F32, (K, M * 2, N * 2))
    y = p.view("y", F32, (K, M, N), access="write")
    t = p.load(x, (c, affine((i, 2), (u, 1), offset=-1), affine((j, 2), (v, 1), offset=-1)), bounds="zero")
    p.store(y, (c, i, j), p.max(p.max(t, u), v))
    program = p.finish()
    compiled = Compiled(program)
    for m, n in ((1, 1), (4, 20)):
        data = floats(2, 2 * m, 2 * n)
        check(program, [data, np.zeros((2, m, n), np.float32)], {"M": m, "N": n, "K": 2}, compiled=compiled)


def test_reversal_in_one_view_is_a_snapshot():
    p = ProgramBuilder("reverse")
    r, a = p.root("r", M), p.axis("n", N)
    x = p.view("x", F32, (M, N), access="readwrite")
    p.store(x, (r, a), p.load(x, (r, affine((a, -1), offset=N - 1))))
    program = p.finish()
    for n in (1, 5, 16, 33, 100):
        check(program, [floats(3, n)], {"M": 3, "N": n})


def test_a_swap_of_two_rows_loads_before_it_stores():
    p = ProgramBuilder("swap")
    i = p.root("i", N)
    x = p.view("x", F32, (2, N), access="readwrite")
    one, two = p.load(x, (0, i)), p.load(x, (1, i))
    p.store(x, (0, i), two)
    p.store(x, (1, i), one)
    check(p.finish(), [floats(2, 50)], {"N": 50})


def test_rope_writes_two_halves():
    p = ProgramBuilder("rope")
    r, a = p.root("r", M), p.axis("n", 24)
    x, u, v = p.view("x", F32, (M, 48)), p.view("u", F32, (M, 24)), p.view("v", F32, (M, 24))
    y = p.view("y", F32, (M, 48), access="write")
    low, high = p.load(x, (r, a)), p.load(x, (r, affine((a, 1), offset=24)))
    p.store(y, (r, a), low * p.load(u, (r, a)) - high * p.load(v, (r, a)))
    p.store(y, (r, affine((a, 1), offset=24)), high * p.load(u, (r, a)) + low * p.load(v, (r, a)))
    program = p.finish()
    for mapping in ("local", "whole"):
        arrays = [floats(5, 48), floats(5, 24, seed=1), floats(5, 24, seed=2), np.zeros((5, 48), np.float32)]
        apart = check(program, arrays, {"M": 5}, PlannerOptions(mapping=mapping))
    shared = arrays[0].copy()
    safe = Compiled(program, PlannerOptions(may_alias=True))
    safe.launch([shared, arrays[1], arrays[2], shared], {"M": 5})
    assert shared.tobytes() == apart[-1].tobytes()


def gelu_norm(n):
    p = ProgramBuilder("gelu_norm")
    r, a = p.root("r", M), p.axis("n", n)
    x, u, y = p.view("x", F32, (M, n)), p.view("u", F32, (M, n)), p.view("y", F32, (M, n), access="write")
    t = p.load(x, (r, a))
    h = t * (p.erf(t) + 1.0)
    c = h - p.mean(h, a)
    p.store(y, (r, a), c * p.rsqrt(p.mean(c * c, a) + 1e-5) + p.load(u, (r, a)))
    return p.finish()


def test_a_dear_value_before_a_reduction_is_kept_not_recomputed():
    short = Compiled(gelu_norm(1024), PlannerOptions(mapping="local"))  # never too long to keep
    assert short.emitted.text.count(f"call <{short.plan.mapping.lanes} x float> @llvm.copysign") == 1, (
        "erf once per packet width"
    )
    program = gelu_norm(N)
    compiled = Compiled(program, PlannerOptions(mapping="local"))
    safe = Compiled(program, PlannerOptions(mapping="local", may_alias=True))
    assert compiled.plan.scratch_bytes == 0, "the row of the result has room for it"
    for n in (1, 17, 66, 200):
        arrays = [floats(4, n), floats(4, n, seed=1), np.zeros((4, n), np.float32)]
        apart = check(program, arrays, {"M": 4, "N": n}, compiled=compiled, atol=1e-5, rtol=1e-4)
        for place in (0, 1):
            shared = [a.copy() for a in arrays]
            shared[2] = shared[place]
            safe.launch(shared, {"M": 4, "N": n})
            assert shared[2].tobytes() == apart[2].tobytes(), f"in place of argument {place}"


def test_iota_mask_and_scalar_programs():
    p = ProgramBuilder("causal")
    i, j = p.root("i", M), p.root("j", N)
    y = p.view("y", BOOL, (M, N), access="write")
    p.store(y, (i, j), p.coord(j) <= p.coord(i))
    check(p.finish(), [np.zeros((9, 40), bool)], {"M": 9, "N": 40})
    p = ProgramBuilder("no_roots")
    x, y = p.view("x", I32, ()), p.view("y", I32, (), access="write")
    p.store(y, (), p.load(x, ()) + 5)
    check(p.finish(), [np.array(7, np.int32), np.array(0, np.int32)], {})


def test_reduction_over_everything_without_roots():
    p = ProgramBuilder("total")
    a, b = p.axis("a", M), p.axis("b", N)
    x, y = p.view("x", F32, (M, N)), p.view("y", F32, (), access="write")
    p.store(y, (), p.sum(p.sum(p.load(x, (a, b)), b), a))
    check(p.finish(), [floats(6, 50), np.zeros((), np.float32)], {"M": 6, "N": 50}, rtol=1e-4)


@pytest.mark.parametrize("mapping", ["local", "whole"])
def test_an_embedding_is_gathered_and_normalised_in_one_kernel(mapping):
    p = ProgramBuilder("embed")
    r, a = p.root("r", M), p.axis("n", N)
    table, ids, y = p.view("t", F32, (K, N)), p.view("i", I64, (M,)), p.view("y", F32, (M, N), access="write")
    t = p.load(table, (p.load(ids, (r,)), a), bounds="error")
    c = t - p.mean(t, a)
    p.store(y, (r, a), c * p.rsqrt(p.mean(c * c, a) + 1e-5))
    program = p.finish()
    compiled = Compiled(program, PlannerOptions(mapping=mapping))
    for n in (1, 16, 70):
        for last in (8, 9, -1):
            index = np.array([0, 3, 8, last], np.int64)
            arrays = [floats(9, n), index, np.zeros((4, n), np.float32)]
            check(program, arrays, {"M": 4, "N": n, "K": 9}, compiled=compiled, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [F64, F16, BF16, I32, I8], ids=str)
@pytest.mark.parametrize("computed", [False, True])
def test_products_without_a_form_of_their_own_are_sums_of_whole_programs(dtype, computed):
    """Other types than f32, and a left operand that is computed: refused as products, computed all the same."""
    p = ProgramBuilder("product")
    i, j, k = p.root("i", M), p.root("j", N), p.axis("k", K)
    a, b = p.view("a", dtype, (M, K)), p.view("b", dtype, (K, N))
    left = p.load(a, (i, k))
    left = left + left if computed else left
    p.store(p.view("y", dtype, (M, N), access="write"), (i, j), p.mma(left, p.load(b, (k, j)), k))
    program = p.finish()
    compiled = Compiled(program)
    assert compiled.plan.mapping.kind == "whole"
    tolerance = {"f16": 2e-3, "bf16": 2e-2}.get(dtype.name, 1e-12)
    for m, n, depth in ((1, 1, 1), (3, 17, 5), (7, 40, 33), (2, 3, 0)):
        one, two = ((3 * floats(*shape, seed=depth)).astype(dtype.numpy) for shape in ((m, depth), (depth, n)))
        data = [one, two, np.zeros((m, n), dtype.numpy)]
        check(program, data, {"M": m, "N": n, "K": depth}, compiled=compiled, rtol=tolerance, atol=tolerance)
