"""What kernels share: the element type they compute in, and how values enter and leave it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grainline.base.dtypes import BF16, F16, F32, DType
from grainline.tile.build import ProgramBuilder, Value
from grainline.tile.ir import View


def computed_in(dtype: DType) -> DType:
    """16-bit floats are computed in f32, every other type in itself."""
    return F32 if dtype in (F16, BF16) else dtype


def load_wide(p: ProgramBuilder, view: View, index: Sequence[Any]) -> Value:
    """The elements at `index` in the type they are computed in."""
    return p.cast(p.load(view, index), computed_in(view.dtype))


def store_narrow(p: ProgramBuilder, view: View, index: Sequence[Any], value: Value) -> None:
    """Stores `value`, rounded to the view's type."""
    p.store(view, index, p.cast(value, view.dtype))
