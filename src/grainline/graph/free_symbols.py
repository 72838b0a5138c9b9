"""Which symbols the sub-graphs of a node take from the graph around, beside those that their inputs show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grainline.base.dims import Expr, symbol, symbols
from grainline.graph.ir import Graph, Node, Value


def free_symbols(node: Node) -> tuple[str, ...]:
    """In alphabetical order."""
    return tuple(sorted({name for graph in node.attributes["subgraphs"].values() for name in _free(graph)}))


def _free(graph: Graph) -> set[str]:
    bound = {name for value in graph.inputs for name in _shown(value)}
    free: set[str] = set()
    for node in graph.nodes:
        attributes = {key: item for key, item in node.attributes.items() if key != "subgraphs"}
        read = _symbols([[value.shape for value in node.inputs], attributes])
        free.update({*read, *(free_symbols(node) if node.op == "host" else ())} - bound)
        if node.op == "host":
            bound.update(name for value in node.outputs for name in _shown(value))
        free.update(set(_symbols([value.shape for value in node.outputs])) - bound)
    return free | (set(_symbols([(guard.left, guard.right) for guard in graph.guards])) - bound)


def _shown(value: Value) -> list[str]:
    """The symbols that a tensor of this shape binds."""
    return [name for d in value.shape or () for name in symbols(d) if d == symbol(name)]


def _symbols(item: Any) -> Iterator[str]:
    if isinstance(item, Expr):
        yield from symbols(item)
    elif isinstance(item, list | tuple):
        for part in item:
            yield from _symbols(part)
    elif isinstance(item, Mapping):
        yield from _symbols(list(item.values()))
