"""The finite search: every legal mapping x block width x grain, scored by a policy; the first strictly smallest wins.

Enumeration order, which settles ties: root permutations in lexicographic order, whole programs before packet-local
ones, block widths ascending, grains ascending. Nothing partial is returned: a wrong option, a policy that gives no
cost, or a space above the budget is a PlanError.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as Table
from dataclasses import dataclass, replace
from math import isfinite

from grainline.base.dims import Expr, ceil_div, evaluate, product, symbols
from grainline.base.memo import kept_with_first
from grainline.plan.cost import TYPICAL_EXTENT
from grainline.plan.legal import legal_mappings
from grainline.plan.policy import (
    MAX_PACKET_WIDTH,
    CostCoefficients,
    ExecutionCostPolicy,
    ExecutionTarget,
    ExecutionWork,
    PolicyError,
    check_numbers,
    count_work,
)
from grainline.plan.signature import of_one_signature
from grainline.plan.target import Target
from grainline.plan.types import Candidate, Mapping, PlanError, PlannerOptions, Refusal, ScoredCandidate
from grainline.tile.ir import TileProgram

MAX_PROGRAMS = 2**32 - 1
MAX_PARTITIONS = 16
MOST_VARIANTS = 3
CLEARLY = 1.25  # how much cheaper a mapping is somewhere, to be a variant


@dataclass(frozen=True, slots=True)
class Search:
    """All candidates in enumeration order, the chosen one, and why other mappings are not among them."""

    candidates: tuple[ScoredCandidate, ...]
    best: ScoredCandidate
    refusals: tuple[Refusal, ...]


def search(
    program: TileProgram,
    host: Target,
    target: ExecutionTarget,
    options: PlannerOptions,
    policy: ExecutionCostPolicy,
    extents: Table[str, int],
) -> Search:
    """The exact minimum of the declared space. `extents` gives every symbol a value; `policy` is borrowed.

    PlanError for options that no machine has, an illegal program, a policy that gives no cost, or too many candidates.
    """
    return Space(program, host, target, options, policy).search(extents)


class Space:
    """What is searched for a program: checked once, priced at any extents. `policy` is borrowed as long as this lives.

    PlanError for options that no machine has, an illegal program, or too many candidates.
    """

    def __init__(
        self,
        program: TileProgram,
        host: Target,
        target: ExecutionTarget,
        options: PlannerOptions,
        policy: ExecutionCostPolicy,
    ) -> None:
        self.program, self.target, self.options, self.policy = program, target, options, policy
        check_scalars(target, options)
        self.coefficients = policy.coefficients(target, CostCoefficients())
        check_prices(self.coefficients, policy)
        mappings, self.refusals = legal_mappings(program, host, options)
        mappings = admitted(program, mappings, self.refusals, target, options)
        if options.same_bits and policy.is_measured:
            mappings = of_one_signature(program, mappings)
        self.widths = block_widths(target, options, mappings)
        _check_order(program, options)
        self.orders = _ordered(program, mappings, options.root_axis_order)
        _check_budget(len(self.widths) * len(self.orders), options)

    def search(self, extents: Table[str, int]) -> Search:
        candidates = self.candidates_at(extents)
        return Search(tuple(candidates), pick(candidates, self.policy.tie), self.refusals)

    def candidates_at(self, extents: Table[str, int], target: ExecutionTarget | None = None) -> list[ScoredCandidate]:
        """All candidates in enumeration order. PlanError: too many programs or candidates, or a score is no cost."""
        _check_programs(self.program, extents)
        target, policy, found = target or self.target, self.policy, []
        for order, mapping in self.orders:
            prices = policy.per_packet(target, self.program, mapping, self.coefficients, extents)
            points = _points(self.program, target, self.options, order, mapping, self.widths, extents)
            for candidate, packets, blocks in points:
                per_block = max(candidate.block_size // mapping.width, 1)
                work = count_work(target, prices, packets, blocks, per_block, candidate.blocks_per_task)
                found.append(scored(policy, target, candidate, work, self.coefficients))
                _check_budget(len(found), self.options)
        return found


def check_prices(found: object, policy: ExecutionCostPolicy) -> None:
    """PlanError unless all that the policy gives are finite numbers that are not negative."""
    try:
        check_numbers(found, policy)  # type: ignore[arg-type]
    except PolicyError as error:
        raise PlanError(str(error)) from error


def scored(
    policy: ExecutionCostPolicy,
    target: ExecutionTarget,
    candidate: Candidate,
    work: ExecutionWork,
    coefficients: CostCoefficients,
) -> ScoredCandidate:
    """A candidate with its cost; PlanError when that is none."""
    cost = policy.evaluate(target, candidate, work, coefficients)
    if not (isfinite(sum(cost)) and min(cost) >= 0):
        check_prices(cost, policy)
    return ScoredCandidate(candidate, work, cost)


def pick(candidates: list[ScoredCandidate], tie: float) -> ScoredCandidate:
    """The first of the smallest scores; within `tie` of it, the fewest workers, then the smallest task."""
    least = min(candidates, key=lambda each: each.cost.score)
    if tie <= 0:
        return least
    equals = [each for each in candidates if each.cost.score <= least.cost.score * (1 + tie)]
    return min(
        equals, key=lambda each: (each.work.active_workers, each.work.blocks_per_task * each.candidate.block_size)
    )


def check_scalars(target: ExecutionTarget, options: PlannerOptions) -> None:
    """The numbers that mean nothing whatever the program is."""
    check_packet_width(target.packet_width)
    for name, value in (("worker count", target.worker_count), ("chunks per worker", target.task_chunks_per_worker)):
        if value < 1:
            raise PlanError(f"{name}: expected at least 1, found {value}")
    if options.max_candidates < 1:
        raise PlanError(f"max_candidates: expected at least 1, found {options.max_candidates}")
    if not 0 <= options.reduction_partitions <= MAX_PARTITIONS:
        raise PlanError(f"reduction_partitions: expected 1 to {MAX_PARTITIONS}, found {options.reduction_partitions}")
    for name in ("blocks_per_task", "max_unrolled_tile_elements"):
        value = getattr(options, name)
        if value < 0:
            raise PlanError(f"{name}: expected 0 or more, found {value}")


def check_packet_width(width: int) -> None:
    if not (1 <= width <= MAX_PACKET_WIDTH and width & (width - 1) == 0):
        raise PlanError(f"packet width: expected a power of two up to {MAX_PACKET_WIDTH}, found {width}")


def admitted(
    program: TileProgram,
    mappings: tuple[Mapping, ...],
    refusals: tuple[Refusal, ...],
    target: ExecutionTarget,
    options: PlannerOptions,
) -> tuple[Mapping, ...]:
    """The legal mappings that the options leave; a forced mapping that is not legal is an error, a searched one not."""
    if options.local_lanes not in (0, 1, target.packet_width):
        raise PlanError(f"local_lanes: expected 0, 1 or {target.packet_width}, found {options.local_lanes}")
    if options.local_lanes:
        mappings = tuple(m for m in mappings if m.is_local == (options.local_lanes > 1))
    if options.mapping:
        mappings = tuple(m for m in mappings if m.kind == options.mapping)
    if not mappings:
        reasons = "; ".join(f"{r.mapping}: {r.reason}" for r in refusals)
        raise PlanError(f"tile program {program.name!r} has no legal mapping ({reasons})")
    return mappings


def block_widths(target: ExecutionTarget, options: PlannerOptions, mappings: tuple[Mapping, ...]) -> tuple[int, ...]:
    """The widths to try, ascending: whole packets. A given one is a multiple of the smallest, up to the largest."""
    width = max(m.width for m in mappings)
    least, most = min(target.block_widths), max(target.block_widths)
    given = options.block_size
    if given and (given % least or given % width or not least <= given <= most):
        raise PlanError(
            f"block_size: expected a multiple of {least} and of the packet width {width} up to {most}, found {given}"
        )
    return (given,) if given else tuple(sorted(b for b in target.block_widths if b % width == 0))


def task_grains(blocks: int, target: ExecutionTarget, options: PlannerOptions) -> tuple[int, ...]:
    """The grains to try: a given one alone; without search 0, the pool's own; else powers of two, heuristic, whole."""
    if options.blocks_per_task:
        return (options.blocks_per_task,)
    if not options.search_task_grain:
        return (0,)
    powers = {1 << bit for bit in range(max(blocks - 1, 0).bit_length()) if 1 << bit < blocks}
    heuristic = max(-(-blocks // (target.worker_count * target.task_chunks_per_worker)), 1)
    return tuple(sorted(powers | {heuristic, max(blocks, 1)}))


def typical_extents(program: TileProgram, extents: Table[str, int] | None) -> dict[str, int]:
    """A value for every symbol of the program: as given, else TYPICAL_EXTENT, less where programs were too many."""
    known = dict(extents or {})
    axes = [axis.extent for axis in program.roots]
    axes += [axis.extent for o in program.operations() if o.result is not None for axis in o.result.space]
    axes += [o.axis.extent for o in program.operations() if o.axis is not None]
    axes += [value for view in program.views for value in (*view.shape, *view.strides)]
    names = {name for extent in axes for name in symbols(extent)}
    programs = programs_of(program)
    typical = TYPICAL_EXTENT
    while True:
        values = {name: known.get(name, typical) for name in sorted(names)}
        if typical == 1 or evaluate(programs, values) <= MAX_PROGRAMS:
            return values
        typical //= 2


def launch_counts(program: TileProgram, mapping: Mapping, block_size: int, extents: Table[str, int]) -> tuple[int, int]:
    """(packets, blocks) of a launch. Blocks of whole programs do not cross the lane axis."""
    programs = evaluate(programs_of(program), extents)
    if mapping.is_local or mapping.lane_axis is None:
        return programs, ceil_div(programs, max(block_size // mapping.width, 1))
    lane = evaluate(mapping.lane_axis.extent, extents)
    outer = programs // lane if lane else 0
    return outer * ceil_div(lane, mapping.width), outer * ceil_div(lane, block_size)


@kept_with_first
def programs_of(program: TileProgram) -> int | Expr:
    """How many programs a launch has."""
    return product(axis.extent for axis in program.roots)


def _points(
    program: TileProgram,
    target: ExecutionTarget,
    options: PlannerOptions,
    order: tuple[int, ...],
    mapping: Mapping,
    widths: tuple[int, ...],
    extents: Table[str, int],
) -> Iterator[tuple[Candidate, int, int]]:
    """(candidate, packets, blocks) of one mapping."""
    lanes = mapping.width if mapping.is_local else 1
    dispatch = evaluate(programs_of(program), extents) * lanes
    for width in widths:
        packets, blocks = launch_counts(program, mapping, width, extents)
        for grain in task_grains(blocks, target, options):
            yield Candidate(mapping, order, lanes, width, grain, dispatch), packets, blocks


def _ordered(
    program: TileProgram, mappings: tuple[Mapping, ...], wanted: tuple[int, ...]
) -> list[tuple[tuple[int, ...], Mapping]]:
    """(root order, mapping), lexicographic, whole before local. Whole programs put their lane axis last.

    The order of the other axes costs the same; it is searched when `wanted` asks for one.
    """
    roots = program.roots
    plain = tuple(range(len(roots)))
    pairs = []
    for mapping in mappings:
        order = wanted or plain
        if not mapping.is_local and mapping.lane_axis is not None:
            last = next(i for i, axis in enumerate(roots) if axis is mapping.lane_axis)
            order = wanted or (*(i for i in plain if i != last), last)
            if order[-1] != last:
                continue
        pairs.append((order, replace(mapping, order=tuple(roots[i] for i in order))))
    return sorted(pairs, key=lambda pair: (pair[0], pair[1].is_local))


def _check_programs(program: TileProgram, extents: Table[str, int]) -> None:
    programs = evaluate(programs_of(program), extents)
    if programs > MAX_PROGRAMS:
        raise PlanError(f"tile program {program.name!r}: expected at most {MAX_PROGRAMS} programs, found {programs}")


def _check_order(program: TileProgram, options: PlannerOptions) -> None:
    wanted = options.root_axis_order
    if wanted and sorted(wanted) != list(range(len(program.roots))):
        raise PlanError(f"root_axis_order: expected a permutation of {len(program.roots)} axes, found {wanted}")


def _check_budget(count: int, options: PlannerOptions) -> None:
    if count > options.max_candidates:
        raise PlanError(
            f"the search has more than {options.max_candidates} candidates; fix the axis order, the block size or the "
            "grain, or raise max_candidates"
        )
