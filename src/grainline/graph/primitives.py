"""The meaning of every primitive operator in NumPy, one small function each; `ops.py` says it in words.

Each function takes the node, its input arrays and the environment (symbol -> int) and gives one array. Results that the
meaning leaves no room for (an index out of range, a zero divisor) raise `KernelError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from grainline.base.dims import evaluate
from grainline.base.dtypes import BF16, BY_NAME
from grainline.base.errors import KernelError
from grainline.graph.ir import Node

Array = np.ndarray[Any, Any]
Env = Mapping[str, int]
Meaning = Callable[[Node, list[Array], Env], Array]


def target_shape(node: Node, env: Env) -> tuple[int, ...]:
    """The shape of the node's output under `env`."""
    assert node.output.shape is not None, f"{node.op} needs a target of known rank"
    return tuple(evaluate(extent, env) for extent in node.output.shape)


def pointwise(function: Callable[..., Any]) -> Meaning:
    def meaning(node: Node, arrays: list[Array], env: Env) -> Array:
        return np.asarray(function(*arrays)).astype(node.output.dtype.numpy, copy=False)

    return meaning


def erf(x: Array) -> Array:
    wide = [math.erf(item) for item in x.ravel().tolist()]
    return np.array(wide, dtype=np.float64).reshape(x.shape).astype(x.dtype)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) computed wide, so that neither tail overflows."""
    return (1.0 / (1.0 + np.exp(-x.astype(np.float64)))).astype(x.dtype)


def softplus(x: Array) -> Array:
    return np.logaddexp(x.astype(np.float64), 0.0).astype(x.dtype)


def divide(a: Array, b: Array) -> Array:
    """IEEE division; for integers truncating, the smallest by -1 wraps, a zero divisor is an error."""
    if a.dtype.kind == "f":
        return np.divide(a, b)
    _no_zero(b)
    quotient = np.floor_divide(a, b)
    inexact = np.not_equal(quotient * b, a)
    return quotient + (inexact & (np.less(a, 0) != np.less(b, 0))).astype(quotient.dtype)


def modulo(a: Array, b: Array) -> Array:
    if b.dtype.kind != "f":
        _no_zero(b)
    return np.mod(a, b)


def remainder(a: Array, b: Array) -> Array:
    if b.dtype.kind != "f":
        _no_zero(b)
    return np.fmod(a, b)


def _no_zero(divisor: Array) -> None:
    if not np.all(divisor):
        raise KernelError("integer division by zero")


def shift(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Shifting by the width or more gives 0."""

    def shifted(a: Array, b: Array) -> Array:
        width = a.dtype.itemsize * 8
        is_beyond = b >= width
        if not np.any(is_beyond):
            return function(a, b)
        return np.where(is_beyond, a.dtype.type(0), function(a, np.minimum(b, width - 1)))

    return shifted


def cast(node: Node, arrays: list[Array], env: Env) -> Array:
    """NumPy's conversion; a float outside an integer type gives the nearest end of it, NaN gives 0."""
    x, to = arrays[0], BY_NAME[node.attributes["to"]]
    if x.dtype == np.float64 and to == BF16:
        return _odd_single(x).astype(to.numpy)
    if to.is_integer and node.inputs[0].dtype.is_float:
        return _saturating(x.astype(np.float64), to.numpy)
    return x.astype(to.numpy)


def _odd_single(x: Array) -> Array:
    """f64 as f32, an inexact result made odd: rounding that to bf16 rounds x once, which NumPy's bf16 does not."""
    near = x.astype(np.float32)
    past = np.abs(near.astype(np.float64)) > np.abs(x)
    odd = ((near.view(np.uint32) - past.astype(np.uint32)) | np.uint32(1)).view(np.float32)
    return np.where((near == x) | np.isnan(x), near, odd)


def _saturating(x: Array, to: np.dtype[Any]) -> Array:
    limits = np.iinfo(to)
    end = float(limits.max) + (1.0 if to.itemsize < 8 else 0.0)  # the first float above the type
    inside = (x > float(limits.min) - 1.0) & (x < end)
    whole = np.where(inside, x, 0.0).astype(to)
    whole = np.where(x >= end, limits.max, whole)
    return np.where(x <= float(limits.min), limits.min, whole).astype(to)


_REDUCTIONS: dict[str, Callable[..., Any]] = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}


def reduce(node: Node, arrays: list[Array], env: Env) -> Array:
    """An empty max or min gives the lowest or greatest value of the type."""
    x, kind, axes = arrays[0], node.attributes["kind"], node.attributes["axes"]
    if kind in ("sum", "prod"):
        return np.asarray(_REDUCTIONS[kind](x, axis=axes, dtype=x.dtype, keepdims=True))
    return np.asarray(_REDUCTIONS[kind](x, axis=axes, keepdims=True, initial=neutral(kind, x.dtype)))


def neutral(kind: str, dtype: np.dtype[Any]) -> Any:
    """What an empty max or min gives."""
    if dtype.kind == "b":
        return kind == "min"
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if kind == "max" else np.iinfo(dtype).max
    return dtype.type(-np.inf if kind == "max" else np.inf)


def cumsum(node: Node, arrays: list[Array], env: Env) -> Array:
    x, axis = arrays[0], node.attributes["axis"]
    sums = np.cumsum(x, axis=axis, dtype=x.dtype)
    if not node.attributes["exclusive"] or x.shape[axis] == 0:
        return sums
    zero = np.zeros_like(np.take(x, [0], axis=axis))
    earlier = np.take(sums, range(x.shape[axis] - 1), axis=axis)
    return np.concatenate([zero, zero + earlier], axis=axis)  # 0 + (-0) is 0, as a sum that begins with 0 has it


def matmul(node: Node, arrays: list[Array], env: Env) -> Array:
    return np.matmul(arrays[0], arrays[1])


def reshape(node: Node, arrays: list[Array], env: Env) -> Array:
    return arrays[0].reshape(target_shape(node, env))


def transpose(node: Node, arrays: list[Array], env: Env) -> Array:
    return np.transpose(arrays[0], node.attributes["perm"])


def expand(node: Node, arrays: list[Array], env: Env) -> Array:
    return np.array(np.broadcast_to(arrays[0], target_shape(node, env)), order="C")


def slice_(node: Node, arrays: list[Array], env: Env) -> Array:
    x = arrays[0]
    starts = [evaluate(start, env) for start in node.attributes["starts"]]
    for axis, (start, step, length) in enumerate(
        zip(starts, node.attributes["steps"], target_shape(node, env), strict=True)
    ):
        x = np.take(x, start + step * np.arange(length), axis=axis)
    return x


def windows(node: Node, arrays: list[Array], env: Env) -> Array:
    axis = node.attributes["axis"]
    steps, taps = target_shape(node, env)[axis : axis + 2]
    begins = node.attributes["step"] * np.arange(steps)
    return np.take(arrays[0], begins[:, None] + node.attributes["dilation"] * np.arange(taps), axis=axis)


def concat(node: Node, arrays: list[Array], env: Env) -> Array:
    return np.concatenate(arrays, axis=node.attributes["axis"])


def pad(node: Node, arrays: list[Array], env: Env) -> Array:
    x = arrays[0]
    result = np.full(target_shape(node, env), node.attributes["value"], dtype=x.dtype)
    before = [evaluate(extent, env) for extent in node.attributes["before"]]
    result[tuple(slice(start, start + size) for start, size in zip(before, x.shape, strict=True))] = x
    return result


def inside(indices: Array, extent: int) -> Array:
    """Indices in [-extent, extent) as non-negative ones; KernelError for others."""
    if indices.size and (indices.min() < -extent or indices.max() >= extent):
        worst = indices.min() if indices.min() < -extent else indices.max()
        raise KernelError("an index is out of range", expected=f"[{-extent}, {extent})", found=int(worst))
    return np.where(indices < 0, indices + extent, indices)


def gather(node: Node, arrays: list[Array], env: Env) -> Array:
    data, indices = arrays
    axis = node.attributes["axis"]
    return np.take(data, inside(indices, data.shape[axis]), axis=axis)


def gather_nd(node: Node, arrays: list[Array], env: Env) -> Array:
    data, *parts = arrays
    return data[tuple(inside(part, data.shape[axis]) for axis, part in enumerate(parts))]


def iota(node: Node, arrays: list[Array], env: Env) -> Array:
    shape = target_shape(node, env)
    axis = node.attributes["axis"]
    start, step = (evaluate_number(node.attributes[key], env) for key in ("start", "step"))
    line = (start + step * np.arange(shape[axis])).astype(node.output.dtype.numpy)
    return np.broadcast_to(line.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape)


def evaluate_number(value: Any, env: Env) -> Any:
    return value if isinstance(value, int | float) else evaluate(value, env)


def extents(node: Node, arrays: list[Array], env: Env) -> Array:
    values = [evaluate(value, env) for value in node.attributes["values"]]
    return np.array(values, dtype=node.output.dtype.numpy).reshape(target_shape(node, env))


MEANINGS: dict[str, Meaning] = {
    "neg": pointwise(np.negative),
    "abs": pointwise(np.abs),
    "exp": pointwise(np.exp),
    "log": pointwise(np.log),
    "sqrt": pointwise(np.sqrt),
    "rsqrt": pointwise(lambda x: x.dtype.type(1) / np.sqrt(x)),
    "reciprocal": pointwise(lambda x: x.dtype.type(1) / x),
    "tanh": pointwise(np.tanh),
    "erf": pointwise(erf),
    "sigmoid": pointwise(sigmoid),
    "sin": pointwise(np.sin),
    "cos": pointwise(np.cos),
    "floor": pointwise(np.floor),
    "ceil": pointwise(np.ceil),
    "round": pointwise(np.rint),
    "sign": pointwise(np.sign),
    "relu": pointwise(lambda x: np.maximum(x, x.dtype.type(0))),
    "not": pointwise(np.logical_not),
    "isnan": pointwise(np.isnan),
    "isinf": pointwise(np.isinf),
    "log1p": pointwise(np.log1p),
    "softplus": pointwise(softplus),
    "add": pointwise(np.add),
    "sub": pointwise(np.subtract),
    "mul": pointwise(np.multiply),
    "div": pointwise(divide),
    "mod": pointwise(modulo),
    "fmod": pointwise(remainder),
    "pow": pointwise(np.power),
    "min": pointwise(np.minimum),
    "max": pointwise(np.maximum),
    "eq": pointwise(np.equal),
    "lt": pointwise(np.less),
    "le": pointwise(np.less_equal),
    "gt": pointwise(np.greater),
    "ge": pointwise(np.greater_equal),
    "and": pointwise(np.logical_and),
    "or": pointwise(np.logical_or),
    "xor": pointwise(np.logical_xor),
    "bitand": pointwise(np.bitwise_and),
    "bitor": pointwise(np.bitwise_or),
    "bitxor": pointwise(np.bitwise_xor),
    "shl": pointwise(shift(np.left_shift)),
    "shr": pointwise(shift(np.right_shift)),
    "where": pointwise(np.where),
    "cast": cast,
    "reduce": reduce,
    "cumsum": cumsum,
    "matmul": matmul,
    "reshape": reshape,
    "transpose": transpose,
    "expand": expand,
    "slice": slice_,
    "windows": windows,
    "concat": concat,
    "pad": pad,
    "gather": gather,
    "gather_nd": gather_nd,
    "iota": iota,
    "extents": extents,
}
