"""Pools over windows, and normalisation across neighbouring channels. Padding never wins a maximum nor counts in a mean
that leaves it out; the reference operators fail on uneven padding and are hundreds of times slower."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from grainline.graph.host_ops.windows import Array, Windows, windows_of


def max_pool(call: Any) -> list[Any]:
    """The largest element of each window and, as second output, its flat position in the input."""
    x = call.input(0)
    windows = windows_of(call, x.shape[2:], call.get("kernel_shape"))
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    padded = windows.padded(x, lowest)
    if len(call.node.outputs) > 1 and call.node.outputs[1].name:
        return _with_positions(windows, padded, x, is_column_major=bool(call.get("storage_order", 0)))
    y = reduce(np.maximum, (values for _, values in windows.taps(padded)))
    return [y, None][: len(call.node.outputs)]


def _with_positions(windows: Windows, padded: Array, x: Array, is_column_major: bool) -> list[Array]:
    """The largest elements and int64[N, C, *steps], where the first of them lies in the whole input."""
    weights = np.cumprod((1, *windows.sizes[:-1])) if is_column_major else np.cumprod((1, *windows.sizes[:0:-1]))[::-1]
    shape = (*x.shape[:2], *windows.steps)
    best, at, found = np.zeros(shape, x.dtype), np.zeros(shape, np.int64), np.zeros(shape, bool)
    for tap, values in windows.taps(padded):
        inside, position = np.array(True), np.array(0)
        for axis in range(windows.rank):
            along = windows.positions(axis, tap[axis]).reshape(_along(axis, windows.rank))
            inside = inside & (along >= 0) & (along < windows.sizes[axis])
            position = position + along * weights[axis]
        is_better = inside & (~found | (values > best) | ((values != values) & (best == best)))
        best, at = np.where(is_better, values, best), np.where(is_better, position, at)
        found |= inside
    planes = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * windows.rank)
    return [best, at + planes * int(np.prod(windows.sizes))]


def average_pool(call: Any) -> list[Any]:
    """The mean of each window over the elements inside the input, or inside its padding with count_include_pad."""
    x = call.input(0)
    windows = windows_of(call, x.shape[2:], call.get("kernel_shape"))
    mean = _sum(windows, windows.padded(x, 0))
    for axis in range(windows.rank):
        low, high = 0, windows.sizes[axis]
        if call.get("count_include_pad", 0):
            low, high = -windows.before[axis], high + windows.pads_after[axis]
        places = [windows.positions(axis, tap) for tap in range(windows.extents[axis])]
        count = sum(((at >= low) & (at < high)).astype(x.dtype) for at in places)
        mean = mean / np.maximum(count, 1).reshape(_along(axis, windows.rank))
    return [mean]


def _sum(windows: Windows, padded: Array) -> Array:
    return reduce(np.add, (values for _, values in windows.taps(padded)))


def _along(axis: int, rank: int) -> list[int]:
    return [-1 if axis == other else 1 for other in range(rank)]


def lp_pool(call: Any) -> list[Any]:
    """(sum of |x| ** p) ** (1 / p) of each window."""
    x, p = call.input(0), call.get("p", 2)
    windows = windows_of(call, x.shape[2:], call.get("kernel_shape"))
    return [_root(_sum(windows, windows.padded(np.abs(x) ** p, 0)), p)]


def global_lp_pool(call: Any) -> list[Any]:
    x, p = call.input(0), call.get("p", 2)
    return [_root((np.abs(x) ** p).sum(axis=tuple(range(2, x.ndim)), keepdims=True, dtype=x.dtype), p)]


def lp_normalization(call: Any) -> list[Any]:
    """x divided by its norm along `axis`; what has no norm stays."""
    x, p, axis = call.input(0), call.get("p", 2), call.get("axis", -1)
    norm = _root((np.abs(x) ** p).sum(axis=axis, keepdims=True, dtype=x.dtype), p)
    return [x / np.where(norm == 0, np.ones((), x.dtype), norm)]


def lrn(call: Any) -> list[Any]:
    """x / (bias + alpha / size * sum over `size` neighbouring channels of x ** 2) ** beta; x: [N, C, ...]"""
    x, size = call.input(0), call.get("size")
    before = (size - 1) // 2
    squares = np.pad(x * x, [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)])
    total = sum(squares[:, tap : tap + x.shape[1]] for tap in range(size))
    alpha, beta, bias = call.get("alpha", 1e-4), call.get("beta", 0.75), call.get("bias", 1.0)
    return [(x / (bias + alpha / size * total) ** beta).astype(x.dtype)]


def _root(total: Array, p: int) -> Array:
    if p == 1:
        return total
    return np.sqrt(total) if p == 2 else (total ** (1.0 / p)).astype(total.dtype)


TABLE = {
    ("", "MaxPool"): max_pool,
    ("", "AveragePool"): average_pool,
    ("", "LpPool"): lp_pool,
    ("", "GlobalLpPool"): global_lp_pool,
    ("", "LpNormalization"): lp_normalization,
    ("", "LRN"): lrn,
}
