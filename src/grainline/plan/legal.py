"""Enumerates the mappings that can realise a program, and says why the others cannot. No preference here."""

from __future__ import annotations

from collections.abc import Callable

from grainline.plan.target import Target
from grainline.plan.types import LOCAL, WHOLE, Mapping, PlannerOptions, Refusal
from grainline.tile.access import Dataflow, may_overlap, operands_of, same_elements, store_groups, tile_axes
from grainline.tile.ir import Axis, Operation, TileProgram

REGISTERS_IN_FLIGHT = 4
PACKET_BYTES = 64


def legal_mappings(
    program: TileProgram, target: Target, options: PlannerOptions
) -> tuple[tuple[Mapping, ...], tuple[Refusal, ...]]:
    """Every legal whole and local mapping in a fixed order (whole first, lane axes from the innermost root)."""
    flow = Dataflow(program)
    width, unroll = packet_shape(program, target, options)
    mappings: list[Mapping] = []
    refusals: list[Refusal] = []
    reason = _first_reason(WHOLE_RULES, program, flow)
    if reason is None:
        lanes: tuple[Axis | None, ...] = tuple(reversed(program.roots)) or (None,)
        mappings += [Mapping(WHOLE, axis, width, unroll) for axis in lanes]
    else:
        refusals.append(Refusal(WHOLE, reason))
    reason = _first_reason(LOCAL_RULES, program, flow)
    if reason is None:
        mappings.append(Mapping(LOCAL, tile_axes(program)[0], width, unroll))
    else:
        refusals.append(Refusal(LOCAL, reason))
    return tuple(mappings), tuple(refusals)


def packet_shape(program: TileProgram, target: Target, options: PlannerOptions) -> tuple[int, int]:
    """(W, packets in flight). Half the lanes when an 8-byte float is computed, so packets fit the registers.

    A reduction needs REGISTERS_IN_FLIGHT independent accumulators to hide the latency of an addition.
    """
    wide = any(o.result is not None and o.result.dtype.name == "f64" for o in program.body)
    width = options.packet_width or (target.packet_width // 2 if wide else target.packet_width)
    in_flight = max(1, REGISTERS_IN_FLIGHT * target.vector_bytes // PACKET_BYTES)
    reduces = any(o.op == "reduce" for o in program.body)
    return width, options.reduction_partitions or (in_flight if reduces else min(in_flight, 2))


def no_matrix_product(program: TileProgram, flow: Dataflow) -> str | None:
    return "it contains a matrix product" if any(o.op == "mma" for o in program.body) else None


def no_load_after_store(program: TileProgram, flow: Dataflow) -> str | None:
    stored: list[str] = []
    for operation in program.body:
        if operation.view is None:
            continue
        if operation.op == "load" and operation.view.name in stored:
            return f"it loads from {operation.view.name!r} after storing to it"
        if operation.op == "store":
            stored.append(operation.view.name)
    return None


def views_are_strided(program: TileProgram, flow: Dataflow) -> str | None:
    for view in program.views:
        if view.layout != "strided":
            return f"the view {view.name!r} has layout {view.layout}"
    return None


def one_tile_axis(program: TileProgram, flow: Dataflow) -> str | None:
    axes = tile_axes(program)
    return None if len(axes) == 1 else f"it has {len(axes)} tile axes, a packet's lanes run along exactly one"


def lane_reductions_only(program: TileProgram, flow: Dataflow) -> str | None:
    for operation in program.body:
        if operation.op == "reduce" and operation.axis not in flow.depends[operation.operands[0].id]:
            return "a reduction's operand does not vary over its axis"
    return None


def loop_loads_keep_their_snapshot(program: TileProgram, flow: Dataflow) -> str | None:
    """Tile loads are evaluated inside the loops of the stores that use them, so no earlier loop may change them."""
    earlier: list[Operation] = []
    for group in store_groups(program):
        for load in _loads_in_loops(group, flow):
            assert load.view is not None
            if any(may_overlap(load, store) for store in earlier):
                return f"a later loop reloads {load.view.name!r} after a store may have changed it"
            if any(load.view == store.view and not same_elements(load, store) for store in group):
                return f"{load.view.name!r} is loaded and stored under different indices"
        earlier += group
    return None


def _loads_in_loops(stores: list[Operation], flow: Dataflow) -> list[Operation]:
    """Loads that the loop nest of `stores` executes; values of a program's own space are known before."""
    stack = [tile for store in stores for tile in operands_of(store)]
    seen: set[int] = set()
    loads = []
    while stack:
        tile = stack.pop()
        if tile.id in seen or not tile.space:
            continue
        seen.add(tile.id)
        definition = flow.define(tile)
        stack.extend(operands_of(definition))
        if definition.op == "load":
            loads.append(definition)
    return loads


def scan_stands_alone(program: TileProgram, flow: Dataflow) -> str | None:
    """Running sums are carried by the one loop of one store."""
    scans = [o for o in program.body if o.op == "scan"]
    if scans and (len(tile_axes(program)) != 1 or sum(o.op == "store" for o in program.body) != 1):
        return "running sums are realised in programs of one tile axis and one store"
    return None


def no_scan(program: TileProgram, flow: Dataflow) -> str | None:
    return "running sums go along an axis in order, lanes do not" if any(o.op == "scan" for o in program.body) else None


Rule = Callable[[TileProgram, Dataflow], "str | None"]
WHOLE_RULES: tuple[Rule, ...] = (
    no_matrix_product,
    views_are_strided,
    no_load_after_store,
    loop_loads_keep_their_snapshot,
    scan_stands_alone,
)
LOCAL_RULES: tuple[Rule, ...] = (
    no_matrix_product,
    views_are_strided,
    no_load_after_store,
    one_tile_axis,
    lane_reductions_only,
    no_scan,
)


def _first_reason(rules: tuple[Rule, ...], program: TileProgram, flow: Dataflow) -> str | None:
    return next((reason for rule in rules if (reason := rule(program, flow))), None)
