"""Extensions of com.microsoft that onnx has no reference for, for the types that are not compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from grainline.graph import primitives
from grainline.graph.host_ops.arithmetic import mean_of

Array = np.ndarray[Any, Any]


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + primitives.erf(x / math.sqrt(2.0)))


def gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def activation(function: Callable[[Array], Array]) -> Callable[[Any], list[Any]]:
    """function(x + bias), the bias being optional"""

    def run(call: Any) -> list[Any]:
        x, bias = call.input(0), call.input(1)
        return [function(x if bias is None else x + bias).astype(x.dtype)]

    return run


def quick_gelu(call: Any) -> list[Any]:
    x = call.input(0)
    return [x * primitives.sigmoid(x * x.dtype.type(call.get("alpha", 1.702)))]


def _oriented(x: Array, is_batch_inside: int, is_transposed: int) -> Array:
    x = np.moveaxis(x, 0, -2) if is_batch_inside and x.ndim > 1 else x
    return np.swapaxes(x, -1, -2) if is_transposed and x.ndim > 1 else x


def fused_matmul(call: Any) -> list[Any]:
    a, b = (
        _oriented(call.input(index), call.get(f"transBatch{name}", 0), call.get(f"trans{name}", 0))
        for index, name in enumerate("AB")
    )
    return [np.matmul(a, b) * a.dtype.type(call.get("alpha", 1.0))]


def skip_layer_normalization(call: Any) -> list[Any]:
    simple = call.node.attributes["op_type"].startswith("SkipSimplified")
    x, skip, gamma = call.input(0), call.input(1), call.input(2)
    beta, bias = (None, call.input(3)) if simple else (call.input(3), call.input(4))
    total = x + skip if bias is None else x + skip + bias
    centre = np.zeros(1, x.dtype) if simple else mean_of(total, -1)
    centred = total - centre
    inverse = 1 / np.sqrt(mean_of(centred * centred, -1) + x.dtype.type(call.get("epsilon", 1e-12)))
    result = centred * inverse * gamma
    return [result if beta is None else result + beta, centre, inverse, total][: len(call.node.outputs)]


def simplified_layer_normalization(call: Any) -> list[Any]:
    x, scale = call.input(0), call.input(1)
    axes = tuple(range(call.get("axis", -1) % x.ndim, x.ndim))
    inverse = 1 / np.sqrt(mean_of(x * x, axes) + x.dtype.type(call.get("epsilon", 1e-5)))
    return [x * inverse * scale, inverse][: len(call.node.outputs)]


TABLE = {
    ("com.microsoft", "Gelu"): activation(gelu),
    ("com.microsoft", "BiasGelu"): activation(gelu),
    ("com.microsoft", "FastGelu"): activation(gelu_tanh),
    ("com.microsoft", "QuickGelu"): quick_gelu,
    ("com.microsoft", "FusedMatMul"): fused_matmul,
    ("com.microsoft", "SkipLayerNormalization"): skip_layer_normalization,
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): skip_layer_normalization,
    ("com.microsoft", "SimplifiedLayerNormalization"): simplified_layer_normalization,
    ("", "SimplifiedLayerNormalization"): simplified_layer_normalization,
}
