"""Plans a tile program: enumerate what is legal, predict its cost, pick the cheapest. Every step leaves its reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Mapping as Table
from dataclasses import replace

from grainline.base.dims import Expr, ceil_div, evaluate, product
from grainline.plan.cost import CalibratedExecutionCostPolicy, launch_cost, traffic_bytes
from grainline.plan.legal import packet_shape
from grainline.plan.machine import Machine, machine_of
from grainline.plan.policy import ExecutionTarget
from grainline.plan.policy_table import ProductSpace, form_of, tabulated
from grainline.plan.row_workspace import row_workspace
from grainline.plan.search import CLEARLY, MOST_VARIANTS, Search, Space, check_packet_width, typical_extents
from grainline.plan.signature import signature_of
from grainline.plan.switches import Switches
from grainline.plan.target import Target
from grainline.plan.types import (
    DEFAULT_OPTIONS,
    LOCAL,
    MMA,
    WHOLE,
    Mapping,
    Plan,
    PlanError,
    PlannerOptions,
    PlanResult,
    PolicyTable,
    Refusal,
    ScoredCandidate,
)
from grainline.plan.whole_workspace import whole_workspace
from grainline.tile.ir import TileProgram
from grainline.tile.passes import simplify

SHOWN_CANDIDATES = 4
READS_WHILE_IT_WRITES = "the memory of a product's result may be that of its operands, which it reads while it writes"
SAMPLE_EXTENTS = (1, 8, 2048)
# Powers of four of a packet, up to 4096 elements: finer steps differ by less than they cost to search.
PACKETS_PER_BLOCK = (1, 4, 16, 64, 256)


def plan(
    program: TileProgram,
    target: Target,
    options: PlannerOptions = DEFAULT_OPTIONS,
    extents: Table[str, int] | None = None,
    execution: ExecutionTarget | None = None,
    machine: Machine | None = None,
    is_hot: bool = True,
) -> PlanResult:
    """The plans of one numeric signature, best first; `PlanError` when no mapping is legal.

    Plans hold the simplified program (`tile.passes`): same views, symbols and meaning, fewer root axes.
    `extents`: values of symbols that costs are compared for; others have TYPICAL_EXTENT. `execution`: the threads that
    the search plans for, by default all of the target, whose pool threads are awake when a launch comes if `is_hot`.
    `machine`: whose prices, by default those of `machine_of(target)`.
    """
    check_packet_width(options.packet_width or target.packet_width)
    if any(o.op == "mma" for o in program.operations()) and options.mapping != WHOLE:
        if options.may_alias and not options.mapping:
            return _without_products(program, target, options, extents, execution, machine, READS_WHILE_IT_WRITES)
        if options.may_alias and options.mapping == MMA:
            raise PlanError(READS_WHILE_IT_WRITES)
        from grainline.plan.mma_chain import plan_products

        try:
            products = plan_products(program, target, options, machine or machine_of(target))
        except PlanError as refusal:
            if options.mapping:
                raise
            return _without_products(program, target, options, extents, execution, machine, str(refusal))
        products = replace(products, variants=tuple(replace(each, math=options.math) for each in products.variants))
        execution = execution or execution_target(program, target, options, is_hot=is_hot)
        return products if options.cost_policy is None else _by_policy(products, execution, options, extents or {})
    program = simplify(program)
    execution = execution or execution_target(program, target, options, is_hot=is_hot)
    return _searched(program, target, options, extents or {}, execution, machine or machine_of(target))


def _searched(
    program: TileProgram,
    target: Target,
    options: PlannerOptions,
    extents: Table[str, int],
    execution: ExecutionTarget,
    machine: Machine,
) -> PlanResult:
    """The plans of whole and packet-local mappings."""
    policy = options.cost_policy or CalibratedExecutionCostPolicy(machine)
    space = Space(program, target, execution, options, policy)
    typical = typical_extents(program, extents)
    found = space.search(typical)
    reason = _reason(found)
    if options.cost_policy is None:
        others = _other_variants(program, machine, found, options) if typical else ()
        kept, table = (found.best, *others), None
    else:
        kept, table = _kept_by_policy(space, found, extents)
    variants = tuple(_plan(program, target, options, machine, each, reason) for each in kept)
    return PlanResult(variants, found.candidates, found.refusals, reason, found.best, table)


def _kept_by_policy(
    space: Space, found: Search, extents: Table[str, int]
) -> tuple[tuple[ScoredCandidate, ...], PolicyTable]:
    """The best candidates of the forms that the policy prefers somewhere, in one signature, and its table of them."""
    program = space.program
    signature = signature_of(program, found.best.candidate.mapping)
    by_form = {form_of(each): each for each in reversed(found.candidates)} | {form_of(found.best): found.best}
    allowed = [f for f, each in by_form.items() if signature_of(program, each.candidate.mapping) == signature]
    forms, table = tabulated(space, program, [form_of(found.best)], allowed, extents)
    return tuple(by_form[form] for form in forms), table


def _by_policy(
    products: PlanResult, execution: ExecutionTarget, options: PlannerOptions, extents: Table[str, int]
) -> PlanResult:
    """Products have their variants whoever prices them; a policy chooses among them and the grains."""
    assert options.cost_policy is not None
    space = ProductSpace.of(products.variants, execution, options, options.cost_policy)
    forms = [(id(each.mapping), each.block) for each in products.variants]
    return replace(products, table=tabulated(space, products.variants[0].program, forms, (), extents)[1])


def _without_products(
    program: TileProgram,
    target: Target,
    options: PlannerOptions,
    extents: Table[str, int] | None,
    execution: ExecutionTarget | None,
    machine: Machine | None,
    refusal: str,
) -> PlanResult:
    """What is left for products that have no form of their own: whole programs, each sum in its lane."""
    try:
        found = plan(program, target, replace(options, mapping=WHOLE), extents, execution, machine)
    except PlanError as error:
        raise PlanError(f"{refusal}; {error}") from error
    return replace(found, refusals=(Refusal(MMA, refusal), *found.refusals))


def execution_target(
    program: TileProgram, target: Target, options: PlannerOptions, *, is_hot: bool = True
) -> ExecutionTarget:
    """All threads of `target`, awake or not, and blocks of up to 4096 elements."""
    width, _ = packet_shape(program, target, options)
    widths = tuple(width * packets for packets in PACKETS_PER_BLOCK)
    return ExecutionTarget(width, target.homes, block_widths=widths, is_hot=is_hot)


def _other_variants(
    program: TileProgram, machine: Machine, found: Search, options: PlannerOptions
) -> Iterator[ScoredCandidate]:
    """Of mappings that are clearly faster for other extents, the best candidates; a launch chooses among variants.

    They have the signature of the chosen one, or calls of different extents would differ in more than their extents.
    """
    names = typical_extents(program, None)
    if options.mapping or options.root_axis_order:
        return
    signature = signature_of(program, found.best.candidate.mapping)
    best = {
        each.candidate.mapping: each
        for each in _best_of_mappings(found.candidates)
        if signature_of(program, each.candidate.mapping) == signature
    }
    kept = [found.best.candidate.mapping]
    costs = {mapping: launch_cost(program, mapping, 0, machine) for mapping in best}
    for name, extent in ((name, extent) for name in names for extent in SAMPLE_EXTENTS):
        at = {**names, name: extent}
        prices = {mapping: evaluate(cost, at) for mapping, cost in costs.items()}
        fastest = min(best, key=lambda mapping: prices[mapping])
        is_clear = prices[fastest] * CLEARLY < min(prices[mapping] for mapping in kept)
        if is_clear and len(kept) < MOST_VARIANTS:
            kept.append(fastest)
            yield best[fastest]


def _plan(
    program: TileProgram,
    target: Target,
    options: PlannerOptions,
    machine: Machine,
    chosen: ScoredCandidate,
    reason: str,
) -> Plan:
    candidate = chosen.candidate
    mapping = candidate.mapping
    block = max(candidate.block_size // (mapping.width if mapping.is_local else 1), 1)
    blocks = _blocks(program, mapping, block)
    return Plan(
        program=program,
        mapping=mapping,
        target=target,
        block=block,
        blocks=blocks,
        cost_ps=launch_cost(program, mapping, blocks, machine),
        traffic_bytes=traffic_bytes(program),
        scratch_bytes=_scratch(program, mapping, options.switches),
        signature=signature_of(program, mapping),
        reason=reason,
        blocks_per_task=candidate.blocks_per_task,
        switches=options.switches,
        math=options.math,
    )


def _blocks(program: TileProgram, mapping: Mapping, block: int) -> int | Expr:
    if mapping.kind == LOCAL:
        return ceil_div(product(axis.extent for axis in program.roots), block)
    if mapping.lane_axis is None:
        return 1
    outer = product(axis.extent for axis in program.roots if axis is not mapping.lane_axis)
    return outer * ceil_div(mapping.lane_axis.extent, block)


def _scratch(program: TileProgram, mapping: Mapping, switches: Switches) -> int | Expr:
    """Private arrays of a packet, or one slot of 8-byte elements, padded, per spilled row value."""
    if mapping.kind == WHOLE:
        return whole_workspace(program, mapping.width, switches.may_alias).bytes
    assert mapping.lane_axis is not None
    return row_workspace(program, mapping.lane_axis, switches).bytes


def _best_of_mappings(candidates: Iterable[ScoredCandidate]) -> list[ScoredCandidate]:
    """The cheapest candidate of every mapping, cheapest mapping first."""
    best: dict[int, ScoredCandidate] = {}
    for each in candidates:
        known = best.setdefault(id(each.candidate.mapping), each)
        if each.cost.score < known.cost.score:
            best[id(each.candidate.mapping)] = each
    return sorted(best.values(), key=lambda each: each.cost.score)


def _reason(found: Search) -> str:
    """The pick and the best of the other mappings."""
    pick = found.best
    others = [e for e in _best_of_mappings(found.candidates) if e.candidate.mapping is not pick.candidate.mapping]
    others = others[:SHOWN_CANDIDATES]
    rest = f"; others: {', '.join(f'{e.candidate} {e.cost.score:.0f}' for e in others)}" if others else ""
    return f"{pick.candidate} is the cheapest of {len(found.candidates)} candidates at {pick.cost.score:.0f}{rest}"
