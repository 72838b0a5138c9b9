"""Accumulators of reductions and matrix products.

Lanes start from a value that leaves every operand unchanged bit for bit (-0.0 for sums: -0.0 + x is x for every x), so
no element is invented; the merge order is fixed by the lane count."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grainline.base.dtypes import BF16, BOOL, F16, F32, DType
from grainline.codegen.elementwise import LOGIC_OPCODES, apply, cast, rounded
from grainline.codegen.emit import FunctionText, Reg, constant, suffix
from grainline.tile.build import neutral_element
from grainline.tile.ir import FOLD_LEFT, FOLD_RIGHT, Operation


def is_strict(operation: Operation) -> bool:
    """Whether every step is rounded to the operand's type and starts from init."""
    return operation.attributes.get("policy") in (FOLD_LEFT, FOLD_RIGHT)


def accumulator_dtype(operation: Operation) -> DType:
    """f16 and bf16 accumulate in f32, but in a strict fold."""
    dtype = operation.operands[0].dtype
    return F32 if dtype in (F16, BF16) and not is_strict(operation) else dtype


def start(operation: Operation, lanes: int) -> Reg:
    dtype = accumulator_dtype(operation)
    if operation.op == "mma":
        return constant(0.0, dtype, lanes)
    kind = operation.attributes["kind"]
    if is_strict(operation) and operation.attributes["use_init"]:
        return constant(operation.attributes["init"], dtype, lanes)
    if kind == "add" and dtype.is_float:
        return constant(-0.0, dtype, lanes)
    return constant(neutral_element(kind, dtype), dtype, lanes)


def combine(f: FunctionText, kind: str, a: Reg, b: Reg) -> Reg:
    """One step of a reduction. NaN passes through min and max from either side."""
    dtype = a.dtype
    if dtype == BOOL:
        return f.binary(LOGIC_OPCODES[kind], a, b)
    if dtype.is_float:
        if kind in ("add", "mul"):
            return f.binary("f" + kind, a, b)
        name = f"llvm.{kind}imum.{suffix(dtype, a.lanes)}"
        f.module.declare(f"{a.type} @{name}({a.type}, {a.type})")
        return f.reg(f"call nsz {a.type} @{name}({a.typed}, {b.typed})", dtype, a.lanes)
    if kind in ("add", "mul"):
        return f.binary(kind, a, b)
    return f.intrinsic(("u" if dtype.kind == "u" else "s") + kind, a, b)


def operand(f: FunctionText, value: Reg, total: Reg) -> Reg:
    """A value in the lanes and the type of its accumulator."""
    return cast(f, f.splat(value, total.lanes), total.dtype)


def accumulate(f: FunctionText, operation: Operation, total: Reg, values: Sequence[Reg]) -> Reg:
    """The accumulator after one more element, in order; operands are splat to its lanes."""
    parts = [operand(f, value, total) for value in values]
    if operation.op == "mma":
        return f.fma(parts[0], parts[1], total) if total.dtype.is_float else f.add(f.mul(*parts), total)
    kind = operation.attributes["kind"]
    if is_strict(operation):
        pair = (parts[0], total) if operation.attributes["policy"] == FOLD_RIGHT else (total, parts[0])
        return apply(f, kind, pair)
    return combine(f, kind, total, parts[0])


def fold_lanes(f: FunctionText, kind: str, a: Reg, lanes: int) -> Reg:
    """Merges the upper half into the lower until `lanes` are left (0: a scalar)."""
    return fold_halves(f, a, lanes, lambda low, high: combine(f, kind, low, high))


def fold_halves(f: FunctionText, a: Reg, lanes: int, merge: Callable[[Reg, Reg], Reg]) -> Reg:
    """Merges the upper half into the lower until `lanes` are left. The last two lanes (0: a scalar) are scalars."""
    while a.lanes > max(lanes, 1):
        half = a.lanes // 2
        if lanes == 0 and half == 1:
            return merge(f.extract(a, 0), f.extract(a, 1))
        a = merge(f.part(a, 0, half), f.part(a, half, half))
    return f.extract(a, 0) if lanes == 0 and a.lanes else a


def finish(f: FunctionText, operation: Operation, total: Reg, count: Reg) -> Reg:
    """The result: init enters once when asked for, and is the value of an empty axis."""
    dtype = operation.operands[0].dtype
    if operation.op == "mma" or (is_strict(operation) and operation.attributes["use_init"]):
        return rounded(f, cast(f, total, dtype))
    kind, use_init = operation.attributes["kind"], operation.attributes["use_init"]
    init = constant(operation.attributes["init"], total.dtype, total.lanes)
    result = combine(f, kind, init, total) if use_init else total
    if count.text.startswith("%"):
        empty = f.compare("icmp eq", count, Reg("0", count.dtype))
        result = f.select(f.splat(empty, total.lanes), init, result)
    elif count.text == "0":
        result = init
    return rounded(f, cast(f, result, dtype))
