"""DequantizeLinear by tensor or by axis, written out; the other quantised operators are the host's."""

from __future__ import annotations

from collections.abc import Callable

from grainline.base.dtypes import F32, I8, I32, U8
from grainline.base.errors import ModelError
from grainline.graph.ir import Value
from grainline.importer.builder import Builder, Decline
from grainline.importer.call import Call, axis_of, only

Rule = Callable[[Builder, Call], list[Value | None]]


def dequantize_linear(b: Builder, call: Call) -> list[Value | None]:
    """(x - zero_point) * scale, the difference exact in int32."""
    x, scale, zero_point = call.input(0), call.input(1), call.optional(2)
    only(x, I8, U8, I32)
    only(scale, F32)
    if call.integer("block_size", 0):
        raise Decline("blocked quantisation is not compiled")
    if call.integer("output_dtype", 0) not in (0, (call.narrow or F32).onnx):
        raise Decline("an output type other than the scale's is not compiled")
    whole = b.cast(x, I32)
    if zero_point is not None and x.dtype != I32:
        if zero_point.dtype != x.dtype:
            raise ModelError(
                "the zero point has another type", node=call.label, expected=x.dtype, found=zero_point.dtype
            )
        whole = b.binary("sub", whole, b.cast(_aligned(b, call, zero_point, x), I32))
    return [b.binary("mul", b.cast(whole, F32), _aligned(b, call, scale, x))]


def _aligned(b: Builder, call: Call, parameter: Value, x: Value) -> Value:
    """A parameter per tensor as it is; one per slice with its axis where x has it."""
    shape = b.shape(parameter)
    if not shape or (shape == (1,) and b.rank(x) >= 1):
        return b.reshape(parameter, ())
    if len(shape) != 1:
        raise Decline("quantisation parameters of this rank are not compiled")
    rank = b.rank(x)
    axis = axis_of(call, call.integer("axis", 1), rank)
    b.equate(shape[0], b.shape(x)[axis], "one scale per slice is needed")
    return b.reshape(parameter, (*[1] * axis, *shape, *[1] * (rank - axis - 1)))


#: (domain, operator) -> rows of (first opset, rule); a row holds until the next one begins
TABLE: dict[tuple[str, str], list[tuple[int, Rule]]] = {
    ("", "DequantizeLinear"): [(10, dequantize_linear)],
}
