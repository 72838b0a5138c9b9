"""Quantised operators: rounding half to even, the zero point added before saturating, products exact in int32."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_INTEGERS = ("int8", "uint8", "int16", "uint16")


def quantize_linear(call: Any) -> list[Any]:
    """saturate(round(x / scale) + zero_point); NaN gives the zero point's type's own zero."""
    x, scale, zero_point = call.input(0), call.input(1), call.input(2)
    dtype = np.dtype("uint8") if zero_point is None else zero_point.dtype
    if dtype.name not in _INTEGERS or call.get("block_size", 0) or call.get("output_dtype", 0):
        return NotImplemented
    if call.get("precision", 0) or x.dtype.kind == "i":
        return NotImplemented
    axis = call.get("axis", 1)
    divided = x / aligned(scale, x, axis)
    offset = 0 if zero_point is None else aligned(zero_point, x, axis).astype(np.float64)
    return [saturated(np.rint(divided).astype(np.float64) + offset, dtype)]


def saturated(values: Array, dtype: np.dtype[Any]) -> Array:
    info = np.iinfo(dtype)
    return np.clip(np.nan_to_num(values, nan=0.0), info.min, info.max).astype(dtype)


def aligned(parameter: Array, x: Array, axis: int) -> Array:
    """A scalar, or one value per slice of x along `axis`."""
    if parameter.size == 1 and parameter.ndim <= 1:
        return parameter.reshape(())
    if parameter.ndim != 1:
        return parameter
    shape = [1] * x.ndim
    shape[axis] = -1
    return parameter.reshape(shape)


def matmul_integer(call: Any) -> list[Any]:
    a, b = (_centred(call, index, index + 2) for index in (0, 1))
    return [np.matmul(a, b).astype(np.int32)]


def _centred(call: Any, index: int, zero_index: int) -> Array:
    """The operand minus its zero point, in int64 so that nothing saturates."""
    data = call.input(index).astype(np.int64)
    zero = call.input(zero_index)
    if zero is None:
        return data
    zero = zero.astype(np.int64)
    if zero.ndim == 1 and zero.size > 1:
        zero = zero.reshape(-1, 1) if index == 0 else zero
    return data - (zero.reshape(()) if zero.size == 1 else zero)


def qlinear_matmul(call: Any) -> list[Any]:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = call.arrays
    if y_zero.dtype.name not in _INTEGERS:
        return NotImplemented
    left = a.astype(np.int64) - _rows(a_zero.astype(np.int64))
    right = b.astype(np.int64) - b_zero.astype(np.int64)
    product = np.matmul(left, right)
    scale = _rows(a_scale.astype(np.float64)) * b_scale.astype(np.float64) / y_scale.astype(np.float64)
    return [saturated(np.rint(product * scale) + y_zero.astype(np.float64), y_zero.dtype)]


def _rows(parameter: Array) -> Array:
    """A parameter per row of the left operand stands as a column."""
    return parameter.reshape(-1, 1) if parameter.ndim == 1 and parameter.size > 1 else parameter


def dynamic_quantize_linear(call: Any) -> list[Any]:
    x = call.input(0)
    low, high = (np.float32(min(0.0, x.min(initial=0))), np.float32(max(0.0, x.max(initial=0))))
    scale = np.float32((high - low) / np.float32(255))
    if scale == 0:
        scale = np.float32(1.0)
    zero = np.uint8(np.clip(np.rint(-low / scale), 0, 255))
    return [saturated(np.rint(x / scale).astype(np.float64) + zero, np.dtype("uint8")), scale, zero]


TABLE = {
    ("", "QuantizeLinear"): quantize_linear,
    ("", "MatMulInteger"): matmul_integer,
    ("", "QLinearMatMul"): qlinear_matmul,
    ("", "DynamicQuantizeLinear"): dynamic_quantize_linear,
}
