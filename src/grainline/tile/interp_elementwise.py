"""NumPy meaning of every elementwise operation, on arrays of one element type."""

from __future__ import annotations

from collections.abc import Callable
from math import erf as scalar_erf
from typing import Any

import numpy as np

from grainline.base.dtypes import BOOL, DType

Array = np.ndarray


def _through_double(function: Callable[..., Any]) -> Callable[..., Array]:
    """Float functions are computed in double precision and rounded once."""

    def computed(*operands: Array) -> Array:
        return np.asarray(function(*(a.astype(np.float64) for a in operands))).astype(operands[0].dtype)

    return computed


def sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1.0) / (1.0 + e)


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind in "fV":
        return a / b
    if a.dtype.kind == "u":
        return a // b
    safe = np.where(b == -1, 1, b)
    quotient = np.abs(a // safe)
    exact = a - np.fmod(a, safe)
    quotient = exact // safe
    return np.where(b == -1, np.negative(a), quotient)


def _remainder(function: Callable[..., Any]) -> Callable[..., Array]:
    def computed(a: Array, b: Array) -> Array:
        if a.dtype.kind != "i":
            return np.asarray(function(a, b))
        return np.asarray(np.where(b == -1, 0, function(a, np.where(b == -1, 1, b))))

    return computed


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind in "fV":
        value = _through_double(np.power)(a, b)
        root = np.isneginf(a.astype(np.float64)) & (b == 0.5)  # NumPy takes the square root here, C's pow gives inf
        return np.where(root, np.asarray(np.inf).astype(a.dtype), value)
    a, b = np.broadcast_arrays(a, b)
    total, base, rest = np.ones_like(a), a.copy(), b.astype(np.uint64 if a.dtype.kind == "u" else np.int64)
    for _ in range(64):
        total = np.where(rest & rest.dtype.type(1) != 0, total * base, total)
        base, rest = base * base, rest >> rest.dtype.type(1)
    if a.dtype.kind == "i":
        total = np.where((b < 0) & (np.abs(a) != 1), 0, total)
        total = np.where((b < 0) & (a == -1), np.where(b % 2 == 0, 1, -1), np.where((b < 0) & (a == 1), 1, total))
    return total


def _shift_left(a: Array, b: Array) -> Array:
    bits = a.dtype.itemsize * 8
    small = (b >= 0) & (b < bits)
    return np.where(small, np.left_shift(a, np.where(small, b, 0).astype(a.dtype)), 0)


def _shift_right(a: Array, b: Array) -> Array:
    bits = a.dtype.itemsize * 8
    small = (b >= 0) & (b < bits)
    moved = np.right_shift(a, np.where(small, b, bits - 1).astype(a.dtype))
    return moved if a.dtype.kind == "i" else np.where(small, moved, 0)


def _relu(x: Array) -> Array:
    return np.where(x < 0, np.zeros((), x.dtype), x)


def _maximum(a: Array, b: Array) -> Array:
    """IEEE 754-2019 maximum: NaN from either side, +0 above -0."""
    if a.dtype.kind not in "fV":
        return np.maximum(a, b)
    tie = (a == 0) & (b == 0)
    return np.where(tie, np.where(np.signbit(a), b, a), np.maximum(a, b))


def _minimum(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "fV":
        return np.minimum(a, b)
    tie = (a == 0) & (b == 0)
    return np.where(tie, np.where(np.signbit(a), a, b), np.minimum(a, b))


def _rounding(function: Callable[..., Any]) -> Callable[[Array], Array]:
    return lambda x: np.asarray(function(x)) if x.dtype.kind in "fV" else x


def cast(value: Array, source: DType, to: DType) -> Array:
    """Conversion: float to integer saturates, NaN gives 0; integers wrap; bool is != 0."""
    if to == BOOL:
        return value != 0
    if not (source.is_float and to.is_integer):
        return value.astype(to.numpy)
    limits = np.iinfo(to.numpy)
    wide = np.trunc(value.astype(np.float64))
    top = float(limits.max) + 1.0 if to.size_bytes == 8 else float(limits.max)
    inside = (wide >= float(limits.min)) & (wide < top if to.size_bytes == 8 else wide <= top)
    whole = np.where(inside, wide, 0).astype(to.numpy)
    whole = np.where(wide >= top, limits.max, whole) if to.size_bytes == 8 else np.where(wide > top, limits.max, whole)
    return np.where(wide < float(limits.min), limits.min, whole).astype(to.numpy)


ELEMENTWISE_MEANING: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divide,
    "mod": _remainder(np.mod),
    "fmod": _remainder(np.fmod),
    "pow": _power,
    "min": _minimum,
    "max": _maximum,
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "relu": _relu,
    "exp": _through_double(np.exp),
    "log": _through_double(np.log),
    "log1p": _through_double(np.log1p),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: np.ones((), x.dtype) / np.sqrt(x),
    "sin": _through_double(np.sin),
    "reciprocal": lambda x: np.ones((), x.dtype) / x,
    "cos": _through_double(np.cos),
    "tanh": _through_double(np.tanh),
    "erf": _through_double(np.vectorize(scalar_erf, otypes=[np.float64])),
    "sigmoid": _through_double(sigmoid),
    "softplus": _through_double(lambda x: np.logaddexp(0.0, x)),
    "floor": _rounding(np.floor),
    "ceil": _rounding(np.ceil),
    "round": _rounding(np.rint),
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "not": lambda x: np.logical_not(x) if x.dtype == bool else np.invert(x),
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
    "shl": _shift_left,
    "shr": _shift_right,
    "select": np.where,
}
