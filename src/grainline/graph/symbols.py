"""The symbols in graphs, and those that the sub-graphs of a node take from around, beside what their inputs show."""

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
        read = symbols_in([[value.shape for value in node.inputs], attributes])
        free.update({*read, *(free_symbols(node) if node.op == "host" else ())} - bound)
        if node.op == "host":
            bound.update(name for value in node.outputs for name in _shown(value))
        free.update(set(symbols_in([value.shape for value in node.outputs])) - bound)
    return free | (set(symbols_in([(guard.left, guard.right) for guard in graph.guards])) - bound)


def _shown(value: Value) -> list[str]:
    """The symbols that a tensor of this shape binds."""
    return [name for d in value.shape or () for name in symbols(d) if d == symbol(name)]


def symbols_in(item: Any) -> Iterator[str]:
    """The symbols in an extent, in a sub-graph, or in any nesting of sequences and mappings of them."""
    if isinstance(item, Expr):
        yield from symbols(item)
    elif isinstance(item, list | tuple):
        for part in item:
            yield from symbols_in(part)
    elif isinstance(item, Mapping):
        yield from symbols_in(list(item.values()))
    elif isinstance(item, Graph):
        yield from symbols_in([(guard.left, guard.right) for guard in item.guards])
        yield from symbols_in([value.shape for value in item.inputs])
        for node in item.nodes:
            yield from symbols_of(node)


def symbols_of(node: Node) -> Iterator[str]:
    """The symbols in the shapes and attributes of a node."""
    yield from symbols_in([value.shape for value in (*node.inputs, *node.outputs)])
    yield from symbols_in(node.attributes)
