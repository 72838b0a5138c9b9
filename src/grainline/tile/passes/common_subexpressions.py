"""Equal operations on equal operands are computed once: f(x) ... f(x) -> f(x). A load is equal to an earlier one of the
same view and index when no store lies between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from grainline.tile.ir import Operation, Tile, TileProgram
from grainline.tile.passes.rewriting import with_tiles


def merge_common_subexpressions(program: TileProgram) -> TileProgram:
    replaced: dict[int, Tile] = {}
    seen: dict[Any, Tile] = {}
    body: list[Operation] = []
    stores = 0
    for original in program.body:
        operation = with_tiles(original, replaced)
        if operation.result is None:
            stores += 1
            body.append(operation)
            continue
        key = _key(operation, stores)
        if key in seen:
            replaced[operation.result.id] = seen[key]
            continue
        seen[key] = operation.result
        body.append(operation)
    return replace(program, body=tuple(body))


def _key(operation: Operation, stores: int) -> Any:
    attributes = tuple(sorted((k, repr(v)) for k, v in operation.attributes.items()))
    operands = tuple(tile.id for tile in operation.operands)
    index = tuple(item.id if isinstance(item, Tile) else item for item in operation.index)
    time = stores if operation.op == "load" else 0
    assert operation.result is not None
    dtype, space = operation.result.dtype, operation.result.space
    return operation.op, operands, operation.view, index, operation.axis, attributes, time, dtype, space
