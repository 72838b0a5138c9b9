"""How the values of one kernel are addressed over its iteration space.

The space of a group has one extent per logical axis. Buffers may see an axis as several factors (a view merged heads
and columns), so the space is first *refined* until every access has one stride per loop, then neighbouring loops are
*collapsed* again wherever all accesses agree. The result is a list of `Loop`s, and a stride per loop for each access.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from grainline.base.dims import Extent
from grainline.base.dtypes import DType
from grainline.lower.layout import Factor, Layout, merge, refine, split


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value lies: a slot of the execution graph and the layout of its elements in it."""

    slot: int
    dtype: DType
    layout: Layout


@dataclass(eq=False)
class Access:
    """One buffer as a kernel sees it. `axes` maps space axes to factors; an axis that is absent has stride 0.

    `inner` are further axes that belong to the access alone (a contraction, a gathered axis): (extent, stride) each.
    """

    place: Place
    axes: dict[int, tuple[Factor, ...]]
    write: bool = False
    inner: list[Factor] = field(default_factory=list)
    #: (K, N) of a constant matrix packed in column panels (of i8: of quads); such an access has no strides
    panels: tuple[Extent, Extent] | None = None
    #: stride of each loop, set by `Loops`
    strides: list[Extent] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of the kernel: part of space axis `axis`."""

    axis: int
    extent: Extent


class Unaddressable(Exception):
    """An access has no stride per loop; `access` must be copied to a dense buffer first."""

    def __init__(self, access: Access) -> None:
        self.access = access
        super().__init__("the access has no single stride per loop")


def aligned(place: Place, rank: int) -> Access:
    """The access of a value that broadcasts, right-aligned, into a space of `rank` axes."""
    missing = rank - len(place.layout.axes)
    axes = {missing + a: factors for a, factors in enumerate(place.layout.axes) if factors}
    return Access(place, axes)


def loops_of(space: tuple[Extent, ...], accesses: list[Access], whole: set[int], pinned: set[int]) -> list[Loop]:
    """Loops over `space` (axes in `whole` stay one loop, axes in `pinned` are neither split nor joined).

    Sets `strides` of every access. Raises Unaddressable when an access cannot be expressed.
    """
    loops: list[Loop] = []
    for access in accesses:
        access.strides = []
        access.axes = {axis: _spanned(factors, space[axis]) for axis, factors in access.axes.items()}
    for axis, extent in enumerate(space):
        if extent == 1 and axis not in whole:
            continue
        parts = _parts(axis, extent, accesses, single=axis in whole or axis in pinned)
        for access in accesses:
            strides = _strides(access, axis, parts)
            if strides is None:
                raise Unaddressable(access)
            access.strides.extend(strides)
        loops.extend(Loop(axis, part) for part in parts)
    return _collapse(loops, accesses, whole | pinned)


def _spanned(factors: tuple[Factor, ...], extent: Extent) -> tuple[Factor, ...]:
    """The factors of an axis of this extent. A single run spans the axis, whatever its own extent is called: that they
    are equal may be known to a guard alone."""
    merged = merge(list(factors))
    return ((extent, merged[0][1]),) if len(merged) == 1 and extent != 1 else factors


def _strides(access: Access, axis: int, parts: list[Extent]) -> list[Extent] | None:
    factors = tuple(merge(list(access.axes.get(axis, ()))))
    if not factors:
        return [0] * len(parts)
    if parts == [1]:
        return [factors[0][1]]
    return split(factors, parts)


def _parts(axis: int, extent: Extent, accesses: list[Access], single: bool) -> list[Extent]:
    common: list[Extent] = [extent]
    for access in accesses:
        factors = merge(list(access.axes.get(axis, ())))
        refined = refine([common, [e for e, _ in factors]])
        if refined is None or (single and len(refined) > 1):
            raise Unaddressable(access)
        common = refined
    return common


def _collapse(loops: list[Loop], accesses: list[Access], fixed: set[int]) -> list[Loop]:
    position = 0
    while position + 1 < len(loops):
        outer, inner = loops[position], loops[position + 1]
        joinable = outer.axis not in fixed and inner.axis not in fixed
        if joinable and all(a.strides[position] == a.strides[position + 1] * inner.extent for a in accesses):
            loops[position : position + 2] = [Loop(inner.axis, outer.extent * inner.extent)]
            for access in accesses:
                del access.strides[position]
            position = max(position - 1, 0)
        else:
            position += 1
    return loops
