"""Gather and GatherND; everything else that indexes by run-time data is the host's."""

from __future__ import annotations

from collections.abc import Callable

from grainline.base.dims import Extent
from grainline.base.dtypes import I32, I64
from grainline.base.errors import ModelError
from grainline.graph.ir import Value
from grainline.importer.builder import Builder, Decline
from grainline.importer.call import Call, axis_of, only
from grainline.importer.shape import MOVABLE

Rule = Callable[[Builder, Call], list[Value | None]]


def gather(b: Builder, call: Call) -> list[Value | None]:
    data, indices = call.input(0), call.input(1)
    only(data, *MOVABLE)
    only(indices, I32, I64)
    shape = b.shape(data)
    if not shape:
        raise ModelError("Gather from a scalar", node=call.label)
    axis = axis_of(call, call.integer("axis", 0), len(shape))
    result = (*shape[:axis], *b.shape(indices), *shape[axis + 1 :])
    return [b.emit("gather", (data, indices), data.dtype, result, axis=axis)]


def gather_nd(b: Builder, call: Call) -> list[Value | None]:
    """Splits the last axis of the indices into one index tensor per indexed axis."""
    data, indices = call.input(0), call.input(1)
    only(data, *MOVABLE)
    only(indices, I64)
    if call.integer("batch_dims", 0):
        raise Decline("batch_dims of GatherND is not compiled")
    shape, index_shape = b.shape(data), b.shape(indices)
    if not shape or not index_shape:
        raise ModelError("GatherND needs tensors of rank 1 or more", node=call.label)
    depth = index_shape[-1]
    if not isinstance(depth, int):
        raise Decline("the rank of GatherND's output is only known at run time")
    if not 1 <= depth <= len(shape):
        raise ModelError(
            "GatherND indexes axes that its input lacks", node=call.label, expected=f"1..{len(shape)}", found=depth
        )
    parts = [_part(b, indices, position) for position in range(depth)]
    result = (*index_shape[:-1], *shape[depth:])
    return [b.emit("gather_nd", (data, *parts), data.dtype, result)]


def _part(b: Builder, indices: Value, position: int) -> Value:
    leading = b.shape(indices)[:-1]
    starts: list[Extent] = [0] * len(leading)
    piece = b.slice(indices, (*starts, position), (*leading, 1), [1] * (len(leading) + 1))
    return b.reshape(piece, leading)


#: (domain, operator) -> rows of (first opset, rule); a row holds until the next one begins
TABLE: dict[tuple[str, str], list[tuple[int, Rule]]] = {
    ("", "Gather"): [(1, gather)],
    ("", "GatherND"): [(11, gather_nd)],
}
