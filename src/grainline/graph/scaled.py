"""Constants that are integers times a scale: how quantised weights appear once they are folded.

    mul(cast(q: i8[..., K, N]), scale: f32[] | f32[N] | f32[..., 1, N])

in either order of the factors. The cast may pass through i32 and subtract a zero point that is 0 everywhere, as
DequantizeLinear does. A product with such a matrix may multiply by the integers and scale its columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from grainline.base.dtypes import F32, I8, I32
from grainline.graph.folded import Folded
from grainline.graph.ir import Constant, Value


@dataclass(frozen=True, slots=True)
class ScaledIntegers:
    """`integers`: i8 of the shape of the whole; `scale`: f32 of `scale_shape`, which spans at most the last axis."""

    integers: Constant
    scale: Constant
    scale_shape: tuple[int, ...]


def scaled_integers(constant: Constant) -> ScaledIntegers | None:
    """The factors of a constant matrix (or of a stack of one), or None when it is not made of such."""
    folded = constant.load
    if not isinstance(folded, Folded) or folded.node.op != "mul":
        return None
    values, shape = folded.node.inputs, folded.node.output.shape or ()
    if len(shape) < 2 or prod(shape[:-2]) != 1 or 0 in shape:
        return None
    for side in (0, 1):
        number, scale = folded.inputs[side], folded.inputs[1 - side]
        integers = _integers(values[side], number)
        if integers is None or scale is None or values[side].shape != shape:
            continue
        if _spans_columns(values[1 - side], shape[-1]):
            return ScaledIntegers(integers, scale, tuple(values[1 - side].shape or ()))  # type: ignore[arg-type]
    return None


def _spans_columns(scale: Value, columns: object) -> bool:
    """Whether a scale is one number, or one per column."""
    shape = scale.shape or ()
    return scale.dtype == F32 and prod(shape[:-1]) == 1 and (not shape or shape[-1] in (1, columns))


def _integers(value: Value, constant: Constant | None) -> Constant | None:
    """q of cast(q) or of cast(cast(q) - cast(0)), of i8, with the shape of `value`."""
    inner, source = _behind_cast(value, constant, F32)
    if inner is None or source is None:
        return None
    if inner.dtype == I32:
        inner, source = _behind_zero(inner, source)
        inner, source = _behind_cast(inner, source, I32) if inner is not None else (None, None)
    return source if inner is not None and inner.dtype == I8 and inner.shape == value.shape else None


def _behind_zero(value: Value, constant: Constant | None) -> tuple[Value | None, Constant | None]:
    """The minuend of a difference with 0; anything else as it is."""
    folded = constant.load if constant is not None else None
    if not isinstance(folded, Folded) or folded.node.op != "sub":
        return value, constant
    zero = folded.inputs[1]
    if zero is None or zero.load().any():
        return None, None
    return folded.node.inputs[0], folded.inputs[0]


def _behind_cast(value: Value, constant: Constant | None, to: object) -> tuple[Value | None, Constant | None]:
    """The operand of a cast to `to`, which makes `value`."""
    folded = constant.load if constant is not None else None
    if not isinstance(folded, Folded) or folded.node.op != "cast" or value.dtype != to:
        return None, None
    return folded.node.inputs[0], folded.inputs[0]
