"""Arithmetic on the types that the compiled path does not carry (float64, small and unsigned integers, half floats).

The functions are those of the compute graph's own primitives, so that an operator means the same wherever it runs:
integers wrap, division truncates and refuses zero, NaN passes through comparisons of min and max.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grainline.graph import primitives

Array = np.ndarray[Any, Any]


def binary(function: Callable[[Array, Array], Array]) -> Callable[[Any], Any]:
    def run(call: Any) -> Any:
        if call.version < 7 and call.get("broadcast", 0):
            return NotImplemented
        return [function(call.arrays[0], call.arrays[1])]

    return run


def variadic(function: Callable[[Array, Array], Array]) -> Callable[[Any], list[Any]]:
    def run(call: Any) -> list[Any]:
        result, *rest = call.arrays
        for array in rest:
            result = function(result, array)
        return [result]

    return run


def unary(function: Callable[[Array], Array]) -> Callable[[Any], list[Any]]:
    return lambda call: [np.asarray(function(call.input(0))).astype(call.input(0).dtype, copy=False)]


def modulo(call: Any) -> list[Any]:
    a, b = call.arrays
    return [primitives.remainder(a, b) if call.get("fmod", 0) else primitives.modulo(a, b)]


def clip(call: Any) -> list[Any]:
    """min(max(x, low), high) with NaN passing through; a missing bound is the type's own."""
    x = call.input(0)
    low, high = (call.get("min"), call.get("max")) if call.version < 11 else (call.input(1), call.input(2))
    info = np.finfo(x.dtype) if x.dtype.kind == "f" else np.iinfo(x.dtype)
    low = info.min if low is None else low
    high = info.max if high is None else high
    return [np.minimum(np.maximum(x, np.asarray(low, x.dtype)), np.asarray(high, x.dtype))]


def power(call: Any) -> list[Any]:
    """The result has the base's type; an integer to a negative power truncates its exact value."""
    base, exponent = call.arrays
    if base.dtype.kind == "f":
        return [
            np.power(base, exponent.astype(base.dtype) if exponent.dtype.kind == "f" else exponent).astype(base.dtype)
        ]
    if exponent.dtype.kind == "f" or (exponent.dtype.kind == "i" and np.any(exponent < 0)):
        return [np.power(base.astype(np.float64), exponent.astype(np.float64)).astype(base.dtype)]
    return [np.power(base, exponent.astype(base.dtype))]


def mean(call: Any) -> list[Any]:
    total = variadic(np.add)(call)[0]
    return [total / total.dtype.type(len(call.arrays))]


def mean_of(x: np.ndarray[Any, Any], axes: int | tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The mean over `axes`, which stay; NaN of nothing, of which NumPy's own would warn on the terminal."""
    total = np.add.reduce(x, axis=axes, keepdims=True)
    return total / x.dtype.type(x.size / total.size if total.size else 1)


def layer_normalization(call: Any) -> list[Any]:
    """Two passes: the mean, then the variance of what is left."""
    x, scale, bias = call.input(0), call.input(1), call.input(2)
    axes = tuple(range(call.get("axis", -1) % x.ndim, x.ndim))
    centre = mean_of(x, axes)
    centred = x - centre
    epsilon = x.dtype.type(call.get("epsilon", 1e-5))
    inverse = 1 / np.sqrt(mean_of(centred * centred, axes) + epsilon)
    result = centred * inverse * scale
    outputs = [result if bias is None else result + bias, centre, inverse]
    kept = outputs[: len(call.node.outputs)]
    return [kept[0].astype(x.dtype), *kept[1:]]


def group_normalization(call: Any) -> list[Any]:
    x, scale, bias = call.arrays
    groups = call.get("num_groups")
    inner = x.reshape(x.shape[0], groups, -1)
    centred = inner - mean_of(inner, 2)
    variance = mean_of(centred * centred, 2)
    normal = (centred / np.sqrt(variance + x.dtype.type(call.get("epsilon", 1e-5)))).reshape(x.shape)
    repeats = x.shape[1] // scale.shape[0]
    wide = [np.repeat(p, repeats).reshape(-1, *[1] * (x.ndim - 2)) for p in (scale, bias)]
    return [(normal * wide[0] + wide[1]).astype(x.dtype)]


def batch_normalization(call: Any) -> Any:
    """With the stored statistics; the reference takes training mode for what older opsets do not say."""
    if call.get("training_mode", 0) or call.version < 9 or len(call.node.outputs) > 1:
        return NotImplemented
    x, *parameters = call.arrays
    scale, bias, mean, variance = (p.reshape(-1, *[1] * (x.ndim - 2)) for p in parameters)
    deviation = np.sqrt(variance + variance.dtype.type(call.get("epsilon", 1e-5)))
    return [((x - mean) / deviation * scale + bias).astype(x.dtype)]


TABLE = {
    ("", "BatchNormalization"): batch_normalization,
    ("", "GroupNormalization"): group_normalization,
    ("", "Add"): binary(np.add),
    ("", "Sub"): binary(np.subtract),
    ("", "Mul"): binary(np.multiply),
    ("", "Div"): binary(primitives.divide),
    ("", "Less"): binary(np.less),
    ("", "LessOrEqual"): binary(np.less_equal),
    ("", "Greater"): binary(np.greater),
    ("", "GreaterOrEqual"): binary(np.greater_equal),
    ("", "Mod"): modulo,
    ("", "Pow"): power,
    ("", "Min"): variadic(np.minimum),
    ("", "Max"): variadic(np.maximum),
    ("", "Sum"): variadic(np.add),
    ("", "Mean"): mean,
    ("", "Clip"): clip,
    ("", "Relu"): unary(lambda x: np.maximum(x, x.dtype.type(0))),
    ("", "Sign"): unary(np.sign),
    ("", "Abs"): unary(np.abs),
    ("", "Neg"): unary(np.negative),
    ("", "Erf"): unary(primitives.erf),
    ("", "Sigmoid"): unary(primitives.sigmoid),
    ("", "LayerNormalization"): layer_normalization,
}
