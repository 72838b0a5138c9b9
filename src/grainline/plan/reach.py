"""How far accesses reach that are not contiguous: the bytes of cache they fill before they come back to a line.

Neighbours in memory share a cache line. An access whose lanes do not run along memory uses one element of each line and
comes back for the next when the axis along memory takes a step. Everything walked inside that axis lies between, one
line each: what it fills decides which cache the line is found in by then. Strides that are multiples of a larger power
of two use a part of a cache's sets only, and fill as much as if their lines were as wide as that power.

A walk lists axes with the extents of their loops, outermost first; the lanes of one packet come last, once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from grainline.base.dims import Expr, product
from grainline.plan.types import Mapping
from grainline.tile.access import LinearAccess, is_zero
from grainline.tile.ir import Axis, Operation, TileProgram

LINE_BYTES = 64
PAGE_BYTES = 4096  # sets of a cache are chosen by bits of an address within a page; above them memory lies anywhere

Walk = Sequence[tuple[Axis, int | Expr]]


def walk_of(program: TileProgram, mapping: Mapping, form: LinearAccess) -> Walk:
    """How the loops of `mapping` walk over the axes of an access."""
    roots = mapping.order or program.roots
    inner = [(axis, axis.extent) for axis in form.coefficients if axis not in roots]
    lane = mapping.lane_axis
    if mapping.is_local or lane is None:
        return [*((axis, axis.extent) for axis in roots), *inner]
    outer = [(axis, axis.extent) for axis in roots if axis is not lane]
    return [*outer, (lane, lane.extent), *inner, (lane, mapping.lanes)]


def reach_bytes(operation: Operation, form: LinearAccess, walk: Walk) -> int | Expr:
    """Bytes of cache filled between two touches of a line; of an access at run-time indices, its whole view."""
    assert operation.view is not None
    size = operation.view.dtype.size_bytes
    if form.dynamic:
        return product(operation.view.shape) * size
    moving = [(axis, extent) for axis, extent in walk if not is_zero(form.coefficient(axis))]
    along = [k for k, (axis, _) in enumerate(moving) if _stays_in_line(form.coefficient(axis), size)]
    inside: dict[Axis, int | Expr] = {}
    for axis, extent in moving[along[-1] + 1 :] if along else moving:
        inside.setdefault(axis, extent)  # all lanes, or those of one packet when only they are inside
    return product(inside.values()) * _filled_bytes([form.coefficient(axis) for axis in inside], size)


def _stays_in_line(step: int | Expr, size: int) -> bool:
    return isinstance(step, int) and abs(step) * size < LINE_BYTES


def _filled_bytes(steps: Sequence[int | Expr], size: int) -> int:
    """What one element of an access fills: its line, or more where steps leave sets of a cache unused."""
    if not steps or not all(isinstance(step, int) for step in steps):
        return LINE_BYTES
    common = gcd(*(step for step in steps if isinstance(step, int))) * size
    return max(gcd(common, PAGE_BYTES), LINE_BYTES)
