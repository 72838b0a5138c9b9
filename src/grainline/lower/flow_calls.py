"""What control flow leaves to the host: values that are objects of Python, and facts that only the run knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from grainline.base.errors import KernelError


def same(value: Any) -> tuple[Any]:
    return (value.copy() if isinstance(value, np.ndarray) else value,)


def nothing() -> tuple[list[Any]]:
    return ([],)


def append(items: list[Any], item: Any) -> tuple[list[Any]]:
    return ([*items, item],)


def always_true() -> np.ndarray[Any, Any]:
    return np.array(True)


@dataclass(frozen=True)
class OneElement:
    what: str

    def __call__(self, value: Any) -> tuple[Any]:
        if value is None or np.size(value) != 1:
            raise KernelError(f"{self.what} is not one element", found=list(np.shape(value)))
        return (np.asarray(value).reshape(()),)


@dataclass(frozen=True)
class Length:
    """The extent of every array along its axis; one array more holds what it must be."""

    axes: tuple[int, ...]

    def __call__(self, *arrays: Any) -> tuple[Any]:
        found = {array.shape[axis] for array, axis in zip(arrays, self.axes, strict=False)}
        found.update(int(array[0]) for array in arrays[len(self.axes) :])
        if len(found) != 1:
            raise KernelError("scanned inputs have different lengths", found=sorted(found))
        return (np.array(found.pop(), np.int64),)


@dataclass(frozen=True)
class Take:
    axis: int
    is_backward: bool

    def __call__(self, source: Any, turn: Any) -> tuple[Any]:
        last = source.shape[self.axis] - 1
        return (np.take(source, last - int(turn) if self.is_backward else int(turn), axis=self.axis),)


@dataclass(frozen=True)
class Stack:
    axis: int
    is_backward: bool
    dtype: np.dtype[Any]
    empty: tuple[int, ...]

    def __call__(self, items: list[Any]) -> tuple[Any]:
        if len({np.shape(item) for item in items}) > 1:
            raise KernelError("what the turns of a loop collect has different shapes")
        if items:
            return (np.stack(items[::-1] if self.is_backward else items, axis=self.axis),)
        shape = list(self.empty)
        shape.insert(self.axis % (len(shape) + 1), 0)
        return (np.zeros(shape, self.dtype),)
