"""Computes at compile time what is constant, and applies the laws that are exact for every float:

mul(x, 1) -> x; div(x, 1) -> x; sub(x, 0) -> x; div(x, 2**k) -> mul(x, 2**-k); select(true, a, b) -> a;
cast(extent) -> const when the extent is static. (add(x, 0) changes -0.0 and is kept for floats.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from grainline.tile.interp_elementwise import ELEMENTWISE_MEANING, cast
from grainline.tile.ir import ELEMENTWISE, Operation, Tile, TileProgram
from grainline.tile.passes.rewriting import with_body, with_tiles

FAULTING = ("div", "mod", "fmod")


def fold_constants(program: TileProgram) -> TileProgram:
    next_id = 1 + max((t.id for o in program.operations() for t in _tiles_of(o)), default=-1)
    return replace(program, body=tuple(_Folding(next_id).body(program.body)))


def _tiles_of(operation: Operation) -> tuple[Tile, ...]:
    return operation.defined + (operation.region.carried if operation.region is not None else ())


class _Folding:
    def __init__(self, next_id: int) -> None:
        self.next_id = next_id
        self.replaced: dict[int, Tile] = {}
        self.constants: dict[int, Any] = {}

    def body(self, body: Sequence[Operation]) -> list[Operation]:
        folded: list[Operation] = []
        for operation in body:
            folded += self.operation(with_tiles(operation, self.replaced))
        return folded

    def operation(self, operation: Operation) -> list[Operation]:
        """What stands in the place of an operation: nothing, itself, or its simpler form."""
        if operation.region is not None:
            return [with_body(operation, self.body(operation.region.body), self.replaced)]
        value = _folded(operation, self.constants)
        if value is not None:
            operation = Operation("const", (), operation.result, attributes={"value": value})
        if operation.op == "const" and operation.result is not None:
            self.constants[operation.result.id] = operation.attributes["value"]
        same = _same_as(operation, self.constants)
        if same is not None and operation.result is not None:
            self.replaced[operation.result.id] = same
            return []
        scale = _exact_reciprocal(operation, self.constants)
        if scale is None:
            return [operation]
        divisor = operation.operands[1]
        factor = Tile(self.next_id, divisor.dtype, divisor.space)
        self.next_id += 1
        constant = Operation("const", (), factor, attributes={"value": scale})
        return [constant, replace(operation, op="mul", operands=(operation.operands[0], factor))]


def _folded(operation: Operation, constants: dict[int, Any]) -> Any:
    """The value of an operation on constants, None when it is not known."""
    if operation.op == "extent" and isinstance(operation.attributes["value"], int):
        return operation.attributes["value"]
    result = operation.result
    if operation.op not in ELEMENTWISE or result is None or result.space:
        return None
    if not operation.operands or any(t.id not in constants for t in operation.operands):
        return None
    if result.dtype.name in ("bf16", "f16"):
        return None
    values = [np.asarray(constants[t.id]).astype(t.dtype.numpy) for t in operation.operands]
    if operation.op in FAULTING and operation.operands[0].dtype.is_integer and bool(values[1] == 0):
        return None
    with np.errstate(all="ignore"):
        if operation.op == "cast":
            return cast(values[0], operation.operands[0].dtype, result.dtype).item()
        return np.asarray(ELEMENTWISE_MEANING[operation.op](*values)).astype(result.dtype.numpy).item()


def _same_as(operation: Operation, constants: dict[int, Any]) -> Tile | None:
    """The operand that the result always equals; only when the spaces agree."""
    if operation.result is None or len(operation.operands) < 2:
        return None
    first, second = operation.operands[0], operation.operands[1]
    if operation.op == "select" and first.id in constants:
        chosen = second if constants[first.id] else operation.operands[2]
        return chosen if chosen.space == operation.result.space else None
    if first.space != operation.result.space or second.id not in constants:
        return None
    value = constants[second.id]
    if (operation.op in ("mul", "div") and value == 1) or (operation.op == "sub" and _is_plus_zero(value)):
        return first
    return None


def _is_plus_zero(value: Any) -> bool:
    return bool(value == 0) and math.copysign(1.0, float(value)) > 0


def _exact_reciprocal(operation: Operation, constants: dict[int, Any]) -> float | None:
    if operation.op != "div" or operation.operands[0].dtype.name not in ("f32", "f64"):
        return None
    value = constants.get(operation.operands[1].id)
    if value is None or value == 0 or not math.isfinite(value):
        return None
    mantissa, exponent = math.frexp(value)
    return 1.0 / value if abs(mantissa) == 0.5 and -100 < exponent < 100 else None
