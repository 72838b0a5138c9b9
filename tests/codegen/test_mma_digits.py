"""Products with int8 weights: near the exact product, the same bits in any company, and f32's answers for odd rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from test_mma_kernels import Kernel, Operands, kernel, plans_of

from grainline.base.dims import symbol
from grainline.base.dtypes import F32, I8
from grainline.plan.digits import BYTE_PRODUCTS
from grainline.plan.mma import MmaRefusal, describe
from grainline.plan.panels import pack_panels, pack_quads
from grainline.plan.planner import plan
from grainline.plan.target import host_target
from grainline.plan.types import PlanError
from grainline.tile.build import ProgramBuilder, Value
from grainline.tile.interp import interpret
from grainline.tile.ir import Axis, TileProgram
from grainline.tile.text import from_text, to_text
from grainline.tile.verify import TileError

HAS_BYTES = host_target().has_byte_products
needs_bytes = pytest.mark.skipif(not HAS_BYTES, reason="this processor has no products of bytes")
EXTENTS_K = (1, 2, 3, 4, 5, 15, 16, 17, 37, 64, 384)
EXTENTS_N = (1, 15, 16, 17, 33, 100)
ROWS = (*range(1, 15), 29)
Epilogue = Callable[[ProgramBuilder, Value, Axis, Axis], Value]


def scaled(p: ProgramBuilder, x: Value, m: Axis, n: Axis) -> Value:
    return x * p.load(p.view("scale", F32, (n.extent,)), (n,))


def normalised(p: ProgramBuilder, x: Value, m: Axis, n: Axis) -> Value:
    """An epilogue over finished rows."""
    y = scaled(p, x, m, n)
    return y / p.sum(p.abs(y), n)


def program(k: int, n: int, epilogue: Epilogue = scaled) -> TileProgram:
    p, rows = ProgramBuilder("int8 weights"), symbol("M")
    m, nn, kk = p.root("m", rows), p.axis("n", n), p.axis("k", k)
    a = p.view("a", F32, (rows, k), (symbol("astride"), 1))
    b = p.view("b", I8, (k, n), layout="quads", panel=16)
    x = p.mma(p.load(a, (m, kk)), p.cast(p.load(b, (kk, nn)), F32), kk)
    y = epilogue(p, x, m, nn)
    p.store(p.view("c", F32, (rows, n), (symbol("cstride"), 1), access="write"), (m, nn), y)
    return p.finish()


@cache
def digits(k: int, n: int, epilogue: Epilogue = scaled, form: str = "strips") -> Kernel:
    return Kernel(plans_of(program(k, n, epilogue))[form])


def weights(k: int, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(integers, the ends of their range among them; a scale per column)."""
    rng = np.random.default_rng(seed)
    q = rng.integers(-128, 128, (k, n)).astype(np.int8)
    q.reshape(-1)[: q.size // 4] = rng.choice((-128, 127), q.size // 4)
    return q, np.exp(rng.standard_normal(n)).astype(np.float32) / 128


def numbers(m: int, k: int, seed: int = 1) -> np.ndarray:
    """Rows of very different magnitudes, the numbers of a row too."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((m, k)) * np.exp(2 * rng.standard_normal((m, k)))
    return (a * 2.0 ** rng.integers(-40, 40, (m, 1))).astype(np.float32)


def run(compiled: Kernel, a: np.ndarray, q: np.ndarray, scale: np.ndarray, cuts: Sequence[int] = ()) -> np.ndarray:
    """The product with guards around every row of the operands and of the result."""
    (m, k), n = a.shape, q.shape[1]
    left, right = np.full((m, k + 3), np.nan, np.float32), np.full((m + 2, n + 5), 7.0, np.float32)
    left[:, :k] = a
    env = {"M": m, "astride": k + 3, "cstride": n + 5}
    compiled.run([left, pack_quads(q), scale, right[1:]], env, cuts)
    result = right[1 : m + 1, :n].copy()
    right[1 : m + 1, :n] = 7.0
    assert np.all(right == 7.0), "the kernel wrote outside its result"
    return result


def bound(a: np.ndarray, q: np.ndarray, scale: np.ndarray, units: float) -> np.ndarray:
    """`units` of 2^-24 of each row's maximum times the column's norm, and what the f32 format cannot hold."""
    most = np.abs(a).max(1, keepdims=True).astype(np.float64)
    norm = np.sqrt((q.astype(np.float64) ** 2).sum(0)) * scale
    return units * 2.0**-24 * most * norm + 2.0**-149 * scale.max(initial=1)


def exact(a: np.ndarray, q: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return (a.astype(np.float64) @ q.astype(np.float64)) * scale


@needs_bytes
@pytest.mark.parametrize("k", EXTENTS_K)
def test_a_product_of_any_extents_meets_its_oracle(k: int) -> None:
    for n in EXTENTS_N:
        q, scale = weights(k, n)
        for m in ROWS:
            a = numbers(m, k)
            difference = np.abs(run(digits(k, n), a, q, scale) - exact(a, q, scale))
            assert np.all(difference <= bound(a, q, scale, 10)), f"{m}x{k}x{n}"


@needs_bytes
@pytest.mark.parametrize("k,n", ((384, 384), (1536, 384), (384, 1000)))
def test_results_are_those_of_floats(k: int, n: int) -> None:
    q, scale = weights(k, n)
    operands = Operands("panels", 13, k, n)
    operands.b_buffer = pack_panels(q.astype(np.float32) * scale)
    floats = operands.run(kernel("panels"))[0]
    a = np.ascontiguousarray(operands.a[0])
    difference = np.abs(run(digits(k, n), a, q, scale) - floats)
    assert np.all(difference <= bound(a, q, scale, 2e-6 * 2**24))


@needs_bytes
def test_a_row_with_one_number_is_exact() -> None:
    """It is a peak: the rest is zeros."""
    q, _ = weights(100, 33)
    a, one = np.zeros((7, 100), np.float32), np.full(33, 0.25, np.float32)
    a[np.arange(7), 13 * np.arange(7)] = numbers(7, 1)[:, 0]
    a[3] = 0
    a[3, 99] = -1e-45
    want = (a.astype(np.float64) @ q).astype(np.float32) * one
    assert np.array_equal(run(digits(100, 33), a, q, one), want)


@needs_bytes
def test_a_peak_does_not_coarsen_the_rest() -> None:
    """The largest number is anywhere, and the others are as exact as without it."""
    (q, _), one = weights(70, 33), np.ones(33, np.float32)
    for place in range(70):
        a = np.clip(numbers(5, 70) / np.abs(numbers(5, 70)).max(1, keepdims=True), -1, 1)
        a[:, place] = 0
        rest = run(digits(70, 33), a, q, one)
        assert np.all(np.abs(rest - exact(a, q, one)) <= bound(a, q, one, 10))
        a[:, place] = -(2.0**12)
        want = (a.astype(np.float64) @ q) * one
        assert np.all(np.abs(run(digits(70, 33), a, q, one) - want) <= 2.0**-24 * np.abs(want) + 2.0**-20 * 128)


@needs_bytes
@pytest.mark.parametrize("sign", (-1, 1))
def test_the_largest_digits_do_not_overflow(sign: int) -> None:
    """Fractions around the one from which the next exponent counts, all ones included, with the extreme weights."""
    k, n = 1200, 16
    a = np.empty((13, k), np.float32)
    a.view(np.int32)[...] = (0x3F800000 + np.array([0, 1, 0x7DFFFF, 0x7E0000, 0x7E0001, 0x7EFEFD, 0x7FFFFF] * 2)[:13])[
        :, None
    ]
    q = np.full((k, n), -128, np.int8)
    q[:, ::2] = 127
    one = np.ones(n, np.float32)
    found, want = run(digits(k, n), sign * a, q, one), exact(sign * a, q, one)
    assert np.all(np.abs(found - want) <= 2.0**-22 * np.abs(want))


@needs_bytes
@pytest.mark.parametrize("epilogue", (scaled, normalised))
@pytest.mark.parametrize("k,n", ((37, 100), (384, 33), (64, 400)))
def test_the_bits_of_a_row_do_not_depend_on_its_company(k: int, n: int, epilogue: Epilogue) -> None:
    (q, scale), a = weights(k, n), numbers(17, k)
    together = run(digits(k, n, epilogue), a, q, scale)
    for m in (1, 2, 3, 4, 5, 6, 7, 9, 11):
        assert np.array_equal(run(digits(k, n, epilogue), a[17 - m :], q, scale), together[17 - m :]), f"{m} rows alone"


@needs_bytes
@pytest.mark.parametrize("form", ("strips", "columns"))
def test_any_cut_of_the_blocks_gives_the_same_bits(form: str) -> None:
    k, n = 50, 900
    (q, scale), a = weights(k, n), numbers(29, k)
    whole = run(digits(k, n), a, q, scale)
    compiled = digits(k, n, scaled, form)
    blocks = compiled.blocks({"M": 29})
    for cuts in ([1], [blocks - 1], [blocks // 2], list(range(1, blocks)), [0, blocks]):
        assert np.array_equal(run(compiled, a, q, scale, cuts), whole), f"cut at {cuts} of {blocks}"


@needs_bytes
@pytest.mark.parametrize("m", (1, 2, 3, 4, 5, 6, 13))
@pytest.mark.parametrize("n", (7, 100))
def test_odd_rows_are_those_of_floats_and_spoil_no_other(m: int, n: int) -> None:
    k = 70
    (q, scale), a = weights(k, n), numbers(m, k)
    q[3, ::3] = 0
    clean = run(digits(k, n), a, q, scale)
    for row in range(m):
        for special in ((np.nan,), (np.inf,), (-np.inf,), (np.inf, -np.inf), (np.inf, np.inf)):
            odd = a.copy()
            odd[row, 3 : 3 + len(special)] = special
            found = run(digits(k, n), odd, q, scale)
            with np.errstate(invalid="ignore"):
                want = odd[row, 3 : 3 + len(special)].astype(np.float32) @ q[3 : 3 + len(special)].astype(np.float32)
            assert np.array_equal(found[row], want * scale, equal_nan=True), f"row {row} with {special}"
            others = np.arange(m) != row
            assert np.array_equal(found[others], clean[others]), f"rows beside row {row} with {special}"


@needs_bytes
def test_rows_of_zeros_and_of_the_smallest_and_largest_numbers() -> None:
    k, n = 100, 33
    q, _ = weights(k, n)
    one, base = np.ones(n, np.float32), numbers(13, k) / np.abs(numbers(13, k)).max(1, keepdims=True)
    exponents = np.array([-149, -148, -140, -127, -126, -125, -104, -64, -63, -62, 0, 100, 110])
    a = np.ldexp(base.astype(np.float64), exponents[:, None]).astype(np.float32)
    found = run(digits(k, n), a, q, one)
    assert np.all(np.abs(found - exact(a, q, one)) <= bound(a, q, one, 10))
    assert not run(digits(k, n), np.zeros((7, k), np.float32), q, one).any()
    assert not run(digits(k, n), -np.zeros((7, k), np.float32), q, one).any()


@needs_bytes
@pytest.mark.parametrize("epilogue", (scaled, normalised))
@pytest.mark.parametrize("m", (1, 4, 7))
def test_what_follows_the_product_is_the_program(m: int, epilogue: Epilogue) -> None:
    k, n = 37, 39
    (q, scale), a = weights(k, n), numbers(m, k)
    want = np.zeros((m, n), np.float32)
    env = {"M": m, "astride": k, "cstride": n}
    assert interpret(program(k, n, epilogue), [a, pack_quads(q), scale, want], env) == 0
    found = run(digits(k, n, epilogue), a, q, scale)
    size = np.abs(want).max(1, keepdims=True)
    assert np.all(np.abs(found - want) <= 2e-5 * size)


def test_packed_quads_hold_the_matrix() -> None:
    for k, n in ((1, 1), (3, 17), (8, 16), (37, 39)):
        q, _ = weights(k, n)
        packed = pack_quads(q)
        assert packed.shape == (-(-n // 16), -(-k // 4), 16, 4) and packed.flags.c_contiguous
        unfolded = packed.transpose(1, 3, 0, 2).reshape(-1, packed.shape[0] * 16) ^ np.int8(-128)
        assert np.array_equal(unfolded[:k, :n], q)
        assert not unfolded[k:].any() and not unfolded[:, n:].any()


def test_long_sums_are_refused() -> None:
    refusal = describe(program(BYTE_PRODUCTS + 1, 16))
    assert isinstance(refusal, MmaRefusal) and "32 bits" in refusal.reason


def test_a_machine_without_byte_products_refuses() -> None:
    with pytest.raises(PlanError, match="int8"):
        plan(program(8, 16), replace(host_target(), features="+avx2,+fma"))


@needs_bytes
def test_the_realisations_of_a_product_share_one_text_and_signature() -> None:
    plans = plans_of(program(384, 1536))
    assert set(plans) == {"strips", "columns"}
    assert len({p.signature for p in plans.values()}) == 1
    assert len({Kernel(p).emitted.text for p in plans.values()}) == 1


def test_the_program_reads_back_from_its_text() -> None:
    text = to_text(program(37, 39))
    assert "quads 16" in text and to_text(from_text(text)) == text


def test_only_i8_is_packed_in_quads() -> None:
    p = ProgramBuilder("quads of floats")
    n, k = p.axis("n", 16), p.axis("k", 4)
    m, b = p.root("m", 1), p.view("b", F32, (4, 16), layout="quads", panel=16)
    total = p.sum(p.load(b, (k, n)), k)
    p.store(p.view("c", F32, (1, 16), access="write"), (m, n), total)
    with pytest.raises(TileError, match="i8"):
        p.finish()


@needs_bytes
def test_matrices_of_a_batch_share_the_weights() -> None:
    k, n, h, m = 40, 33, 3, 9
    p, rows = ProgramBuilder("batch"), symbol("M")
    b_axis, r, nn, kk = p.root("h", h), p.root("m", rows), p.axis("n", n), p.axis("k", k)
    # The rows of the matrices alternate, so that no single row axis covers all of them.
    a = p.view("a", F32, (h, rows, k), (k, h * k, 1))
    b = p.view("b", I8, (k, n), layout="quads", panel=16)
    c = p.view("c", F32, (h, rows, n), (n, h * n, 1), access="write")
    p.store(c, (b_axis, r, nn), p.mma(p.load(a, (b_axis, r, kk)), p.cast(p.load(b, (kk, nn)), F32), kk))
    (q, _), left, found = weights(k, n), numbers(m * h, k), np.zeros((m * h, n), np.float32)
    Kernel(plans_of(p.finish())["strips"]).run([left, pack_quads(q), found], {"M": m})
    one = np.ones(n, np.float32)
    assert np.array_equal(found, run(digits(k, n), left, q, one))
