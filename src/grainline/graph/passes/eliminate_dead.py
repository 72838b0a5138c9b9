"""Drops nodes whose results nobody reads, and constants that nobody reads.

Law: the outputs of the graph and the inputs it asks for stay the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from grainline.graph.ir import Graph, Node


@dataclass(frozen=True)
class EliminateDead:
    name = "eliminate_dead"

    def run(self, graph: Graph) -> Graph:
        read = graph.output_names()
        kept: list[Node] = []
        for node in reversed(graph.nodes):
            if any(value.name in read for value in node.outputs):
                kept.append(node)
                read.update(value.name for value in node.inputs)
        constants = {name: constant for name, constant in graph.constants.items() if name in read}
        return replace(graph, nodes=tuple(reversed(kept)), constants=constants)
