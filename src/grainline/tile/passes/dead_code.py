"""Removes operations whose value reaches no store. Loads with bounds "error" stay: they can end the instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from grainline.tile.access import operands_of
from grainline.tile.ir import Operation, TileProgram
from grainline.tile.passes.rewriting import with_body


def remove_dead_code(program: TileProgram) -> TileProgram:
    return replace(program, body=tuple(_live(program.body, set())))


def _live(body: Sequence[Operation], used: set[int]) -> list[Operation]:
    """The operations that `used` or an effect needs; adds to `used`. Loops keep all that they carry."""
    kept: list[Operation] = []
    for operation in reversed(body):
        if not _is_needed(operation, used):
            continue
        if operation.region is not None:
            used.update(tile.id for tile in operation.region.yields)
            operation = with_body(operation, _live(operation.region.body, used), {})
        kept.append(operation)
        used.update(tile.id for tile in operands_of(operation))
    return kept[::-1]


def _is_needed(operation: Operation, used: set[int]) -> bool:
    if operation.op in ("store", "stage") or _can_fault(operation):
        return True
    if operation.region is not None and any(_is_needed(o, set()) for o in operation.region.body):
        return True
    return any(tile.id in used for tile in operation.defined)


def _can_fault(operation: Operation) -> bool:
    if operation.op == "load":
        return operation.attributes.get("bounds") == "error"
    return operation.op in ("div", "mod", "fmod") and operation.operands[0].dtype.is_integer
