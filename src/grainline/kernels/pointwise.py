"""Pointwise kernels: one program per element of x: dtype[rows, n]. 16-bit floats are computed in f32."""

from __future__ import annotations

from collections.abc import Callable

from grainline.base.dims import Extent
from grainline.base.dtypes import F32, I64, DType
from grainline.kernels.arithmetic import load_wide, store_narrow
from grainline.tile.build import ProgramBuilder, Value
from grainline.tile.ir import TileProgram

SQRT_HALF = 0.7071067811865476
SQRT_TWO_OVER_PI = 0.7978845608


def gelu(rows: Extent, n: Extent, dtype: DType = F32) -> TileProgram:
    """y = 0.5 * x * (1 + erf(x / sqrt(2)))."""
    return _elementwise("gelu", ("x",), rows, n, dtype, _gelu_erf)


def gelu_erf_residual(rows: Extent, n: Extent, dtype: DType = F32) -> TileProgram:
    """y = 0.5 * x * (1 + erf(x / sqrt(2))) + u."""
    return _elementwise("gelu_erf_residual", ("x", "u"), rows, n, dtype, lambda p, x, u: _gelu_erf(p, x) + u)


def gelu_tanh_residual(rows: Extent, n: Extent, dtype: DType = F32) -> TileProgram:
    """y = 0.5 * x * (1 + tanh(0.7978845608 * (x + 0.044715 * x * x * x))) + u."""

    def meaning(p: ProgramBuilder, x: Value, u: Value) -> Value:
        inner = (x + x * x * x * 0.044715) * SQRT_TWO_OVER_PI
        return x * 0.5 * (p.tanh(inner) + 1.0) + u

    return _elementwise("gelu_tanh_residual", ("x", "u"), rows, n, dtype, meaning)


def swiglu(rows: Extent, n: Extent, dtype: DType = F32) -> TileProgram:
    """y = x / (1 + exp(-x)) * u."""
    return _elementwise("swiglu", ("x", "u"), rows, n, dtype, lambda p, x, u: x / (p.exp(-x) + 1.0) * u)


def copy(rows: Extent, n: Extent, dtype: DType = F32) -> TileProgram:
    """y = x, bit for bit."""
    p = ProgramBuilder("copy")
    r, c = p.root("rows", rows), p.root("n", n)
    x, y = p.view("x", dtype, (rows, n)), p.view("y", dtype, (rows, n), access="write")
    p.store(y, (r, c), p.load(x, (r, c)))
    return p.finish()


def gather_rows(count: Extent, rows: Extent, n: Extent, dtype: DType = F32) -> TileProgram:
    """y[i, c] = x[index[i], c], index: i64[count]; an index outside [-rows, rows) is a fault."""
    p = ProgramBuilder("gather_rows")
    i, c = p.root("i", count), p.root("n", n)
    x, index = p.view("x", dtype, (rows, n)), p.view("index", I64, (count,))
    y = p.view("y", dtype, (count, n), access="write")
    k = p.load(index, (i,))
    k = p.select(k < 0, k + p.extent(rows), k)
    p.store(y, (i, c), p.load(x, (k, c), bounds="error"))
    return p.finish()


def _gelu_erf(p: ProgramBuilder, x: Value) -> Value:
    return x * 0.5 * (p.erf(x * SQRT_HALF) + 1.0)


def _elementwise(
    name: str, inputs: tuple[str, ...], rows: Extent, n: Extent, dtype: DType, meaning: Callable[..., Value]
) -> TileProgram:
    """y = meaning(inputs...), every view dtype[rows, n]."""
    p = ProgramBuilder(name)
    r, c = p.root("rows", rows), p.root("n", n)
    views = [p.view(label, dtype, (rows, n)) for label in inputs]
    y = p.view("y", dtype, (rows, n), access="write")
    store_narrow(p, y, (r, c), meaning(p, *(load_wide(p, view, (r, c)) for view in views)))
    return p.finish()
