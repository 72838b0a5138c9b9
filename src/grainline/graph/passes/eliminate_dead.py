"""Drops nodes whose results nobody reads, and constants that nobody reads.

Law: the outputs of the graph, the inputs it asks for and the symbols that its extents use stay the same. A symbol that
is no input's extent is known when the host node that first shows it has run: whoever uses the symbol needs that node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from grainline.graph.ir import Graph, Node
from grainline.graph.symbols import symbols_in, symbols_of


@dataclass(frozen=True)
class EliminateDead:
    name = "eliminate_dead"

    def run(self, graph: Graph) -> Graph:
        read = graph.output_names()
        makers = _makers(graph)
        kept: list[Node] = []
        for name in symbols_in([(g.left, g.right) for g in graph.guards] + [v.shape for _, v in graph.outputs]):
            read.update(makers.get(name, ()))
        for node in reversed(graph.nodes):
            if any(value.name in read for value in node.outputs):
                kept.append(node)
                read.update(value.name for value in node.inputs)
                for name in symbols_of(node) if makers else ():
                    read.update(makers.get(name, ()))
        constants = {name: constant for name, constant in graph.constants.items() if name in read}
        return replace(graph, nodes=tuple(reversed(kept)), constants=constants)


def _makers(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Symbol -> the outputs of the host node that first shows it, for symbols that no input has."""
    known = set(symbols_in([value.shape for value in graph.inputs]))
    makers: dict[str, tuple[str, ...]] = {}
    for node in graph.nodes:
        if node.op == "host":
            new = set(symbols_in([value.shape for value in node.outputs])) - known
            makers.update(dict.fromkeys(new, tuple(value.name for value in node.outputs)))
            known |= new
    return makers
