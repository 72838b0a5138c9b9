"""Kernels that move elements without computing: transposes, joins and cuts, padding, and the key-value cache."""

from __future__ import annotations

from collections.abc import Sequence

from grainline.base.dims import Extent
from grainline.base.dtypes import F32, I64, DType
from grainline.tile.build import ProgramBuilder, affine
from grainline.tile.ir import TileProgram


def transpose(shape: Sequence[Extent], permutation: Sequence[int], dtype: DType = F32) -> TileProgram:
    """y[d0, d1, ...] = x at those coordinates; dimension i of y is dimension permutation[i] of x."""
    p = ProgramBuilder("transpose")
    out = tuple(shape[axis] for axis in permutation)
    roots = [p.root(f"d{i}", extent) for i, extent in enumerate(out)]
    x, y = p.view("x", dtype, tuple(shape)), p.view("y", dtype, out, access="write")
    p.store(y, roots, p.load(x, [roots[list(permutation).index(axis)] for axis in range(len(shape))]))
    return p.finish()


def concat_part(rows: Extent, n: Extent, total: Extent, offset: Extent, dtype: DType = F32) -> TileProgram:
    """y[r, offset + c] = x[r, c]: the part of one operand in y: dtype[rows, total]. A concatenation is one a part."""
    p = ProgramBuilder("concat_part")
    r, c = p.root("rows", rows), p.root("n", n)
    x, y = p.view("x", dtype, (rows, n)), p.view("y", dtype, (rows, total), access="write")
    p.store(y, (r, affine((c, 1), offset=offset)), p.load(x, (r, c)))
    return p.finish()


def slice_columns(
    rows: Extent, n: Extent, count: Extent, start: Extent, step: int = 1, dtype: DType = F32
) -> TileProgram:
    """y[r, c] = x[r, start + step * c] for c < count; a split is one slice a result."""
    p = ProgramBuilder("slice_columns")
    r, c = p.root("rows", rows), p.root("count", count)
    x, y = p.view("x", dtype, (rows, n)), p.view("y", dtype, (rows, count), access="write")
    p.store(y, (r, c), p.load(x, (r, affine((c, step), offset=start))))
    return p.finish()


def pad_columns(rows: Extent, n: Extent, before: Extent, after: Extent, dtype: DType = F32) -> TileProgram:
    """y: dtype[rows, before + n + after] = x with zeros on both sides."""
    p, total = ProgramBuilder("pad_columns"), before + n + after
    r, c = p.root("rows", rows), p.root("total", total)
    x, y = p.view("x", dtype, (rows, n)), p.view("y", dtype, (rows, total), access="write")
    p.store(y, (r, c), p.load(x, (r, affine((c, 1), offset=-before)), bounds="zero"))
    return p.finish()


def cache_append(
    batch: Extent, heads: Extent, capacity: Extent, count: Extent, width: Extent, dtype: DType = F32
) -> TileProgram:
    """cache[b, h, length[b] + t, d] = new[b, h, t, d]; a row that the cache has no room for is a fault.

    new: dtype[batch, heads, count, width], length: i64[batch] rows filled so far, cache: dtype[batch, heads, capacity,
    width], written in place.
    """
    p = ProgramBuilder("cache_append")
    b, h, t, d = (p.root(*axis) for axis in (("b", batch), ("h", heads), ("t", count), ("d", width)))
    new, length = p.view("new", dtype, (batch, heads, count, width)), p.view("length", I64, (batch,))
    cache = p.view("cache", dtype, (batch, heads, capacity, width), access="write")
    row = p.load(length, (b,)) + p.coord(t)
    p.store(cache, (b, h, row, d), p.load(new, (b, h, t, d)), bounds="error")
    return p.finish()
