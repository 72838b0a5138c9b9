"""Predicted time of a launch on one thread: sum over kinds of work of coefficient * count, in picoseconds.

    whole:  programs * per_lane + blocks * BLOCK          lanes share a packet, so a short lane axis pays for W lanes
    local:  programs * (per_program + per_element * n)    n rounded up to whole packets

Coefficients are picoseconds per element on the reference machine (AVX2, 3.5 GHz class): contiguous memory 25 ps a
byte (0.1 ns a float), an exp 350 ps, a rational function 290 ps, one vector operation 30 ps a lane, a gathered element
700 ps. `calibrate` replaces the table; the choice of a mapping among numeric signatures uses this shipped one.
"""

from __future__ import annotations

from collections.abc import Mapping as Table

from grainline.base.dims import Expr, ceil_div, product
from grainline.plan.types import LOCAL, Mapping
from grainline.plan.work import Work, realised_work
from grainline.tile.ir import TileProgram

PICOSECONDS: Table[str, int] = {
    "contiguous": 20,
    "broadcast": 15,
    "strided": 700,
    "scatter": 600,
    "cheap": 25,
    "exp": 320,
    "log": 350,
    "log1p": 500,
    "tanh": 290,
    "erf": 360,
    "sigmoid": 430,
    "softplus": 850,
    "sin": 600,
    "cos": 600,
    "pow": 1500,
    "div": 120,
    "mod": 3000,
    "fmod": 2500,
    "sqrt": 120,
    "rsqrt": 370,
    "reciprocal": 120,
    "scalar_cheap": 400,
    "scalar_dear": 5000,
    "lane_fold": 5000,
    "packet": 2000,
}
BLOCK_PS = 5000
PROGRAM_PS = 2000
LAUNCH_PS = 20000


def launch_cost(program: TileProgram, mapping: Mapping, blocks: int | Expr) -> int | Expr:
    """Picoseconds of all blocks on one thread, as an extent of the program's symbols."""
    work = realised_work(program, mapping)
    programs = product(axis.extent for axis in program.roots)
    if mapping.kind == LOCAL:
        return programs * (_local_program(work, mapping) + PROGRAM_PS) + LAUNCH_PS
    return _whole_lanes(program, mapping) * _sum(work, 1) + blocks * BLOCK_PS + LAUNCH_PS


def _local_program(work: Work, mapping: Mapping) -> int | Expr:
    axis = mapping.lane_axis
    assert axis is not None
    padded: int | Expr = axis.extent
    if isinstance(padded, int):
        padded = ceil_div(padded, mapping.width) * mapping.width
    total: int | Expr = 0
    for times, counts in work.terms.items():
        total = total + (padded if times == axis.extent and times != 1 else times) * _picoseconds(counts)
    return total


def _whole_lanes(program: TileProgram, mapping: Mapping) -> int | Expr:
    """Lanes that run, idle ones included, when the lane axis is static and short."""
    lanes: int | Expr = 1
    for axis in program.roots:
        extent = axis.extent
        if axis is mapping.lane_axis and isinstance(extent, int):
            extent = ceil_div(extent, mapping.width) * mapping.width
        lanes = lanes * extent
    return lanes


def _sum(work: Work, factor: int) -> int | Expr:
    total: int | Expr = 0
    for times, counts in work.terms.items():
        total = total + times * (_picoseconds(counts) * factor)
    return total


def _picoseconds(counts: Table[str, int]) -> int:
    return sum(PICOSECONDS[kind] * amount for kind, amount in counts.items())
