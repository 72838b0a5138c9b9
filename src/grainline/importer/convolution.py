"""Convolutions as matrix products and pools as pointwise work, both with the channels last.

x: [N, C, *sizes] is looked at as [N, *sizes, C]; what comes of it is turned back, and `sink_transposes` carries that to
where the next operator undoes it. A window is then rows of channels that lie next to each other:

* a convolution is a product [N, *steps, taps * C] @ [taps * C, M]. Where the rows of a window are long, only the taps
  of the last axis are one row, read where they lie, and the products of the others are summed; else all are gathered;
* a convolution of each channel by itself, and a pool, combine one slice of x per tap in one pass.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from math import prod

import numpy as np

from grainline.base.dims import Extent, product
from grainline.base.dtypes import F32
from grainline.base.errors import ModelError
from grainline.graph.ir import Value
from grainline.importer.builder import Builder, Decline
from grainline.importer.call import FLOATS, Call, only, only_given
from grainline.importer.elementwise import activated
from grainline.importer.linear import product_of
from grainline.importer.spatial import Windows, check_attributes, windows_of

Rule = Callable[[Builder, Call], list[Value | None]]

#: a row of a window that is shorter is not worth a product of its own
LONG_ROW = 16
#: fewer rows are not worth reading the weights of a product
FEW_ROWS = 12
#: slices that one pass combines
GREATEST_TAPS = 32


def conv(b: Builder, call: Call) -> list[Value | None]:
    """x: f32[N, C, *sizes], w: f32[M, C / group, *extents], bias: f32[M]"""
    return [_channels_first(b, _convolved(b, call))]


def fused_conv(b: Builder, call: Call) -> list[Value | None]:
    """com.microsoft: activation(conv(x, w, bias) + z)"""
    y, z = _convolved(b, call), call.optional(3)
    if z is not None:
        only(z, F32)
        y = b.binary("add", y, _channels_last(b, _shaped(b, z, _first(b.shape(y)))))
    return [_channels_first(b, activated(b, call, y, _parameters(call)))]


def _shaped(b: Builder, x: Value, shape: Sequence[Extent]) -> Value:
    """x, which must have this shape in every run"""
    if b.rank(x) != len(shape):
        raise Decline("what is added has another rank")
    for mine, other in zip(b.shape(x), shape, strict=True):
        b.equate(other, mine, "what is added to a convolution has another shape")
    return b.reshape(x, shape)


def _parameters(call: Call) -> dict[str, float]:
    given = call.attributes.get("activation_params")
    if given is None:
        return {}
    if given.type != FLOATS:
        raise ModelError("attribute 'activation_params' has the wrong type", node=call.label, expected="floats")
    names = ("min", "max") if call.text("activation", "") == "Clip" else ("alpha", "beta")
    return dict(zip(names, given.floats, strict=False))


def _convolved(b: Builder, call: Call) -> Value:
    """The result with its channels last."""
    x, w, bias = call.input(0), call.input(1), call.optional(2)
    only_given((x, w, bias), F32)
    shape, weights, groups = b.shape(x), b.shape(w), call.integer("group", 1)
    if len(shape) < 3 or len(weights) != len(shape):
        raise Decline("operands of these ranks are not compiled for a convolution")
    if not all(isinstance(extent, int) and extent > 0 for extent in weights):
        raise Decline("the shape of the weights is only known at run time")
    b.equate(shape[1], weights[1] * groups, "the weights of a convolution do not fit its channels")
    if groups < 1 or weights[0] % groups:
        raise Decline("the results do not divide into groups")
    if bias is not None:
        b.vector(bias, weights[0])
    windows = _windows(b, call, shape[2:], weights[2:])
    padded = _padded(b, _channels_last(b, x), windows, 0.0)
    if groups == 1:
        y = _product(b, padded, w, windows)
    elif weights[:2] == (groups, 1) and prod(weights[2:]) <= GREATEST_TAPS:
        y = _by_channel(b, padded, w, windows)
    else:
        y = _by_group(b, padded, w, windows, groups)
    return y if bias is None else b.binary("add", y, bias)


def _windows(b: Builder, call: Call, sizes: Sequence[Extent], extents: Sequence[Extent]) -> Windows:
    found = windows_of(b, call, tuple(sizes), tuple(extents))
    if found is None:
        raise Decline("the attributes do not fit the input")
    if None in found.pads or (call.integer("ceil_mode", 0) and not all(isinstance(step, int) for step in found.steps)):
        raise Decline("only a run knows the padding")
    if any(isinstance(step, int) and step < 1 for step in found.steps):
        raise Decline("the input is smaller than a window")
    return found


def _channels_last(b: Builder, x: Value) -> Value:
    rank = b.rank(x)
    return b.transpose(x, (0, *range(2, rank), 1))


def _first(shape: Sequence[Extent]) -> tuple[Extent, ...]:
    """[N, *sizes, C] -> [N, C, *sizes]"""
    return (shape[0], shape[-1], *shape[1:-1])


def _channels_first(b: Builder, x: Value) -> Value:
    rank = b.rank(x)
    return b.transpose(x, (0, rank - 1, *range(1, rank - 1)))


def _padded(b: Builder, x: Value, windows: Windows, value: float) -> Value:
    """x: [N, *sizes, C] with `value` around it, as far as a window reaches."""
    around = []
    for axis, pads in enumerate(windows.pads):
        assert pads is not None, "padding that is known"
        size, step = windows.sizes[axis], windows.steps[axis]
        reach = (step - 1) * windows.strides[axis] + windows.span(axis) - pads[0] - size
        around.append((pads[0], max(pads[1], reach) if isinstance(reach, int) else pads[1]))
    if not any(map(any, around)):
        return x
    shape = b.shape(x)
    spatial = (low + extent + high for (low, high), extent in zip(around, shape[1:-1], strict=True))
    before = (0, *(low for low, _ in around), 0)
    return b.emit("pad", (x,), x.dtype, (shape[0], *spatial, shape[-1]), before=before, value=value)


def _tap(b: Builder, x: Value, windows: Windows, tap: Sequence[int | None]) -> Value:
    """What all windows hold at this tap, [N, *steps, C]. An axis whose tap is None stays as it is."""
    shape = b.shape(x)
    starts, lengths, strides = [0], [shape[0]], [1]
    for axis, at in enumerate(tap):
        starts.append(0 if at is None else at * windows.dilations[axis])
        lengths.append(shape[1 + axis] if at is None else windows.steps[axis])
        strides.append(1 if at is None else windows.strides[axis])
    return b.slice(x, (*starts, 0), (*lengths, shape[-1]), (*strides, 1))


def _product(b: Builder, x: Value, w: Value, windows: Windows) -> Value:
    """x: [N, *sizes, C], w: [M, C, *extents] -> [N, *steps, M]"""
    columns, channels, *extents = (int(extent) for extent in b.shape(w))  # type: ignore[arg-type]
    rank = len(extents)
    gathered = _gathered(channels, extents, windows.steps[-1])
    last = b.transpose(w, (*range(2, 2 + rank), 1, 0))
    terms = []
    for tap in itertools.product(*((None,) if axis in gathered else range(extents[axis]) for axis in range(rank))):
        rows = _rows(b, _tap(b, x, windows, tap), windows, gathered)
        starts = [0 if at is None else at for at in tap]
        lengths = [extents[axis] if at is None else 1 for axis, at in enumerate(tap)]
        part = b.slice(last, (*starts, 0, 0), (*lengths, channels, columns), (1,) * (rank + 2))
        terms.append(product_of(b, rows, b.reshape(part, (prod(lengths) * channels, columns))))
    return reduce(lambda total, term: b.binary("add", term, total), terms)


def _gathered(channels: int, extents: Sequence[int], steps: Extent) -> frozenset[int]:
    """The axes whose taps make one row of a product. Gathering all copies each window, but makes one product of many
    rows; without it the rows of each product are only the `steps` of the last axis, and the weights are read for each.
    """
    axes = frozenset(axis for axis, extent in enumerate(extents) if extent > 1)
    has_few_rows = isinstance(steps, int) and steps < FEW_ROWS
    return axes if extents[-1] * channels < LONG_ROW or has_few_rows else axes & {len(extents) - 1}


def _rows(b: Builder, x: Value, windows: Windows, gathered: frozenset[int]) -> Value:
    """[N, *steps, taps * C]: the gathered taps of each window, and the channels, as one row."""
    turned, rank = _windowed(b, x, windows, gathered), len(windows.sizes)
    shape = b.shape(turned)
    return b.reshape(turned, (*shape[: 1 + rank], product(shape[1 + rank :])))


def _windowed(b: Builder, x: Value, windows: Windows, gathered: frozenset[int]) -> Value:
    """[N, *steps, *taps, C], with the gathered taps alone"""
    rank = len(windows.sizes)
    for count, axis in enumerate(sorted(gathered)):
        at, shape = 1 + axis + count, b.shape(x)
        new = (*shape[:at], windows.steps[axis], windows.extents[axis], *shape[at + 1 :])
        x = b.emit("windows", (x,), x.dtype, new, axis=at, step=windows.strides[axis], dilation=windows.dilations[axis])
    places = [1 + axis + sum(other < axis for other in gathered) for axis in range(rank)]
    taps = [places[axis] + 1 for axis in sorted(gathered)]
    return b.transpose(x, (0, *places, *taps, b.rank(x) - 1))


def _by_group(b: Builder, x: Value, w: Value, windows: Windows, groups: int) -> Value:
    """x: [N, *sizes, groups * C], w: [groups * M, C, *extents] -> [N, *steps, groups * M]: one product per group."""
    results, channels, *extents = (int(extent) for extent in b.shape(w))  # type: ignore[arg-type]
    rank, columns = len(extents), results // groups
    gathered = frozenset(axis for axis, extent in enumerate(extents) if extent > 1)
    tap = [None if axis in gathered else 0 for axis in range(rank)]
    rows = _windowed(b, _tap(b, x, windows, tap), windows, gathered)
    split = b.reshape(rows, (*b.shape(rows)[:-1], groups, channels))
    last = b.rank(split) - 2
    rows = b.transpose(split, (last, *range(last), last + 1))
    width = prod(extents) * channels
    rows = b.reshape(rows, (*b.shape(rows)[: 2 + rank], width))
    parts = b.reshape(w, (groups, columns, channels, *extents))
    parts = b.reshape(b.transpose(parts, (0, *range(3, 3 + rank), 2, 1)), (groups, *[1] * rank, width, columns))
    y = b.transpose(product_of(b, rows, parts), (*range(1, 2 + rank), 0, 2 + rank))
    return b.reshape(y, (*b.shape(y)[: 1 + rank], results))


def _taps(b: Builder, x: Value, windows: Windows) -> Iterator[tuple[tuple[int, ...], Value]]:
    extents = [int(extent) for extent in windows.extents]  # type: ignore[arg-type]
    if prod(extents) > GREATEST_TAPS:
        raise Decline(f"windows of more than {GREATEST_TAPS} elements are not compiled")
    for tap in itertools.product(*map(range, extents)):
        yield tap, _tap(b, x, windows, tap)


def _by_channel(b: Builder, x: Value, w: Value, windows: Windows) -> Value:
    """x: [N, *sizes, C], w: [C, 1, *extents] -> [N, *steps, C]"""
    rank, channels = len(windows.sizes), b.shape(w)[0]
    last = b.reshape(b.transpose(w, (*range(1, 2 + rank), 0)), (*windows.extents, channels))
    total = None
    for tap, values in _taps(b, x, windows):
        part = b.reshape(b.slice(last, (*tap, 0), (*[1] * rank, channels), [1] * (rank + 1)), (channels,))
        term = b.binary("mul", values, part)
        total = term if total is None else b.binary("add", total, term)
    assert total is not None, "a window has taps"
    return total


def conv_transpose(b: Builder, call: Call) -> list[Value | None]:
    """x: f32[N, C, *sizes], w: f32[C, M, *extents], bias: f32[M]: each element of x adds its window to the result.

    The taps are taken in blocks of `strides`: those of one block meet nowhere, so its product is a part of the result,
    and the blocks are added, each moved on by its strides.
    """
    x, w, bias = call.input(0), call.input(1), call.optional(2)
    only_given((x, w, bias), F32)
    shape, weights = b.shape(x), b.shape(w)
    rank = len(shape) - 2
    if rank < 1 or len(weights) != len(shape) or not all(isinstance(extent, int) for extent in weights):
        raise Decline("operands of these shapes are not compiled for a transposed convolution")
    check_attributes(call, weights[2:])
    strides = call.integers("strides", (1,) * rank)
    extra = call.integers("output_padding", (0,) * rank)
    pads = call.integers("pads", (0,) * (2 * rank))
    if call.integer("group", 1) != 1 or max(call.integers("dilations", (1,))) > 1 or call.has("output_shape"):
        raise Decline("groups, dilations and a wanted shape are not compiled for a transposed convolution")
    if call.text("auto_pad", "NOTSET") != "NOTSET" or not len(strides) == len(extra) == rank == len(pads) // 2:
        raise Decline("only a run knows the padding")
    b.equate(shape[1], weights[0], "the weights of a transposed convolution do not fit its channels")
    if bias is not None:
        b.vector(bias, weights[1])
    y = _spread(b, _channels_last(b, x), w, strides, extra)
    starts = (0, *pads[:rank], 0)
    lengths = [
        (size - 1) * stride + int(extent) + more - pads[axis] - pads[rank + axis]
        for axis, (size, stride, extent, more) in enumerate(zip(shape[2:], strides, weights[2:], extra, strict=True))
    ]
    if any(isinstance(length, int) and length < 1 for length in lengths):
        raise Decline("the padding leaves nothing of a transposed convolution")
    y = b.slice(y, starts, (shape[0], *lengths, b.shape(y)[-1]), (1,) * (rank + 2))
    return [_channels_first(b, y if bias is None else b.binary("add", y, bias))]


def _spread(b: Builder, x: Value, w: Value, strides: Sequence[int], extra: Sequence[int]) -> Value:
    """The whole result, [N, *((sizes + blocks - 1) * strides + extra), M], of x: [N, *sizes, C]."""
    batch, *sizes, channels = b.shape(x)
    _, columns, *extents = (int(extent) for extent in b.shape(w))  # type: ignore[arg-type]
    rank = len(sizes)
    blocks = [-(-extent // stride) for extent, stride in zip(extents, strides, strict=True)]
    taps = [count * stride for count, stride in zip(blocks, strides, strict=True)]
    if taps != extents:
        w = b.emit("pad", (w,), F32, (channels, columns, *taps), before=(0,) * (rank + 2), value=0.0)
    whole = [
        (size + count - 1) * stride + more
        for size, count, stride, more in zip(sizes, blocks, strides, extra, strict=True)
    ]
    turn = (0, *(axis for pair in range(1, rank + 1) for axis in (pair, pair + rank)), 2 * rank + 1)
    terms = []
    for block in itertools.product(*map(range, blocks)):
        begins = [at * stride for at, stride in zip(block, strides, strict=True)]
        part = b.slice(w, (0, 0, *begins), (channels, columns, *strides), (1,) * (rank + 2))
        part = b.reshape(b.transpose(part, (0, *range(2, rank + 2), 1)), (channels, prod(strides) * columns))
        y = b.transpose(b.reshape(product_of(b, x, part), (batch, *sizes, *strides, columns)), turn)
        spread = [size * stride for size, stride in zip(sizes, strides, strict=True)]
        y = b.reshape(y, (batch, *spread, columns))
        if spread != whole:
            y = b.emit("pad", (y,), F32, (batch, *whole, columns), before=(0, *begins, 0), value=0.0)
        terms.append(y)
    return reduce(lambda total, term: b.binary("add", total, term), terms)


def max_pool(b: Builder, call: Call) -> list[Value | None]:
    """The largest element of each window; padding never wins."""
    if call.wants(1):
        raise Decline("the positions of MaxPool are not compiled")
    x, windows = _pooled(b, call)
    padded = _padded(b, _channels_last(b, x), windows, -math.inf)
    y = reduce(lambda left, right: b.binary("max", left, right), (values for _, values in _taps(b, padded, windows)))
    return [_channels_first(b, y)]


def average_pool(b: Builder, call: Call) -> list[Value | None]:
    """The mean of each window over the elements inside the input, or inside its padding with count_include_pad."""
    x, windows = _pooled(b, call)
    padded = _padded(b, _channels_last(b, x), windows, 0.0)
    total = reduce(
        lambda left, right: b.binary("add", left, right), (values for _, values in _taps(b, padded, windows))
    )
    counts = _counts(windows, bool(call.integer("count_include_pad", 0)))
    return [_channels_first(b, b.binary("div", total, b.literal(counts[..., None], F32)))]


def _pooled(b: Builder, call: Call) -> tuple[Value, Windows]:
    x = call.input(0)
    only(x, F32)
    shape = b.shape(x)
    if len(shape) < 3:
        raise Decline("a pool without spatial axes is not compiled")
    return x, _windows(b, call, shape[2:], call.integers("kernel_shape"))


def _counts(windows: Windows, is_padding_counted: bool) -> np.ndarray:
    """How many elements each window holds, [*steps], or one number where all hold as many."""
    counts = np.ones((), np.float32)
    for axis, pads in enumerate(windows.pads):
        assert pads is not None, "padding that is known"
        size, steps, taps = windows.sizes[axis], windows.steps[axis], windows.extents[axis]
        if isinstance(size, int) and isinstance(steps, int):
            low, high = (-pads[0], size + pads[1]) if is_padding_counted else (0, size)
            first = np.arange(steps) * windows.strides[axis] - pads[0]
            places = first[:, None] + np.arange(taps) * windows.dilations[axis]
            along = np.maximum(((places >= low) & (places < high)).sum(1), 1)
        elif is_padding_counted or not any(pads):
            along = np.array([taps])
        else:
            raise Decline("only a run knows how many elements a window holds")
        counts = counts[..., None] * along.astype(np.float32)
    return counts


#: (domain, operator) -> rows of (first opset, rule); a row holds until the next one begins
TABLE: dict[tuple[str, str], list[tuple[int, Rule]]] = {
    ("", "Conv"): [(1, conv)],
    ("", "ConvTranspose"): [(1, conv_transpose)],
    ("", "MaxPool"): [(1, max_pool)],
    ("", "AveragePool"): [(1, average_pool)],
    ("com.microsoft", "FusedConv"): [(1, fused_conv)],
}
