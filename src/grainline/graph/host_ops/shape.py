"""Reshape, Slice and Split whose target only a run knows."""

from __future__ import annotations

from typing import Any

import numpy as np

from grainline.base.errors import KernelError
from grainline.base.slicing import picked


def reshape(call: Any) -> list[Any]:
    """0 copies the input's extent unless allowzero; one -1 takes the rest; nothing else may be negative."""
    x = call.input(0)
    target = call.input(1).tolist() if call.input(1) is not None else list(call.get("shape", []))
    allow_zero = call.get("allowzero", 0)
    if allow_zero and 0 in target and -1 in target:
        raise KernelError("Reshape with allowzero has both 0 and -1", found=target)
    if any(extent < -1 for extent in target) or target.count(-1) > 1:
        raise KernelError("Reshape has a negative extent, or leaves more than one open", found=target)
    if not allow_zero:
        if any(extent == 0 and axis >= x.ndim for axis, extent in enumerate(target)):
            raise KernelError("Reshape copies an axis that its input lacks", expected=list(x.shape), found=target)
        target = [x.shape[axis] if extent == 0 else extent for axis, extent in enumerate(target)]
    if -1 in target:
        taken = int(np.prod([extent for extent in target if extent != -1], dtype=np.int64))
        if taken == 0 or x.size % taken:
            raise KernelError("Reshape cannot fill the open extent", expected=f"a multiple of {taken}", found=x.size)
        target = [x.size // taken if extent == -1 else extent for extent in target]
    return [x.reshape(target)]


def slice_(call: Any) -> list[Any]:
    """start:end:step along each of `axes`, by default the first ones."""
    x = call.input(0)
    if call.version < 10:
        starts, ends, axes, steps = call.get("starts"), call.get("ends"), call.get("axes"), None
    else:
        starts, ends, axes, steps = (None if call.input(i) is None else call.input(i).tolist() for i in range(1, 5))
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise KernelError("Slice has different numbers of starts, ends, axes and steps")
    if 0 in steps or any(not -x.ndim <= axis < x.ndim for axis in axes):
        raise KernelError(
            "Slice has a step of 0, or an axis that its input lacks", expected=f"rank {x.ndim}", found=axes
        )
    index = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps):
        index[axis] = picked(x.shape[axis], start, end, step)
    return [x[tuple(index)]]


def split(call: Any) -> list[Any]:
    """Parts along `axis` of the given extents, which fill it; without them equal ones, the last perhaps shorter."""
    x, count = call.input(0), len(call.node.outputs)
    axis = call.get("axis", 0)
    if not -x.ndim <= axis < x.ndim:
        raise KernelError("an axis is out of range", expected=f"[{-x.ndim}, {x.ndim})", found=axis)
    size = x.shape[axis]
    extents = call.get("split") if call.version < 13 else call.input(1)
    if extents is None:
        if call.version < 18 and size % count:
            raise KernelError("Split does not divide the axis", expected=f"a multiple of {count}", found=size)
        piece = -(-size // count)
        extents = [max(0, min(piece, size - piece * index)) for index in range(count)]
    extents = [int(extent) for extent in extents]
    if len(extents) != count or min(extents) < 0 or sum(extents) != size:
        raise KernelError("the parts of Split do not fill the axis", expected=f"{count} parts of {size}", found=extents)
    ends = np.cumsum([0, *extents])
    along = (slice(None),) * (axis % x.ndim)
    return [x[(*along, slice(begin, end))] for begin, end in zip(ends, ends[1:])]


def identity(call: Any) -> list[Any]:
    return [call.input(0)]


TABLE = {("", "Reshape"): reshape, ("", "Slice"): slice_, ("", "Split"): split, ("", "Identity"): identity}
