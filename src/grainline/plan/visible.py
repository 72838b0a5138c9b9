"""Which columns a row of a chain sees: keys that a causal mask hides need no work at all.

`last_seen` proves, from the code between two products alone, that the weights of all columns after a scalar S of the
row are exactly 0 and that leaving these columns out changes no value: every reduction over the columns adds a selected
0, or takes the maximum of a selected constant that its initial value already is. The pattern is

    valid = column <= S;  weight = select(valid, ..., 0);  max(select(valid, x, c), init c);  sum(weight)
"""

from __future__ import annotations

from grainline.tile.access import Dataflow, dataflow
from grainline.tile.ir import Axis, Operation, Tile, TileProgram

SCALAR_OPS = frozenset(("coord", "extent", "const", "add", "sub", "mul", "mod", "min", "max"))


def last_seen(program: TileProgram, weight: Tile, n: Axis) -> Tile | None:
    """S, an i64 scalar of the row, such that columns after it count for nothing; None without such a proof."""
    flow = dataflow(program)
    limit = _zero_after(flow, weight, n)
    if limit is None or any(o.op == "store" for o in program.body):
        return None
    reductions = [o for o in program.body if o.op == "reduce" and o.axis is n]
    return limit if all(_is_neutral_after(flow, o, n, limit) for o in reductions) else None


def _is_neutral_after(flow: Dataflow, reduction: Operation, n: Axis, limit: Tile) -> bool:
    operand, kind = reduction.operands[0], reduction.attributes["kind"]
    if kind == "add" and not reduction.attributes["use_init"]:
        return _zero_after(flow, operand, n) is limit
    definition = flow.define(operand)
    if kind != "max" or definition.op != "select" or not reduction.attributes["use_init"]:
        return False
    hidden = flow.define(definition.operands[2])
    is_init = hidden.op == "const" and hidden.attributes["value"] == reduction.attributes["init"]
    return is_init and _limit_of(flow, definition.operands[0], n) is limit


def _zero_after(flow: Dataflow, tile: Tile, n: Axis) -> Tile | None:
    """S where the columns of `tile` after S are 0."""
    definition = flow.define(tile)
    if definition.op == "select" and _is_zero(flow, definition.operands[2]):
        return _limit_of(flow, definition.operands[0], n)
    if definition.op in ("mul", "div"):
        first, second = definition.operands
        limit = _zero_after(flow, first, n)
        return limit if limit is not None or definition.op == "div" else _zero_after(flow, second, n)
    return None


def _is_zero(flow: Dataflow, tile: Tile) -> bool:
    definition = flow.define(tile)
    return definition.op == "const" and definition.attributes["value"] == 0


def _limit_of(flow: Dataflow, condition: Tile, n: Axis) -> Tile | None:
    """S where `condition` says column <= S, alone or beside other conditions."""
    definition = flow.define(condition)
    if definition.op == "and":
        limits = [_limit_of(flow, operand, n) for operand in definition.operands]
        return next((limit for limit in limits if limit is not None), None)
    if definition.op != "le" or definition.operands[1].space:
        return None
    column, limit = flow.define(definition.operands[0]), definition.operands[1]
    is_plain = all(o.op in SCALAR_OPS for o in flow.cone((limit,)))
    return limit if column.op == "coord" and column.axis is n and is_plain else None
