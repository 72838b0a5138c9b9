"""Cost policies: what a candidate is predicted to cost, and the counts that the prediction rests on.

A policy has three hooks, each with a default: `coefficients` may rewrite the relative coefficients before work is
extracted, `per_packet` prices one packet of a mapping, `evaluate` gives the complete objective of a candidate (the
search divides by nothing again). A policy sees counts and mappings only: no hard constraint, no numeric right. The
planner borrows it during `plan()`, keeps nothing of it, and a run never calls it.

Counts and the default objective are native functions that a launch uses too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping as Table
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from grainline import _native
from grainline.plan.prior import prior_work

if TYPE_CHECKING:
    from grainline.plan.types import Candidate, Mapping
    from grainline.tile.ir import TileProgram

BLOCK_WIDTHS = (32, 64, 128, 256, 512, 1024)
MAX_PACKET_WIDTH = 64


@dataclass(frozen=True, slots=True)
class ExecutionTarget:
    """What the search knows of a machine: W lanes of a packet, H threads (the caller included), T chunks per thread.

    `block_widths`: the physical workers that a block may have. `is_hot`: pool threads are awake when a launch comes.
    """

    packet_width: int = 8
    worker_count: int = 1
    task_chunks_per_worker: int = 32
    block_widths: tuple[int, ...] = BLOCK_WIDTHS
    is_hot: bool = False


@dataclass(frozen=True, slots=True)
class CostCoefficients:
    """Relative prices. The first four enter the work of a packet, the others the objective."""

    arithmetic: float = 1
    broadcast_load: float = 1
    contiguous_memory: float = 2
    gathered_lane: float = 2
    block_dispatch: float = 128
    task_dispatch: float = 0
    worker_activation: float = 0


class ExecutionWork(NamedTuple):
    """Closed counts of one launch.

    Q packets in L blocks in C tasks of G blocks on h active workers; `critical_*` is the most that one worker gets
    when tasks are dealt in turn, or in ranges as the pool does. Exact as counts; unequal workers and stealing make
    them no bound in time.
    h = 1 is one call for the whole range, so then C = 1 and G = L.
    """

    arithmetic_per_packet: float
    memory_per_packet: float
    packet_count: int
    block_count: int
    task_count: int
    active_workers: int
    blocks_per_task: int
    critical_packets: int
    critical_blocks: int
    critical_tasks: int


class ExecutionCost(NamedTuple):
    """The terms of an objective and their sum. Smaller is better; every number is finite and not negative."""

    arithmetic: float
    memory: float
    block_dispatch: float
    imbalance: float
    task_dispatch: float
    worker_activation: float
    score: float


class PolicyError(Exception):
    """A policy gave a number that is no cost."""


def count_work(
    target: ExecutionTarget,
    per_packet: tuple[float, float],
    packets: int,
    blocks: int,
    packets_per_block: int,
    blocks_per_task: int,
) -> ExecutionWork:
    """The counts of `blocks` blocks on `target`; a grain of 0 is ceil(L / (H T))."""
    counts = _native.count_work(
        packets, blocks, packets_per_block, target.worker_count, blocks_per_task, target.task_chunks_per_worker
    )
    return ExecutionWork(*per_packet, *counts)


class ExecutionCostPolicy(ABC):
    """The interface. Work is priced by the uncalibrated prior unless a policy knows better.

    Scores within the fraction `tie` of the smallest count as equal: the choice is then the one with the fewest workers,
    then the smallest task. With 0 the first strictly smallest wins. What a policy that `is_measured` says may differ
    from machine to machine, so it chooses among mappings of one numeric signature only, unless `same_bits` is off.
    """

    tie = 0.0
    is_measured = False

    def coefficients(self, target: ExecutionTarget, prior: CostCoefficients) -> CostCoefficients:
        """The coefficients to use; asked once per plan."""
        return prior

    def per_packet(
        self,
        target: ExecutionTarget,
        program: TileProgram,
        mapping: Mapping,
        coefficients: CostCoefficients,
        extents: Table[str, int],
    ) -> tuple[float, float]:
        """(arithmetic, memory) of one packet; asked once per mapping. `extents` are the values of the symbols."""
        return prior_work(program, mapping, coefficients, extents)

    @abstractmethod
    def evaluate(
        self, target: ExecutionTarget, candidate: Candidate, work: ExecutionWork, coefficients: CostCoefficients
    ) -> ExecutionCost:
        """The complete objective of one candidate."""


class AnalyticExecutionCostPolicy(ExecutionCostPolicy):
    """arithmetic + memory on the critical worker, plus block, task and activation terms.

    score = (a + m) * max(Q / h, critical packets) + block * critical blocks + task * critical tasks + activation.
    """

    def evaluate(
        self, target: ExecutionTarget, candidate: Candidate, work: ExecutionWork, coefficients: CostCoefficients
    ) -> ExecutionCost:
        terms = _native.cost_terms(
            work.arithmetic_per_packet,
            work.memory_per_packet,
            work.packet_count,
            work.active_workers,
            work.critical_packets,
            work.critical_blocks,
            work.critical_tasks,
            coefficients.block_dispatch,
            coefficients.task_dispatch,
            coefficients.worker_activation,
        )
        return ExecutionCost(*terms)


def check_numbers(found: CostCoefficients | ExecutionCost, origin: ExecutionCostPolicy) -> None:
    """PolicyError unless every number is finite and not negative."""
    for name in found._fields if isinstance(found, ExecutionCost) else found.__slots__:
        value = getattr(found, name)
        if not 0 <= value < inf:  # false for NaN
            what = "coefficient" if isinstance(found, CostCoefficients) else "cost"
            raise PolicyError(f"{type(origin).__name__}: {what} {name}: expected a finite number >= 0, found {value}")
