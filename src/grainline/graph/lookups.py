"""Which graph inputs index which tables: what an index fault can be blamed on.

A kernel only says that an index lay outside its tensor. The inputs that are indices are known beforehand, so a failed
run can look for the element that did it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from grainline.base.errors import KernelError
from grainline.graph.ir import Graph
from grainline.graph.ops import is_view


@dataclass(frozen=True, slots=True)
class Lookup:
    """Node `node` reads axis of extent `extent` of `table` at the elements of graph input `source`."""

    node: str
    source: str
    table: str
    extent: int


def lookups_of(graph: Graph) -> tuple[Lookup, ...]:
    """Every gather whose indices are a graph input, seen through views, and whose axis has a known extent."""
    producers = graph.producers()
    inputs = {value.name for value in graph.inputs}
    found: list[Lookup] = []
    for node in graph.nodes:
        if node.op != "gather":
            continue
        table, indices = node.inputs
        while indices.name in producers and is_view(producers[indices.name].op):
            indices = producers[indices.name].inputs[0]
        extent = (table.shape or ())[node.attributes["axis"]]
        if indices.name in inputs and isinstance(extent, int):
            found.append(Lookup(node.name or node.op, indices.name, table.name, extent))
    return tuple(found)


def blamed(error: KernelError, lookups: Iterable[Lookup], feeds: Mapping[str, Any]) -> KernelError:
    """The error with the element that caused it, when an input holds an index outside its table; else as it is."""
    for lookup in lookups:
        indices = np.asarray(feeds.get(lookup.source, ()))
        if indices.dtype.kind not in "iu":
            continue
        outside = np.argwhere((indices < -lookup.extent) | (indices >= lookup.extent))
        if len(outside):
            place = tuple(int(i) for i in outside[0])
            return KernelError(
                f"an index lies outside {lookup.table!r}", node=lookup.node, value=lookup.source,
                expected=f"{-lookup.extent} to {lookup.extent - 1}", found=f"{indices[place]} at {list(place)}",
            )  # fmt: skip
    return error
