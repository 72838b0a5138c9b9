"""DequantizeLinear by tensor or by axis, and products with weights of few bits, written out; the other quantised
operators are the host's."""

from __future__ import annotations

from collections.abc import Callable

from grainline.base.dims import product
from grainline.base.dtypes import F32, I8, I32, U8
from grainline.base.errors import ModelError
from grainline.graph.ir import Shape, Value
from grainline.importer.builder import Builder, Decline
from grainline.importer.call import Call, axis_of, only
from grainline.importer.linear import numpy_product

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


def matmul_n_bits(b: Builder, call: Call) -> list[Value | None]:
    """A * W' + bias, where W [N, K] is stored in `bits` bits and has a scale and a zero point per block of a row.

    The weights are constants, so what is written here is computed once, when the model is loaded. `accuracy_level`
    lets an engine round A; here it never is.
    """
    x, packed, scales = call.input(0), call.input(1), call.input(2)
    zero, bias = call.optional(3), call.optional(5)
    only(packed, U8)
    only(scales, F32)
    if call.optional(4) is not None or call.integer("weight_prepacked", 0):
        raise Decline("permuted groups and weights in another engine's layout are not supported")
    columns, inner = call.integer("N"), call.integer("K")
    bits, block = call.integer("bits", 4), call.integer("block_size")
    if bits not in (2, 4, 8) or block < 1 or (block * bits) % 8 or columns < 1 or inner < 1:
        raise ModelError("bits, blocks and extents do not fit together", node=call.label, found=(bits, block))
    blocks = -(-inner // block)
    whole = _unpacked(b, _shaped(b, packed, (columns, blocks, block * bits // 8)), bits)
    centred = b.binary("sub", b.cast(whole, F32), _zero_points(b, zero, columns, blocks, bits))
    scaled = b.binary("mul", centred, _shaped(b, scales, (columns, blocks, 1)))
    rows = b.reshape(scaled, (columns, blocks * block))
    weights = b.transpose(b.slice(rows, (0, 0), (columns, inner), (1, 1)), (1, 0))
    result = numpy_product(b, call, x, weights)
    if bias is not None:
        b.vector(bias, columns)
        result = b.binary("add", result, bias)
    return [result]


def _unpacked(b: Builder, packed: Value, bits: int) -> Value:
    """u8[..., n] -> u8[..., n * 8 / bits]: the numbers in each byte, those of the lowest bits first."""
    if bits == 8:
        return packed
    *outer, count = b.shape(packed)
    each = b.literal(list(range(0, 8, bits)), U8)
    parts = b.binary("shr", b.reshape(packed, (*outer, count, 1)), each)
    return b.reshape(b.binary("bitand", parts, b.literal((1 << bits) - 1, U8)), (*outer, count * (8 // bits)))


def _zero_points(b: Builder, given: Value | None, columns: int, blocks: int, bits: int) -> Value:
    """f32[N, blocks, 1], or a scalar: the middle of the range where none are given; each row begins with a new byte."""
    if given is None:
        return b.literal(1 << (bits - 1), F32)
    if given.dtype == F32:
        return _shaped(b, given, (columns, blocks, 1))
    only(given, U8)
    row_bytes = -(-blocks * bits // 8)
    numbers = b.cast(_unpacked(b, _shaped(b, given, (columns, row_bytes)), bits), F32)
    return b.reshape(b.slice(numbers, (0, 0), (columns, blocks), (1, 1)), (columns, blocks, 1))


def _shaped(b: Builder, x: Value, shape: Shape) -> Value:
    """x with another shape of as many elements."""
    b.equate(product(b.shape(x)), product(shape), "weights, scales or zero points do not fit bits and blocks")
    return b.reshape(x, shape)


#: (domain, operator) -> rows of (first opset, rule); a row holds until the next one begins
TABLE: dict[tuple[str, str], list[tuple[int, Rule]]] = {
    ("", "DequantizeLinear"): [(10, dequantize_linear)],
    ("com.microsoft", "MatMulNBits"): [(1, matmul_n_bits)],
}
