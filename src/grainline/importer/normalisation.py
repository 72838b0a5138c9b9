"""Softmax and the normalisations, written out: two passes for a variance, the maximum subtracted before exp."""

from __future__ import annotations

from collections.abc import Callable

from grainline.base.dtypes import F32, F64, I32, I64
from grainline.base.errors import ModelError
from grainline.graph.ir import Shape, Value
from grainline.importer.builder import Builder, Decline
from grainline.importer.call import Call, axis_of, only

Rule = Callable[[Builder, Call], list[Value | None]]


def _softmax_axes(b: Builder, call: Call, x: Value) -> tuple[int, ...]:
    """One axis since opset 13; before, everything from `axis` on counts as one."""
    rank = b.rank(x)
    if call.version >= 13:
        return (axis_of(call, call.integer("axis", -1), rank),) if rank else ()
    axis = call.integer("axis", 1)
    if axis == rank:
        return ()
    return tuple(range(axis_of(call, axis, rank), rank))


def softmax(b: Builder, call: Call) -> list[Value | None]:
    x = call.input(0)
    only(x, F32, F64)
    axes = _softmax_axes(b, call, x)
    raised = b.unary("exp", b.binary("sub", x, b.reduce("max", x, axes)))
    return [b.binary("mul", raised, b.unary("reciprocal", b.reduce("sum", raised, axes)))]


def log_softmax(b: Builder, call: Call) -> list[Value | None]:
    x = call.input(0)
    only(x, F32, F64)
    axes = _softmax_axes(b, call, x)
    shifted = b.binary("sub", x, b.reduce("max", x, axes))
    total = b.reduce("sum", b.unary("exp", shifted), axes)
    return [b.binary("sub", shifted, b.unary("log", total))]


def _centred(b: Builder, x: Value, axes: tuple[int, ...], epsilon: float) -> tuple[Value, Value, Value]:
    """(mean, x - mean, 1 / sqrt(variance + epsilon))"""
    mean = b.mean(x, axes)
    centred = b.binary("sub", x, mean)
    variance = b.mean(b.binary("mul", centred, centred), axes)
    deviation = b.unary("sqrt", b.with_scalar("add", variance, epsilon))
    return mean, centred, b.unary("reciprocal", deviation)


def layer_normalization(b: Builder, call: Call) -> list[Value | None]:
    x, scale, bias = call.input(0), call.input(1), call.optional(2)
    _only_float(x, scale, bias)
    _stash(call)
    for parameter in (scale, bias):
        if parameter is not None:
            b.fit(parameter, b.shape(x))
    rank = b.rank(x)
    axes = tuple(range(axis_of(call, call.integer("axis", -1), rank), rank))
    mean, centred, inverse = _centred(b, x, axes, call.real("epsilon", 1e-5))
    result = _fit(b, call, b.binary("mul", b.binary("mul", centred, inverse), scale), x)
    if bias is not None:
        result = _fit(b, call, b.binary("add", result, bias), x)
    return [result, mean, inverse][: len(call.outputs)]


def rms_normalization(b: Builder, call: Call) -> list[Value | None]:
    x, scale = call.input(0), call.input(1)
    _only_float(x, scale)
    _stash(call)
    b.fit(scale, b.shape(x))
    rank = b.rank(x)
    axes = tuple(range(axis_of(call, call.integer("axis", -1), rank), rank))
    result, inverse = _root_mean_square(b, x, axes, call.real("epsilon", 1e-5))
    outputs = [_fit(b, call, b.binary("mul", result, scale), x)]
    if call.op_type == "SimplifiedLayerNormalization" and call.wants(1):
        outputs.append(inverse)
    return list(outputs)


def _root_mean_square(b: Builder, x: Value, axes: tuple[int, ...], epsilon: float) -> tuple[Value, Value]:
    mean = b.mean(b.binary("mul", x, x), axes)
    inverse = b.unary("reciprocal", b.unary("sqrt", b.with_scalar("add", mean, epsilon)))
    return b.binary("mul", x, inverse), inverse


def skip_layer_normalization(b: Builder, call: Call) -> list[Value | None]:
    """LayerNormalization(x + skip + bias) over the last axis; output 3 is the sum."""
    simple = call.op_type.startswith("SkipSimplified")
    bias_at = 3 if simple else 4
    x, skip, gamma = call.input(0), call.input(1), call.input(2)
    beta = None if simple else call.optional(3)
    bias = call.optional(bias_at)
    _only_float(x, skip, gamma, beta, bias)
    for parameter in (gamma, beta, bias):
        if parameter is not None:
            b.vector(parameter, b.shape(x)[-1])
    total = b.binary("add", x, skip)
    if bias is not None:
        total = b.binary("add", total, bias)
    axes = (b.rank(total) - 1,)
    epsilon = call.real("epsilon", 1e-12)
    if simple:
        mean = None
        normal, inverse = _root_mean_square(b, total, axes, epsilon)
    else:
        mean, centred, inverse = _centred(b, total, axes, epsilon)
        normal = b.binary("mul", centred, inverse)
    result = b.binary("mul", normal, gamma)
    if beta is not None:
        result = b.binary("add", result, beta)
    if simple and call.wants(1):
        raise Decline("the mean output of SkipSimplifiedLayerNormalization has no meaning")
    return [result, mean, inverse, total][: len(call.outputs)]


def embed_layer_normalization(b: Builder, call: Call) -> list[Value | None]:
    """LayerNormalization of words + positions + segments; output 1 counts the ones of the mask, output 2 is the sum."""
    ids, words, table = call.input(0), call.input(2), call.input(3)
    segments, gamma, beta = call.optional(4), call.input(5), call.input(6)
    mask, positions = call.optional(7), call.optional(8)
    _only_float(words, table, segments, gamma, beta)
    if b.rank(ids) != 2:
        raise ModelError("EmbedLayerNormalization needs batches of sequences", node=call.label, found=b.shape(ids))
    batch, length = b.shape(ids)
    if positions is None:
        positions = b.emit("iota", (), I32, (1, length), start=0, step=1, axis=1)
    total = b.binary("add", _embedded(b, words, ids), _embedded(b, table, _alike(b, positions, (batch, length))))
    if segments is not None:
        total = b.binary("add", total, _embedded(b, segments, _alike(b, call.input(1), (batch, length))))
    _, centred, inverse = _centred(b, total, (2,), call.real("epsilon", 1e-12))
    result = b.binary("add", b.binary("mul", b.binary("mul", centred, inverse), gamma), beta)
    count = b.expand(b.literal(0, I32), (batch,))
    if mask is not None and call.wants(1):
        only(mask, I32)
        ones = b.cast(b.binary("eq", mask, b.literal(1, I32)), I32)
        count = b.reshape(b.reduce("sum", ones, (1,)), (batch,))
    return [result, count, total][: len(call.outputs)]


def _alike(b: Builder, ids: Value, shape: Shape) -> Value:
    """ids, i32[B, S] or [1, S]: an extent that is not known to be 1 is that of `shape` in every run."""
    if b.rank(ids) != len(shape):
        raise Decline(f"ids of rank {b.rank(ids)} are not supported")
    for extent, other in zip(b.shape(ids), shape, strict=True):
        if extent != 1:
            b.equate(other, extent, "the ids of an embedding differ in their extents")
    return ids


def _embedded(b: Builder, table: Value, ids: Value) -> Value:
    """The rows of table: f32[L, D] that ids: i32[B, S] names, f32[B, S, D]"""
    only(ids, I32, I64)
    return b.emit("gather", (table, ids), table.dtype, (*b.shape(ids), b.shape(table)[1]), axis=0)


def _only_float(*values: Value | None) -> None:
    """Declines anything but one float type."""
    given = [value for value in values if value is not None]
    for value in given:
        only(value, F32, F64)
        if value.dtype != given[0].dtype:
            raise Decline("operands of different float types are not compiled")


def _stash(call: Call) -> None:
    """Statistics in f32; those of f64 are computed in f64, so they may not leave."""
    if call.input(0).dtype == F64 and (call.wants(1) or call.wants(2)):
        raise Decline("statistics of f64 in another type are not compiled")
    if call.integer("stash_type", 1) != 1:
        raise Decline("stash_type other than float is not compiled")


def _fit(b: Builder, call: Call, result: Value, x: Value) -> Value:
    """Scale and bias broadcast to x, and never make it larger."""
    if b.shape(result) != b.shape(x):
        raise ModelError(
            "scale or bias does not broadcast to the input", node=call.label, expected=b.shape(x), found=b.shape(result)
        )
    return result


def batch_normalization(b: Builder, call: Call) -> list[Value | None]:
    """(x - mean) / sqrt(var + epsilon) * scale + bias with the stored statistics, one per channel (axis 1)."""
    x, scale, bias, mean, variance = (call.input(index) for index in range(5))
    _only_float(x, scale, bias, mean, variance)
    if call.integer("training_mode", 0) or len([name for name in call.outputs if name]) > 1:
        raise Decline("training mode is not compiled")
    if call.version < 9 and (not call.integer("spatial", 1) or (call.version < 7 and not call.integer("is_test", 0))):
        raise Decline("old forms of BatchNormalization are not compiled")
    rank = b.rank(x)
    if rank < 2:
        raise Decline("BatchNormalization of a tensor without channels")
    for value in (scale, bias, mean, variance):
        if b.rank(value) != 1:
            raise ModelError("BatchNormalization needs one number per channel", node=call.label)
        b.equate(b.shape(x)[1], b.shape(value)[0], "statistics and channels differ in number")
    aligned = [b.reshape(v, (*b.shape(v), *[1] * (rank - 2))) for v in (scale, bias, mean, variance)]
    deviation = b.unary("sqrt", b.with_scalar("add", aligned[3], call.real("epsilon", 1e-5)))
    normal = b.binary("div", b.binary("sub", x, aligned[2]), deviation)
    return [b.binary("add", b.binary("mul", normal, aligned[0]), aligned[1])]


def instance_normalization(b: Builder, call: Call) -> list[Value | None]:
    x, scale, bias = call.input(0), call.input(1), call.input(2)
    _only_float(x, scale, bias)
    rank = b.rank(x)
    if rank < 3 or call.version < 6:
        raise Decline("InstanceNormalization without spatial axes")
    for value in (scale, bias):
        b.equate(b.shape(x)[1], b.shape(value)[0], "scale or bias and channels differ in number")
    _, centred, inverse = _centred(b, x, tuple(range(2, rank)), call.real("epsilon", 1e-5))
    scale, bias = (b.reshape(v, (*b.shape(v), *[1] * (rank - 2))) for v in (scale, bias))
    return [b.binary("add", b.binary("mul", b.binary("mul", centred, inverse), scale), bias)]


def group_normalization(b: Builder, call: Call) -> list[Value | None]:
    """Statistics over a group of channels and all inside; scale and bias per channel, per group before opset 21."""
    x, scale, bias = call.input(0), call.input(1), call.input(2)
    _only_float(x, scale, bias)
    _stash(call)
    groups, shape = call.integer("num_groups"), b.shape(x)
    if len(shape) < 2 or not isinstance(shape[1], int) or groups < 1 or shape[1] % groups:
        raise Decline("the channels do not divide into groups")
    inner = (shape[0], groups, shape[1] // groups, *shape[2:])
    _, centred, inverse = _centred(b, b.reshape(x, inner), tuple(range(2, len(inner))), call.real("epsilon", 1e-5))
    normal = b.binary("mul", centred, inverse)
    if call.version >= 21:
        normal = b.reshape(normal, shape)
    scale, bias = (b.reshape(v, (*b.shape(v), *[1] * (b.rank(normal) - 2))) for v in (scale, bias))
    result = b.binary("add", b.binary("mul", normal, scale), bias)
    return [_fit(b, call, b.reshape(result, shape), x)]


#: (domain, operator) -> rows of (first opset, rule); a row holds until the next one begins
TABLE: dict[tuple[str, str], list[tuple[int, Rule]]] = {
    ("", "Softmax"): [(1, softmax)],
    ("", "LogSoftmax"): [(1, log_softmax)],
    ("", "LayerNormalization"): [(17, layer_normalization)],
    ("", "RMSNormalization"): [(23, rms_normalization)],
    ("", "SimplifiedLayerNormalization"): [(1, rms_normalization)],
    ("com.microsoft", "SimplifiedLayerNormalization"): [(1, rms_normalization)],
    ("com.microsoft", "SkipLayerNormalization"): [(1, skip_layer_normalization)],
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): [(1, skip_layer_normalization)],
    ("com.microsoft", "EmbedLayerNormalization"): [(1, embed_layer_normalization)],
    ("", "BatchNormalization"): [(1, batch_normalization)],
    ("", "InstanceNormalization"): [(1, instance_normalization)],
    ("", "GroupNormalization"): [(18, group_normalization)],
}
