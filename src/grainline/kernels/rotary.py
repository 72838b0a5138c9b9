"""Rotary position embedding: `half` pairs per row of x: dtype[rows, 2 * half], turned by angles that are inputs.

cos, sin: dtype[rows, half]. A pair (l, r) becomes (l * cos - r * sin, l * sin + r * cos).
"""

from __future__ import annotations

from grainline.base.dims import Extent
from grainline.base.dtypes import F32, DType
from grainline.kernels.arithmetic import load_wide, store_narrow
from grainline.tile.build import ProgramBuilder, affine
from grainline.tile.ir import Affine, TileProgram


def rope_halves(rows: Extent, half: Extent, dtype: DType = F32) -> TileProgram:
    """Pair i is (x[i], x[half + i])."""
    return _rope("rope_halves", rows, half, dtype, step=1, right=half)


def rope_interleaved(rows: Extent, half: Extent, dtype: DType = F32) -> TileProgram:
    """Pair i is (x[2 i], x[2 i + 1])."""
    return _rope("rope_interleaved", rows, half, dtype, step=2, right=1)


def _rope(name: str, rows: Extent, half: Extent, dtype: DType, step: int, right: Extent) -> TileProgram:
    """Pair i is (x[step * i], x[step * i + right])."""
    p = ProgramBuilder(name)
    r, c = p.root("rows", rows), p.root("half", half)
    x = p.view("x", dtype, (rows, 2 * half))
    cos, sin = (load_wide(p, p.view(label, dtype, (rows, half)), (r, c)) for label in ("cos", "sin"))
    y = p.view("y", dtype, (rows, 2 * half), access="write")
    places: tuple[Affine, Affine] = affine((c, step)), affine((c, step), offset=right)
    left, other = (load_wide(p, x, (r, place)) for place in places)
    store_narrow(p, y, (r, places[0]), left * cos - other * sin)
    store_narrow(p, y, (r, places[1]), left * sin + other * cos)
    return p.finish()
