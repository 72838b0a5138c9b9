"""Private rows of a packet-local kernel, and the streaming variant for rows that the workspace budget has no room for.

Row length n decides at launch: up to `kept_up_to` elements the rows are kept, above it every pass computes its rows
again from memory. Both compute the same values in the same order, so the bits are the same. A snapshot cannot be
computed again: a program that needs one has no streaming variant.
"""

from __future__ import annotations

from dataclasses import dataclass

from grainline.base.dims import Expr, ceil_div, minimum
from grainline.plan.row_schedule import RowSchedule, schedule_rows
from grainline.plan.switches import Switches
from grainline.tile.ir import Axis, TileProgram

WORKSPACE_BUDGET_BYTES = 16 << 20
SLOT_ELEMENTS = 64  # a slot is a whole number of these
SLOT_ELEMENT_BYTES = 8


@dataclass(frozen=True, slots=True)
class RowWorkspace:
    """The schedules that a kernel holds: `kept` for n <= `kept_up_to`, `streamed` above; None where it never runs.

    `bytes` is the scratch of one home, as an extent of n.
    """

    kept: RowSchedule | None
    streamed: RowSchedule | None
    kept_up_to: int
    bytes: int | Expr


def row_workspace(program: TileProgram, axis: Axis, switches: Switches) -> RowWorkspace:
    """What is emitted for rows along `axis`."""
    kept = schedule_rows(program, axis, switches)
    needed = _bytes(axis.extent, kept.scratch_slots)
    limit = WORKSPACE_BUDGET_BYTES // (SLOT_ELEMENT_BYTES * max(kept.scratch_slots, 1)) // SLOT_ELEMENTS * SLOT_ELEMENTS
    if kept.scratch_slots == 0 or (isinstance(axis.extent, int) and axis.extent <= limit):
        return RowWorkspace(kept, None, limit, needed)
    streamed = schedule_rows(program, axis, switches.streaming())
    if streamed.scratch_slots:
        return RowWorkspace(kept, None, limit, needed)
    if isinstance(axis.extent, int):
        return RowWorkspace(None, streamed, limit, 0)
    return RowWorkspace(kept, streamed, limit, minimum(needed, _bytes(limit, kept.scratch_slots)))


def _bytes(extent: int | Expr, slots: int) -> int | Expr:
    """One slot of 8-byte elements, padded, per private row."""
    return ceil_div(extent, SLOT_ELEMENTS) * (SLOT_ELEMENTS * SLOT_ELEMENT_BYTES * slots)
