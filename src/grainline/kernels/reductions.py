"""Reductions of x: dtype[shape] over any axes, and the places of extreme elements."""

from __future__ import annotations

from collections.abc import Sequence

from grainline.base.dims import Extent, product
from grainline.base.dtypes import F32, I64, DType
from grainline.kernels.arithmetic import load_wide, store_narrow
from grainline.tile.build import ProgramBuilder
from grainline.tile.ir import Axis, TileProgram

KINDS = ("add", "mul", "min", "max", "mean")


def reduction(kind: str, shape: Sequence[Extent], axes: Sequence[int], dtype: DType = F32) -> TileProgram:
    """y[kept axes] = fold of x over `axes`; kind is one of KINDS. min and max pass NaN through."""
    p = ProgramBuilder(f"reduce_{kind}")
    places = _axes(p, shape, axes)
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    x = p.view("x", dtype, tuple(shape))
    y = p.view("y", dtype, tuple(shape[axis] for axis in kept), access="write")
    total = load_wide(p, x, places)
    for axis in sorted(axes, reverse=True):
        total = p.reduce("add" if kind == "mean" else kind, total, places[axis])
    if kind == "mean":
        total = total / p.cast(p.extent(product(shape[axis] for axis in axes)), total.dtype)
    store_narrow(p, y, [places[axis] for axis in kept], total)
    return p.finish()


def extreme_place(kind: str, shape: Sequence[Extent], axis: int, dtype: DType = F32) -> TileProgram:
    """y[other axes] = i64 place along `axis` of the first largest (kind "max") or least element; NaN wins over all."""
    p = ProgramBuilder(f"arg{kind}")
    places = _axes(p, shape, (axis,))
    kept = [other for other in range(len(shape)) if other != axis]
    x = p.view("x", dtype, tuple(shape))
    y = p.view("y", I64, tuple(shape[other] for other in kept), access="write")
    value, along = load_wide(p, x, places), places[axis]
    found = p.eq(value, p.reduce(kind, value, along))
    if value.dtype.is_float:
        found = found | p.isnan(value)
    first = p.min(p.select(found, p.coord(along), p.extent(shape[axis])), along)
    p.store(y, [places[other] for other in kept], first)
    return p.finish()


def _axes(p: ProgramBuilder, shape: Sequence[Extent], folded: Sequence[int]) -> list[Axis]:
    """One axis per dimension: tile axes where folded, else roots."""
    return [
        p.axis(f"d{axis}", extent) if axis in folded else p.root(f"d{axis}", extent)
        for axis, extent in enumerate(shape)
    ]
