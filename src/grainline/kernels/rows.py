"""Row kernels: one program per row of x: f32[rows, n]. Each function returns the tile program of one kernel."""

from __future__ import annotations

from grainline.base.dims import Expr
from grainline.base.dtypes import F32
from grainline.tile.build import ProgramBuilder
from grainline.tile.ir import TileProgram

Extent = int | Expr


def softmax(rows: Extent, n: Extent) -> TileProgram:
    """y = exp(x - max x) / sum(exp(x - max x))."""
    p = ProgramBuilder("softmax")
    r, a = p.root("rows", rows), p.axis("n", n)
    x, y = p.view("x", F32, (rows, n)), p.view("y", F32, (rows, n), access="write")
    t = p.load(x, (r, a))
    e = p.exp(t - p.max(t, a))
    p.store(y, (r, a), e / p.sum(e, a))
    return p.finish()


def masked_softmax(rows: Extent, n: Extent) -> TileProgram:
    """Softmax over the columns at or left of the row number (mod n)."""
    p = ProgramBuilder("masked_softmax")
    r, a = p.root("rows", rows), p.axis("n", n)
    x, y = p.view("x", F32, (rows, n)), p.view("y", F32, (rows, n), access="write")
    valid = p.coord(a) <= p.mod(p.coord(r), p.extent(n))
    s = p.select(valid, p.load(x, (r, a)), p.const(-1e30))
    e = p.select(valid, p.exp(s - p.max(s, a)), p.const(0.0))
    p.store(y, (r, a), e / p.sum(e, a))
    return p.finish()


def layer_norm(rows: Extent, n: Extent, epsilon: float = 1e-5) -> TileProgram:
    """c = x - mean(x); y = c / sqrt(mean(c*c) + epsilon) * gamma + beta."""
    p = ProgramBuilder("layer_norm")
    r, a = p.root("rows", rows), p.axis("n", n)
    x, gamma, beta = p.view("x", F32, (rows, n)), p.view("gamma", F32, (n,)), p.view("beta", F32, (n,))
    y = p.view("y", F32, (rows, n), access="write")
    t = p.load(x, (r, a))
    c = t - p.mean(t, a)
    scale = p.rsqrt(p.mean(c * c, a) + epsilon)
    p.store(y, (r, a), c * scale * p.load(gamma, (a,)) + p.load(beta, (a,)))
    return p.finish()


def rms_norm(rows: Extent, n: Extent, epsilon: float = 1e-5) -> TileProgram:
    """y = x / sqrt(mean(x*x) + epsilon) * gamma."""
    p = ProgramBuilder("rms_norm")
    r, a = p.root("rows", rows), p.axis("n", n)
    x, gamma = p.view("x", F32, (rows, n)), p.view("gamma", F32, (n,))
    y = p.view("y", F32, (rows, n), access="write")
    t = p.load(x, (r, a))
    scale = p.rsqrt(p.mean(t * t, a) + epsilon)
    p.store(y, (r, a), t * scale * p.load(gamma, (a,)))
    return p.finish()


def mean_pool(batch: Extent, length: Extent, width: Extent) -> TileProgram:
    """y[b, d] = mean over l of x[b, l, d]."""
    p = ProgramBuilder("mean_pool")
    b, d, k = p.root("b", batch), p.root("d", width), p.axis("l", length)
    x = p.view("x", F32, (batch, length, width))
    y = p.view("y", F32, (batch, width), access="write")
    p.store(y, (b, d), p.mean(p.load(x, (b, k, d)), k))
    return p.finish()
