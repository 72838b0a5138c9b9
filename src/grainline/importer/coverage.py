"""Which operators the compiled path carries: the tables of the families joined, and how a row is chosen by opset."""

from __future__ import annotations

from collections.abc import Callable

from grainline.graph.ir import Value
from grainline.importer import (
    attention,
    convolution,
    elementwise,
    grouped_attention,
    indexing,
    linear,
    normalisation,
    quantisation,
    reductions,
    resize,
    shape,
)
from grainline.importer.builder import Builder
from grainline.importer.call import Call
from grainline.importer.half import widened

Rule = Callable[[Builder, Call], list[Value | None]]

#: these move elements of any type as they are
MOVEMENT = (shape, indexing, resize)
ARITHMETIC = (attention, grouped_attention, convolution, elementwise, reductions, linear, normalisation, quantisation)

TABLE: dict[tuple[str, str], list[tuple[int, Rule]]] = {
    **{key: rows for family in MOVEMENT for key, rows in family.TABLE.items()},
    **{
        key: [(since, widened(rule)) for since, rule in rows]
        for family in ARITHMETIC
        for key, rows in family.TABLE.items()
    },
}


def rule_for(domain: str, op_type: str, version: int) -> Rule | None:
    """The rule of the last row that begins at or before `version`, or None."""
    chosen = None
    for since, rule in TABLE.get((domain, op_type), ()):
        if since <= version:
            chosen = rule
    return chosen
