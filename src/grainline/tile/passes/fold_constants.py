"""Computes at compile time what is constant, and applies the laws that are exact for every float:

mul(x, 1) -> x; div(x, 1) -> x; sub(x, 0) -> x; div(x, 2**k) -> mul(x, 2**-k); select(true, a, b) -> a;
cast(extent) -> const when the extent is static. (add(x, 0) changes -0.0 and is kept for floats.)
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from grainline.tile.interp_elementwise import ELEMENTWISE_MEANING, cast
from grainline.tile.ir import ELEMENTWISE, Operation, Tile, TileProgram
from grainline.tile.passes.rewriting import with_tiles

FAULTING = ("div", "mod", "fmod")


def fold_constants(program: TileProgram) -> TileProgram:
    replaced: dict[int, Tile] = {}
    constants: dict[int, Any] = {}
    body: list[Operation] = []
    next_id = 1 + max((o.result.id for o in program.body if o.result is not None), default=-1)
    for original in program.body:
        operation = with_tiles(original, replaced)
        folded = _folded(operation, constants)
        if folded is not None:
            operation = Operation("const", (), operation.result, attributes={"value": folded})
        if operation.op == "const" and operation.result is not None:
            constants[operation.result.id] = operation.attributes["value"]
        same = _same_as(operation, constants)
        if same is not None and operation.result is not None:
            replaced[operation.result.id] = same
            continue
        scale = _exact_reciprocal(operation, constants)
        if scale is not None:
            divisor = operation.operands[1]
            factor = Tile(next_id, divisor.dtype, divisor.space)
            next_id += 1
            body.append(Operation("const", (), factor, attributes={"value": scale}))
            operation = replace(operation, op="mul", operands=(operation.operands[0], factor))
        body.append(operation)
    return replace(program, body=tuple(body))


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
