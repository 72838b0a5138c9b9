"""Attention written out: the operators of com.microsoft that optimised transformers contain, and the standard one.

All come down to `attended`: softmax(scale * Q K' + masks) V by head, which fuses into one kernel. Masks are summed as
additive terms; what a causal mask hides gets one number, whatever else says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from grainline.base.dims import Extent, exact_div
from grainline.base.dtypes import BOOL, F32, I32, I64
from grainline.base.errors import ModelError
from grainline.graph.ir import Value
from grainline.importer.builder import Builder, Decline
from grainline.importer.call import Call, only, only_given
from grainline.importer.linear import product_of

Rule = Callable[[Builder, Call], list[Value | None]]

LOWEST = float(np.finfo(np.float32).min)
BY_HEAD = (0, 2, 1, 3)


@dataclass(frozen=True)
class Scores:
    """What happens to the scores, f32[B, N, S, T], before their softmax.

    `terms` broadcast to them and are added; `is_causal`: a query sees `past` keys, and of the others those up to its
    own; what the rest gets is `hidden`. `frees_last`: the last query sees all keys. `softcap`: products are squeezed
    into [-softcap, softcap] before the terms. `sink`, f32[1, N, 1, 1] or a scalar: one more score in each row, whose
    share nobody gets.
    """

    scale: float
    terms: tuple[Value, ...] = ()
    is_causal: bool = False
    past: Extent = 0
    hidden: float = LOWEST
    frees_last: bool = False
    softcap: float = 0.0
    sink: Value | None = None


def attended(b: Builder, q: Value, k: Value, v: Value, scores: Scores) -> Value:
    """q: f32[B, N, S, H], k: f32[B, N, T, H], v: f32[B, N, T, E] -> f32[B, N, S, E]"""
    b.equate(b.shape(k)[2], b.shape(v)[2], "keys and values differ in number")
    for axis, what in enumerate(("batch", "number of heads")):
        for other in (k, v):
            b.equate(b.shape(q)[axis], b.shape(other)[axis], f"queries, keys and values differ in their {what}")
    x = b.with_scalar("mul", product_of(b, q, b.transpose(k, (0, 1, 3, 2))), scores.scale)
    if scores.softcap:
        x = b.with_scalar("mul", b.unary("tanh", b.with_scalar("mul", x, 1.0 / scores.softcap)), scores.softcap)
    shape = b.shape(x)
    for term in scores.terms:
        x = b.binary("add", x, _fitted(b, term, shape))
    if scores.is_causal:
        x = b.where(_shown(b, shape, scores), x, b.literal(scores.hidden, F32))
    return product_of(b, _shares(b, x, scores.sink), v)


def _shares(b: Builder, scores: Value, sink: Value | None) -> Value:
    """The softmax of each row; zeros where all of it is minus infinity. The greatest of a row gives 1, so the sum of
    any other row is no less."""
    greatest = b.with_scalar("max", b.reduce("max", scores, (3,)), LOWEST)
    if sink is not None:
        greatest = b.binary("max", greatest, sink)
    raised = b.unary("exp", b.binary("sub", scores, greatest))
    total = b.reduce("sum", raised, (3,))
    if sink is None:
        total = b.with_scalar("max", total, 0.5)
    else:
        total = b.binary("add", total, b.unary("exp", b.binary("sub", sink, greatest)))
    return b.binary("mul", raised, b.unary("reciprocal", total))


def _shown(b: Builder, shape: Sequence[Extent], scores: Scores) -> Value:
    """bool[S, T]: whether the key comes no later than the query."""
    rows = b.emit("iota", (), I64, (shape[2], 1), start=scores.past, step=1, axis=0)
    columns = b.emit("iota", (), I64, (1, shape[3]), start=0, step=1, axis=1)
    shown = b.binary("le", columns, rows)
    if not scores.frees_last or shape[3] == shape[2] + scores.past:
        return shown
    after = b.emit("iota", (), I64, (shape[2], 1), start=1 - shape[2], step=1, axis=0)
    return b.binary("or", shown, b.binary("eq", after, b.literal(0, I64)))


def _fitted(b: Builder, term: Value, shape: Sequence[Extent]) -> Value:
    """The term; an extent of it that is not 1 is the extent of the scores in every run."""
    own = b.shape(term)
    if len(own) > len(shape):
        raise Decline(f"a mask of rank {len(own)} is not supported")
    wanted = [1 if extent == 1 else other for extent, other in zip(own, shape[len(shape) - len(own) :], strict=True)]
    for extent, other in zip(own, wanted, strict=True):
        b.equate(other, extent, "a mask of an attention does not fit its scores")
    return b.reshape(term, wanted)


def split_heads(b: Builder, x: Value, heads: int) -> Value:
    """f32[B, S, N * H] -> f32[B, N, S, H]"""
    batch, length, hidden = _of_rank(b, x, 3)
    return b.transpose(b.reshape(x, (batch, length, heads, _head(hidden, heads))), BY_HEAD)


def merge_heads(b: Builder, x: Value) -> Value:
    """f32[B, N, S, H] -> f32[B, S, N * H]"""
    batch, heads, length, width = b.shape(x)
    return b.reshape(b.transpose(x, BY_HEAD), (batch, length, heads * width))


def _head(hidden: Extent, heads: int) -> Extent:
    width = exact_div(hidden, heads) if heads > 0 else None
    if width is None:
        raise Decline(f"{hidden} columns do not divide into {heads} heads")
    return width


def _of_rank(b: Builder, x: Value, rank: int) -> tuple[Extent, ...]:
    shape = b.shape(x)
    if len(shape) != rank:
        raise Decline(f"an operand of rank {len(shape)} is not compiled for this operator")
    return tuple(shape)


def join(b: Builder, parts: Sequence[Value], axis: int) -> Value:
    """The parts one after the other along `axis`."""
    shape = list(b.shape(parts[0]))
    for part in parts[1:]:
        only(part, parts[0].dtype)
        shape[axis] = shape[axis] + b.shape(part)[axis]
        for other in (other for other in range(len(shape)) if other != axis):
            b.equate(shape[other], b.shape(part)[other], "past and present differ in their extents")
    return b.emit("concat", parts, parts[0].dtype, shape, axis=axis)


def cut(b: Builder, x: Value, axis: int, start: Extent, length: Extent) -> Value:
    """x[..., start : start + length, ...]"""
    shape = b.shape(x)
    starts = [start if a == axis else 0 for a in range(len(shape))]
    lengths = [length if a == axis else extent for a, extent in enumerate(shape)]
    return b.slice(x, starts, lengths, [1] * len(shape))


def _part(b: Builder, x: Value, axis: int, index: int) -> Value:
    """x[..., index, ...] without the axis"""
    shape = b.shape(x)
    return b.reshape(cut(b, x, axis, index, 1), (*shape[:axis], *shape[axis + 1 :]))


def _refuse(call: Call, *unsupported: str) -> None:
    """Declines attributes that change the meaning and are not carried."""
    for name in unsupported:
        if call.has(name) and call.integer(name):
            raise Decline(f"its attribute {name} is not supported")


def _absent(call: Call, *positions: int) -> None:
    for position in positions:
        if call.optional(position) is not None:
            raise Decline(f"its input {position} is not supported")


def _flags_term(b: Builder, mask: Value, total: Extent, fill: float) -> Value:
    """Of mask [B, T] or [B, S, T]: hides keys whose flag is not positive."""
    shape = b.shape(mask)
    if len(shape) not in (2, 3):
        raise Decline(f"a mask of rank {len(shape)} is not supported")
    b.equate(shape[-1], total, "the mask and the keys differ in number")
    flags = b.reshape(mask, (shape[0], 1, *([1] if len(shape) == 2 else []), *shape[1:]))
    return hiding(b, b.binary("gt", flags, b.literal(0, I32)), fill)


def _lengths_term(b: Builder, mask: Value, batch: Extent, total: Extent, fill: float) -> Value:
    """Of mask [B]: hides keys from its length on; of [2 * B]: also those before the start."""
    (count,) = b.shape(mask)
    has_starts = count == batch * 2
    if not has_starts:
        b.equate(count, batch, "the mask and the batch differ in number")
    columns = b.emit("iota", (), I32, (1, 1, 1, total), start=0, step=1, axis=3)
    shown = b.binary("lt", columns, b.reshape(cut(b, mask, 0, 0, batch), (batch, 1, 1, 1)))
    if has_starts:
        starts = b.reshape(cut(b, mask, 0, batch, batch), (batch, 1, 1, 1))
        shown = b.binary("and", shown, b.binary("ge", columns, starts))
    return hiding(b, shown, fill)


def hiding(b: Builder, shown: Value, fill: float) -> Value:
    """The term that adds `fill` where a key is not shown."""
    return b.where(shown, b.literal(0.0, F32), b.literal(fill, F32))


def _terms(b: Builder, call: Call, mask: Value | None, bias: Value | None, q: Value, k: Value) -> tuple[Value, ...]:
    """The additive terms of an attention of com.microsoft."""
    terms: list[Value] = []
    fill = call.real("mask_filter_value", -10000.0)
    if mask is not None:
        only(mask, I32)
        batch, total = b.shape(q)[0], b.shape(k)[2]
        is_lengths = b.rank(mask) == 1
        terms.append(_lengths_term(b, mask, batch, total, fill) if is_lengths else _flags_term(b, mask, total, fill))
    if bias is not None:
        _of_rank(b, bias, 4)
        terms.append(bias)
    return tuple(terms)


def scale_of(b: Builder, call: Call, q: Value) -> float:
    """The attribute, where 0 (of com.microsoft) or none means 1 / sqrt(H)."""
    width = b.shape(q)[3]
    given = call.real("scale", 0.0)
    if given:
        return given
    if not isinstance(width, int):
        raise Decline("the width of a head is only known at run time")
    return 1.0 / math.sqrt(width)


def fused_attention(b: Builder, call: Call) -> list[Value | None]:
    """com.microsoft: one product makes queries, keys and values; past and present are [2, B, N, T, H]."""
    x, weights, bias = call.input(0), call.input(1), call.optional(2)
    mask, past, extra = call.optional(3), call.optional(4), call.optional(5)
    only_given((x, weights, bias, past, extra), F32)
    _refuse(call, "do_rotary", "past_present_share_buffer")
    _absent(call, 6)
    heads = call.integer("num_heads")
    projected = product_of(b, x, weights)
    hidden = _of_rank(b, projected, 3)[2]
    if bias is not None:
        b.vector(bias, hidden)
        projected = b.binary("add", projected, bias)
    third = exact_div(hidden, 3)
    sizes = call.integers("qkv_hidden_sizes", ()) or ((third,) * 3 if third is not None else ())
    if len(sizes) != 3 or sum(sizes) != hidden:
        raise ModelError("the sizes of queries, keys and values do not fit the weights", node=call.label, found=sizes)
    starts = (0, sizes[0], sizes[0] + sizes[1])
    q, k, v = (
        split_heads(b, cut(b, projected, 2, start, size), heads) for start, size in zip(starts, sizes, strict=True)
    )
    before: Extent = 0
    if past is not None:
        b.equate(_of_rank(b, past, 5)[0], 2, "the past of an attention holds keys and values")
        before = b.shape(past)[3]
        k, v = (join(b, (_part(b, past, 0, index), new), 2) for index, new in enumerate((k, v)))
    terms = _terms(b, call, mask, extra, q, k)
    scores = Scores(scale_of(b, call, q), terms, bool(call.integer("unidirectional", 0)), before, frees_last=True)
    results: list[Value | None] = [merge_heads(b, attended(b, q, k, v, scores))]
    if call.wants(1):
        results.append(join(b, [b.reshape(each, (1, *b.shape(each))) for each in (k, v)], 0))
    return results


def past_of(call: Call, at: int) -> tuple[Value, Value] | None:
    """The keys and values of earlier calls, inputs `at` and `at + 1`; None where there are none."""
    keys, values = call.optional(at), call.optional(at + 1)
    only_given((keys, values), F32)
    if keys is not None and values is not None:
        return keys, values
    if keys is not values:
        raise ModelError("past keys and past values come together", node=call.label)
    return None


def _with_past(b: Builder, call: Call, k: Value, v: Value, at: int) -> tuple[Value, Value, Extent]:
    """Keys and values behind those of earlier calls, and how many these are."""
    past = past_of(call, at)
    if past is None:
        return k, v, 0
    return join(b, (past[0], k), 2), join(b, (past[1], v), 2), _of_rank(b, past[0], 4)[2]


def _unpacked(b: Builder, call: Call, heads: int) -> tuple[Value, Value, Value]:
    """Queries, keys and values of MultiHeadAttention, [B, S, N * H] or, given so, [B, N, S, H]."""
    query, key, value = call.input(0), call.optional(1), call.optional(2)
    if b.rank(query) == 5:  # [B, S, N, 3, H]
        q, k, v = (_part(b, query, 3, index) for index in range(3))
        return tuple(b.reshape(each, (*b.shape(each)[:2], heads * b.shape(each)[3])) for each in (q, k, v))  # type: ignore[return-value]
    if key is None:
        raise Decline("queries alone are not supported")
    if value is None:  # [B, T, N, 2, H]
        _of_rank(b, key, 5)
        key, value = (_part(b, key, 3, index) for index in range(2))
        key, value = (b.reshape(each, (*b.shape(each)[:2], heads * b.shape(each)[3])) for each in (key, value))
    return query, key, value


def multi_head_attention(b: Builder, call: Call) -> list[Value | None]:
    """com.microsoft: queries, keys and values come projected; one bias holds those of all three."""
    heads = call.integer("num_heads")
    _absent(call, 8, 9)
    if call.wants(3):
        raise Decline("its output of products is not supported")
    parts = list(_unpacked(b, call, heads))
    bias, mask, extra = (call.optional(index) for index in range(3, 6))
    only_given((*parts, bias, extra), F32)
    if bias is not None:
        start: Extent = 0
        b.vector(bias, sum((_of_rank(b, part, 3)[2] for part in parts), start))
        for index, part in enumerate(parts):
            size = b.shape(part)[2]
            parts[index] = b.binary("add", part, cut(b, bias, 0, start, size))
            start = start + size
    q, k, v = (part if b.rank(part) == 4 else split_heads(b, part, heads) for part in parts)
    k, v, before = _with_past(b, call, k, v, 6)
    terms = _terms(b, call, mask, extra, q, k)
    scores = Scores(scale_of(b, call, q), terms, bool(call.integer("unidirectional", 0)), before, frees_last=True)
    return [merge_heads(b, attended(b, q, k, v, scores)), k, v][: len(call.outputs)]


def standard_attention(b: Builder, call: Call) -> list[Value | None]:
    """ai.onnx since 23. Few heads of keys and values serve groups of query heads."""
    given = [call.input(index) for index in range(3)]
    only_given(given, F32)
    _absent(call, 6)
    if call.wants(3):
        raise Decline("its output of products is not compiled")
    is_causal = bool(call.integer("is_causal", 0))
    if call.real("softcap", 0.0) or (is_causal and call.optional(4) is not None):
        raise Decline("softcap, or a causal mask after past keys, is not compiled")
    if max(call.integer(f"{side}_window_size", -1) for side in ("left", "right")) >= 0:
        raise Decline("a window of keys is not compiled")
    counts = [call.integer(name, 0) for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
    q, k, v = (x if b.rank(x) == 4 else split_heads(b, x, count) for x, count in zip(given, counts, strict=True))
    k, v, _ = _with_past(b, call, k, v, 4)
    scale = call.real("scale") if call.has("scale") else scale_of(b, call, q)
    terms = _standard_mask(b, call, call.optional(3), b.shape(k)[2])
    scores = Scores(scale, terms, is_causal, hidden=-math.inf)
    heads = b.shape(q)[1]
    y = attended(b, q, repeat_heads(b, k, heads), repeat_heads(b, v, heads), scores)
    return [merge_heads(b, y) if b.rank(given[0]) == 3 else y, k, v][: len(call.outputs)]


def _standard_mask(b: Builder, call: Call, mask: Value | None, total: Extent) -> tuple[Value, ...]:
    if mask is None:
        return ()
    only(mask, BOOL, F32)
    if call.version >= 24 and b.shape(mask)[-1:] not in ((1,), (total,)):
        raise Decline("only a run knows whether the mask is shorter than the keys")
    if mask.dtype == BOOL:
        return (hiding(b, mask, -math.inf),)
    return (mask,)


def repeat_heads(b: Builder, x: Value, heads: Extent) -> Value:
    """f32[B, G, T, H] -> f32[B, heads, T, H], each head heads / G times"""
    batch, groups, length, width = _of_rank(b, x, 4)
    times = exact_div(heads, groups)
    if times is None:
        raise Decline(f"{heads} heads do not divide into {groups} groups")
    if times == 1:
        return x
    wide = b.expand(b.reshape(x, (batch, groups, 1, length, width)), (batch, groups, times, length, width))
    return b.reshape(wide, (batch, heads, length, width))


def rotary_embedding(b: Builder, call: Call) -> list[Value | None]:
    """com.microsoft: each pair of columns is turned by the angle of its position; inputs x, positions, cos, sin."""
    x, positions, cos, sin = (call.input(index) for index in range(4))
    _refuse(call, "is_packed_batching")
    if call.real("scale", 1.0) != 1.0:
        raise Decline("a scale is not supported")
    return [_rotated(b, call, x, (cos, sin), positions)]


def _rotated(b: Builder, call: Call, x: Value, tables: tuple[Value, Value], positions: Value) -> Value:
    """x: f32[B, N, S, H] or [B, S, N * H]; the tables: f32[L, R / 2], where R of the H columns turn, all by default."""
    only_given((x, *tables), F32)
    only(positions, I32, I64)
    is_flat = b.rank(x) == 3
    half = b.shape(tables[0])[1]
    columns = call.integer("rotary_embedding_dim", 0) or half * 2
    heads = call.integer("num_heads", 0) or (exact_div(b.shape(x)[2], columns) if is_flat else 0)
    if not isinstance(heads, int):
        raise Decline("the number of heads is only known at run time")
    heads_first = split_heads(b, x, heads) if is_flat else x
    batch, _, length, _ = _of_rank(b, heads_first, 4)
    b.equate(half * 2, columns, "the tables of a rotary embedding do not fit its columns")
    if b.shape(positions) == (1,):
        positions = _counted(b, positions, batch, length)
    y = turned(b, heads_first, tables, positions, bool(call.integer("interleaved", 0)))
    return merge_heads(b, y) if is_flat else y


def turned(b: Builder, x: Value, tables: tuple[Value, Value], positions: Value, is_interleaved: bool) -> Value:
    """x: f32[B, N, S, H]; its first R columns turn by the angles of the positions [B, S]; tables: f32[L, R / 2]."""
    columns, width = b.shape(tables[0])[1] * 2, b.shape(x)[3]
    cos, sin = (_angles(b, table, positions) for table in tables)
    y = _turned(b, cut(b, x, 3, 0, columns), cos, sin, is_interleaved)
    return y if columns == width else join(b, (y, cut(b, x, 3, columns, width - columns)), 3)


def _counted(b: Builder, first: Value, batch: Extent, length: Extent) -> Value:
    """[B, S]: first, first + 1, ..."""
    steps = b.emit("iota", (), first.dtype, (batch, length), start=0, step=1, axis=1)
    return b.binary("add", steps, b.reshape(first, (1, 1)))


def _angles(b: Builder, table: Value, positions: Value) -> Value:
    """[B, 1, S, R / 2]: the rows of the positions"""
    batch, length = _of_rank(b, positions, 2)
    half = b.shape(table)[1]
    rows = b.emit("gather", (table, positions), F32, (batch, length, half), axis=0)
    return b.reshape(rows, (batch, 1, length, half))


def _turned(b: Builder, x: Value, cos: Value, sin: Value, is_interleaved: bool) -> Value:
    """(a, c) -> (a cos - c sin, a sin + c cos) for the two halves of the columns, or for even and odd ones."""
    *outer, width = b.shape(x)
    half = b.shape(cos)[3]
    pairs = b.reshape(x, (*outer, half, 2) if is_interleaved else (*outer, 2, half))
    axis = 4 if is_interleaved else 3
    a, c = (_part(b, pairs, axis, index) for index in range(2))
    low = b.binary("sub", b.binary("mul", a, cos), b.binary("mul", c, sin))
    high = b.binary("add", b.binary("mul", a, sin), b.binary("mul", c, cos))
    shape = (*b.shape(low)[:3], half, 1) if is_interleaved else (*b.shape(low)[:3], 1, half)
    both = join(b, [b.reshape(each, shape) for each in (low, high)], axis)
    return b.reshape(both, (*outer, width))


#: (domain, operator) -> rows of (first opset, rule); a row holds until the next one begins
TABLE: dict[tuple[str, str], list[tuple[int, Rule]]] = {
    ("", "Attention"): [(23, standard_attention)],
    ("com.microsoft", "Attention"): [(1, fused_attention)],
    ("com.microsoft", "MultiHeadAttention"): [(1, multi_head_attention)],
    ("com.microsoft", "RotaryEmbedding"): [(1, rotary_embedding)],
}
