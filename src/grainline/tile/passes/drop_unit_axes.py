"""Removes tile axes of one element: a coordinate is 0, a reduction without an initial value is its operand.

A program whose tiles are (1, n) then has the one tile axis that lanes along a row ask for; one axis is left if all are
of one element. Programs with loops stay as they are, and so does an axis that something indexes freely.
"""

from __future__ import annotations

from dataclasses import replace

from grainline.tile.access import tile_axes
from grainline.tile.ir import Affine, Axis, Operation, Tile, TileProgram
from grainline.tile.passes.rewriting import with_tiles


def drop_unit_axes(program: TileProgram) -> TileProgram:
    if any(o.region is not None for o in program.body):
        return program
    axes = tile_axes(program)
    units = [axis for axis in axes if isinstance(axis.extent, int) and axis.extent == 1]
    units = [axis for axis in units if all(_is_droppable(o, axis) for o in program.body)][: len(axes) - 1]
    return _without(program, frozenset(units)) if units else program


def _is_droppable(operation: Operation, axis: Axis) -> bool:
    """Whether the operation means the same without the axis, in the form that `_rewritten` gives it."""
    if operation.op in ("extract", "mma", "scan"):
        return all(axis not in tile.space for tile in operation.operands)
    if operation.op == "reduce" and operation.axis is axis:
        return not operation.attributes["use_init"]
    return True


def _without(program: TileProgram, units: frozenset[Axis]) -> TileProgram:
    replaced: dict[int, Tile] = {}
    body: list[Operation] = []
    for operation in program.body:
        before, after = operation.result, _rewritten(with_tiles(operation, replaced), units)
        result = after.operands[0] if _is_identity(after, units) else after.result
        if not _is_identity(after, units):
            body.append(after)
        if before is not None and result is not None:
            replaced[before.id] = result
    return replace(program, body=tuple(body))


def _is_identity(operation: Operation, units: frozenset[Axis]) -> bool:
    if operation.op == "reduce":
        return operation.axis in units
    result = operation.result
    return operation.op == "splat" and result is not None and result.space == operation.operands[0].space


def _rewritten(operation: Operation, units: frozenset[Axis]) -> Operation:
    """The operation on smaller tiles."""
    index = tuple(
        item if isinstance(item, Tile) else Affine(tuple(t for t in item.terms if t[0] not in units), item.offset)
        for item in operation.index
    )
    result = operation.result
    if result is not None:
        result = Tile(result.id, result.dtype, tuple(axis for axis in result.space if axis not in units))
    if operation.op == "coord" and operation.axis in units:
        return Operation("const", (), result, attributes={"value": 0})
    return replace(operation, index=index, result=result)
