"""Classifies the memory that a tile kernel is bound to, so that the cheapest variant that is safe for it is taken.

Inside the engine the planner knows what shares memory ("in_place" at most). For arrays that a caller hands over, the
class is found here, when they are bound: "none", "in_place" or "any", as `tile.access.clobbers` understands them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from grainline.tile.access import same_elements
from grainline.tile.ir import Operation, TileProgram, View


def aliasing_of(program: TileProgram, arrays: Sequence[np.ndarray]) -> str:
    """The narrowest class that covers what `arrays`, one per view, share. Two views that are only read may share all.

    In place is a load and a store of equal elements at equal addresses, the load first. Bounds of memory decide, not
    single elements: interleaved views that never meet count as "any".
    """
    found = "none"
    for (one, a), (two, b) in combinations(zip(program.views, arrays, strict=True), 2):
        if "write" not in one.access + two.access or not np.may_share_memory(a, b):
            continue
        if a.ctypes.data != b.ctypes.data or not _is_in_place(program, one, two):
            return "any"
        found = "in_place"
    return found


def _is_in_place(program: TileProgram, one: View, two: View) -> bool:
    """Whether one view is only read, the other only written, each element read before it is written."""
    read, written = (one, two) if one.access == "read" else (two, one)
    alike = (one.dtype, one.shape, one.strides) == (two.dtype, two.shape, two.strides)
    if not alike or read.access != "read" or written.access != "write" or any(o.region for o in program.body):
        return False
    accesses = [o for o in program.body if o.view in (read, written)]
    loads = [o for o in accesses if o.op == "load"]
    if accesses[: len(loads)] != loads:
        return False
    return all(_is_strided(o) and same_elements(accesses[0], o) for o in accesses)


def _is_strided(operation: Operation) -> bool:
    return operation.view is not None and operation.view.layout == "strided"
