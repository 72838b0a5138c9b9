"""Resize and Upsample by whole factors.

To the nearest element: each element is shown several times, which is a view. Linear: one axis after the other, each
element between two that are gathered, with the channels last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grainline.base.dims import Extent, exact_div
from grainline.base.dtypes import F32, I64
from grainline.graph.ir import Value
from grainline.importer.builder import Builder, Decline
from grainline.importer.call import Call, axes_of, only
from grainline.importer.shape import MOVABLE, known

Rule = Callable[[Builder, Call], list[Value | None]]

#: (coordinate_transformation_mode, nearest_mode) under which element o of a larger axis is element o // factor
WHOLE = frozenset(
    {("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil"),
     ("pytorch_half_pixel", "round_prefer_floor"), ("half_pixel_symmetric", "round_prefer_floor")}
)  # fmt: skip


#: coordinate_transformation_mode -> what a position is moved by before and after it is divided
OFFSETS = {"asymmetric": 0.0, "half_pixel": 0.5, "pytorch_half_pixel": 0.5}


def resize(b: Builder, call: Call) -> list[Value | None]:
    """Since opset 11: inputs x, roi, scales, sizes; before: x, scales."""
    x = call.input(0)
    only(x, *MOVABLE)
    mode = call.text("mode", "nearest")
    if mode not in ("nearest", "linear"):
        raise Decline(f"resizing by {mode} interpolation is not compiled")
    if call.version < 11:
        factors = _scales(b, call, 1, b.rank(x))
        return [_repeated(b, x, factors) if mode == "nearest" else _interpolated(b, x, factors, 0.0)]
    way = call.text("coordinate_transformation_mode", "half_pixel")
    factors = _factors(b, call, x)
    if mode == "linear" and way in OFFSETS and not call.integer("exclude_outside", 0):
        return [_interpolated(b, x, factors, OFFSETS[way])]
    if mode == "linear" or (way, call.text("nearest_mode", "round_prefer_floor")) not in WHOLE:
        raise Decline("this way of finding positions is not compiled")
    return [_repeated(b, x, factors)]


def _factors(b: Builder, call: Call, x: Value) -> list[int]:
    """By axis, since opset 11"""
    shape = b.shape(x)
    axes = axes_of(call, call.integers("axes", tuple(range(len(shape)))), len(shape))
    if call.integer("antialias", 0):
        raise Decline("resizing without aliasing is not compiled")
    sizes = call.optional(3)
    if sizes is None or b.shape(sizes) == (0,):
        found = _scales(b, call, 2, len(axes))
    elif call.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Decline("sizes that are only a bound are not compiled")
    else:
        wanted = known(b, call, 3, "size")
        found = [_factor(exact_div(size, shape[axis])) for size, axis in zip(wanted, axes, strict=True)]
    factors = dict(zip(axes, found, strict=True))
    return [factors.get(axis, 1) for axis in range(len(shape))]


def _scales(b: Builder, call: Call, index: int, count: int) -> list[int]:
    data = b.static(call.optional(index))
    scales = list(call.attributes["scales"].floats) if call.has("scales") else None if data is None else data.tolist()
    if scales is None or len(scales) != count:
        raise Decline("the scales are only known at run time")
    return [_factor(int(scale) if scale == int(scale) else None) for scale in scales]


def _factor(found: Extent | None) -> int:
    if not isinstance(found, int) or found < 1:
        raise Decline("only resizing by whole factors is compiled")
    return found


def _repeated(b: Builder, x: Value, factors: Sequence[int]) -> Value:
    """Each element of an axis `factor` times in a row"""
    shape = b.shape(x)
    if all(factor == 1 for factor in factors):
        return x
    pairs = list(zip(shape, factors, strict=True))
    apart = b.reshape(x, [extent for size, _ in pairs for extent in (size, 1)])
    wide = b.expand(apart, [extent for pair in pairs for extent in pair])
    return b.reshape(wide, [size * factor for size, factor in pairs])


def _interpolated(b: Builder, x: Value, factors: Sequence[int], offset: float) -> Value:
    """Element o of a larger axis lies at (o + offset) / factor - offset between two elements of x."""
    only(x, F32)
    rank = b.rank(x)
    if rank < 3 or factors[0] != 1 or factors[1] != 1:
        raise Decline("only spatial axes are interpolated")
    y = b.transpose(x, (0, *range(2, rank), 1))
    for axis, factor in enumerate(factors[2:], start=1):
        if factor != 1:
            y = _between(b, y, axis, factor, offset)
    return b.transpose(y, (0, rank - 1, *range(1, rank - 1)))


def _between(b: Builder, x: Value, axis: int, factor: int, offset: float) -> Value:
    shape = b.shape(x)
    size = shape[axis]
    index = b.cast(b.emit("iota", (), I64, (size * factor,), start=0, step=1, axis=0), F32)
    at = b.with_scalar("sub", b.with_scalar("div", b.with_scalar("add", index, offset), float(factor)), offset)
    low = b.unary("floor", at)
    share = b.reshape(b.binary("sub", at, low), (size * factor, *[1] * (len(shape) - 1 - axis)))
    last = b.number(size - 1)
    sides = []
    for more in range(2):
        place = b.cast(b.with_scalar("add", low, float(more)), I64)
        place = b.binary("min", b.binary("max", place, b.literal(0, I64)), last)
        new = (*shape[:axis], size * factor, *shape[axis + 1 :])
        sides.append(b.emit("gather", (x, place), F32, new, axis=axis))
    rest = b.binary("sub", b.literal(1.0, F32), share)
    return b.binary("add", b.binary("mul", sides[0], rest), b.binary("mul", sides[1], share))


#: (domain, operator) -> rows of (first opset, rule); a row holds until the next one begins
TABLE: dict[tuple[str, str], list[tuple[int, Rule]]] = {
    ("", "Resize"): [(10, resize)],
    ("", "Upsample"): [(7, resize)],
}
