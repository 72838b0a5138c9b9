"""How a window moves over the spatial axes of an array: what convolutions and pools have in common.

A window of `extents` taps, `dilations` apart, moves by `strides` over axes that are padded by `before` and `after`.
`after` may exceed what the model says: ceil_mode rounds the number of steps up, and the last window then hangs over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grainline.base.errors import KernelError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Windows:
    """All tuples have one entry per spatial axis. `before` and `pads_after` are what the model declares as padding."""

    sizes: tuple[int, ...]
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    pads_after: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.sizes)

    def padded(self, x: Array, fill: Any) -> Array:
        """x: [N, C, *sizes] with `fill` around it, as far as a window reaches."""
        around = [(0, 0), (0, 0)]
        for axis, size in enumerate(self.sizes):
            reach = self._start(axis, self.steps[axis] - 1) + self._span(axis)
            around.append((self.before[axis], max(0, reach - size)))
        return np.pad(x, around, constant_values=fill) if any(map(any, around)) else x

    def of(self, padded: Array) -> Array:
        """[N, C, *steps, *extents]: a view of what each window holds."""
        if 0 in self.steps:
            return np.empty((*padded.shape[:2], *self.steps, *self.extents), padded.dtype)
        spans = tuple(self._span(axis) for axis in range(self.rank))
        view = np.lib.stride_tricks.sliding_window_view(padded, spans, axis=tuple(range(2, 2 + self.rank)))
        moves: tuple[Any, ...] = (*self._moves((0,) * self.rank), *[slice(None)] * self.rank)
        taps: tuple[Any, ...] = (..., *[slice(None, None, dilation) for dilation in self.dilations])
        return view[moves][taps]

    def taps(self, padded: Array) -> Iterator[tuple[tuple[int, ...], Array]]:
        """Each tap with what all windows hold there, [N, C, *steps], in row-major order."""
        for tap in np.ndindex(*self.extents):
            yield tap, padded[self._moves(tap)]

    def positions(self, axis: int, tap: int) -> Array:
        """[steps]: where this tap of each window lies on `axis` of the array that is not padded."""
        return np.arange(self.steps[axis]) * self.strides[axis] - self.before[axis] + tap * self.dilations[axis]

    def _moves(self, tap: tuple[int, ...]) -> tuple[Any, ...]:
        """The index of this tap in every window, over the last axes."""
        begins = [t * dilation for t, dilation in zip(tap, self.dilations, strict=True)]
        along = [
            slice(begin, begin + max(0, (steps - 1) * stride + 1), stride)
            for begin, steps, stride in zip(begins, self.steps, self.strides, strict=True)
        ]
        return (..., *along)

    def _span(self, axis: int) -> int:
        return _span(self.extents[axis], self.dilations[axis])

    def _start(self, axis: int, step: int) -> int:
        return step * self.strides[axis] - self.before[axis]


def _span(extent: int, dilation: int) -> int:
    """How many elements a window covers, from its first tap to its last."""
    return (extent - 1) * dilation + 1


def windows_of(call: Any, sizes: Sequence[int], extents: Sequence[int]) -> Windows:
    """The windows that the attributes of a convolution or pool describe over axes of these sizes."""
    rank = len(sizes)
    strides = per_axis(call, "strides", rank)
    dilations = per_axis(call, "dilations", rank)
    pads = call.get("pads") or [0] * (2 * rank)
    if len(extents) != rank or len(pads) != 2 * rank or min((*strides, *dilations, *extents), default=1) < 1:
        raise KernelError(
            "the window does not fit the input", expected=f"{rank} positive entries per attribute", found=list(extents)
        )
    padding = call.text("auto_pad", "NOTSET")
    before, after, steps = [], [], []
    for axis, size in enumerate(sizes):
        span = _span(extents[axis], dilations[axis])
        around = (pads[axis], pads[rank + axis]) if padding == "NOTSET" else (0, 0)
        if padding.startswith("SAME"):
            around = _same(size, span, strides[axis], is_upper=padding == "SAME_UPPER")
        before.append(around[0])
        after.append(around[1])
        steps.append(_steps(size, span, strides[axis], around, is_ceil=bool(call.get("ceil_mode", 0))))
    return Windows(tuple(sizes), tuple(extents), strides, dilations, tuple(before), tuple(after), tuple(steps))


def per_axis(call: Any, name: str, rank: int) -> tuple[int, ...]:
    """An attribute with one number per spatial axis, 1 when absent."""
    found = tuple(call.get(name) or (1,) * rank)
    if len(found) != rank:
        raise KernelError(f"the attribute {name} does not fit the input", expected=f"{rank} numbers", found=list(found))
    return found


def _same(size: int, span: int, stride: int, is_upper: bool) -> tuple[int, int]:
    """Padding that gives ceil(size / stride) steps; the odd one goes to the end (SAME_UPPER) or the beginning."""
    total = max(0, (-(-size // stride) - 1) * stride + span - size)
    small, large = total // 2, total - total // 2
    return (small, large) if is_upper else (large, small)


def _steps(size: int, span: int, stride: int, around: tuple[int, int], is_ceil: bool) -> int:
    room = size + sum(around) - span
    if room < 0:
        return 0
    if not is_ceil:
        return room // stride + 1
    steps = -(-room // stride) + 1
    starts_beyond = (steps - 1) * stride >= size + around[0]
    return steps - 1 if starts_beyond else steps
