"""Equal operations on equal operands are computed once: f(x) ... f(x) -> f(x). A load is equal to an earlier one of the
same view and index when no store lies between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from grainline.tile.ir import Operation, Tile, TileProgram, walk
from grainline.tile.passes.rewriting import with_body, with_tiles


def merge_common_subexpressions(program: TileProgram) -> TileProgram:
    return replace(program, body=tuple(_Merging().body(program.body, {})))


class _Merging:
    """`stores` counts the stores so far: loads are equal when none lies between them."""

    def __init__(self) -> None:
        self.replaced: dict[int, Tile] = {}
        self.stores = 0

    def body(self, body: Sequence[Operation], outer: dict[Any, Tile]) -> list[Operation]:
        """What is computed before a loop is known inside of it, not the other way round."""
        seen, kept = dict(outer), []
        for original in body:
            operation = with_tiles(original, self.replaced)
            if operation.result is None:
                kept.append(self._without_result(operation, seen))
                continue
            key = _key(operation, self.stores)
            if key in seen:
                self.replaced[operation.result.id] = seen[key]
                continue
            seen[key] = operation.result
            kept.append(operation)
        return kept

    def _without_result(self, operation: Operation, seen: dict[Any, Tile]) -> Operation:
        if operation.op == "stage":
            seen.clear()
        if operation.region is None:
            self.stores += operation.op == "store"
            return operation
        has_stores = any(o.op == "store" for o in walk(operation.region.body))
        self.stores += has_stores
        inside = self.body(operation.region.body, seen)
        self.stores += has_stores
        return with_body(operation, inside, self.replaced)


def _key(operation: Operation, stores: int) -> Any:
    attributes = tuple(sorted((k, repr(v)) for k, v in operation.attributes.items())) if operation.attributes else ()
    operands = tuple(tile.id for tile in operation.operands)
    index = tuple(item.id if isinstance(item, Tile) else item for item in operation.index)
    time = stores if operation.op == "load" else 0
    assert operation.result is not None
    dtype, space = operation.result.dtype, operation.result.space
    return operation.op, operands, operation.view, index, operation.axis, attributes, time, dtype, space
