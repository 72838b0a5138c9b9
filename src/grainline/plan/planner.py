"""Plans a tile program: enumerate what is legal, predict its cost, pick the cheapest. Every step leaves its reason."""

from __future__ import annotations

from grainline.base.dims import Expr, ceil_div, evaluate, product, symbols
from grainline.plan.cost import launch_cost
from grainline.plan.legal import legal_mappings
from grainline.plan.row_schedule import schedule_rows
from grainline.plan.target import Target
from grainline.plan.types import DEFAULT_OPTIONS, LOCAL, Candidate, Mapping, Plan, PlanError, PlannerOptions, PlanResult
from grainline.tile.access import tile_axes
from grainline.tile.ir import TileProgram
from grainline.tile.passes import simplify

BLOCK_ELEMENTS = 4096
SCRATCH_STEP = 64
TYPICAL_EXTENT = 128


def plan(program: TileProgram, target: Target, options: PlannerOptions = DEFAULT_OPTIONS) -> PlanResult:
    """The plans of one numeric signature, best first; `PlanError` when no mapping is legal.

    Plans hold the simplified program (`tile.passes`): same views, symbols and meaning, fewer root axes.
    A symbol counts as TYPICAL_EXTENT when costs are compared: the signature must not depend on a run's extents.
    """
    if any(o.op == "mma" for o in program.body):
        from grainline.plan.mma_chain import plan_products

        return plan_products(program, target, options)
    program = simplify(program)
    mappings, refusals = legal_mappings(program, target, options)
    if options.mapping:
        mappings = tuple(m for m in mappings if m.kind == options.mapping)
    if not mappings:
        reasons = "; ".join(f"{r.mapping}: {r.reason}" for r in refusals)
        raise PlanError(f"tile program {program.name!r} has no legal mapping ({reasons})")
    candidates = tuple(Candidate(m, launch_cost(program, m, _blocks(program, m, options))) for m in mappings)
    chosen = min(candidates, key=lambda c: typical(c.cost_ps))
    reason = _reason(chosen, candidates)
    return PlanResult((_plan(program, target, options, chosen, reason),), candidates, refusals, reason)


def typical(cost: int | Expr) -> int:
    """The value of an extent when every symbol has a typical size."""
    return evaluate(cost, dict.fromkeys(symbols(cost), TYPICAL_EXTENT))


def programs_per_block(program: TileProgram, mapping: Mapping, options: PlannerOptions) -> int:
    """Programs that make about BLOCK_ELEMENTS elements of work; 1 when the tile extent is not known."""
    if options.block:
        return options.block
    volume = product(axis.extent for axis in tile_axes(program))
    if mapping.kind == LOCAL:
        return max(1, 1024 // max(volume, 1)) if isinstance(volume, int) else 1
    each = volume if isinstance(volume, int) else TYPICAL_EXTENT
    return max(mapping.lanes, BLOCK_ELEMENTS // max(each, 1) // mapping.lanes * mapping.lanes)


def _blocks(program: TileProgram, mapping: Mapping, options: PlannerOptions) -> int | Expr:
    block = programs_per_block(program, mapping, options)
    if mapping.kind == LOCAL:
        return ceil_div(product(axis.extent for axis in program.roots), block)
    if mapping.lane_axis is None:
        return 1
    outer = product(axis.extent for axis in program.roots if axis is not mapping.lane_axis)
    return outer * ceil_div(mapping.lane_axis.extent, block)


def _plan(program: TileProgram, target: Target, options: PlannerOptions, chosen: Candidate, reason: str) -> Plan:
    mapping = chosen.mapping
    return Plan(
        program=program,
        mapping=mapping,
        target=target,
        block=programs_per_block(program, mapping, options),
        blocks=_blocks(program, mapping, options),
        cost_ps=chosen.cost_ps,
        scratch_bytes=_scratch(program, mapping),
        signature=str(mapping),
        reason=reason,
    )


def _scratch(program: TileProgram, mapping: Mapping) -> int | Expr:
    """One slot of 8-byte elements, padded, per spilled row value."""
    if mapping.kind != LOCAL or mapping.lane_axis is None:
        return 0
    slots = schedule_rows(program, mapping.lane_axis).scratch_slots
    return ceil_div(mapping.lane_axis.extent, SCRATCH_STEP) * (SCRATCH_STEP * 8 * slots)


def _reason(chosen: Candidate, candidates: tuple[Candidate, ...]) -> str:
    others = [f"{c.mapping} {typical(c.cost_ps) / 1e3:.1f} ns" for c in candidates if c is not chosen]
    rest = f"; others: {', '.join(others)}" if others else ""
    return f"{chosen.mapping} is predicted at {typical(chosen.cost_ps) / 1e3:.1f} ns{rest}"
