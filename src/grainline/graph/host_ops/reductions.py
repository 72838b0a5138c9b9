"""Softmax and its relatives by opset, and reductions: NaN passes, integers wrap, nothing gives the neutral value.

Before opset 13 Softmax, LogSoftmax and Hardmax treat everything from `axis` on as one axis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grainline.graph.primitives import neutral

Array = np.ndarray[Any, Any]


def _axes(call: Any, x: Array) -> tuple[int, ...]:
    if call.version >= 13:
        return (call.get("axis", -1) % x.ndim,) if x.ndim else ()
    axis = call.get("axis", 1)
    return tuple(range(axis % x.ndim if axis != x.ndim else axis, x.ndim)) if x.ndim else ()


def softmax(call: Any) -> list[Any]:
    x = call.input(0)
    axes = _axes(call, x)
    raised = np.exp(x - x.max(axis=axes, keepdims=True, initial=-np.inf))
    return [raised / raised.sum(axis=axes, keepdims=True)]


def log_softmax(call: Any) -> list[Any]:
    x = call.input(0)
    axes = _axes(call, x)
    shifted = x - x.max(axis=axes, keepdims=True, initial=-np.inf)
    return [shifted - np.log(np.exp(shifted).sum(axis=axes, keepdims=True))]


def hardmax(call: Any) -> list[Any]:
    """1 at the first maximum, 0 elsewhere."""
    x = call.input(0)
    axes = _axes(call, x)
    if call.version >= 13 or not axes:
        flat, axis = x, (axes[0] if axes else None)
    else:
        flat, axis = x.reshape(*x.shape[: axes[0]], -1), axes[0]
    result = np.zeros_like(flat)
    if axis is None or flat.size == 0:
        return [np.ones_like(x)]
    np.put_along_axis(result, np.expand_dims(flat.argmax(axis=axis), axis), 1, axis=axis)
    return [result.reshape(x.shape)]


def _reduced_axes(call: Any, x: Array) -> tuple[int, ...] | None:
    """The axes by attribute or input; None for an identity."""
    given = call.get("axes") if call.input(1) is None else call.input(1).ravel().tolist()
    if not given:
        return None if call.get("noop_with_empty_axes", 0) else tuple(range(x.ndim))
    return tuple(axis % x.ndim for axis in given)


def reduction(function: Callable[[Array, tuple[int, ...]], Array]) -> Callable[[Any], list[Any]]:
    def run(call: Any) -> list[Any]:
        x = call.input(0)
        axes = _reduced_axes(call, x)
        if axes is None:
            return [x]
        result = np.asarray(function(x, axes)).astype(x.dtype, copy=False)
        if call.get("keepdims", 1):
            return [result]
        return [result.reshape([extent for axis, extent in enumerate(x.shape) if axis not in axes])]

    return run


def _total(x: Array, axes: tuple[int, ...]) -> Array:
    return np.sum(x, axis=axes, dtype=x.dtype, keepdims=True)


def _product(x: Array, axes: tuple[int, ...]) -> Array:
    return np.prod(x, axis=axes, dtype=x.dtype, keepdims=True)


def _greatest(x: Array, axes: tuple[int, ...]) -> Array:
    return np.max(x, axis=axes, keepdims=True, initial=neutral("max", x.dtype))


def _least(x: Array, axes: tuple[int, ...]) -> Array:
    return np.min(x, axis=axes, keepdims=True, initial=neutral("min", x.dtype))


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    """Integers divide toward zero."""
    count = int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))
    total = _total(x, axes)
    if x.dtype.kind == "f":
        return total / x.dtype.type(count)
    return np.trunc(total / count) if count else total


TABLE = {
    ("", "Softmax"): softmax,
    ("", "LogSoftmax"): log_softmax,
    ("", "Hardmax"): hardmax,
    ("", "ReduceSum"): reduction(_total),
    ("", "ReduceProd"): reduction(_product),
    ("", "ReduceMax"): reduction(_greatest),
    ("", "ReduceMin"): reduction(_least),
    ("", "ReduceMean"): reduction(_mean),
}
