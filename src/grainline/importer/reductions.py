"""Reduce* operators: attribute axes before opset 13 (ReduceSum) or 18 (the others), input axes since."""

from __future__ import annotations

from collections.abc import Callable

from grainline.base.dims import Extent
from grainline.base.dtypes import ALL, BOOL, F32, F64, DType
from grainline.base.errors import ModelError
from grainline.graph.ir import Value
from grainline.importer import extents
from grainline.importer.builder import Builder, Decline
from grainline.importer.call import Call, axes_of, axis_of, only

Rule = Callable[[Builder, Call], list[Value | None]]
Write = Callable[[Builder, Value, tuple[int, ...]], Value]

#: f16 and bf16 arrive as f32, see `half`
FLOATS = (F32, F64)
NUMBERS = (*FLOATS, *(dtype for dtype in ALL if dtype.is_integer))


def reduction(write: Write, *allowed: DType, since_input: int = 18) -> Rule:
    def rule(b: Builder, call: Call) -> list[Value | None]:
        x = call.input(0)
        only(x, *allowed)
        axes, is_identity = _axes(b, call, x, since_input)
        result = x if is_identity else write(b, x, axes)
        if call.integer("keepdims", 1) or is_identity:
            return [result]
        kept = [extent for axis, extent in enumerate(b.shape(x)) if axis not in axes]
        return [b.reshape(result, kept)]

    return rule


def _axes(b: Builder, call: Call, x: Value, since_input: int) -> tuple[tuple[int, ...], bool]:
    """The axes, and whether empty axes make the operator an identity."""
    rank = b.rank(x)
    if call.version < since_input:
        given = call.maybe_ints("axes")
        if call.optional(1) is not None:
            raise ModelError("axes are an attribute in this opset", node=call.label)
    else:
        value = call.optional(1)
        content = b.content(value)
        if value is not None and content is None:
            raise Decline("the axes are only known at run time")
        given = None if content is None else tuple(int(axis) for axis in content.ravel())
    if not given:
        return tuple(range(rank)), bool(call.integer("noop_with_empty_axes", 0))
    return axes_of(call, given, rank), False


def plain(kind: str) -> Write:
    return lambda b, x, axes: b.reduce(kind, x, axes)


def mean(b: Builder, x: Value, axes: tuple[int, ...]) -> Value:
    return b.mean(x, axes)


def sum_of_squares(b: Builder, x: Value, axes: tuple[int, ...]) -> Value:
    return b.reduce("sum", b.binary("mul", x, x), axes)


def l1(b: Builder, x: Value, axes: tuple[int, ...]) -> Value:
    return b.reduce("sum", b.unary("abs", x), axes)


def l2(b: Builder, x: Value, axes: tuple[int, ...]) -> Value:
    return b.unary("sqrt", sum_of_squares(b, x, axes))


def log_sum(b: Builder, x: Value, axes: tuple[int, ...]) -> Value:
    return b.unary("log", b.reduce("sum", x, axes))


def log_sum_exp(b: Builder, x: Value, axes: tuple[int, ...]) -> Value:
    """m + log(sum(exp(x - m))) with m the maximum where that is finite, else 0."""
    top = b.reduce("max", x, axes)
    top = b.where(b.unary("isinf", top, BOOL), b.literal(0.0, x.dtype), top)
    shifted = b.unary("exp", b.binary("sub", x, top))
    return b.binary("add", b.unary("log", b.reduce("sum", shifted, axes)), top)


def cumsum(b: Builder, call: Call) -> list[Value | None]:
    """Reversed sums are the sums of the reversed input, reversed."""
    x = call.input(0)
    only(x, *NUMBERS)
    content = b.content(call.input(1))
    if content is None or content.size != 1 or not isinstance(content.ravel()[0], int):
        raise Decline("the axis is only known at run time")
    rank = b.rank(x)
    if rank == 0:
        raise Decline("CumSum of a scalar is not compiled")
    axis = axis_of(call, content.ravel()[0], rank)
    is_reversed = bool(call.integer("reverse", 0))
    source = _reversed(b, x, axis) if is_reversed else x
    sums = b.emit("cumsum", (source,), x.dtype, b.shape(x), axis=axis, exclusive=bool(call.integer("exclusive", 0)))
    return [_reversed(b, sums, axis) if is_reversed else sums]


def _reversed(b: Builder, x: Value, axis: int) -> Value:
    shape = b.shape(x)
    starts: list[Extent] = [0] * len(shape)
    starts[axis] = extents.maximum(shape[axis] - 1, 0)
    return b.slice(x, starts, shape, [-1 if a == axis else 1 for a in range(len(shape))])


def global_pool(write: Write) -> Rule:
    """Reduces every axis after batch and channels; they stay with extent 1."""

    def rule(b: Builder, call: Call) -> list[Value | None]:
        x = call.input(0)
        only(x, *FLOATS)
        if b.rank(x) < 2:
            raise ModelError("a pool needs batch and channels", node=call.label, found=f"rank {b.rank(x)}")
        return [write(b, x, tuple(range(2, b.rank(x))))]

    return rule


#: (domain, operator) -> rows of (first opset, rule); a row holds until the next one begins
TABLE: dict[tuple[str, str], list[tuple[int, Rule]]] = {
    ("", "ReduceSum"): [(1, reduction(plain("sum"), *NUMBERS, since_input=13))],
    ("", "ReduceProd"): [(1, reduction(plain("prod"), *NUMBERS))],
    ("", "ReduceMax"): [(1, reduction(plain("max"), *NUMBERS))],
    ("", "ReduceMin"): [(1, reduction(plain("min"), *NUMBERS))],
    ("", "ReduceMean"): [(1, reduction(mean, *FLOATS))],
    ("", "ReduceSumSquare"): [(1, reduction(sum_of_squares, *NUMBERS))],
    ("", "ReduceL1"): [(1, reduction(l1, *NUMBERS))],
    ("", "ReduceL2"): [(1, reduction(l2, *FLOATS))],
    ("", "ReduceLogSum"): [(1, reduction(log_sum, *FLOATS))],
    ("", "GlobalAveragePool"): [(1, global_pool(mean))],
    ("", "GlobalMaxPool"): [(1, global_pool(plain("max")))],
    ("", "CumSum"): [(11, cumsum)],
    ("", "ReduceLogSumExp"): [(1, reduction(log_sum_exp, *FLOATS))],
}
