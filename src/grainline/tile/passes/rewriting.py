"""The shared step of passes: copy a body while mapping tiles to their replacements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from grainline.tile.ir import Operation, Region, Tile


def with_body(operation: Operation, body: Sequence[Operation], replaced: dict[int, Tile]) -> Operation:
    """A loop with another body; its yields are replaced by id."""
    assert operation.region is not None
    yields = tuple(replaced.get(t.id, t) for t in operation.region.yields)
    return replace(operation, region=Region(operation.region.carried, tuple(body), yields))


def with_tiles(operation: Operation, replaced: dict[int, Tile]) -> Operation:
    """The operation with every operand and run-time index replaced by id; unchanged when none is."""
    if not replaced:
        return operation
    operands = tuple(replaced.get(t.id, t) for t in operation.operands)
    index = tuple(replaced.get(i.id, i) if isinstance(i, Tile) else i for i in operation.index)
    if operands == operation.operands and index == operation.index:
        return operation
    return replace(operation, operands=operands, index=index)
