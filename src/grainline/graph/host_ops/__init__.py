"""Host operators of our own, one file per family: (domain, operator) -> function of a HostCall giving the outputs.

They come before the reference operators of the onnx package: where that is wrong or inexact, where it does not check
what it indexes, and where an operator needs sub-graphs. A function may return NotImplemented to leave a case to the
reference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grainline.graph.host_ops import (
    arithmetic,
    classic,
    contrib,
    control_flow,
    convolution,
    indexing,
    pooling,
    quantisation,
    reductions,
    sampling,
    selection,
    shape,
    text,
)

FAMILIES = (
    arithmetic,
    classic,
    contrib,
    control_flow,
    convolution,
    indexing,
    pooling,
    quantisation,
    reductions,
    sampling,
    selection,
    shape,
    text,
)

TABLE: dict[tuple[str, str], Callable[[Any], Any]] = {
    key: rule for family in FAMILIES for key, rule in family.TABLE.items()
}
