"""Extents of convolutions and pools in closed form.

The nodes themselves run on the host. With closed forms, two branches that convolve alike end in equal extents, so what
joins them is compiled; run-time symbols would leave that open.
"""

from __future__ import annotations

from grainline.base import dims
from grainline.base.dims import Extent
from grainline.graph.ir import Shape
from grainline.importer.builder import Builder
from grainline.importer.call import Call

POOLS = frozenset({"MaxPool", "AveragePool", "LpPool"})


def closed_shape(b: Builder, call: Call) -> Shape | None:
    """The shape of every output of a convolution or pool; None where it has no closed form here."""
    if call.domain != "" or call.op_type not in (*POOLS, "Conv", "ConvInteger"):
        return None
    x = call.input(0)
    if x.shape is None or len(x.shape) < 3:
        return None
    shape = b.shape(x)
    rank = len(shape) - 2
    window: tuple[Extent, ...]
    if call.op_type in POOLS:
        channels, window = shape[1], call.integers("kernel_shape")
    else:
        weights = call.input(1)
        if weights.shape is None or len(weights.shape) != rank + 2:
            return None
        channels, window = b.shape(weights)[0], b.shape(weights)[2:]
    if len(window) != rank:
        return None
    spatial = _spatial(b, call, shape[2:], window)
    return None if spatial is None else (shape[0], channels, *spatial)


def _spatial(b: Builder, call: Call, sizes: Shape, window: Shape) -> tuple[Extent, ...] | None:
    rank = len(sizes)
    strides = call.integers("strides", (1,) * rank)
    dilations = call.integers("dilations", (1,) * rank)
    pads = call.integers("pads", (0,) * (2 * rank))
    padding = call.text("auto_pad", "NOTSET")
    if len(strides) != rank or len(dilations) != rank or len(pads) != 2 * rank or min(strides, default=1) < 1:
        return None
    if padding in ("SAME_UPPER", "SAME_LOWER"):
        return tuple(dims.ceil_div(size, stride) for size, stride in zip(sizes, strides, strict=True))
    result: list[Extent] = []
    for axis, size in enumerate(sizes):
        around = pads[axis] + pads[rank + axis] if padding == "NOTSET" else 0
        covered = (window[axis] - 1) * dilations[axis] + 1
        if call.integer("ceil_mode", 0):
            result.append(_rounded_up(b, size, around - covered, strides[axis], size + pads[axis]))
        else:
            result.append(dims.floordiv(size + around - covered, strides[axis]) + 1)
    return tuple(result)


def _rounded_up(b: Builder, size: Extent, more: Extent, stride: int, end: Extent) -> Extent:
    """The steps in ceil_mode: a last window that would begin beyond the input and its first padding is left out. The
    inference of onnx counts it, so what is not a number here is left to the run."""
    if not (isinstance(size, int) and isinstance(more, int) and isinstance(end, int)):
        return dims.symbol(b.fresh_symbol("rt"))
    steps = -(-(size + more) // stride) + 1
    return steps - 1 if (steps - 1) * stride >= end else steps
