"""Operators with forms that the reference does not take, or takes without looking: NonMaxSuppression, OneHot, TopK, Pad
that cuts off."""

from __future__ import annotations

from typing import Any

import numpy as np

from grainline.base.errors import KernelError

Array = np.ndarray[Any, Any]


def non_max_suppression(call: Any) -> list[Any]:
    """int64[K, 3]: batch, class and box of the boxes that are kept, best first within a class.

    boxes: [N, B, 4], scores: [N, C, B]; no limit, or one of 0, keeps none.
    """
    boxes, scores = call.input(0), call.input(1)
    limit, overlap, threshold = (_scalar(call, index) for index in (2, 3, 4))
    if boxes.ndim != 3 or scores.ndim != 3 or boxes.shape[1:] != (scores.shape[2], 4):
        raise KernelError("the boxes do not fit the scores", expected=list(scores.shape), found=list(boxes.shape))
    kept = []
    for sample in range(scores.shape[0]):
        corners = _corners(boxes[sample], is_centred=bool(call.get("center_point_box", 0)))
        for kind in range(scores.shape[1]):
            chosen = _suppressed(corners, scores[sample, kind], int(limit or 0), overlap or 0.0, threshold)
            kept += [(sample, kind, box) for box in chosen]
    return [np.array(kept, np.int64).reshape(-1, 3)]


def _suppressed(corners: Array, scores: Array, limit: int, overlap: float, threshold: float | None) -> list[int]:
    order = np.argsort(-scores, kind="stable")
    if threshold is not None:
        order = order[scores[order] > threshold]
    chosen: list[int] = []
    while len(order) and len(chosen) < limit:
        best, order = int(order[0]), order[1:]
        chosen.append(best)
        order = order[_overlap(corners[best], corners[order]) <= overlap]
    return chosen


def _overlap(box: Array, others: Array) -> Array:
    """Intersection over union of one box with others; 0 for boxes without area."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    common = np.prod(np.maximum(high - low, 0), axis=1)
    areas = np.prod(others[:, 2:] - others[:, :2], axis=1)
    union = np.prod(box[2:] - box[:2]) + areas - common
    return np.where(union > 0, common / np.where(union > 0, union, 1), 0)


def _corners(boxes: Array, is_centred: bool) -> Array:
    """[B, 4]: the lower, then the upper corner, from two opposite corners or from centre and extents."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if is_centred:
        return np.concatenate([first - second / 2, first + second / 2], axis=1)
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=1)


def one_hot(call: Any) -> list[Any]:
    """values[1] where the new axis meets the index, which may count from the end, else values[0]."""
    indices, depth, values = call.arrays
    if depth.size != 1 or values.shape != (2,):
        raise KernelError("OneHot wants one depth and two values", found=[list(depth.shape), list(values.shape)])
    count = int(depth.reshape(()))
    axis = call.get("axis", -1)
    if count < 0 or not -indices.ndim - 1 <= axis <= indices.ndim:
        raise KernelError("OneHot has a negative depth or an axis out of range", found=[count, axis])
    axis %= indices.ndim + 1
    places = np.arange(count).reshape(-1, *[1] * (indices.ndim - axis))
    wanted = np.expand_dims(np.where(indices < 0, indices + count, indices), axis)
    return [np.where(wanted == places, values[1], values[0])]


def top_k(call: Any) -> list[Any]:
    """Checks how many are asked for; the reference chooses."""
    x, axis = call.input(0), call.get("axis", -1)
    k = int(call.get("k") if call.version < 10 else call.input(1).reshape(-1)[0])
    if not -x.ndim <= axis < x.ndim or not 0 <= k <= x.shape[axis]:
        raise KernelError("TopK asks for more than there is", expected=f"0 to {list(x.shape)} at {axis}", found=k)
    return NotImplemented


def pad(call: Any) -> list[Any]:
    """Cuts off where a padding is negative, and leaves the rest to the reference."""
    if call.version < 11:
        pads, fill, axes = call.get("pads"), call.get("value", 0), None
    else:
        pads, fill, axes = (call.input(index) for index in (1, 2, 3))
    x = call.input(0)
    axes = range(x.ndim) if axes is None else [int(axis) for axis in axes]
    if pads is None or len(pads) != 2 * len(axes) or min(pads, default=0) >= 0:
        return NotImplemented
    around = [(0, 0)] * x.ndim
    for index, axis in enumerate(axes):
        around[axis] = (int(pads[index]), int(pads[len(axes) + index]))
    if any(size + min(low, 0) + min(high, 0) < 0 for size, (low, high) in zip(x.shape, around, strict=True)):
        raise KernelError("Pad cuts off more than there is", expected=list(x.shape), found=around)
    x = x[tuple(slice(max(0, -low), size - max(0, -high)) for size, (low, high) in zip(x.shape, around, strict=True))]
    more = [(max(0, low), max(0, high)) for low, high in around]
    mode: Any = call.text("mode", "constant")
    if mode != "constant":
        return [np.pad(x, more, mode=mode)]
    return [np.pad(x, more, constant_values=np.asarray(0 if fill is None else fill, x.dtype).reshape(()))]


def _scalar(call: Any, index: int) -> float | None:
    given = call.input(index)
    return float(given.reshape(-1)[0]) if given is not None and given.size else None


TABLE = {
    ("", "NonMaxSuppression"): non_max_suppression,
    ("", "OneHot"): one_hot,
    ("", "Pad"): pad,
    ("", "TopK"): top_k,
}
