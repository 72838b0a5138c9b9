"""The gather and scatter families: negative indices count from the end, an index outside is an error, and updates are
applied in order, so the same input always gives the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from grainline.base.errors import KernelError
from grainline.graph.primitives import inside

Array = np.ndarray[Any, Any]


def gather(call: Any) -> list[Any]:
    data, indices = call.arrays
    axis = _axis(call, data.ndim)
    return [np.take(data, inside(indices, data.shape[axis]), axis=axis)]


def gather_elements(call: Any) -> list[Any]:
    """out[i][j] = data[index[i][j]][j]; the indices may be shorter than the data along other axes."""
    data, indices = call.arrays
    axis = _axis(call, data.ndim)
    return [data[_element_index(data, indices, axis)]]


def _element_index(data: Array, indices: Array, axis: int) -> tuple[Array, ...]:
    if indices.ndim != data.ndim or any(
        short > long for a, (short, long) in enumerate(zip(indices.shape, data.shape, strict=True)) if a != axis
    ):
        raise KernelError("the indices do not fit the data", expected=list(data.shape), found=list(indices.shape))
    grid: list[Any] = list(np.indices(indices.shape, sparse=True))
    grid[axis] = inside(indices, data.shape[axis])
    return tuple(np.broadcast_arrays(*grid)) if grid else ()


def gather_nd(call: Any) -> list[Any]:
    data, indices = call.arrays
    batch = call.get("batch_dims", 0)
    depth = indices.shape[-1]
    if not 1 <= depth <= data.ndim - batch or data.shape[:batch] != indices.shape[:batch]:
        raise KernelError("the indices do not fit the data", expected=list(data.shape), found=list(indices.shape))
    grid = np.indices(indices.shape[:batch], sparse=True) if batch else ()
    leading = [part.reshape(*part.shape, *[1] * (indices.ndim - 1 - batch)) for part in grid]
    parts = [inside(indices[..., p], data.shape[batch + p]) for p in range(depth)]
    return [data[(*leading, *parts)]]


_UPDATES: dict[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def _update(result: Array, index: Any, updates: Array, reduction: str) -> None:
    """Applies updates one after the other in row-major order."""
    if reduction == "none":
        result[index] = updates
    else:
        _UPDATES[reduction].at(result, index, updates)


def scatter_elements(call: Any) -> list[Any]:
    data, indices, updates = call.arrays
    if indices.shape != updates.shape:
        raise KernelError(
            "indices and updates differ in shape", expected=list(indices.shape), found=list(updates.shape)
        )
    axis = _axis(call, data.ndim)
    result = np.array(data)
    _update(result, _element_index(data, indices, axis), updates, call.text("reduction", "none"))
    return [result]


def scatter_nd(call: Any) -> list[Any]:
    data, indices, updates = call.arrays
    depth = indices.shape[-1]
    expected = (*indices.shape[:-1], *data.shape[depth:])
    if depth > data.ndim or updates.shape != expected:
        raise KernelError("the updates do not fit the indices", expected=list(expected), found=list(updates.shape))
    result = np.array(data)
    parts = tuple(inside(indices[..., p], data.shape[p]) for p in range(depth))
    if depth == 0:
        for update in updates.reshape(-1, *data.shape):
            _update(result, ..., update, call.text("reduction", "none"))
        return [result]
    _update(result, parts, updates, call.text("reduction", "none"))
    return [result]


def _axis(call: Any, rank: int) -> int:
    axis = call.get("axis", 0)
    if not -rank <= axis < rank:
        raise KernelError("an axis is out of range", expected=f"[{-rank}, {rank})", found=axis)
    return axis % rank


TABLE = {
    ("", "Gather"): gather,
    ("", "GatherElements"): gather_elements,
    ("", "GatherND"): gather_nd,
    ("", "Scatter"): scatter_elements,
    ("", "ScatterElements"): scatter_elements,
    ("", "ScatterND"): scatter_nd,
}
