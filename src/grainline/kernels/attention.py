"""Attention with grouped heads: one program per query row, the scores never leave a home's scratch.

The queries of all heads that share a key head lie next to each other, so they count as the rows of one matrix: the
keys and values of a key head are made ready once for its whole group.
"""

from __future__ import annotations

from math import sqrt

from grainline.base.dims import Extent
from grainline.base.dtypes import BOOL, F32
from grainline.tile.build import ProgramBuilder, Value
from grainline.tile.ir import Axis, TileProgram

MASKED = -1e30


def attention(
    batch: Extent,
    key_heads: Extent,
    group: int,
    queries: Extent,
    keys: Extent,
    width: int,
    value_width: int,
    causal: bool = True,
    padding: bool = False,
) -> TileProgram:
    """o = softmax(q k^T / sqrt(width)) v over the valid keys; a row without valid keys is 0.

    q: f32[batch, key_heads * group, queries, width], k: f32[batch, key_heads, keys, width],
    v: f32[batch, key_heads, keys, value_width], o like q with value_width.
    causal: query i sees the keys 0 .. i + keys - queries (the last query sees all). padding: one more argument
    mask: bool[batch, keys], false where a key must not be seen.
    """
    p, rows = ProgramBuilder("attention"), queries * group
    b, h, r = p.root("batch", batch), p.root("key_head", key_heads), p.root("row", rows)
    n, d, e = p.axis("key", keys), p.axis("width", width), p.axis("value_width", value_width)
    q = p.view("q", F32, (batch, key_heads, rows, width))
    k = p.view("k", F32, (batch, key_heads, keys, width))
    v = p.view("v", F32, (batch, key_heads, keys, value_width))
    o = p.view("o", F32, (batch, key_heads, rows, value_width), access="write")
    score = p.mma(p.load(q, (b, h, r, d)), p.load(k, (b, h, n, d)), d) * (1 / sqrt(width))
    valid = p.coord(n) <= p.mod(p.coord(r), p.extent(queries)) + p.extent(keys - queries) if causal else None
    if padding:
        seen = p.load(p.view("mask", BOOL, (batch, keys)), (b, n))
        valid = seen if valid is None else p.and_(valid, seen)
    weights = _weights(p, score, valid, n)
    p.store(o, (b, h, r, e), p.mma(weights, p.load(v, (b, h, n, e)), n, skips_hidden=True))
    return p.finish()


def _weights(p: ProgramBuilder, score: Value, valid: Value | None, n: Axis) -> Value:
    """Softmax of the valid scores; 0 at the others, and everywhere in a row that has none."""
    if valid is None:
        weight = p.exp(score - p.max(score, n))
        return weight * p.reciprocal(p.sum(weight, n))
    masked = p.select(valid, score, p.const(MASKED))
    weight = p.select(valid, p.exp(masked - p.reduce("max", masked, n, init=MASKED)), p.const(0.0))
    total = p.sum(weight, n)
    return weight * p.reciprocal(p.select(p.eq(total, 0.0), p.const(1.0), total))
