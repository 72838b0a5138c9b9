"""Reshape of shapes that only a run knows."""

from __future__ import annotations

from typing import Any

import numpy as np

from grainline.base.errors import KernelError


def reshape(call: Any) -> list[Any]:
    """0 copies the input's extent unless allowzero; one -1 takes the rest; nothing else may be negative."""
    x = call.input(0)
    target = call.input(1).tolist() if call.input(1) is not None else list(call.get("shape", []))
    allow_zero = call.get("allowzero", 0)
    if allow_zero and 0 in target and -1 in target:
        raise KernelError("Reshape with allowzero has both 0 and -1", found=target)
    if any(extent < -1 for extent in target) or target.count(-1) > 1:
        raise KernelError("Reshape has a negative extent, or leaves more than one open", found=target)
    if not allow_zero:
        if any(extent == 0 and axis >= x.ndim for axis, extent in enumerate(target)):
            raise KernelError("Reshape copies an axis that its input lacks", expected=list(x.shape), found=target)
        target = [x.shape[axis] if extent == 0 else extent for axis, extent in enumerate(target)]
    if -1 in target:
        taken = int(np.prod([extent for extent in target if extent != -1], dtype=np.int64))
        if taken == 0 or x.size % taken:
            raise KernelError("Reshape cannot fill the open extent", expected=f"a multiple of {taken}", found=x.size)
        target = [x.size // taken if extent == -1 else extent for extent in target]
    return [x.reshape(target)]


def identity(call: Any) -> list[Any]:
    return [call.input(0)]


TABLE = {("", "Reshape"): reshape, ("", "Identity"): identity}
