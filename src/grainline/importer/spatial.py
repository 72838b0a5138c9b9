"""How the window of a convolution or pool moves over the spatial axes, in closed form.

What runs on the host needs the extents of its result. With closed forms, two branches that convolve alike end in equal
extents, so what joins them is compiled; run-time symbols would leave that open. What is compiled needs the padding too.
"""

from __future__ import annotations

from dataclasses import dataclass

from grainline.base import dims
from grainline.base.dims import Extent
from grainline.base.errors import ModelError
from grainline.graph.ir import Shape
from grainline.importer.builder import Builder
from grainline.importer.call import Call

POOLS = frozenset({"MaxPool", "AveragePool", "LpPool"})
CONVOLUTIONS = frozenset({"Conv", "ConvInteger"})
PADDINGS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True)
class Windows:
    """One entry per spatial axis: `extents` taps, `dilations` apart, in `steps` windows, `strides` apart.

    `pads` is what the model adds before and after; None where only a run knows it.
    """

    sizes: Shape
    extents: tuple[Extent, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int] | None, ...]
    steps: tuple[Extent, ...]

    def span(self, axis: int) -> Extent:
        """How many elements a window covers, from its first tap to its last."""
        return (self.extents[axis] - 1) * self.dilations[axis] + 1


def closed_shape(b: Builder, call: Call) -> Shape | None:
    """The shape of every output of a convolution or pool; None where it has no closed form here."""
    if call.domain != "" or call.op_type not in POOLS | CONVOLUTIONS:
        return None
    x = call.input(0)
    if x.shape is None or len(x.shape) < 3:
        return None
    shape = b.shape(x)
    window: tuple[Extent, ...]
    if call.op_type in POOLS:
        channels, window = shape[1], call.integers("kernel_shape")
    else:
        weights = call.input(1)
        if weights.shape is None or len(weights.shape) != len(shape):
            return None
        channels, window = b.shape(weights)[0], b.shape(weights)[2:]
    windows = windows_of(b, call, shape[2:], window)
    return None if windows is None else (shape[0], channels, *windows.steps)


def windows_of(b: Builder, call: Call, sizes: Shape, extents: tuple[Extent, ...]) -> Windows | None:
    """The windows that the attributes describe over axes of these sizes; None where the attributes do not fit."""
    check_attributes(call, extents)
    rank = len(sizes)
    strides = call.integers("strides", (1,) * rank)
    dilations = call.integers("dilations", (1,) * rank)
    flat = call.integers("pads", (0,) * (2 * rank))
    if len(extents) != rank or len(strides) != rank or len(dilations) != rank or len(flat) != 2 * rank:
        return None
    if min((*strides, *dilations), default=1) < 1:
        return None
    padding = call.text("auto_pad", "NOTSET")
    steps: list[Extent] = []
    pads: list[tuple[int, int] | None] = []
    for axis, size in enumerate(sizes):
        span = (extents[axis] - 1) * dilations[axis] + 1
        around: tuple[int, int] | None = (flat[axis], flat[rank + axis]) if padding == "NOTSET" else (0, 0)
        if padding in ("SAME_UPPER", "SAME_LOWER"):
            steps.append(dims.ceil_div(size, strides[axis]))
            around = _same(size, span, strides[axis], is_upper=padding == "SAME_UPPER")
        else:
            assert around is not None
            steps.append(_steps(b, call, size, span, strides[axis], around))
        b.at_least(steps[axis], 0, "the input of a convolution or pool is smaller than its window")
        pads.append(around)
    return Windows(sizes, extents, strides, dilations, tuple(pads), tuple(steps))


def check_attributes(call: Call, extents: tuple[Extent, ...]) -> None:
    """ModelError for attributes that mean nothing, whatever the input is."""
    given = call.maybe_ints("kernel_shape")
    if given is not None and all(isinstance(extent, int) for extent in extents) and given != extents:
        raise ModelError("kernel_shape is not that of the weights", node=call.label, expected=extents, found=given)
    if call.text("auto_pad", "NOTSET") not in PADDINGS:
        raise ModelError("auto_pad is unknown", node=call.label, expected=PADDINGS, found=call.text("auto_pad"))
    for name in ("pads", "output_padding"):
        if min(call.integers(name, ()), default=0) < 0:
            raise ModelError(f"{name} is negative", node=call.label, found=call.integers(name))


def _same(size: Extent, span: Extent, stride: int, is_upper: bool) -> tuple[int, int] | None:
    """Padding that gives ceil(size / stride) steps; the odd one goes to the end (SAME_UPPER) or the beginning."""
    total = (dims.ceil_div(size, stride) - 1) * stride + span - size
    if not isinstance(total, int):
        return None
    small, large = max(0, total) // 2, max(0, total) - max(0, total) // 2
    return (small, large) if is_upper else (large, small)


def _steps(b: Builder, call: Call, size: Extent, span: Extent, stride: int, around: tuple[int, int]) -> Extent:
    room = size + sum(around) - span
    if not call.integer("ceil_mode", 0):
        return dims.floordiv(room, stride) + 1
    return _rounded_up(b, room, stride, size + around[0])


def _rounded_up(b: Builder, room: Extent, stride: int, end: Extent) -> Extent:
    """The steps in ceil_mode: a last window that would begin beyond the input and its first padding is left out. The
    inference of onnx counts it, so what is not a number here is left to the run."""
    if not (isinstance(room, int) and isinstance(end, int)):
        return dims.symbol(b.fresh_symbol("rt"))
    steps = -(-room // stride) + 1
    return steps - 1 if (steps - 1) * stride >= end else steps
