"""What the planner takes and gives: options, candidates, refusals, plans. Frozen data, no decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from grainline.base.dims import Expr
from grainline.base.errors import UnsupportedError
from grainline.plan.policy import AnalyticExecutionCostPolicy, ExecutionCost, ExecutionCostPolicy, ExecutionWork
from grainline.plan.switches import DEFAULT_SWITCHES, Switches
from grainline.plan.target import Target
from grainline.tile.ir import Axis, TileProgram

WHOLE = "whole"
LOCAL = "local"
MMA = "mma"


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """What is searched and what is fixed; 0, "" and () mean "search" or "the target's rule".

    block_size             physical workers of a block: programs, times W when a packet runs one program
    root_axis_order        a permutation of the root axes, outermost first; the last carries the lanes of whole programs
    max_candidates         more of them are an error, not a search of the first ones
    local_lanes            1: whole programs; W: packet-local; 0: both
    blocks_per_task        G; wins over the search of G
    search_task_grain      powers of two below L, ceil(L / (H T)) and L; else 0, the heuristic of the pool
    cost_policy            None: the calibrated policy
    reduction_partitions   independent accumulators of a long reduction, 1 to 16
    max_unrolled_tile_elements  at least 0; it changes no code: tile axes are loops or lanes at every size, and no tile
                           is expanded into scalars
    fuse_load_reduction, fuse_expression_reduction  see `plan.switches`
    same_bits              choose among mappings of one numeric signature only
    mapping                forces a mapping by name
    packet_width           W, the lanes of a packet
    may_alias              safe for views that share memory in any way; else what is written is memory of its own, as
                           in every launch of the engine (`lower`)
    math                   the tier of vector functions: "default" or "accurate"
    """

    block_size: int = 0
    root_axis_order: tuple[int, ...] = ()
    max_candidates: int = 1024
    local_lanes: int = 0
    blocks_per_task: int = 0
    search_task_grain: bool = True
    cost_policy: ExecutionCostPolicy | None = None
    reduction_partitions: int = 0
    max_unrolled_tile_elements: int = 64
    fuse_load_reduction: bool = True
    fuse_expression_reduction: bool = True
    same_bits: bool = True
    mapping: str = ""
    packet_width: int = 0
    may_alias: bool = False
    math: str = "default"

    @property
    def switches(self) -> Switches:
        return Switches(self.may_alias, self.fuse_load_reduction, self.fuse_expression_reduction)

    @staticmethod
    def origin() -> PlannerOptions:
        """What was chosen before there was calibration: whole programs, the pool's grain, the uncalibrated prior."""
        return PlannerOptions(
            local_lanes=1, search_task_grain=False, reduction_partitions=4, cost_policy=AnalyticExecutionCostPolicy()
        )


DEFAULT_OPTIONS = PlannerOptions()


@dataclass(frozen=True, slots=True)
class Mapping:
    """One way to realise a program.

    whole: lanes run along the root axis `lane_axis`, every lane is one program.
    local: one packet runs one program, lanes run along the tile axis `lane_axis`.
    mma: the matrix-product emitter decides; `details` are its own.
    `width` is the packet width W, `unroll` the packets in flight in the main loop. `order` lists the root axes
    outermost first (() = as the program does): it changes the order of execution, never an address.
    """

    kind: str
    lane_axis: Axis | None
    width: int
    unroll: int
    details: Any = None
    order: tuple[Axis, ...] = ()

    @property
    def lanes(self) -> int:
        return self.width * self.unroll

    @property
    def is_local(self) -> bool:
        return self.kind == LOCAL

    def __str__(self) -> str:
        axis = f" along {self.lane_axis.label}" if self.lane_axis is not None else ""
        return f"{self.kind}{axis} W={self.width}x{self.unroll}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A mapping that cannot realise the program, with the reason in words."""

    mapping: str
    reason: str


class Candidate(NamedTuple):
    """One point of the search space. `dispatch_size` counts physical workers; `blocks_per_task` is G as asked for."""

    mapping: Mapping
    root_axis_order: tuple[int, ...]
    local_lanes: int
    block_size: int
    blocks_per_task: int
    dispatch_size: int

    def __str__(self) -> str:
        return f"{self.mapping}, block {self.block_size}, grain {self.blocks_per_task}"


class ScoredCandidate(NamedTuple):
    """A candidate with the counts and the cost that the policy gave it."""

    candidate: Candidate
    work: ExecutionWork
    cost: ExecutionCost


@dataclass(frozen=True, slots=True)
class Plan:
    """One realisation. Launches run blocks [0, blocks); block b covers `block` consecutive programs.

    `cost_ps` predicts all blocks on one thread with their data in its nearest caches, `traffic_bytes` are the distinct
    bytes they touch, `task_ps` is done again by every task. `blocks_per_task` is the G of the search's extents; a
    launch chooses its own. `scratch_bytes` per home; `signature` names the numeric signature: equal means equal bits.
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
    traffic_bytes: int | Expr = 0
    task_ps: int | Expr = 0
    blocks_per_task: int = 0
    switches: Switches = DEFAULT_SWITCHES
    math: str = "default"


@dataclass(frozen=True, slots=True)
class TableRow:
    """The choice at one point: variant `alone` for one thread; with more, `variant` in tasks of `grain` of its `blocks`
    blocks on `homes` threads. 0 blocks: the grain is what was asked for, whatever the launch has."""

    alone: int
    variant: int
    blocks: int
    grain: int
    homes: int


@dataclass(frozen=True, slots=True)
class PolicyTable:
    """`axes`: (symbol, representative extents). Variants are numbers into the plans that the table came with."""

    axes: tuple[tuple[str, tuple[int, ...]], ...]
    rows: tuple[TableRow, ...]


@dataclass(frozen=True, slots=True)
class PlanResult:
    """Plans that a tiling node may choose among at run time, and why the others are not there.

    `table`: what a policy of one's own chooses among them; None: launches choose by the machine's costs.
    """

    variants: tuple[Plan, ...]
    candidates: tuple[ScoredCandidate, ...]
    refusals: tuple[Refusal, ...] = ()
    reason: str = ""
    best: ScoredCandidate | None = None
    table: PolicyTable | None = None


class PlanError(UnsupportedError):
    """No legal mapping; the text lists every refusal."""
