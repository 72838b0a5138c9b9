"""What a policy of one's own chooses at representative extents, so that launches follow it and no run calls it.

    axes   the program's symbols, each with representative extents, ascending: powers of two, four, eight and so on, as
           MOST_POINTS allows, and those that were given
    rows   one per point of their product, the last axis fastest

A launch takes the row that is nearest to its extents, axis by axis and by ratio (`native/cost/table.h`), and grows or
shrinks the row's tasks with its own blocks. At a representative point it does exactly what the policy said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from collections.abc import Mapping as Table
from dataclasses import dataclass, replace
from itertools import product
from typing import Protocol

from grainline.base.dims import evaluate
from grainline.plan.policy import CostCoefficients, ExecutionCostPolicy, ExecutionTarget, count_work
from grainline.plan.search import (
    CLEARLY,
    MAX_PROGRAMS,
    MOST_VARIANTS,
    check_prices,
    pick,
    programs_of,
    scored,
    task_grains,
    typical_extents,
)
from grainline.plan.types import Candidate, Plan, PlannerOptions, PolicyTable, ScoredCandidate, TableRow
from grainline.tile.ir import TileProgram

MOST_POINTS = 128
LARGEST_BIT = 16  # representative extents go up to 2**16
STEPS = (1, 2, 3, 4, 8, 16)  # bits from one representative extent to the next

Form = tuple[int, int]


class Priced(Protocol):
    """A space whose candidates a policy prices at any extents."""

    @property
    def target(self) -> ExecutionTarget: ...

    @property
    def options(self) -> PlannerOptions: ...

    @property
    def policy(self) -> ExecutionCostPolicy: ...

    def candidates_at(
        self, extents: Table[str, int], target: ExecutionTarget | None = None
    ) -> list[ScoredCandidate]: ...


@dataclass(frozen=True)
class ProductSpace:
    """The variants of a matrix product: their blocks follow from register tiles, so only variant and grain are open."""

    variants: tuple[Plan, ...]
    target: ExecutionTarget
    options: PlannerOptions
    policy: ExecutionCostPolicy
    coefficients: CostCoefficients

    @staticmethod
    def of(
        variants: tuple[Plan, ...], target: ExecutionTarget, options: PlannerOptions, policy: ExecutionCostPolicy
    ) -> ProductSpace:
        """PlanError when a coefficient is no cost."""
        coefficients = policy.coefficients(target, CostCoefficients())
        check_prices(coefficients, policy)
        return ProductSpace(variants, target, options, policy, coefficients)

    def candidates_at(self, extents: Table[str, int], target: ExecutionTarget | None = None) -> list[ScoredCandidate]:
        target, policy, found = target or self.target, self.policy, []
        for variant in self.variants:
            blocks = evaluate(variant.blocks, extents)
            prices = policy.per_packet(target, variant.program, variant.mapping, self.coefficients, extents)
            for grain in task_grains(blocks, target, self.options):
                candidate = Candidate(variant.mapping, (), 1, variant.block, grain, blocks)
                work = count_work(target, prices, blocks, blocks, 1, grain)
                found.append(scored(policy, target, candidate, work, self.coefficients))
        return found


def form_of(each: ScoredCandidate) -> Form:
    """What makes a kernel's code: its mapping, which a space has once, and its block."""
    return id(each.candidate.mapping), each.candidate.block_size


def representative(names: Sequence[str], given: Table[str, int]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The axes for the symbols `names`."""
    step = next((step for step in STEPS if (LARGEST_BIT // step + 1) ** len(names) <= MOST_POINTS), None)
    bits = (LARGEST_BIT // 2,) if step is None else range(0, LARGEST_BIT + 1, step)
    return tuple((name, tuple(sorted({*(1 << bit for bit in bits), *_known(given, name)}))) for name in names)


def _known(given: Table[str, int], name: str) -> tuple[int, ...]:
    return (given[name],) if given.get(name, 0) > 0 else ()


def tabulated(
    space: Priced, program: TileProgram, forms: Sequence[Form], allowed: Collection[Form], given: Table[str, int]
) -> tuple[list[Form], PolicyTable]:
    """`forms`, those of the `allowed` ones that are clearly cheaper somewhere, and the policy's choices among both.

    `given`: values of symbols that are rows too. PlanError: the policy gives what is no cost at one of the points.
    """
    axes = representative(sorted(typical_extents(program, given)), given)
    points = [extents if _has_programs(program, extents) else None for extents in points_of(program, axes)]
    alone = replace(space.target, worker_count=1)
    choices = [
        None if extents is None else (space.candidates_at(extents, alone), space.candidates_at(extents))
        for extents in points
    ]
    kept = list(forms)
    for _, candidates in filter(None, choices):
        _keep_clearly_cheaper(kept, [each for each in candidates if form_of(each) in allowed])
    return kept, PolicyTable(axes, tuple(_row(space, kept, each) for each in choices))


def _keep_clearly_cheaper(kept: list[Form], candidates: Sequence[ScoredCandidate]) -> None:
    """Adds the cheapest form when all kept ones cost clearly more, while there are few."""
    if not candidates or len(kept) >= MOST_VARIANTS:
        return
    least: dict[Form, float] = {}
    for each in candidates:
        form = form_of(each)
        least[form] = min(each.cost.score, least.get(form, each.cost.score))
    fastest = min(least, key=lambda form: least[form])
    if least[fastest] * CLEARLY < min(least[form] for form in kept):
        kept.append(fastest)


def points_of(program: TileProgram, axes: Sequence[tuple[str, tuple[int, ...]]]) -> Iterator[dict[str, int]]:
    """The extents of every row. Where programs would be too many, the largest extents are halved until they are not."""
    names, steps = [name for name, _ in axes], [extents for _, extents in axes]
    programs = programs_of(program)
    for point in product(*steps):
        extents = dict(zip(names, point, strict=True))
        while evaluate(programs, extents) > MAX_PROGRAMS:
            largest = max(extents, key=lambda name: extents[name])
            extents[largest] //= 2
        yield extents


def _has_programs(program: TileProgram, extents: Table[str, int]) -> bool:
    return evaluate(programs_of(program), extents) > 0


def _row(
    space: Priced, kept: Sequence[Form], candidates: tuple[list[ScoredCandidate], list[ScoredCandidate]] | None
) -> TableRow:
    """Of the candidates for one thread and for all; None where there is nothing to do."""
    if candidates is None:
        return TableRow(0, 0, 0, 1, 1)
    alone, chosen = (pick([e for e in each if form_of(e) in kept], space.policy.tie) for each in candidates)
    work, asked = chosen.work, space.options.blocks_per_task
    blocks, grain = (0, asked) if asked else (work.block_count, work.blocks_per_task)
    return TableRow(kept.index(form_of(alone)), kept.index(form_of(chosen)), blocks, grain, work.active_workers)
