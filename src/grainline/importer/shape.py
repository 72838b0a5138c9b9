"""Operators that move, view or make data: their targets must be known as extents, else the node goes to the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from grainline.base import dims
from grainline.base.dims import Extent, product
from grainline.base.dtypes import ALL, BOOL, BY_ONNX, F32, I16, I32, I64, DType
from grainline.base.errors import ModelError
from grainline.graph.ir import Value
from grainline.importer import extents
from grainline.importer.builder import Builder, Decline
from grainline.importer.call import Call, axes_of, axis_of, only
from grainline.importer.proto import OpenModel
from grainline.importer.tensors import read_tensor

Rule = Callable[[Builder, Call], list[Value | None]]
Proof = Callable[[Extent], bool]

#: types whose elements compiled code can move and convert
MOVABLE = tuple(dtype for dtype in ALL if dtype.kind in "fiub")


def known(b: Builder, call: Call, index: int, what: str) -> list[Extent]:
    """The elements of an integer input; Decline when only a run knows them."""
    content = b.content(call.input(index))
    if content is None:
        raise Decline(f"the {what} is only known at run time")
    return [item if isinstance(item, dims.Expr) else int(item) for item in content.ravel()]


def whole(items: Sequence[Extent], what: str) -> tuple[int, ...]:
    if not all(isinstance(item, int) for item in items):
        raise Decline(f"the {what} depends on extents")
    return tuple(items)  # type: ignore[arg-type]


def identity(b: Builder, call: Call) -> list[Value | None]:
    return [call.input(0)]


def cast(b: Builder, call: Call) -> list[Value | None]:
    to = BY_ONNX.get(call.integer("to"))
    if to is None:
        raise Decline("the target type is not one that models carry")
    return [_converted(b, call.input(0), to)]


def cast_like(b: Builder, call: Call) -> list[Value | None]:
    return [_converted(b, call.input(0), call.input(1).dtype)]


def _converted(b: Builder, x: Value, to: DType) -> Value:
    if x.dtype != to:
        only(x, *MOVABLE)
        if to not in MOVABLE:
            raise Decline(f"a cast to {to} is not compiled")
    return b.cast(x, to)


def reshape(b: Builder, call: Call) -> list[Value | None]:
    x = call.input(0)
    only(x, *MOVABLE)
    if call.version < 5:
        target: list[Extent] = list(call.integers("shape"))
    else:
        target = known(b, call, 1, "target shape")
    shape = _reshaped(b, call, b.shape(x), target, bool(call.integer("allowzero", 0)))
    b.equate(product(b.shape(x)), product(shape), "a reshape changes the number of elements")
    return [b.reshape(x, shape)]


def _reshaped(
    b: Builder, call: Call, source: Sequence[Extent], target: Sequence[Extent], allow_zero: bool
) -> list[Extent]:
    """0 copies (without allowzero), one -1 takes the rest; a symbolic entry is an extent as it stands."""
    shape: list[Extent] = []
    for axis, extent in enumerate(target):
        if isinstance(extent, int) and extent == 0 and not allow_zero:
            if axis >= len(source):
                raise ModelError(
                    "Reshape copies an axis that its input lacks",
                    node=call.label,
                    expected=f"rank above {axis}",
                    found=len(source),
                )
            shape.append(source[axis])
        elif isinstance(extent, int) and extent < -1:
            raise ModelError("Reshape has a negative extent", node=call.label, found=extent)
        elif not isinstance(extent, int) and not b.is_size(extent):
            raise Decline(f"the extent {extent} may be negative")
        else:
            shape.append(extent)
    open_axes = [axis for axis, extent in enumerate(shape) if isinstance(extent, int) and extent == -1]
    if len(open_axes) > 1:
        raise ModelError("Reshape leaves more than one extent open", node=call.label, found=list(target))
    if open_axes:
        if allow_zero and any(isinstance(extent, int) and extent == 0 for extent in target):
            raise ModelError("Reshape with allowzero has both 0 and -1", node=call.label, found=list(target))
        shape[open_axes[0]] = _rest(call, source, shape)
    return shape


def _rest(call: Call, source: Sequence[Extent], shape: Sequence[Extent]) -> Extent:
    """The extent that -1 stands for. Equal factors on both sides cancel, so a zero extent among them does no harm."""
    left = list(source)
    right: list[Extent] = []
    for extent in shape:
        if isinstance(extent, int) and extent == -1:
            continue
        if not isinstance(extent, int) and extent in left:
            left.remove(extent)
        else:
            right.append(extent)
    total, taken = product(left), product(right)
    exact = None if isinstance(taken, int) and taken == 0 else dims.exact_div(total, taken)
    if exact is not None:
        return exact
    if isinstance(taken, int) and taken == 0:
        raise Decline("Reshape of nothing leaves an extent open")
    if isinstance(total, int) and isinstance(taken, int):
        raise ModelError(
            "a reshape changes the number of elements", node=call.label, expected=f"a multiple of {taken}", found=total
        )
    low = extents.bounds(taken)[0]
    if low is None or low < 1:
        raise Decline(f"the open extent {total} / {taken} may divide by zero")
    return dims.floordiv(total, taken)


def squeeze(b: Builder, call: Call) -> list[Value | None]:
    x = call.input(0)
    only(x, *MOVABLE)
    shape = b.shape(x)
    if call.version < 13:
        given = call.maybe_ints("axes")
    else:
        given = whole(known(b, call, 1, "axes"), "axes") if call.optional(1) is not None else None
    if given is None:
        if not all(isinstance(extent, int) for extent in shape):
            raise Decline("only a run decides which extents are 1")
        given = tuple(axis for axis, extent in enumerate(shape) if extent == 1)
    axes = axes_of(call, given, len(shape))
    for axis in axes:
        b.equate(shape[axis], 1, "Squeeze of an extent that is not 1")
    return [b.reshape(x, [extent for axis, extent in enumerate(b.shape(x)) if axis not in axes])]


def unsqueeze(b: Builder, call: Call) -> list[Value | None]:
    x = call.input(0)
    only(x, *MOVABLE)
    given = call.integers("axes") if call.version < 13 else whole(known(b, call, 1, "axes"), "axes")
    rank = b.rank(x) + len(given)
    axes = axes_of(call, given, rank)
    rest = iter(b.shape(x))
    return [b.reshape(x, [1 if axis in axes else next(rest) for axis in range(rank)])]


def flatten(b: Builder, call: Call) -> list[Value | None]:
    x = call.input(0)
    only(x, *MOVABLE)
    shape, axis = b.shape(x), call.integer("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise ModelError(
            "an axis is out of range", node=call.label, expected=f"[{-len(shape)}, {len(shape)}]", found=axis
        )
    cut = axis + len(shape) if axis < 0 else axis
    return [b.reshape(x, (product(shape[:cut]), product(shape[cut:])))]


def transpose(b: Builder, call: Call) -> list[Value | None]:
    x = call.input(0)
    only(x, *MOVABLE)
    rank = b.rank(x)
    perm = call.integers("perm", tuple(reversed(range(rank))))
    if sorted(perm) != list(range(rank)):
        raise ModelError(
            "perm is not a permutation of the axes",
            node=call.label,
            expected=f"the axes 0..{rank - 1}",
            found=list(perm),
        )
    return [b.transpose(x, perm)]


def slice_(b: Builder, call: Call) -> list[Value | None]:
    x = call.input(0)
    only(x, *MOVABLE)
    shape = b.shape(x)
    if call.version < 10:
        starts: list[Extent] = list(call.integers("starts"))
        ends: list[Extent] = list(call.integers("ends"))
        axes, steps = call.maybe_ints("axes"), None
    else:
        starts, ends = known(b, call, 1, "start"), known(b, call, 2, "end")
        axes = whole(known(b, call, 3, "axes"), "axes") if call.optional(3) is not None else None
        steps = whole(known(b, call, 4, "steps"), "steps") if call.optional(4) is not None else None
    axes = axes_of(call, tuple(range(len(starts))) if axes is None else axes, len(shape))
    steps = steps or (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ModelError("Slice has different numbers of starts, ends, axes and steps", node=call.label)
    first: list[Extent] = [0] * len(shape)
    lengths: list[Extent] = list(shape)
    stride = [1] * len(shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step == 0:
            raise ModelError("Slice has a step of 0", node=call.label)
        first[axis], lengths[axis] = _span(shape[axis], start, end, step, b.is_size)
        stride[axis] = step
    return [b.slice(x, first, lengths, stride)]


def _span(
    extent: Extent, start: Extent, end: Extent, step: int, is_size: Proof = extents.is_nonnegative
) -> tuple[Extent, Extent]:
    """(first index, length) of start:end:step, clamped as `slicing.picked` clamps numbers."""
    if step > 0:
        begin, stop = (_bound(extent, index, 0, extent, is_size) for index in (start, end))
        length = dims.ceil_div(extents.maximum(stop - begin, 0), step)
        return begin, length
    begin = _bound(extent, start, 0, extent - 1, is_size)
    stop = _bound(extent, end, -1, extent - 1, is_size)
    length = dims.ceil_div(extents.maximum(begin - stop, 0), -step)
    return extents.maximum(begin, 0), length


def _bound(extent: Extent, index: Extent, low: Extent, high: Extent, is_size: Proof) -> Extent:
    if isinstance(index, int) and abs(index) >= extents.FAR:
        return high if index > 0 else low
    if not is_size(index):
        if not extents.is_nonnegative(-1 - index):
            raise Decline(f"the sign of the slice bound {index} is only known at run time")
        index = index + extent
    return extents.minimum(extents.maximum(index, low), high)


def split(b: Builder, call: Call) -> list[Value | None]:
    x = call.input(0)
    only(x, *MOVABLE)
    shape = b.shape(x)
    axis = axis_of(call, call.integer("axis", 0), len(shape))
    lengths = _split_lengths(b, call, shape[axis])
    b.equate(sum(lengths[1:], lengths[0]), shape[axis], "the parts of Split do not fill the axis")
    outputs: list[Value | None] = []
    start: Extent = 0
    for length in lengths:
        starts: list[Extent] = [0] * len(shape)
        starts[axis] = start
        part = list(shape)
        part[axis] = length
        outputs.append(b.slice(x, starts, part, [1] * len(shape)))
        start = start + length
    return outputs


def _split_lengths(b: Builder, call: Call, extent: Extent) -> list[Extent]:
    count = len(call.outputs)
    if call.version < 13 and call.has("split"):
        lengths: list[Extent] = list(call.integers("split"))
    elif call.version >= 13 and call.optional(1) is not None:
        lengths = known(b, call, 1, "split")
    else:
        if call.version >= 18 and call.has("num_outputs") and call.integer("num_outputs") != count:
            raise ModelError(
                "Split has another number of outputs",
                node=call.label,
                expected=call.integer("num_outputs"),
                found=count,
            )
        if not isinstance(extent, int):
            exact = dims.exact_div(extent, count)
            if exact is None:
                raise Decline("only a run decides how the axis splits")
            return [exact] * count
        if call.version < 18 and extent % count:
            raise ModelError(
                "Split does not divide the axis", node=call.label, expected=f"a multiple of {count}", found=extent
            )
        piece = ceil(extent / count)
        lengths = [max(min(piece, extent - piece * index), 0) for index in range(count)]
    if len(lengths) != count:
        raise ModelError("Split has another number of outputs", node=call.label, expected=len(lengths), found=count)
    if not all(b.is_size(length) for length in lengths):
        raise Decline("a part of Split may be negative")
    return lengths


def concat(b: Builder, call: Call) -> list[Value | None]:
    values = call.tensors()
    only(values[0], *MOVABLE)
    rank = b.rank(values[0])
    axis = axis_of(call, call.integer("axis", 1), rank)
    total: Extent = 0
    for value in values:
        if value.dtype != values[0].dtype or b.rank(value) != rank:
            raise ModelError("Concat needs one type and rank", node=call.label, expected=values[0], found=value)
        for other in (other for other in range(rank) if other != axis):
            b.equate(b.shape(values[0])[other], b.shape(value)[other], "Concat of different extents")
        total = total + b.shape(value)[axis]
    if len(values) == 1:
        return [values[0]]
    shape = list(b.shape(values[0]))
    shape[axis] = total
    return [b.emit("concat", values, values[0].dtype, shape, axis=axis)]


def expand(b: Builder, call: Call) -> list[Value | None]:
    x = call.input(0)
    only(x, *MOVABLE)
    target = known(b, call, 1, "target shape")
    if not all(b.is_size(extent) for extent in target):
        raise Decline("an extent of the target may be negative")
    shape = b.broadcast(b.shape(x), tuple(target))
    return [b.expand(x, shape)]


def tile(b: Builder, call: Call) -> list[Value | None]:
    """x[a, b] -> [1, a, 1, b] -> [r, a, s, b] -> [r*a, s*b]"""
    x = call.input(0)
    only(x, *MOVABLE)
    if call.version < 6:
        raise Decline("the first form of Tile is not compiled")
    shape = b.shape(x)
    repeats = known(b, call, 1, "number of repeats")
    if len(repeats) != len(shape) or not all(b.is_size(count) for count in repeats):
        raise Decline("the repeats of Tile do not fit its input")
    pairs = list(zip(repeats, shape, strict=True))
    single = b.reshape(x, [extent for _, size in pairs for extent in (1, size)])
    wide = b.expand(single, [extent for pair in pairs for extent in pair])
    return [b.reshape(wide, [count * size for count, size in pairs])]


def constant_of_shape(b: Builder, call: Call) -> list[Value | None]:
    target = known(b, call, 0, "shape")
    if not all(b.is_size(extent) for extent in target):
        raise Decline("an extent may be negative")
    if not call.has("value"):
        return [b.expand(b.literal(0.0, F32), target)]
    value = read_tensor(call.tensor("value"), OpenModel(None), label="value")
    if product(value.shape) != 1:
        raise ModelError("ConstantOfShape needs one value", node=call.label, found=list(value.shape))
    if value.dtype not in MOVABLE:
        raise Decline(f"{value.dtype} is not compiled for this operator")
    return [b.expand(b.literal(value.constant.load().reshape(()), value.dtype), target)]


def where(b: Builder, call: Call) -> list[Value | None]:
    only(call.input(1), *MOVABLE)
    return [b.where(call.input(0), call.input(1), call.input(2))]


def range_(b: Builder, call: Call) -> list[Value | None]:
    first = call.input(0)
    only(first, I16, I32, I64)
    start, limit, step = (known(b, call, index, "bound of Range")[0] for index in range(3))
    if not isinstance(step, int):
        raise Decline("the step of Range depends on extents")
    if step == 0:
        raise ModelError("Range has a step of 0", node=call.label)
    span = limit - start if step > 0 else start - limit
    count = dims.ceil_div(extents.maximum(span, 0), abs(step))
    return [b.emit("iota", (), first.dtype, (count,), start=start, step=step, axis=0)]


def pad(b: Builder, call: Call) -> list[Value | None]:
    x = call.input(0)
    only(x, *MOVABLE)
    shape = b.shape(x)
    if call.text("mode", "constant") != "constant":
        raise Decline("only constant padding is compiled")
    amounts, fill = _padding(b, call, x)
    axes = tuple(range(len(shape)))
    if call.version >= 18 and call.optional(3) is not None:
        axes = axes_of(call, whole(known(b, call, 3, "axes"), "axes"), len(shape))
    if len(amounts) != 2 * len(axes):
        raise ModelError("Pad needs two amounts per axis", node=call.label, expected=2 * len(axes), found=len(amounts))
    if not all(b.is_size(amount) for amount in amounts):
        raise Decline("negative padding is not compiled")
    before: list[Extent] = [0] * len(shape)
    result = list(shape)
    for position, axis in enumerate(axes):
        before[axis] = amounts[position]
        result[axis] = result[axis] + amounts[position] + amounts[position + len(axes)]
    return [b.emit("pad", (x,), x.dtype, result, before=tuple(before), value=fill)]


def _padding(b: Builder, call: Call, x: Value) -> tuple[list[Extent], float | int | bool]:
    if call.version < 11:
        name = "pads" if call.version >= 2 else "paddings"
        return list(call.integers(name)), call.real("value", 0.0)
    fill: float | int | bool = x.dtype.numpy.type(0).item()
    if call.optional(2) is not None:
        constant = b.static(call.input(2), 1)
        if constant is None or constant.size != 1:
            raise Decline("the padding value is only known at run time")
        fill = constant.reshape(()).item()
    return known(b, call, 1, "padding"), fill


def trilu(b: Builder, call: Call) -> list[Value | None]:
    """Keeps x[..., i, j] where j >= i + k (upper) or j <= i + k (lower)."""
    x = call.input(0)
    only(x, *MOVABLE)
    shape = b.shape(x)
    if len(shape) < 2:
        raise ModelError("Trilu needs matrices", node=call.label)
    offset = known(b, call, 1, "diagonal")[0] if call.optional(1) is not None else 0
    rows = b.emit("iota", (), I64, (shape[-2], 1), start=offset, step=1, axis=0)
    columns = b.emit("iota", (), I64, (1, shape[-1]), start=0, step=1, axis=1)
    keep = b.binary("ge" if call.integer("upper", 1) else "le", columns, rows)
    return [b.where(keep, x, b.literal(0, x.dtype))]


def depth_to_space(b: Builder, call: Call) -> list[Value | None]:
    x, block = call.input(0), call.integer("blocksize")
    only(x, *MOVABLE)
    n, channels, height, width = _four(b, call, x)
    depth = dims.exact_div(channels, block * block) if block > 0 else None
    if depth is None:
        raise Decline("the channels do not divide into blocks")
    crd = call.text("mode", "DCR") == "CRD"
    inner = (n, depth, block, block, height, width) if crd else (n, block, block, depth, height, width)
    moved = b.transpose(b.reshape(x, inner), (0, 1, 4, 2, 5, 3) if crd else (0, 3, 4, 1, 5, 2))
    return [b.reshape(moved, (n, depth, height * block, width * block))]


def space_to_depth(b: Builder, call: Call) -> list[Value | None]:
    x, block = call.input(0), call.integer("blocksize")
    only(x, *MOVABLE)
    n, channels, height, width = _four(b, call, x)
    rows = dims.exact_div(height, block) if block > 0 else None
    columns = dims.exact_div(width, block) if block > 0 else None
    if rows is None or columns is None:
        raise Decline("the image does not divide into blocks")
    crd = call.text("mode", "DCR") == "CRD"
    perm = (0, 1, 3, 5, 2, 4) if crd else (0, 3, 5, 1, 2, 4)
    moved = b.transpose(b.reshape(x, (n, channels, rows, block, columns, block)), perm)
    return [b.reshape(moved, (n, channels * block * block, rows, columns))]


def _four(b: Builder, call: Call, x: Value) -> tuple[Extent, ...]:
    if b.rank(x) != 4:
        raise ModelError("a batch of images is needed", node=call.label, expected="rank 4", found=b.rank(x))
    return b.shape(x)


def dropout(b: Builder, call: Call) -> list[Value | None]:
    """The identity, as every inference sees it; the mask is all true."""
    x = call.input(0)
    if call.version >= 12 and call.optional(2) is not None:
        training = b.static(call.input(2), 1)
        if training is None or bool(training.reshape(())):
            raise Decline("training mode is not compiled")
    if call.version < 7 and not call.integer("is_test", 0):
        raise Decline("training mode is not compiled")
    if not call.wants(1):
        return [x]
    if call.version < 10:
        raise Decline("the mask of the first Dropouts has the input's type")
    return [x, b.expand(b.literal(True, BOOL), b.shape(x))]


def eye_like(b: Builder, call: Call) -> list[Value | None]:
    x = call.input(0)
    to = BY_ONNX.get(call.integer("dtype")) if call.has("dtype") else x.dtype
    if to not in MOVABLE or b.rank(x) != 2:
        raise Decline(f"EyeLike of {to} is not compiled")
    rows = b.emit("iota", (), I64, (b.shape(x)[0], 1), start=call.integer("k", 0), step=1, axis=0)
    columns = b.emit("iota", (), I64, (1, b.shape(x)[1]), start=0, step=1, axis=1)
    return [b.cast(b.binary("eq", rows, columns), to)]


#: (domain, operator) -> rows of (first opset, rule); a row holds until the next one begins
TABLE: dict[tuple[str, str], list[tuple[int, Rule]]] = {
    ("", "Identity"): [(1, identity)],
    ("", "Cast"): [(6, cast)],
    ("", "CastLike"): [(15, cast_like)],
    ("", "Reshape"): [(1, reshape)],
    ("", "Squeeze"): [(1, squeeze)],
    ("", "Unsqueeze"): [(1, unsqueeze)],
    ("", "Flatten"): [(1, flatten)],
    ("", "Transpose"): [(1, transpose)],
    ("", "Slice"): [(1, slice_)],
    ("", "Split"): [(2, split)],
    ("", "Concat"): [(1, concat)],
    ("", "Expand"): [(8, expand)],
    ("", "Where"): [(9, where)],
    ("", "Tile"): [(1, tile)],
    ("", "ConstantOfShape"): [(9, constant_of_shape)],
    ("", "Range"): [(11, range_)],
    ("", "Pad"): [(1, pad)],
    ("", "Trilu"): [(14, trilu)],
    ("", "DepthToSpace"): [(1, depth_to_space)],
    ("", "SpaceToDepth"): [(1, space_to_depth)],
    ("", "Dropout"): [(1, dropout)],
    ("", "EyeLike"): [(9, eye_like)],
}
