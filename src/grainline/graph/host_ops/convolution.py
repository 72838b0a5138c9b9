"""Convolutions as matrix products over windows, sample by sample; integer ones exactly.

The reference operators walk over output elements in Python: hundreds of times slower, and wrong for some groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from grainline.base.errors import KernelError
from grainline.graph.host_ops.quantisation import saturated
from grainline.graph.host_ops.windows import Array, per_axis, windows_of

#: of gathered windows, at a time
BUFFER_BYTES = 16 << 20


def conv(call: Any) -> list[Any]:
    """y[n, m] = bias[m] + sum over c, taps of x[n, c, window] * w[m, c, taps]; x: [N, C, ...], w: [M, C/group, ...]"""
    x, w, bias = call.input(0), call.input(1), call.input(2)
    y = _convolved(call, x, w)
    return [y if bias is None else y + _per_channel(bias, y)]


def conv_integer(call: Any) -> list[Any]:
    return [_integer_product(call, call.input(0), call.input(2), call.input(1), call.input(3)).astype(np.int32)]


def qlinear_conv(call: Any) -> list[Any]:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = (call.input(index) for index in range(9))
    total = _integer_product(call, x, x_zero, w, w_zero)
    if bias is not None:
        total = total + _per_channel(bias.astype(np.int64), total)
    scale = x_scale.astype(np.float64) * w_scale.astype(np.float64) / y_scale.astype(np.float64)
    scale = _per_channel(scale, total) if scale.size > 1 else scale.reshape(())
    return [saturated(np.rint(total * scale) + y_zero.astype(np.float64), y_zero.dtype)]


def conv_transpose(call: Any) -> list[Any]:
    """The gradient of a convolution: every input element adds its window of weights to the output.

    x: [N, C, ...], w: [C, M/group, ...] -> [N, M, ...].
    """
    x, w, bias = call.input(0), call.input(1), call.input(2)
    groups = call.get("group", 1)
    _require_channels(x, w, w.shape[0] == x.shape[1] and x.shape[1] % groups == 0)
    sizes, extents = x.shape[2:], w.shape[2:]
    strides, dilations = per_axis(call, "strides", len(sizes)), per_axis(call, "dilations", len(sizes))
    before, steps = _transposed_extents(call, sizes, extents, strides, dilations)
    parts = np.matmul(  # [N, group, M/group * taps, positions]
        w.reshape(groups, w.shape[0] // groups, -1).swapaxes(1, 2), x.reshape(x.shape[0], groups, -1, prod(sizes))
    )
    parts = parts.reshape(x.shape[0], groups * w.shape[1], prod(extents), *sizes)
    spans = [
        (s - 1) * t + (e - 1) * d + 1 if s else 0 for s, t, e, d in zip(sizes, strides, extents, dilations, strict=True)
    ]
    full = np.zeros((*parts.shape[:2], *spans), x.dtype)
    for index, tap in enumerate(np.ndindex(*extents)):
        starts = [t * d for t, d in zip(tap, dilations, strict=True)]
        reach = [slice(a, a + (s - 1) * t + 1, t) for a, s, t in zip(starts, sizes, strides, strict=True)]
        if full.size:
            full[(slice(None), slice(None), *reach)] += parts[:, :, index]
    y = _cut(full, before, steps)
    return [y if bias is None else y + _per_channel(bias, y)]


def _convolved(call: Any, x: Array, w: Array) -> Array:
    groups = call.get("group", 1)
    _require_channels(x, w, w.shape[1] * groups == x.shape[1] and w.shape[0] % groups == 0)
    windows = windows_of(call, x.shape[2:], w.shape[2:])
    weights = w.reshape(groups, w.shape[0] // groups, prod(w.shape[1:]))
    y = np.zeros((x.shape[0], w.shape[0], *windows.steps), x.dtype)
    if not y.size or not w.size:
        return y
    # [N, C, *taps, *steps]: a row of windows lies dense, so that gathering copies runs
    taps_first = (0, 1, *range(2 + windows.rank, 2 + 2 * windows.rank), *range(2, 2 + windows.rank))
    view = windows.of(windows.padded(x, 0)).transpose(taps_first)
    first = 2 + windows.rank
    row_bytes = x.itemsize * max(1, prod(view.shape[1:]) // view.shape[first])
    rows = max(1, BUFFER_BYTES // row_bytes)
    for sample, result in zip(view, y):
        for begin in range(0, windows.steps[0], rows):
            part = sample[(slice(None),) * (first - 1) + (slice(begin, begin + rows),)]
            product = weights @ part.reshape(groups, weights.shape[2], -1)
            result[:, begin : begin + rows] = product.reshape(result[:, begin : begin + rows].shape)
    return y


def _integer_product(call: Any, x: Array, x_zero: Array | None, w: Array, w_zero: Array | None) -> Array:
    """int64, exact: in float64 as long as no sum can pass 2**53, which bytes never do."""
    left = x.astype(np.float64) - (0 if x_zero is None else x_zero.astype(np.float64).reshape(()))
    right = w.astype(np.float64)
    if w_zero is not None:
        zero = w_zero.astype(np.float64)
        right = right - (zero.reshape(-1, *[1] * (w.ndim - 1)) if zero.size > 1 else zero.reshape(()))
    return _convolved(call, left, right).astype(np.int64)


def _transposed_extents(
    call: Any, sizes: Sequence[int], extents: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[list[int], list[int]]:
    """How much is cut off at the beginning of each axis (negative: added), and how long the axis then is."""
    rank = len(sizes)
    extra = call.get("output_padding") or [0] * rank
    pads = call.get("pads") or [0] * (2 * rank)
    padding, wanted = call.text("auto_pad", "NOTSET"), call.get("output_shape")
    if padding.startswith("SAME") and not wanted:
        wanted = [size * stride for size, stride in zip(sizes, strides, strict=True)]
    before, steps = [], []
    for axis, size in enumerate(sizes):
        full = strides[axis] * (size - 1) + extra[axis] + (extents[axis] - 1) * dilations[axis] + 1
        if wanted:
            total = full - wanted[len(wanted) - rank + axis]
            small = total // 2
            before.append(small if padding == "SAME_UPPER" else total - small)
            steps.append(full - total)
        else:
            around = (pads[axis], pads[rank + axis]) if padding == "NOTSET" else (0, 0)
            before.append(around[0])
            steps.append(max(0, full - sum(around)))
    return before, steps


def _cut(full: Array, before: Sequence[int], steps: Sequence[int]) -> Array:
    """`steps` elements of each spatial axis from position `before` on; zero where `full` has none."""
    y = np.zeros((*full.shape[:2], *steps), full.dtype)
    source, target = [slice(None)] * 2, [slice(None)] * 2
    for size, begin, count in zip(full.shape[2:], before, steps, strict=True):
        low, high = max(0, begin), max(0, min(size, begin + count))
        source.append(slice(low, high))
        target.append(slice(low - begin, max(low, high) - begin))
    y[tuple(target)] = full[tuple(source)]
    return y


def _per_channel(parameter: Array, y: Array) -> Array:
    return parameter.reshape(-1, *[1] * (y.ndim - 2))


def _require_channels(x: Array, w: Array, does_fit: bool) -> None:
    if x.ndim != w.ndim or not does_fit:
        raise KernelError("the weights do not fit the channels", expected=list(x.shape), found=list(w.shape))


TABLE = {
    ("", "Conv"): conv,
    ("", "ConvInteger"): conv_integer,
    ("", "ConvTranspose"): conv_transpose,
    ("", "QLinearConv"): qlinear_conv,
}
