"""Private arrays of a whole-program kernel, and the narrow form for rows that the workspace budget has no room for.

An array has a column per lane of a packet. Where the arrays of W lanes exceed the budget a packet has one lane: it
needs a W-th of the memory, and computes the same values in the same order. Symbolic extents decide at launch, in a
kernel that holds both forms; a known size that not even one lane has room for is refused by the planner.
"""

from __future__ import annotations

from dataclasses import dataclass

from grainline.base.dims import Expr, maximum, minimum
from grainline.plan import row_workspace
from grainline.plan.whole_schedule import WholeSchedule, schedule_whole
from grainline.tile.ir import TileProgram


@dataclass(frozen=True, slots=True)
class WholeWorkspace:
    """`widths`: the lanes of a packet in the forms that a kernel holds. The first of two is taken where its arrays,
    `wide_bytes`, are at most `budget_bytes`. `least_bytes`: what a home needs in the form of one lane."""

    schedule: WholeSchedule
    widths: tuple[int, ...]
    wide_bytes: int | Expr
    least_bytes: int | Expr
    budget_bytes: int

    @property
    def bytes(self) -> int | Expr:
        """The scratch of one home."""
        if len(self.widths) == 1:
            return self.least_bytes if self.widths == (1,) else self.wide_bytes
        return minimum(self.wide_bytes, maximum(self.budget_bytes, self.least_bytes))


def whole_workspace(program: TileProgram, width: int, may_alias: bool) -> WholeWorkspace:
    """The forms of packets of `width` lanes. A program without roots has one instance, which is one lane."""
    schedule, budget = schedule_whole(program, may_alias), row_workspace.WORKSPACE_BUDGET_BYTES
    width = width if program.roots else 1
    least = schedule.bytes_per_lane
    wide = least * width
    if width == 1 or (isinstance(wide, int) and wide <= budget):
        widths: tuple[int, ...] = (width,)
    else:
        widths = (1,) if isinstance(wide, int) else (width, 1)
    return WholeWorkspace(schedule, widths, wide, least, budget)
