"""Enumerates the mappings that can realise a program, and says why the others cannot. No preference here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

from grainline.base.dims import Expr
from grainline.plan import row_workspace
from grainline.plan.target import Target
from grainline.plan.types import LOCAL, WHOLE, Mapping, PlannerOptions, Refusal
from grainline.plan.whole_schedule import is_owner_preserving
from grainline.plan.whole_workspace import whole_workspace
from grainline.tile.access import Dataflow, commute, dataflow, tile_axes
from grainline.tile.ir import UNORDERED, Axis, TileProgram

NOT_LOCAL = {
    "mma": "a matrix product",
    "serial": "a serial loop",
    "pipeline": "a pipeline",
    "scan": "running sums, which go along an axis in order",
}
REGISTERS_IN_FLIGHT = 4
PACKET_BYTES = 64


def legal_mappings(
    program: TileProgram, target: Target, options: PlannerOptions
) -> tuple[tuple[Mapping, ...], tuple[Refusal, ...]]:
    """Every legal whole and local mapping in a fixed order (whole first, lane axes from the innermost root)."""
    width, unroll = packet_shape(program, target, options)
    mappings: list[Mapping] = []
    refusals: list[Refusal] = []
    reason = _first_reason(WHOLE_RULES, program, dataflow(program), options.may_alias)
    if reason is None:
        mapping = Mapping(WHOLE, None, width, unroll)
        workspace = whole_workspace(program, width, options.may_alias)
        reason = over_budget(workspace.least_bytes)
        is_flat = not workspace.schedule.arrays and len(workspace.schedule.segments) == 1
        mapping = mapping if is_flat else replace(mapping, unroll=1)
    if reason is None:
        lanes: tuple[Axis | None, ...] = tuple(reversed(program.roots)) or (None,)
        mappings += [replace(mapping, lane_axis=axis) for axis in lanes]
    else:
        refusals.append(Refusal(WHOLE, reason))
    reason = refuse_local(program, options.may_alias)
    if reason is None:
        reason = over_budget(row_workspace.row_workspace(program, tile_axes(program)[0], options.switches).bytes)
    if reason is None:
        mappings.append(Mapping(LOCAL, tile_axes(program)[0], width, unroll))
    else:
        refusals.append(Refusal(LOCAL, reason))
    return tuple(mappings), tuple(refusals)


def over_budget(workspace_bytes: int | Expr) -> str | None:
    """Why private arrays of this size are refused. A launch with symbolic extents asks for what its form needs."""
    budget = row_workspace.WORKSPACE_BUDGET_BYTES
    if not isinstance(workspace_bytes, int) or workspace_bytes <= budget:
        return None
    return f"its private arrays need {workspace_bytes} bytes a packet, more than the {budget} allowed"


def packet_shape(program: TileProgram, target: Target, options: PlannerOptions) -> tuple[int, int]:
    """(W, packets in flight). Half the lanes when an 8-byte float is computed, so packets fit the registers.

    A reduction needs REGISTERS_IN_FLIGHT independent accumulators to hide the latency of an addition.
    """
    wide = any(o.result is not None and o.result.dtype.name == "f64" for o in program.operations())
    width = options.packet_width or (target.packet_width // 2 if wide else target.packet_width)
    in_flight = max(1, REGISTERS_IN_FLIGHT * target.vector_bytes // PACKET_BYTES)
    reduces = any(o.op == "reduce" for o in program.operations())
    return width, options.reduction_partitions or (in_flight if reduces else min(in_flight, 2))


# ---- whole programs ----


def views_are_strided(program: TileProgram, flow: Dataflow, may_alias: bool) -> str | None:
    for view in program.views:
        if view.layout != "strided":
            return f"the view {view.name!r} has layout {view.layout}"
    return None


# ---- one program per packet: each rule is a form that the distribution over lanes does not realise ----


def lanes_may_be_chosen(program: TileProgram, flow: Dataflow, may_alias: bool) -> str | None:
    return None if program.scope == "automatic" else f"the program asks for the execution scope {program.scope!r}"


def one_tile_axis(program: TileProgram, flow: Dataflow, may_alias: bool) -> str | None:
    axes = tile_axes(program)
    return None if len(axes) == 1 else f"it has {len(axes)} tile axes, a packet's lanes run along exactly one"


def local_operations_only(program: TileProgram, flow: Dataflow, may_alias: bool) -> str | None:
    found = next((o.op for o in flow.operations if o.op in NOT_LOCAL), None)
    return None if found is None else f"it contains {NOT_LOCAL[found]}"


def extracts_preserve_owners(program: TileProgram, flow: Dataflow, may_alias: bool) -> str | None:
    if all(is_owner_preserving(o) for o in flow.operations if o.op == "extract"):
        return None
    return "it extracts elements that other lanes own"


def reductions_are_closed(program: TileProgram, flow: Dataflow, may_alias: bool) -> str | None:
    for operation in flow.operations:
        if operation.op != "reduce":
            continue
        if operation.attributes["policy"] != UNORDERED:
            return f"a reduction has the policy {operation.attributes['policy']}, lanes merge in any order"
        if operation.axis not in flow.depends[operation.operands[0].id]:
            return "a reduction's operand does not vary over its axis"
    return None


def no_load_after_store(program: TileProgram, flow: Dataflow, may_alias: bool) -> str | None:
    stored: list[str] = []
    for operation in flow.operations:
        if operation.view is None:
            continue
        if operation.op == "load" and (operation.view.name in stored or (stored and may_alias)):
            return f"it loads from {operation.view.name!r} after storing to it, or to memory that it may share"
        if operation.op == "store":
            stored.append(operation.view.name)
    return None


def stores_commute(program: TileProgram, flow: Dataflow, may_alias: bool) -> str | None:
    """The stores of a packet happen element by element, each in the pass that knows its value."""
    for one, two in combinations([o for o in flow.operations if o.op == "store"], 2):
        if not commute(one, two, may_alias, program.bound_axes):
            return f"the stores to {one.view.name!r} and {two.view.name!r} may write the same element"
    return None


Rule = Callable[[TileProgram, Dataflow, bool], "str | None"]
WHOLE_RULES: tuple[Rule, ...] = (views_are_strided,)
LOCAL_RULES: tuple[Rule, ...] = (
    lanes_may_be_chosen,
    local_operations_only,
    one_tile_axis,
    views_are_strided,
    extracts_preserve_owners,
    reductions_are_closed,
    no_load_after_store,
    stores_commute,
)


def refuse_local(program: TileProgram, may_alias: bool = False) -> str | None:
    """Why a packet cannot run one instance of the program; None when it can."""
    return _first_reason(LOCAL_RULES, program, dataflow(program), may_alias)


def _first_reason(rules: tuple[Rule, ...], program: TileProgram, flow: Dataflow, may_alias: bool) -> str | None:
    return next((reason for rule in rules if (reason := rule(program, flow, may_alias))), None)
