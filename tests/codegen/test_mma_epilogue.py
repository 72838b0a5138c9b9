"""What follows a product in its program: on the accumulators or on the finished strip, against the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from test_mma_kernels import Kernel, plans_of

from grainline.base.dims import Expr, symbol
from grainline.base.dtypes import BOOL, F32, I64
from grainline.plan.mma import Realisation
from grainline.plan.panels import pack_panels
from grainline.tile.build import ProgramBuilder, Value
from grainline.tile.interp import interpret
from grainline.tile.ir import Axis, TileProgram

M, L = symbol("M"), symbol("L")
Epilogue = Callable[[ProgramBuilder, Value, Axis, Axis, "int | Expr"], Value]


def bias(p: ProgramBuilder, x: Value, m: Axis, n: Axis, extent: int | Expr) -> Value:
    return x + p.load(p.view("bias", F32, (extent,)), (n,))


def bias_relu(p: ProgramBuilder, x: Value, m: Axis, n: Axis, extent: int | Expr) -> Value:
    return p.relu(bias(p, x, m, n, extent))


def residual(p: ProgramBuilder, x: Value, m: Axis, n: Axis, extent: int | Expr) -> Value:
    return bias(p, x, m, n, extent) + p.load(p.view("residual", F32, (M, extent)), (m, n))


def scaled_rows(p: ProgramBuilder, x: Value, m: Axis, n: Axis, extent: int | Expr) -> Value:
    return p.max(x * p.load(p.view("factor", F32, (M,)), (m,)), -0.25)


def gelu(p: ProgramBuilder, x: Value, m: Axis, n: Axis, extent: int | Expr) -> Value:
    x = bias(p, x, m, n, extent)
    return 0.5 * x * (1.0 + p.erf(x * 0.70710678))


def layer_norm(p: ProgramBuilder, x: Value, m: Axis, n: Axis, extent: int | Expr) -> Value:
    x = residual(p, x, m, n, extent)
    centred = x - p.mean(x, n)
    scale = p.rsqrt(p.mean(centred * centred, n) + 1e-5)
    gamma, beta = (p.load(p.view(name, F32, (extent,)), (n,)) for name in ("gamma", "beta"))
    return centred * scale * gamma + beta


def masked_softmax(p: ProgramBuilder, x: Value, m: Axis, n: Axis, extent: int | Expr) -> Value:
    mask = p.load(p.view("mask", F32, (M, extent)), (m, n))
    x = x * 0.17677669 + mask
    e = p.exp(x - p.max(x, n))
    return e / p.sum(e, n)


def nan_guarded(p: ProgramBuilder, x: Value, m: Axis, n: Axis, extent: int | Expr) -> Value:
    y = masked_softmax(p, x, m, n, extent)
    return p.select(p.isnan(y), p.const(0.0), y)


REGISTER_EPILOGUES = (bias, bias_relu, residual, scaled_rows)
STRIP_EPILOGUES = (gelu, layer_norm, masked_softmax, nan_guarded)


def dense_program(epilogue: Epilogue, k: int | Expr, n: int | Expr) -> TileProgram:
    """out[M, n] = epilogue(a[M, k] @ packed b[k, n])"""
    p = ProgramBuilder(epilogue.__name__)
    m, nn, kk = p.root("m", M), p.axis("n", n), p.axis("k", k)
    a, b = p.view("a", F32, (M, k)), p.view("b", F32, (k, n), layout="panels", panel=16)
    result = epilogue(p, p.mma(p.load(a, (m, kk)), p.load(b, (kk, nn)), kk), m, nn, n)
    p.store(p.view("out", F32, (M, n), access="write"), (m, nn), result)
    return p.finish()


@cache
def dense(epilogue: Epilogue, k: int | None, n: int | None, shape: str = "strips") -> Kernel:
    extents = (symbol("K") if k is None else k, symbol("N") if n is None else n)
    return Kernel(plans_of(dense_program(epilogue, *extents))[shape])


def arguments_of(program: TileProgram, env: dict[str, int], seed: int = 0) -> list[np.ndarray]:
    """Random dense arguments in the program's order; results are full of NaN."""
    from grainline.base.dims import evaluate

    rng = np.random.default_rng(seed)
    arrays = []
    for view in program.views:
        shape = tuple(evaluate(d, env) for d in view.shape)
        array = rng.standard_normal(shape).astype(np.float32)
        arrays.append(np.full(shape, np.nan, np.float32) if view.access == "write" else array)
    return arrays


def packed(program: TileProgram, arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [pack_panels(a) if v.layout == "panels" else a for v, a in zip(program.views, arrays)]


def expected(program: TileProgram, arrays: list[np.ndarray], env: dict[str, int]) -> np.ndarray:
    """The interpreter's result; it reads packed views as packed."""
    copies = [a.copy() for a in packed(program, arrays)]
    assert interpret(program, copies, env) == 0
    return copies[-1]


def check_dense(epilogue: Epilogue, k: int, n: int, static: bool, rows: tuple[int, ...]) -> None:
    compiled = dense(epilogue, k if static else None, n if static else None)
    program = compiled.plan.program
    for m in rows:
        env = {"M": m, "K": k, "N": n}
        arrays = arguments_of(program, env)
        compiled.run(packed(program, arrays), env)
        wanted = expected(program, arrays, env)
        assert np.allclose(arrays[-1], wanted, 2e-5, 2e-5), f"{m}x{k}x{n}"


@pytest.mark.parametrize("epilogue", REGISTER_EPILOGUES + STRIP_EPILOGUES)
@pytest.mark.parametrize("k,n", ((37, 1), (32, 16), (8, 33), (64, 100), (3, 384)))
def test_a_program_after_a_product_means_what_the_interpreter_says(epilogue: Epilogue, k: int, n: int) -> None:
    check_dense(epilogue, k, n, False, (1, 2, 3, 6, 8, 13))


@pytest.mark.parametrize("epilogue", REGISTER_EPILOGUES + STRIP_EPILOGUES)
def test_constant_extents_too(epilogue: Epilogue) -> None:
    check_dense(epilogue, 40, 48, True, (1, 2, 5, 7, 17))
    check_dense(epilogue, 33, 70, True, (1, 3, 7))


@pytest.mark.parametrize("epilogue", REGISTER_EPILOGUES)
def test_cheap_code_runs_on_the_accumulators(epilogue: Epilogue) -> None:
    details = dense(epilogue, 40, 48).plan.mapping.details
    assert isinstance(details, Realisation) and details.product.epilogue_form == "registers"


def positional(p: ProgramBuilder, x: Value, m: Axis, n: Axis, extent: int | Expr) -> Value:
    """Needs the true column number, whatever range a block holds."""
    return gelu(p, x, m, n, extent) + p.cast(p.coord(n), F32) + p.cast(p.coord(m), F32)


@pytest.mark.parametrize("epilogue", (bias_relu, residual, gelu, positional))
def test_column_ranges_run_the_same_epilogue(epilogue: Epilogue) -> None:
    for m in (1, 2, 6, 8):
        env = {"M": m}
        program = dense(epilogue, 20, 900).plan.program
        arrays = arguments_of(program, env)
        results = []
        for shape in ("strips", "columns"):
            compiled = dense(epilogue, 20, 900, shape)
            compiled.run(packed(program, arrays), env, [1])
            results.append(arrays[-1].copy())
        assert np.array_equal(*results)
        assert np.allclose(results[0], expected(program, arrays, env), 2e-5, 2e-5)


@pytest.mark.parametrize("epilogue", STRIP_EPILOGUES)
def test_rows_keep_their_bits_in_any_company_and_cut(epilogue: Epilogue) -> None:
    compiled = dense(epilogue, 37, 100)
    program = compiled.plan.program
    arrays = arguments_of(program, {"M": 29})
    compiled.run(packed(program, arrays), {"M": 29})
    whole = arrays[-1].copy()
    for cuts in ([1], [2, 3], [4]):
        compiled.run(packed(program, arrays), {"M": 29}, cuts)
        assert np.array_equal(arrays[-1], whole)
    by_rows = {view.name for view in program.views if view.shape[:1] == (M,)}
    for m in (1, 3, 8):
        part = [a[:m].copy() if v.name in by_rows else a for v, a in zip(program.views, arrays)]
        compiled.run(packed(program, part), {"M": m})
        assert np.array_equal(part[-1], whole[:m])


def attention_scores(heads: int, width: int) -> TileProgram:
    """softmax(q k^T / sqrt(width) + mask) from [B, L, heads*width] buffers, where mask is [B, L]."""
    p, batch = ProgramBuilder("scores"), symbol("B")
    b, h, m = p.root("b", batch), p.root("h", heads), p.root("m", L)
    n, d = p.axis("n", L), p.axis("d", width)
    shape, strides = (batch, heads, L, width), (L * (heads * width), width, heads * width, 1)
    q, k = p.view("q", F32, shape, strides), p.view("k", F32, shape, strides)
    right = p.load(k, (b, h, n, d))
    scores = p.mma(p.load(q, (b, h, m, d)), right, d) * (width**-0.5)
    scores = scores + p.load(p.view("mask", F32, (batch, L)), (b, n))
    e = p.exp(scores - p.max(scores, n))
    p.store(p.view("out", F32, (batch, heads, L, L), access="write"), (b, h, m, n), e / p.sum(e, n))
    return p.finish()


def attention_values(heads: int, width: int) -> TileProgram:
    """out[B, L, heads*width] = probabilities @ v"""
    p, batch = ProgramBuilder("values"), symbol("B")
    b, h, m = p.root("b", batch), p.root("h", heads), p.root("m", L)
    d, k = p.axis("d", width), p.axis("k", L)
    probabilities = p.view("p", F32, (batch, heads, L, L))
    shape, strides = (batch, heads, L, width), (L * (heads * width), width, heads * width, 1)
    v = p.view("v", F32, shape, strides)
    out = p.view("out", F32, shape, strides, access="write")
    p.store(out, (b, h, m, d), p.mma(p.load(probabilities, (b, h, m, k)), p.load(v, (b, h, k, d)), k))
    return p.finish()


@pytest.mark.parametrize("program", (attention_scores, attention_values))
@pytest.mark.parametrize("shape", ("strips", "batches"))
def test_both_products_of_attention(program: Callable[[int, int], TileProgram], shape: str) -> None:
    for heads, width, length in ((2, 32, 1), (3, 32, 17), (2, 20, 40)):
        built = program(heads, width)
        compiled = Kernel(plans_of(built)[shape])
        env = {"B": 2, "L": length}
        arrays = arguments_of(built, env)
        blocks = compiled.blocks(env)
        compiled.run(arrays, env, [blocks // 2])
        assert np.allclose(arrays[-1], expected(built, arrays, env), 2e-5, 2e-5)


def test_a_query_head_may_share_its_keys() -> None:
    """Grouped heads: the right operand has no axis for the group, so its coefficient there is zero."""
    p = ProgramBuilder("grouped")
    h, g, m = p.root("h", 2), p.root("g", 3), p.root("m", L)
    n, d = p.axis("n", L), p.axis("d", 8)
    q, k = p.view("q", F32, (2, 3, L, 8)), p.view("k", F32, (2, L, 8))
    product = p.mma(p.load(q, (h, g, m, d)), p.load(k, (h, n, d)), d)
    p.store(p.view("out", F32, (2, 3, L, L), access="write"), (h, g, m, n), product)
    program = p.finish()
    compiled, env = Kernel(plans_of(program)["strips"]), {"L": 21}
    arrays = arguments_of(program, env)
    compiled.run(arrays, env)
    assert np.allclose(arrays[-1], np.einsum("hgmd,hnd->hgmn", *arrays[:2]), 1e-5, 1e-5)


def test_a_causal_mask_from_coordinates() -> None:
    p = ProgramBuilder("causal")
    m, n, d = p.root("m", L), p.axis("n", L), p.axis("d", 8)
    a, b = p.view("a", F32, (L, 8)), p.view("b", F32, (8, L))
    scores = p.mma(p.load(a, (m, d)), p.load(b, (d, n)), d)
    seen = p.coord(n) <= p.coord(m)
    p.store(p.view("out", F32, (L, L), access="write"), (m, n), p.select(seen, scores, p.const(-1.0)))
    program = p.finish()
    assert seen.dtype is BOOL and p.coord(n).dtype is I64
    compiled, env = Kernel(plans_of(program)["strips"]), {"L": 23}
    arrays = arguments_of(program, env)
    compiled.run(arrays, env)
    wanted = np.where(np.tri(23, dtype=bool), arrays[0] @ arrays[1], -1.0)
    assert np.allclose(arrays[-1], wanted, 1e-5, 1e-5)


def test_a_matrix_per_last_root_has_one_row() -> None:
    """The last root moves B: every instance is a matrix-vector product of its own."""
    p = ProgramBuilder("vectors")
    h, n, d = p.root("h", symbol("H")), p.axis("n", 19), p.axis("d", 8)
    a, b = p.view("a", F32, (symbol("H"), 8)), p.view("b", F32, (symbol("H"), 8, 19))
    product = p.mma(p.load(a, (h, d)), p.load(b, (h, d, n)), d)
    p.store(p.view("out", F32, (symbol("H"), 19), access="write"), (h, n), product)
    program = p.finish()
    compiled, env = Kernel(plans_of(program)["strips"]), {"H": 5}
    arrays = arguments_of(program, env)
    compiled.run(arrays, env)
    assert np.allclose(arrays[-1], np.einsum("hd,hdn->hn", *arrays[:2]), 1e-5, 1e-5)
