"""Matrix-product kernels: exact chains, any extents, any split of the work, and nothing written outside the result."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from grainline.base.dims import Expr, evaluate, symbol
from grainline.base.dtypes import F32
from grainline.codegen.kernel import emit, emit_variants
from grainline.codegen.llvm import LinkedObject, compile_object, link_object
from grainline.codegen.mma_stream import FETCHING_ROWS, chunk_panels
from grainline.codegen.mma_tile import PANELS_TOGETHER, TILE_ROWS
from grainline.plan.mma import CHUNK_PANELS, describe
from grainline.plan.panels import PANEL, STRIP_ROWS, WIDE_STRIP_ROWS, pack_panels
from grainline.plan.planner import plan
from grainline.plan.target import Target, host_target
from grainline.plan.types import Plan
from grainline.tile.build import ProgramBuilder, Value
from grainline.tile.ir import Axis, TileProgram

GUARD = 17
FETCH = r"@llvm.prefetch.p0\(.*, i32 0, i32 1, i32 1\)"
ROWS = (*range(1, 18), 19, 22, 25, 31, 100, 129)
EXTENTS_K = (0, 1, 3, 32, 384, 1000)
EXTENTS_N = (0, 1, 2, 15, 16, 17, 33, 384, 1000)
FORMS = ("panels", "rows", "columns", "scattered")


class Kernel:
    """A compiled plan that can be run on NumPy arrays."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.emitted = emit(plan)
        data = compile_object(self.emitted.text, plan.target)
        self.linked: LinkedObject = link_object(data, (self.emitted.symbol,))
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
        self.call = kind(self.linked.address(self.emitted.symbol))

    def blocks(self, env: dict[str, int]) -> int:
        return evaluate(self.plan.blocks, env)

    def run(self, arrays: Sequence[np.ndarray], env: dict[str, int], cuts: Sequence[int] = ()) -> None:
        """All blocks in one call, or cut at `cuts`; scratch is poisoned with NaN and guarded."""
        words = [evaluate(word, env) for word in self.emitted.words]
        args = np.array([a.ctypes.data for a in arrays] + words, np.int64)
        size = evaluate(self.plan.scratch_bytes, env) // 4
        scratch = np.full(size + 16 + GUARD, np.nan, np.float32)
        skip = (-scratch.ctypes.data % 64) // 4
        scratch[skip + size :] = 123.0
        bounds = [0, *cuts, self.blocks(env)]
        for begin, end in zip(bounds, bounds[1:]):
            assert self.call(args.ctypes.data, begin, end, scratch.ctypes.data + 4 * skip) == 0
        assert np.all(scratch[skip + size :] == 123.0), "the kernel wrote past its scratch"


def product_program(
    form: str,
    k: int | Expr,
    n: int | Expr,
    epilogue: Callable[[ProgramBuilder, Value, Axis, Axis], Value] | None = None,
    batch: int | Expr | None = None,
) -> TileProgram:
    """c[batch, M, n] = epilogue(a @ b). Strides of b are the extents "kstride" and "nstride" where the form leaves them."""
    p, rows = ProgramBuilder(f"product_{form}"), symbol("M")
    h = p.root("h", batch) if batch is not None else None
    m, nn, kk = p.root("m", rows), p.axis("n", n), p.axis("k", k)
    outer: list[Any] = [] if h is None else [h]
    matrices: list[Any] = [] if batch is None else [batch]
    steps_a: list[Any] = [] if h is None else [symbol("abatch")]
    steps_b: list[Any] = [] if h is None else [symbol("bbatch")]
    steps_c: list[Any] = [] if h is None else [symbol("cbatch")]
    a = p.view("a", F32, (*matrices, rows, k), (*steps_a, symbol("astride"), 1))
    strides = {"rows": (symbol("kstride"), 1), "columns": (1, symbol("nstride"))}
    strides["scattered"] = (symbol("kstride"), symbol("nstride"))
    if form == "panels":
        b = p.view("b", F32, (k, n), layout="panels", panel=16)
        right = p.load(b, (kk, nn))
    else:
        b = p.view("b", F32, (*matrices, k, n), (*steps_b, *strides[form]))
        right = p.load(b, (*outer, kk, nn))
    c = p.view("c", F32, (*matrices, rows, n), (*steps_c, symbol("cstride"), 1), access="write")
    result = p.mma(p.load(a, (*outer, m, kk)), right, kk)
    p.store(c, (*outer, m, nn), result if epilogue is None else epilogue(p, result, m, nn))
    return p.finish()


def plans_of(program: TileProgram, target: Target | None = None) -> dict[str, Plan]:
    return {p.mapping.details.form: p for p in plan(program, target or host_target()).variants}


@cache
def kernel(
    form: str, shape: str = "strips", k: int | None = None, n: int | None = None, batched: bool = False
) -> Kernel:
    extents = (symbol("K") if k is None else k, symbol("N") if n is None else n)
    program = product_program(form, *extents, batch=symbol("H") if batched else None)
    return Kernel(plans_of(program)[shape])


class Operands:
    """Random operands of one product; every buffer but the used elements is NaN, results lie between guards."""

    def __init__(self, form: str, m: int, k: int, n: int, h: int | None = None, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        count = h or 1
        a_stride, c_stride = k + 3, n + 5
        k_stride, n_stride = {"rows": (n + 7, 1), "columns": (1, k + 7)}.get(form, (2 * n + 1, 2))
        self.a_buffer = np.full((count, m, a_stride), np.nan, np.float32)
        self.a = self.a_buffer[:, :, :k]
        self.a[...] = rng.standard_normal((count, m, k))
        self.b = rng.standard_normal((1 if form == "panels" else count, k, n)).astype(np.float32)
        size = max((k - 1) * k_stride + (n - 1) * n_stride + 1, 1) if k and n else 1
        self.b_buffer = np.full((count, size), np.nan, np.float32)
        if form == "panels":
            self.b_buffer = pack_panels(self.b[0])
        elif k and n:
            spread = np.lib.stride_tricks.as_strided(
                self.b_buffer, (count, k, n), (4 * size, 4 * k_stride, 4 * n_stride)
            )
            spread[...] = self.b
        self.c_buffer = np.full((count, m + 2 * GUARD, c_stride), 7.0, np.float32)
        self.c = self.c_buffer[:, GUARD : GUARD + m, :n]
        self.env = dict(M=m, K=k, N=n, H=count, astride=a_stride, cstride=c_stride, kstride=k_stride, nstride=n_stride)
        self.env.update(abatch=m * a_stride, bbatch=size, cbatch=(m + 2 * GUARD) * c_stride)

    def run(self, compiled: Kernel, cuts: Sequence[int] = ()) -> np.ndarray:
        self.c_buffer[...] = 7.0
        compiled.run([self.a_buffer, self.b_buffer, self.c_buffer[:, GUARD:]], self.env, cuts)
        kept = self.c.copy()
        self.c[...] = 7.0
        assert np.all(self.c_buffer == 7.0), "the kernel wrote outside its result"
        return kept

    def reference(self) -> np.ndarray:
        return self.a.astype(np.float64) @ self.b.astype(np.float64)

    def check(self, result: np.ndarray) -> None:
        bound = np.abs(self.a).astype(np.float64) @ np.abs(self.b).astype(np.float64)
        wrong = np.abs(result - self.reference()) > 1e-6 + 3e-6 * bound
        assert not wrong.any(), f"{wrong.sum()} of {wrong.size} elements differ from the float64 product"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("k", EXTENTS_K)
def test_a_product_of_any_extents_meets_its_oracle(form: str, k: int) -> None:
    for n in EXTENTS_N:
        for m in ROWS if n < 100 or k < 100 else (1, 2, 3, 5, 8, 13):
            operands = Operands(form, m, k, n)
            operands.check(operands.run(kernel(form)))


@pytest.mark.parametrize("n", (1, 16, 17, 33, 40, 64, 384, 1000))
@pytest.mark.parametrize("k", (1, 3, 32, 384))
def test_constant_extents_give_the_bits_of_run_time_extents(k: int, n: int) -> None:
    for m in (1, 2, 3, 4, 5, 6, 7, 13):
        operands = Operands("panels", m, k, n)
        assert np.array_equal(operands.run(kernel("panels", k=k, n=n)), operands.run(kernel("panels")))


def chain(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One fused chain in increasing k; exact because a float64 holds the product and `fma` of three floats rounds once."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        exact = np.multiply.outer(a[:, k].astype(np.longdouble), b[k].astype(np.longdouble)) + total
        total = exact.astype(np.float32)
    return total


@pytest.mark.parametrize("form", FORMS)
def test_every_element_is_one_fused_chain(form: str) -> None:
    """Up to double rounding of the 64-bit emulation, which needs a tie in 40 more bits and does not occur here."""
    operands = Operands(form, 13, 37, 39)
    assert np.array_equal(operands.run(kernel(form))[0], chain(operands.a[0], operands.b[0]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("k,n", ((3, 17), (37, 100), (384, 33), (64, 400)))
def test_the_bits_of_a_row_do_not_depend_on_its_company(form: str, k: int, n: int) -> None:
    whole = Operands(form, 17, k, n)
    together = whole.run(kernel(form))[0]
    for m in (1, 2, 3, 4, 5, 6, 7, 9, 11):
        part = Operands(form, m, k, n)
        part.a[...] = whole.a[:, 17 - m :]
        if form == "panels":
            part.b_buffer = whole.b_buffer
        else:
            part.b_buffer[...] = whole.b_buffer
        assert np.array_equal(part.run(kernel(form))[0], together[17 - m :]), f"{m} rows alone"


@pytest.mark.parametrize(
    "form,plan", (("panels", "strips"), ("panels", "columns"), ("rows", "strips"), ("columns", "strips"))
)
def test_any_cut_of_the_blocks_gives_the_same_bits(form: str, plan: str) -> None:
    operands, compiled = Operands(form, 29, 50, 900), kernel(form, plan)
    whole = operands.run(kernel(form))
    operands.check(whole)
    blocks = compiled.blocks(operands.env)
    for cuts in ([1], [blocks - 1], [blocks // 2], list(range(1, blocks)), [0, blocks]):
        assert np.array_equal(operands.run(compiled, cuts), whole), f"cut at {cuts} of {blocks}"


@pytest.mark.parametrize("n", (384, 1000, 1536))
@pytest.mark.parametrize("m", (1, 2, 3, 4, 6, 7, 13))
def test_column_ranges_give_the_bits_of_whole_rows(m: int, n: int) -> None:
    operands = Operands("panels", m, 70, n)
    whole = operands.run(kernel("panels", "strips", 70, n))
    ranges = kernel("panels", "columns", 70, n)
    assert ranges.blocks(operands.env) > 1
    assert np.array_equal(operands.run(ranges, [1]), whole)


@pytest.mark.parametrize("form", ("rows", "columns", "scattered"))
@pytest.mark.parametrize("plan", ("strips", "batches"))
def test_batches_have_their_own_right_operand(form: str, plan: str) -> None:
    for m, k, n in ((1, 32, 20), (8, 32, 8), (50, 7, 50), (13, 50, 32)):
        operands, compiled = Operands(form, m, k, n, h=5), kernel(form, plan, batched=True)
        result = operands.run(compiled)
        operands.check(result)
        blocks = compiled.blocks(operands.env)
        assert np.array_equal(operands.run(compiled, [blocks // 3, blocks // 2]), result)


def test_packed_weights_are_shared_by_the_batch() -> None:
    operands = Operands("panels", 9, 40, 50, h=3)
    operands.check(operands.run(kernel("panels", batched=True)))


@pytest.mark.parametrize("form", FORMS)
def test_vectors_of_eight_give_the_bits_of_wider_ones(form: str) -> None:
    """Where the machine has 512-bit vectors, the kernel of one that does not computes the same chains."""
    host = host_target()
    features = ",".join(f"-{f[1:]}" if f.startswith("+avx512") else f for f in host.features.split(","))
    narrow = replace(host, cpu="x86-64-v3" if host.has_avx512 else host.cpu, features=features)
    compiled = Kernel(plans_of(product_program(form, symbol("K"), symbol("N")), narrow)["strips"])
    for m, n in ((1, 1), (2, 33), (3, 100), (4, 17), (5, 400), (7, 16), (13, 100)):
        operands = Operands(form, m, 37, n)
        assert np.array_equal(operands.run(compiled), operands.run(kernel(form)))


def accumulating(n: int) -> TileProgram:
    """c += a @ b, in place."""
    p, rows, k = ProgramBuilder("accumulating"), symbol("M"), 20
    m, nn, kk = p.root("m", rows), p.axis("n", n), p.axis("k", k)
    a, b = p.view("a", F32, (rows, k)), p.view("b", F32, (k, n), layout="panels", panel=16)
    c = p.view("c", F32, (rows, n), access="readwrite")
    p.store(c, (m, nn), p.load(c, (m, nn)) + p.mma(p.load(a, (m, kk)), p.load(b, (kk, nn)), kk))
    return p.finish()


@pytest.mark.parametrize("n", (40, 192))
def test_every_row_is_stored_once_in_any_tile(n: int) -> None:
    """A tile may have room for more rows than its strip has: those left over must not add to its last row again."""
    rng = np.random.default_rng(n)
    compiled = Kernel(plans_of(accumulating(n))["strips"])
    for m in range(1, 2 * WIDE_STRIP_ROWS + 1):
        a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, 20), (20, n), (m, n)))
        want = c.astype(np.float64) + a.astype(np.float64) @ b.astype(np.float64)
        compiled.run([a, pack_panels(b), c], {"M": m})
        assert np.allclose(c, want, 1e-5, 1e-5), f"{m} rows"


def test_rows_that_a_strip_lacks_need_no_edge() -> None:
    """They store what the last row stores. Only ragged columns, and rows that read what they write, take the long way."""
    has_edge = [
        "@edge(" in emit(plans_of(program)["strips"]).text
        for program in (product_program("panels", 20, 192), product_program("panels", 20, 40), accumulating(192))
    ]
    # Without wide vectors every number of rows has a tile of its own.
    assert has_edge == [False, True, host_target().has_avx512]


def test_strips_fetch_every_line_once() -> None:
    """A turn of a tile's loop fetches as many lines as it reads of B, or none; every strip has its turns."""
    has_wide = host_target().has_avx512
    lanes, sizes = (16, TILE_ROWS[WIDE_STRIP_ROWS]) if has_wide else (8, TILE_ROWS[STRIP_ROWS])
    wanted = []
    for rows in sizes:
        panels = PANELS_TOGETHER[lanes][rows]
        unroll = 2 if panels > 1 and panels * rows * (PANEL // lanes) < 12 else 4
        wanted += [panels * unroll] if rows >= FETCHING_ROWS else []
    text = emit(plans_of(product_program("panels", 384, 384))["strips"]).text
    fetched = [len(re.findall(FETCH, block)) for block in re.split(r"\n\w+:", text)]
    assert [count for count in fetched if count] == wanted


@pytest.mark.parametrize("form", FORMS)
def test_all_tiles_are_one_function_called_from_one_place(form: str) -> None:
    """Functions and calls of so many arguments are dear to compile; the ragged panel of a B read in place has its own."""
    text = emit(plans_of(product_program(form, 384, 1536))["strips"]).text
    assert len(re.findall(r"define .* @tile\(", text)) == 1
    assert len(re.findall(r"call void @tile\(", text)) == (2 if form == "rows" else 1)


def test_a_kernel_of_no_blocks_does_nothing() -> None:
    operands = Operands("panels", 1, 3, 17)
    operands.env["M"] = 0
    assert kernel("panels").blocks(operands.env) == 0
    kernel("panels").run([operands.a_buffer, operands.b_buffer, operands.c_buffer], operands.env)


@pytest.mark.parametrize("form", ("rows", "columns", "scattered"))
def test_blocks_of_matrices_without_rows_write_nothing(form: str) -> None:
    for k, n in ((3, 17), (0, 5), (64, 400)):
        operands, compiled = Operands(form, 0, k, n, h=3), kernel(form, "batches", batched=True)
        assert compiled.blocks(operands.env) == 3
        operands.run(compiled)


@pytest.mark.parametrize("form,batch", (("panels", None), ("columns", 4), ("rows", symbol("H"))))
def test_the_realisations_of_a_product_share_one_text(form: str, batch: int | None) -> None:
    """They differ in argument words only, so a product is compiled once."""
    plans = tuple(plans_of(product_program(form, 384, 1536, batch=batch)).values())
    kernels = [emit(p) for p in plans]
    assert len(kernels) >= 2
    assert len({k.text for k in kernels}) == 1
    assert len({k.words for k in kernels}) == len(kernels)
    assert list(emit_variants(plans)) == kernels


@pytest.mark.parametrize("k", (1, 16, 64, 129, 384, 768, 1536, 4096))
def test_a_chunk_is_whole_tile_groups_and_short(k: int) -> None:
    """Two chunks, the one computed and the one fetched, fit a near cache of 1 MB up to k = 4096."""
    panels = chunk_panels(describe(product_program("panels", k, 1536)))  # type: ignore[arg-type]
    assert panels % 2 == 0 and 2 <= panels <= CHUNK_PANELS
    assert 2 * panels * PANEL * k * 4 <= 1 << 20


def test_what_only_calls_is_translated_as_it_stands() -> None:
    """The entry and the loop nest over strips compute nothing: they are cold, the functions that they call are not."""
    text = emit(plans_of(product_program("panels", 384, 1536))["columns"]).text
    cold = re.findall(r"define .*@(\w+)\(.*optnone {", text)
    assert len(cold) == 2 and cold[1] == "strips"


def test_compiling_a_kernel_is_quick() -> None:
    import time

    one = plans_of(product_program("panels", 384, 1536))["strips"]
    times = []
    for _ in range(3):
        start = time.thread_time()
        compile_object(emit(one).text, host_target())
        times.append(time.thread_time() - start)
    assert min(times) < 0.25, "generous: a guard against blow-ups of the address computation, not a benchmark"
