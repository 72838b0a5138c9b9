"""Removes operations whose value reaches no store. Loads with bounds "error" stay: they can end the instance."""

from __future__ import annotations

from dataclasses import replace

from grainline.tile.access import operands_of
from grainline.tile.ir import Operation, TileProgram


def remove_dead_code(program: TileProgram) -> TileProgram:
    kept: list[Operation] = []
    used: set[int] = set()
    for operation in reversed(program.body):
        if operation.result is None or operation.result.id in used or _can_fault(operation):
            kept.append(operation)
            used.update(tile.id for tile in operands_of(operation))
    return replace(program, body=tuple(reversed(kept)))


def _can_fault(operation: Operation) -> bool:
    if operation.op == "load":
        return operation.attributes.get("bounds") == "error"
    return operation.op in ("div", "mod", "fmod") and operation.operands[0].dtype.is_integer
