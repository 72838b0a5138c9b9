"""Shape arithmetic at import: operators on integer tensors whose elements are known as extents.

`propagate(b, call)` gives the elements of the outputs, or None when they are not known. Comparisons answer only what is
proved: a symbol is an extent, so it is at least 0 and never -1. Values that a run decides are never guessed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from grainline.base import dims
from grainline.base.dims import Expr, product
from grainline.base.dtypes import BOOL, BY_ONNX, I32, I64, DType
from grainline.base.slicing import picked
from grainline.graph.ir import Value
from grainline.importer import extents
from grainline.importer.builder import GREATEST_CONTENT, Builder, Content, objects
from grainline.importer.call import Call
from grainline.importer.tensors import read_tensor


class Unknown(Exception):
    """An element is only known at run time."""


def propagate(b: Builder, call: Call) -> list[Value | None] | None:
    """The outputs as values that show known extents, or None."""
    rule = TABLE.get(call.op_type) if call.domain == "" else None
    if rule is None:
        return None
    try:
        found = rule(b, call)
    except (Unknown, IndexError, ValueError, TypeError, ArithmeticError):
        return None
    return [b.show(content, dtype) for content, dtype in found]


Found = list[tuple[Content, DType]]


def _content(b: Builder, call: Call, index: int) -> Content:
    content = b.content(call.optional(index))
    if content is None:
        raise Unknown
    return content


def _type(call: Call, index: int = 0) -> DType:
    value = call.input(index)
    if value.dtype not in (I32, I64, BOOL):
        raise Unknown
    return value.dtype


def shape_of(b: Builder, call: Call) -> Found:
    value = call.input(0)
    if value.shape is None:
        raise Unknown
    shape = b.shape(value)
    start, end = call.integer("start", 0), call.integer("end", len(shape)) if call.has("end") else len(shape)
    if call.version < 15:
        start, end = 0, len(shape)
    kept = list(shape[_clamped(start, len(shape)) : _clamped(end, len(shape))])
    return [(objects(kept, (len(kept),)), I64)]


def _clamped(index: int, rank: int) -> int:
    return min(max(index + rank if index < 0 else index, 0), rank)


def size_of(b: Builder, call: Call) -> Found:
    value = call.input(0)
    if value.shape is None:
        raise Unknown
    return [(objects([product(b.shape(value))], ()), I64)]


def gather(b: Builder, call: Call) -> Found:
    data, indices = _content(b, call, 0), _content(b, call, 1)
    if data.ndim != 1 or call.integer("axis", 0) not in (0, -1):
        raise Unknown
    taken = [data[_whole(i)] for i in indices.ravel() if -len(data) <= _whole(i) < len(data)]
    if len(taken) != indices.size:
        raise Unknown
    return [(objects(taken, indices.shape), _type(call))]


def _whole(item: Any) -> int:
    if isinstance(item, Expr):
        raise Unknown
    return int(item)


def slice_of(b: Builder, call: Call) -> Found:
    data = _content(b, call, 0)
    if call.version < 10:
        starts, ends, axes, steps = call.integers("starts"), call.integers("ends"), call.maybe_ints("axes"), None
    else:
        starts, ends = _list(b, call, 1), _list(b, call, 2)
        axes = _list(b, call, 3) if call.optional(3) is not None else None
        steps = _list(b, call, 4) if call.optional(4) is not None else None
    if data.ndim != 1 or len(starts) != 1 or len(ends) != 1 or (axes and axes[0] not in (0, -1)):
        raise Unknown
    step = steps[0] if steps else 1
    if step == 0:
        raise Unknown
    return [(data[picked(len(data), starts[0], ends[0], step)], _type(call))]


def _list(b: Builder, call: Call, index: int) -> tuple[int, ...]:
    return tuple(_whole(item) for item in _content(b, call, index).ravel())


def concat(b: Builder, call: Call) -> Found:
    parts = [_content(b, call, index) for index in range(len(call.inputs))]
    if any(part.ndim != 1 for part in parts) or call.integer("axis", 1) not in (0, -1):
        raise Unknown
    items = [item for part in parts for item in part]
    return [(objects(items, (len(items),)), _type(call))]


def unsqueeze(b: Builder, call: Call) -> Found:
    data = _content(b, call, 0)
    axes = call.integers("axes") if call.version < 13 else _list(b, call, 1)
    if data.ndim != 0 or axes not in ((0,), (-1,)):
        raise Unknown
    return [(data.reshape(1), _type(call))]


def squeeze(b: Builder, call: Call) -> Found:
    data = _content(b, call, 0)
    axes = call.maybe_ints("axes") if call.version < 13 else (_list(b, call, 1) if call.optional(1) else None)
    if data.shape != (1,) or axes not in (None, (0,), (-1,)):
        raise Unknown
    return [(data.reshape(()), _type(call))]


def reshape(b: Builder, call: Call) -> Found:
    data = _content(b, call, 0)
    target = call.integers("shape") if call.version < 5 else _list(b, call, 1)
    if len(target) > 1 or target == (0,) or any(extent < -1 for extent in target):
        raise Unknown
    return [(data.reshape(target), _type(call))]


def same(b: Builder, call: Call) -> Found:
    return [(_content(b, call, 0), _type(call))]


def cast(b: Builder, call: Call) -> Found:
    data = _content(b, call, 0)
    to = BY_ONNX.get(call.integer("to"))
    source = call.input(0).dtype
    if to in (I32, I64) and (source.is_integer or source == BOOL):
        items = [item if isinstance(item, Expr) else int(item) for item in data.ravel()]
    elif to == BOOL and not any(isinstance(item, Expr) for item in data.ravel()):
        items = [bool(item) for item in data.ravel()]
    else:
        raise Unknown
    return [(objects(items, data.shape), to)]


def pointwise(
    function: Callable[..., Any], result: DType | None = None, proves: bool = False
) -> Callable[[Builder, Call], Found]:
    def rule(b: Builder, call: Call) -> Found:
        if call.version < 7 and call.integer("broadcast", 0):
            raise Unknown
        parts = [_content(b, call, index) for index in range(len(call.inputs))]
        dtype = result or _type(call)
        if dtype == BOOL and result is None:
            raise Unknown
        shape = np.broadcast_shapes(*[part.shape for part in parts])
        columns = [np.broadcast_to(part, shape).ravel() for part in parts]
        items = [function(b, *row) if proves else function(*row) for row in zip(*columns, strict=True)]
        return [(objects(items, shape), dtype)]

    return rule


def _divide(b: Builder, a: Any, c: Any) -> Any:
    """Truncating division; of extents only where both signs are proved."""
    if isinstance(a, Expr) or isinstance(c, Expr):
        exact = None if isinstance(c, Expr) or c == 0 else dims.exact_div(a, c)
        if exact is not None:
            return exact
        if not isinstance(c, int) or c <= 0 or not b.is_size(a):
            raise Unknown
        return dims.floordiv(a, c)
    if c == 0:
        raise Unknown
    return abs(a) // abs(c) * (1 if (a < 0) == (c < 0) else -1)


def _remainder(a: Any, c: Any) -> Any:
    if isinstance(c, Expr) or c <= 0:
        raise Unknown
    return dims.mod(a, c)


def _equal(b: Builder, a: Any, c: Any) -> bool:
    if isinstance(a - c, int):
        return bool(a == c)
    if b.is_size(a - c - 1) or b.is_size(c - a - 1):
        return False
    raise Unknown


def _less(b: Builder, a: Any, c: Any) -> bool:
    if b.is_size(c - a - 1):
        return True
    if b.is_size(a - c):
        return False
    raise Unknown


def _logical(function: Callable[[bool, bool], bool]) -> Callable[[Any, Any], bool]:
    return lambda a, c: bool(function(bool(a), bool(c)))


def _extremum(pick: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def fold(*items: Any) -> Any:
        result = items[0]
        for item in items[1:]:
            result = pick(result, item)
        return result

    return fold


def _absolute(b: Builder, a: Any) -> Any:
    if isinstance(a, Expr) and not b.is_size(a):
        raise Unknown
    return a if isinstance(a, Expr) else abs(a)


def where(b: Builder, call: Call) -> Found:
    condition, yes, no = (_content(b, call, index) for index in range(3))
    shape = np.broadcast_shapes(condition.shape, yes.shape, no.shape)
    rows = zip(*[np.broadcast_to(part, shape).ravel() for part in (condition, yes, no)], strict=True)
    return [(objects([one if flag else other for flag, one, other in rows], shape), _type(call, 1))]


def constant_of_shape(b: Builder, call: Call) -> Found:
    shape = _list(b, call, 0)
    if len(shape) > 1 or product(shape) > GREATEST_CONTENT or any(extent < 0 for extent in shape):
        raise Unknown
    if not call.has("value"):
        raise Unknown
    from grainline.importer.proto import OpenModel

    value = read_tensor(call.tensor("value"), OpenModel(None), label="value")
    if value.dtype not in (I32, I64, BOOL) or product(value.shape) != 1:
        raise Unknown
    item = value.constant.load().reshape(()).item()
    return [(objects([item] * product(shape), shape), value.dtype)]


def range_of(b: Builder, call: Call) -> Found:
    bounds = [_whole(_content(b, call, index).item()) for index in range(3)]
    items = range(*bounds)
    if len(items) > GREATEST_CONTENT:
        raise Unknown
    return [(objects(list(items), (len(items),)), _type(call))]


def expand(b: Builder, call: Call) -> Found:
    data, target = _content(b, call, 0), _list(b, call, 1)
    if len(target) > 1 or product(target) > GREATEST_CONTENT:
        raise Unknown
    shape = np.broadcast_shapes(data.shape, target)
    return [(np.broadcast_to(data, shape), _type(call))]


def reduction(function: Callable[[Any, Any], Any], start: Any, since_input: int) -> Callable[[Builder, Call], Found]:
    def rule(b: Builder, call: Call) -> Found:
        data = _content(b, call, 0)
        axes = call.maybe_ints("axes") if call.version < since_input else None
        if call.version >= since_input and call.optional(1) is not None:
            axes = _list(b, call, 1)
        if data.ndim != 1 or axes not in (None, (0,), (-1,)) or call.integer("noop_with_empty_axes", 0):
            raise Unknown
        total = start
        for item in data:
            total = function(total, item)
        return [(objects([total], (1,) if call.integer("keepdims", 1) else ()), _type(call))]

    return rule


TABLE: dict[str, Callable[[Builder, Call], Found]] = {
    "Shape": shape_of,
    "Size": size_of,
    "Gather": gather,
    "Slice": slice_of,
    "Concat": concat,
    "Unsqueeze": unsqueeze,
    "Squeeze": squeeze,
    "Reshape": reshape,
    "Identity": same,
    "Cast": cast,
    "Add": pointwise(operator.add),
    "Sub": pointwise(operator.sub),
    "Mul": pointwise(operator.mul),
    "Neg": pointwise(operator.neg),
    "Abs": pointwise(_absolute, proves=True),
    "Div": pointwise(_divide, proves=True),
    "Mod": pointwise(_remainder),
    "Min": pointwise(_extremum(extents.minimum)),
    "Max": pointwise(_extremum(extents.maximum)),
    "Equal": pointwise(_equal, BOOL, proves=True),
    "Less": pointwise(_less, BOOL, proves=True),
    "Greater": pointwise(lambda b, a, c: _less(b, c, a), BOOL, proves=True),
    "LessOrEqual": pointwise(lambda b, a, c: not _less(b, c, a), BOOL, proves=True),
    "GreaterOrEqual": pointwise(lambda b, a, c: not _less(b, a, c), BOOL, proves=True),
    "And": pointwise(_logical(operator.and_), BOOL),
    "Or": pointwise(_logical(operator.or_), BOOL),
    "Not": pointwise(lambda a: not a, BOOL),
    "Where": where,
    "ConstantOfShape": constant_of_shape,
    "Range": range_of,
    "Expand": expand,
    "ReduceProd": reduction(operator.mul, 1, 18),
    "ReduceSum": reduction(operator.add, 0, 13),
}
