"""Row kernels: one program per row of x: dtype[rows, n]. Each function returns the tile program of one kernel.

f16 and bf16 are computed in f32 and rounded once, at the store; f64 is computed in f64.
"""

from __future__ import annotations

from grainline.base.dims import Extent
from grainline.base.dtypes import F32, DType
from grainline.kernels.arithmetic import load_wide, store_narrow
from grainline.tile.build import ProgramBuilder
from grainline.tile.ir import TileProgram


def softmax(rows: Extent, n: Extent, dtype: DType = F32) -> TileProgram:
    """y = e * (1 / sum(e)), e = exp(x - max x)."""
    p = ProgramBuilder("softmax")
    r, a = p.root("rows", rows), p.axis("n", n)
    x, y = p.view("x", dtype, (rows, n)), p.view("y", dtype, (rows, n), access="write")
    t = load_wide(p, x, (r, a))
    e = p.exp(t - p.max(t, a))
    store_narrow(p, y, (r, a), e * p.reciprocal(p.sum(e, a)))
    return p.finish()


def masked_softmax(rows: Extent, n: Extent, dtype: DType = F32) -> TileProgram:
    """Softmax over the columns at or left of the row number (mod n); the others are exactly 0."""
    p = ProgramBuilder("masked_softmax")
    r, a = p.root("rows", rows), p.axis("n", n)
    x, y = p.view("x", dtype, (rows, n)), p.view("y", dtype, (rows, n), access="write")
    valid = p.coord(a) <= p.mod(p.coord(r), p.extent(n))
    t = load_wide(p, x, (r, a))
    s = p.select(valid, t, p.const(-1e30, t.dtype))
    e = p.select(valid, p.exp(s - p.max(s, a)), p.const(0.0, t.dtype))
    store_narrow(p, y, (r, a), e * p.reciprocal(p.sum(e, a)))
    return p.finish()


def layer_norm(rows: Extent, n: Extent, epsilon: float = 1e-5, dtype: DType = F32) -> TileProgram:
    """c = x - mean(x); y = c / sqrt(mean(c*c) + epsilon) * gamma + beta, gamma and beta: dtype[n]."""
    p = ProgramBuilder("layer_norm")
    r, a = p.root("rows", rows), p.axis("n", n)
    x, gamma, beta = p.view("x", dtype, (rows, n)), p.view("gamma", dtype, (n,)), p.view("beta", dtype, (n,))
    y = p.view("y", dtype, (rows, n), access="write")
    t = load_wide(p, x, (r, a))
    c = t - p.mean(t, a)
    scale = p.rsqrt(p.mean(c * c, a) + epsilon)
    store_narrow(p, y, (r, a), c * scale * load_wide(p, gamma, (a,)) + load_wide(p, beta, (a,)))
    return p.finish()


def rms_norm(rows: Extent, n: Extent, epsilon: float = 1e-5, dtype: DType = F32) -> TileProgram:
    """y = x / sqrt(mean(x*x) + epsilon) * gamma, gamma: dtype[n]."""
    p = ProgramBuilder("rms_norm")
    r, a = p.root("rows", rows), p.axis("n", n)
    x, gamma = p.view("x", dtype, (rows, n)), p.view("gamma", dtype, (n,))
    y = p.view("y", dtype, (rows, n), access="write")
    t = load_wide(p, x, (r, a))
    scale = p.rsqrt(p.mean(t * t, a) + epsilon)
    store_narrow(p, y, (r, a), t * scale * load_wide(p, gamma, (a,)))
    return p.finish()


def mean_pool(batch: Extent, length: Extent, width: Extent) -> TileProgram:
    """y[b, d] = mean over l of x[b, l, d]."""
    p = ProgramBuilder("mean_pool")
    b, d, k = p.root("b", batch), p.root("d", width), p.axis("l", length)
    x = p.view("x", F32, (batch, length, width))
    y = p.view("y", F32, (batch, width), access="write")
    p.store(y, (b, d), p.mean(p.load(x, (b, k, d)), k))
    return p.finish()
