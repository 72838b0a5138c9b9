"""GroupQueryAttention of com.microsoft, the attention of exported language models, written out.

Keys and values of all turns lie in a cache [B, G, L, H]. Sequences of a batch may differ in length: sequence i holds
`seqlens_k[i] + 1` tokens when the node is done, of which the last S are this call's; a first prompt may be padded
behind. Rows beyond those are zeros; the cache grows where the tokens need more than the past has room for.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from grainline.base.dims import Extent, exact_div, product
from grainline.base.dtypes import F32, I32, I64
from grainline.base.errors import ModelError
from grainline.graph.ir import Value
from grainline.importer import extents
from grainline.importer.attention import (
    Scores,
    attended,
    cut,
    hiding,
    join,
    merge_heads,
    past_of,
    repeat_heads,
    scale_of,
    split_heads,
    turned,
)
from grainline.importer.builder import Builder, Decline
from grainline.importer.call import Call, only
from grainline.importer.host import counted

Rule = Callable[[Builder, Call], list[Value | None]]

#: an index that no tensor has
NOWHERE = 1 << 40


def group_query_attention(b: Builder, call: Call) -> list[Value | None]:
    """Inputs: query, key, value, past_key, past_value, seqlens_k, total_sequence_length, cos_cache, sin_cache,
    position_ids, attention_bias, head_sink. Outputs: [B, S, N * H], present_key, present_value."""
    _refuse_what_is_not_carried(call)
    heads, groups = call.integer("num_heads"), call.integer("kv_num_heads")
    if heads < 1 or groups < 1 or heads % groups:
        raise ModelError("heads do not divide into groups", node=call.label, found=(heads, groups))
    q, k, v = _projected(b, call, heads, groups)
    batch, _, length, _ = b.shape(q)
    past = past_of(call, 3)
    total = _total(b, call)
    for each in past or ():
        _of_rank(b, call, each, 4)
    room: Extent = 0 if past is None else b.shape(past[0])[2]
    capacity = extents.maximum(room, total)
    is_prompt = b.binary("eq", b.number(length), b.number(total))
    before = _before(b, call, batch, length, is_prompt)
    places = _counted_on(b, before, length)
    if call.integer("do_rotary", 0):
        q, k = _rotated(b, call, (q, k), _positions(b, call, places, is_prompt))
    fits = _fits(b, before, length, total)
    olds = past or (None, None)
    k, v = (_cached(b, old, new, before, fits, capacity) for old, new in zip(olds, (k, v), strict=True))
    scores = Scores(
        scale_of(b, call, q), _terms(b, call, places, total),
        softcap=call.real("softcap", 0.0), sink=_sink(b, call, heads),
    )  # fmt: skip
    y = attended(b, q, *(repeat_heads(b, cut(b, x, 2, 0, total), heads) for x in (k, v)), scores)
    return [merge_heads(b, y), k, v][: len(call.outputs)]


def _refuse_what_is_not_carried(call: Call) -> None:
    if any(call.optional(position) is not None for position in (12, 13)) or call.wants(3):
        raise Decline("a quantised cache and an output of products are not supported")
    if any(call.text(name, "NONE") != "NONE" for name in ("k_quant_type", "v_quant_type")):
        raise Decline("a quantised cache is not supported")


def _projected(b: Builder, call: Call, heads: int, groups: int) -> tuple[Value, Value, Value]:
    """Queries [B, N, S, H], keys and values [B, G, S, H]: of three inputs, or of one that holds all side by side."""
    query, key, value = call.input(0), call.optional(1), call.optional(2)
    if (key is None) != (value is None):
        raise ModelError("keys and values come together", node=call.label)
    for given in (query, key, value):
        if given is not None:
            only(given, F32)
            _of_rank(b, call, given, 3)
    if key is not None and value is not None:
        return split_heads(b, query, heads), split_heads(b, key, groups), split_heads(b, value, groups)
    width = exact_div(b.shape(query)[2], heads + 2 * groups)
    if width is None:
        raise ModelError("the columns do not divide into heads", node=call.label, found=b.shape(query)[2])
    sizes = (width * heads, width * groups, width * groups)
    starts = (0, sizes[0], sizes[0] + sizes[1])
    counts = (heads, groups, groups)
    q, k, v = (
        split_heads(b, cut(b, query, 2, start, size), count)
        for start, size, count in zip(starts, sizes, counts, strict=True)
    )
    return q, k, v


def _of_rank(b: Builder, call: Call, x: Value, rank: int) -> None:
    if b.rank(x) != rank:
        raise ModelError("an operand has another rank", node=call.label, expected=rank, found=b.rank(x))


def _total(b: Builder, call: Call) -> Extent:
    """The greatest number of tokens of a sequence, with those of this call."""
    given = call.input(6)
    only(given, I32, I64)
    known = b.content(given)
    if known is not None and known.size == 1:
        total = known.ravel()[0]
        if isinstance(total, int) and total < 1:
            raise ModelError("a cache of no tokens", node=call.label, found=total)
        return total  # type: ignore[no-any-return]
    return counted(b, b.reshape(b.cast(given, I64), ()), "how long the cache becomes is data")


def _before(b: Builder, call: Call, batch: Extent, length: Extent, is_prompt: Value) -> Value:
    """i64[B, 1]: how many tokens a sequence holds before this call. A call with all of its tokens is a first prompt,
    whatever the past holds."""
    last = call.input(5)
    only(last, I32, I64)
    if b.rank(last) not in (1, 2):
        raise ModelError("seqlens_k is no vector", node=call.label, found=b.shape(last))
    b.equate(product(b.shape(last)), batch, "seqlens_k and the batch differ in number")
    ends = b.with_scalar("add", b.cast(b.reshape(last, (batch, 1)), I64), 1)
    return b.where(is_prompt, b.literal(0, I64), b.binary("sub", ends, b.number(length)))


def _counted_on(b: Builder, first: Value, length: Extent) -> Value:
    """i64[B, S]: first, first + 1, ... of first [B, 1]"""
    return b.binary("add", first, b.emit("iota", (), I64, (1, length), start=0, step=1, axis=1))


def _positions(b: Builder, call: Call, places: Value, is_prompt: Value) -> Value:
    """i64[B, S]: the given ones, else the places. A first prompt counts on from the very first, as com.microsoft
    says."""
    given = call.optional(9)
    if given is None:
        return places
    only(given, I64)
    _of_rank(b, call, given, 2)
    batch, length = b.shape(given)
    b.equate(b.shape(places)[0], batch, "positions and the batch differ in number")
    b.equate(b.shape(places)[1], length, "positions and queries differ in number")
    row = b.emit("iota", (), I64, (batch, 1), start=0, step=1, axis=0)
    is_first = b.binary("eq", _counted_on(b, row, length), b.literal(0, I64))
    first = b.reduce("sum", b.where(is_first, given, b.literal(0, I64)), (0, 1))
    return b.where(is_prompt, _counted_on(b, first, length), given)


def _rotated(b: Builder, call: Call, given: tuple[Value, Value], positions: Value) -> list[Value]:
    """Queries and keys turned by the angles of their positions."""
    tables = call.input(7), call.input(8)
    for table in tables:
        only(table, F32)
        _of_rank(b, call, table, 2)
    return [turned(b, x, tables, positions, bool(call.integer("rotary_interleaved", 0))) for x in given]


def _fits(b: Builder, before: Value, length: Extent, total: Extent) -> Value:
    """bool[B, 1]: whether the tokens of a sequence are no fewer than this call's, and no more than the total."""
    ends = b.binary("add", before, b.number(length))
    return b.binary("and", b.binary("ge", before, b.literal(0, I64)), b.binary("le", ends, b.number(total)))


def _cached(b: Builder, past: Value | None, new: Value, before: Value, fits: Value, capacity: Extent) -> Value:
    """f32[B, G, L, H]: the first `before` rows of the past, the new ones behind them, zeros. A sequence that is longer
    than its past has rows, or that does not fit, is an index out of range."""
    room: Extent = 0 if past is None else b.shape(past)[2]
    both = new if past is None else join(b, (past, new), 2)
    batch, groups, _, width = b.shape(both)
    columns = b.emit("iota", (), I64, (1, capacity), start=0, step=1, axis=1)
    is_past = b.binary("lt", columns, before)
    is_held = b.binary("lt", columns, b.binary("add", before, b.number(b.shape(new)[2])))
    in_past = b.where(b.binary("lt", columns, b.number(room)), columns, b.literal(NOWHERE, I64))
    in_new = b.binary("add", b.binary("sub", columns, before), b.number(room))
    row = b.where(is_held, b.where(is_past, in_past, in_new), b.literal(0, I64))
    row = b.where(fits, row, b.literal(NOWHERE, I64))
    sequence = b.emit("iota", (), I64, (batch, 1, 1), start=0, step=1, axis=0)
    group = b.emit("iota", (), I64, (1, groups, 1), start=0, step=1, axis=1)
    parts = (both, sequence, group, b.reshape(row, (batch, 1, capacity)))
    rows = b.emit("gather_nd", parts, F32, (batch, groups, capacity, width))
    return b.where(b.reshape(is_held, (batch, 1, capacity, 1)), rows, b.literal(0.0, F32))


def _terms(b: Builder, call: Call, places: Value, total: Extent) -> tuple[Value, ...]:
    """What hides the keys that come later than a query, or too long before; then what the model adds."""
    batch, length = b.shape(places)
    columns = b.emit("iota", (), I64, (1, 1, 1, total), start=0, step=1, axis=3)
    rows = b.reshape(places, (batch, 1, length, 1))
    shown = b.binary("le", columns, rows)
    window = call.integer("local_window_size", -1)
    if window >= 0:
        shown = b.binary("and", shown, b.binary("gt", columns, b.with_scalar("sub", rows, window)))
    terms = [hiding(b, shown, -math.inf)]
    extra = call.optional(10)
    if extra is not None:
        only(extra, F32)
        _of_rank(b, call, extra, 4)
        terms.append(extra)
    return tuple(terms)


def _sink(b: Builder, call: Call, heads: int) -> Value | None:
    """A score that takes its share of each row and gives nothing: one per head, or 0."""
    given = call.optional(11)
    if given is not None:
        only(given, F32)
        b.vector(given, heads)
        return b.reshape(given, (1, heads, 1, 1))
    return b.literal(0.0, F32) if call.integer("smooth_softmax", 0) == 1 else None


#: (domain, operator) -> rows of (first opset, rule); a row holds until the next one begins
TABLE: dict[tuple[str, str], list[tuple[int, Rule]]] = {
    ("com.microsoft", "GroupQueryAttention"): [(1, group_query_attention)],
}
