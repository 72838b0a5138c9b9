"""What the planner takes and gives: options, candidates, refusals, plans. Frozen data, no decisions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from grainline.base.dims import Expr
from grainline.plan.target import Target
from grainline.tile.ir import Axis, TileProgram

WHOLE = "whole"
LOCAL = "local"
MMA = "mma"


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """`mapping` forces one mapping ("" searches); `block` forces programs per block (0 chooses)."""

    mapping: str = ""
    block: int = 0
    unroll: int = 0
    same_bits: bool = True


DEFAULT_OPTIONS = PlannerOptions()


@dataclass(frozen=True, slots=True)
class Mapping:
    """One way to realise a program.

    whole: lanes run along the root axis `lane_axis`, every lane is one program.
    local: one packet runs one program, lanes run along the tile axis `lane_axis`.
    mma: the matrix-product emitter decides; `details` are its own.
    `width` is the packet width W, `unroll` the packets in flight in the main loop.
    """

    kind: str
    lane_axis: Axis | None
    width: int
    unroll: int
    details: Any = None

    @property
    def lanes(self) -> int:
        return self.width * self.unroll

    def __str__(self) -> str:
        axis = f" along {self.lane_axis.label}" if self.lane_axis is not None else ""
        return f"{self.kind}{axis} W={self.width}x{self.unroll}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A mapping that cannot realise the program, with the reason in words."""

    mapping: str
    reason: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A legal mapping with its predicted cost of the whole launch on one thread, in picoseconds."""

    mapping: Mapping
    cost_ps: int | Expr


@dataclass(frozen=True, slots=True)
class Plan:
    """One realisation. Launches run blocks [0, blocks); block b covers `block` consecutive programs.

    `scratch_bytes` per home; `signature` names the numeric signature: equal signature, equal bits.
    """

    program: TileProgram
    mapping: Mapping
    target: Target
    block: int
    blocks: int | Expr
    cost_ps: int | Expr
    scratch_bytes: int | Expr
    signature: str
    reason: str


@dataclass(frozen=True, slots=True)
class PlanResult:
    """Plans that a tiling node may choose among at run time, and why the others are not there."""

    variants: tuple[Plan, ...]
    candidates: tuple[Candidate, ...]
    refusals: tuple[Refusal, ...] = ()
    reason: str = ""
    notes: dict[str, str] = field(default_factory=dict)


class PlanError(Exception):
    """No legal mapping; the text lists every refusal."""
