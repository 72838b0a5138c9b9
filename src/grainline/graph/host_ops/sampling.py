"""Operators that read an image between its pixels: the first forms of Resize and Upsample, and GridSample.

The reference has no old Resize, no fractional Upsample, and samples a grid point by point in Python.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from grainline.base.errors import KernelError

Array = np.ndarray[Any, Any]

#: of the cubic convolution, as the standard fixes it for GridSample
CUBIC_A = -0.75
#: operator sets up to 15 call the modes after two dimensions
GRID_MODES = {"bilinear": "linear", "bicubic": "cubic"}


def upsample(call: Any) -> list[Any]:
    """Also Resize up to operator set 10: output element o of an axis reads position o / scale, and the nearest element
    is the one before it, or behind it where the axis becomes shorter."""
    if call.version > 10:
        return NotImplemented
    x, scales = call.input(0), call.get("scales")
    scales = np.asarray(call.input(1) if scales is None else scales, np.float64)
    mode = call.text("mode", "nearest")
    if scales.shape != (x.ndim,) or not (scales > 0).all() or mode not in ("nearest", "linear"):
        raise KernelError("cannot resize like this", expected=f"{x.ndim} positive scales", found=f"{scales}, {mode}")
    y = x
    for axis, scale in enumerate(np.asarray(scales, np.float32)):
        if scale == 1:
            continue
        last = x.shape[axis] - 1
        at = np.arange(int(np.floor(np.float32(x.shape[axis]) * scale)), dtype=np.float32) / scale
        is_behind = mode == "nearest" and scale < 1
        low = np.minimum((np.ceil(at) if is_behind else np.floor(at)).astype(np.intp), last)
        y_low = np.take(y, low, axis=axis)
        if mode == "linear":
            share = (at - low).astype(x.dtype).reshape(-1, *[1] * (x.ndim - 1 - axis))
            y = y_low + (np.take(y, np.minimum(low + 1, last), axis=axis) - y_low) * share
        else:
            y = y_low
    return [y.astype(x.dtype, copy=False)]


def grid_sample(call: Any) -> list[Any]:
    """y[n, c, *o] = x[n, c] at grid[n, *o], whose entries name the last axis first and run from -1 to 1.

    x: [N, C, *sizes], grid: [N, *O, rank].
    """
    x, grid = call.input(0), call.input(1)
    sizes, is_aligned = x.shape[2:], bool(call.get("align_corners", 0))
    mode = call.text("mode", "linear")
    mode, padding = GRID_MODES.get(mode, mode), call.text("padding_mode", "zeros")
    if grid.shape[0] != x.shape[0] or grid.shape[-1] != len(sizes) or grid.ndim != x.ndim:
        raise KernelError("the grid does not fit the input", expected=list(x.shape), found=list(grid.shape))
    taps = []
    for axis, size in enumerate(sizes):
        at = grid[..., len(sizes) - 1 - axis].astype(np.float64)
        at = (at + 1) / 2 * (size - 1) if is_aligned else ((at + 1) * size - 1) / 2
        taps.append(_taps(np.nan_to_num(at), mode))
    y = np.zeros((x.shape[0], x.shape[1], *grid.shape[1:-1]), np.float64)
    samples = np.arange(x.shape[0]).reshape(-1, *[1] * len(sizes))
    for combination in product(*taps):
        index, is_seen, weight = [], np.array(True), np.array(1.0)
        for (position, share), size in zip(combination, sizes, strict=True):
            inside, seen = _folded(position, size, padding, is_aligned)
            index.append(inside)
            is_seen, weight = is_seen & seen, weight * share
        values = x[(samples, slice(None), *index)]  # [N, *O, C]: advanced indices around a slice come first
        y += np.moveaxis(values, -1, 1) * np.broadcast_to(np.where(is_seen, weight, 0), grid.shape[:-1])[:, None]
    return [y.astype(x.dtype)]


def _taps(at: Array, mode: str) -> list[tuple[Array, Any]]:
    """The pixels around each position along one axis, with their weights."""
    if mode == "nearest":
        return [(np.rint(at).astype(np.int64), 1.0)]
    low = np.floor(at)
    share, low = at - low, low.astype(np.int64)
    if mode == "linear":
        return [(low, 1 - share), (low + 1, share)]
    if mode != "cubic":
        raise KernelError("cannot sample like this", expected="nearest, linear or cubic", found=mode)
    return [(low + tap, _cubic(np.abs(share - tap))) for tap in (-1, 0, 1, 2)]


def _cubic(far: Array) -> Array:
    near = ((CUBIC_A + 2) * far - (CUBIC_A + 3)) * far * far + 1
    return np.where(far <= 1, near, ((CUBIC_A * far - 5 * CUBIC_A) * far + 8 * CUBIC_A) * far - 4 * CUBIC_A)


def _folded(position: Array, size: int, padding: str, is_aligned: bool) -> tuple[Array, Array]:
    """A pixel inside the axis for each position, and whether it counts."""
    if padding == "reflection":
        period = max(1, 2 * (size - 1) if is_aligned else 2 * size)
        position = position % period
        mirrored = period - position if is_aligned else period - 1 - position
        return np.clip(np.where(position < size, position, mirrored), 0, size - 1), np.array(True)
    if padding not in ("zeros", "border"):
        raise KernelError("cannot pad like this", expected="zeros, border or reflection", found=padding)
    is_inside = (position >= 0) & (position < size)
    return np.clip(position, 0, size - 1), is_inside if padding == "zeros" else np.array(True)


TABLE = {("", "Upsample"): upsample, ("", "Resize"): upsample, ("", "GridSample"): grid_sample}
