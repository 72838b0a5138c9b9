"""Drops nodes whose results nobody reads, and constants that nobody reads.

Law: the outputs of the graph, the inputs it asks for and the symbols that its extents use stay the same. A symbol that
is no input's extent is known when the host node that first shows it has run: whoever uses the symbol needs that node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from grainline.base.dims import Expr, symbols
from grainline.graph.ir import Graph, Node, Value


@dataclass(frozen=True)
class EliminateDead:
    name = "eliminate_dead"

    def run(self, graph: Graph) -> Graph:
        read = graph.output_names()
        makers = _makers(graph)
        kept: list[Node] = []
        for name in _symbols([(g.left, g.right) for g in graph.guards] + [v.shape for _, v in graph.outputs]):
            read.update(makers.get(name, ()))
        for node in reversed(graph.nodes):
            if any(value.name in read for value in node.outputs):
                kept.append(node)
                read.update(value.name for value in node.inputs)
                for name in _symbols_of(node) if makers else ():
                    read.update(makers.get(name, ()))
        constants = {name: constant for name, constant in graph.constants.items() if name in read}
        return replace(graph, nodes=tuple(reversed(kept)), constants=constants)


def _makers(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Symbol -> the outputs of the host node that first shows it, for symbols that no input has."""
    known = set(_symbols([value.shape for value in graph.inputs]))
    makers: dict[str, tuple[str, ...]] = {}
    for node in graph.nodes:
        if node.op == "host":
            new = set(_symbols([value.shape for value in node.outputs])) - known
            makers.update(dict.fromkeys(new, tuple(value.name for value in node.outputs)))
            known |= new
    return makers


def _symbols_of(node: Node) -> Iterator[str]:
    values: tuple[Value, ...] = (*node.inputs, *node.outputs)
    yield from _symbols([value.shape for value in values])
    yield from _symbols(list(node.attributes.values()))


def _symbols(item: Any) -> Iterator[str]:
    """The symbols in an extent, in a sub-graph, or in any nesting of lists, tuples and dicts of them."""
    if isinstance(item, Expr):
        yield from symbols(item)
    elif isinstance(item, list | tuple):
        for part in item:
            yield from _symbols(part)
    elif isinstance(item, dict):
        yield from _symbols(list(item.values()))
    elif isinstance(item, Graph):
        yield from _symbols([(guard.left, guard.right) for guard in item.guards])
        yield from _symbols([value.shape for value in item.inputs])
        for node in item.nodes:
            yield from _symbols_of(node)
