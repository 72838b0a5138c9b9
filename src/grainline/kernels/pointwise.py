"""Pointwise kernels: one program per element."""

from __future__ import annotations

from grainline.base.dims import Expr
from grainline.base.dtypes import F32, I64, DType
from grainline.tile.build import ProgramBuilder
from grainline.tile.ir import TileProgram

Extent = int | Expr


def gelu(rows: Extent, n: Extent) -> TileProgram:
    """y = 0.5 * x * (1 + erf(x / sqrt(2)))."""
    p = ProgramBuilder("gelu")
    r, c = p.root("rows", rows), p.root("n", n)
    x, y = p.view("x", F32, (rows, n)), p.view("y", F32, (rows, n), access="write")
    t = p.load(x, (r, c))
    p.store(y, (r, c), t * 0.5 * (p.erf(t * 0.7071067811865476) + 1.0))
    return p.finish()


def gelu_tanh_residual(rows: Extent, n: Extent) -> TileProgram:
    """y = 0.5 * x * (1 + tanh(0.7978845608 * (x + 0.044715 * x * x * x))) + u."""
    p = ProgramBuilder("gelu_tanh_residual")
    r, c = p.root("rows", rows), p.root("n", n)
    x, u = p.view("x", F32, (rows, n)), p.view("u", F32, (rows, n))
    y = p.view("y", F32, (rows, n), access="write")
    t = p.load(x, (r, c))
    inner = (t + t * t * t * 0.044715) * 0.7978845608
    p.store(y, (r, c), t * 0.5 * (p.tanh(inner) + 1.0) + p.load(u, (r, c)))
    return p.finish()


def swiglu(rows: Extent, n: Extent) -> TileProgram:
    """y = x / (1 + exp(-x)) * u."""
    p = ProgramBuilder("swiglu")
    r, c = p.root("rows", rows), p.root("n", n)
    x, u = p.view("x", F32, (rows, n)), p.view("u", F32, (rows, n))
    y = p.view("y", F32, (rows, n), access="write")
    t = p.load(x, (r, c))
    p.store(y, (r, c), t / (p.exp(-t) + 1.0) * p.load(u, (r, c)))
    return p.finish()


def copy(rows: Extent, n: Extent, dtype: DType = F32) -> TileProgram:
    p = ProgramBuilder("copy")
    r, c = p.root("rows", rows), p.root("n", n)
    x, y = p.view("x", dtype, (rows, n)), p.view("y", dtype, (rows, n), access="write")
    p.store(y, (r, c), p.load(x, (r, c)))
    return p.finish()


def gather_rows(count: Extent, rows: Extent, n: Extent) -> TileProgram:
    """y[i, c] = x[index[i], c]; an index outside [-rows, rows) is a fault."""
    p = ProgramBuilder("gather_rows")
    i, c = p.root("i", count), p.root("n", n)
    x, index = p.view("x", F32, (rows, n)), p.view("index", I64, (count,))
    y = p.view("y", F32, (count, n), access="write")
    k = p.load(index, (i,))
    k = p.select(k < 0, k + p.extent(rows), k)
    p.store(y, (i, c), p.load(x, (k, c), bounds="error"))
    return p.finish()
