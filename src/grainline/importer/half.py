"""Arithmetic on 16-bit floats: compute in f32, round once per ONNX operator.

`widened(rule)` is the rule for f16 and bf16 too: its operands are cast to f32, the rule writes its primitives in f32,
and each result that has the operator's half type is cast back. Everything fuses, so the conversions happen in
registers; the casts between two operators stay, for each of them rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from grainline.base.dtypes import BF16, F16, F32, DType
from grainline.graph.ir import Value
from grainline.importer.builder import Builder
from grainline.importer.call import Call

Rule = Callable[[Builder, Call], list[Value | None]]

HALVES = (F16, BF16)

#: operators whose float operands may differ in type
MIXED = frozenset(
    "Pow BatchNormalization DequantizeLinear SimplifiedLayerNormalization RMSNormalization LayerNormalization".split()
)
#: the input that gives the result its type, where it is not the first
TYPED_BY = {
    "DequantizeLinear": 1,
    "EmbedLayerNormalization": 2,
    "RMSNormalization": 1,
    "SimplifiedLayerNormalization": 1,
}
#: statistics that stay f32 (stash_type)
WIDE_RESULTS: dict[str, tuple[int, ...]] = {
    "LayerNormalization": (1, 2),
    "SimplifiedLayerNormalization": (1,),
    "SkipLayerNormalization": (1, 2),
    "SkipSimplifiedLayerNormalization": (1, 2),
}
#: constants up to this size are converted at once, so that rules still see their numbers
SMALL = 64


def widened(rule: Rule) -> Rule:
    """`rule`, which knows f32, for f16 and bf16 as well."""

    def wide_rule(b: Builder, call: Call) -> list[Value | None]:
        floats = {value.dtype for value in call.inputs if value is not None and value.dtype.is_float}
        if not floats.intersection(HALVES) or (len(floats) > 1 and call.op_type not in MIXED):
            return rule(b, call)
        typed_by = call.optional(TYPED_BY.get(call.op_type, 0))
        result_type = F32 if typed_by is None else typed_by.dtype
        inputs = tuple(_wide(b, value) for value in call.inputs)
        results = rule(b, replace(call, inputs=inputs, narrow=result_type))
        kept = WIDE_RESULTS.get(call.op_type, ())
        return [
            value if position in kept else _rounded(b, value, result_type) for position, value in enumerate(results)
        ]

    return wide_rule


def _wide(b: Builder, value: Value | None) -> Value | None:
    if value is None or value.kind != "tensor" or value.dtype not in HALVES:
        return value
    known = b.static(value, SMALL)
    return b.cast(value, F32) if known is None else b.literal(known.astype("float32"), F32)


def _rounded(b: Builder, value: Value | None, to: DType) -> Value | None:
    if value is None or value.dtype != F32 or to not in HALVES:
        return value
    return b.cast(value, to)
