"""Nodes of one operator, with the same inputs and attributes, become one node.

Law: primitives are functions; two applications to the same values give the same value. Host nodes stay apart: they may
be random.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from grainline.graph.ir import Graph, Node, Value


@dataclass(frozen=True)
class CommonSubexpressions:
    name = "common_subexpressions"

    def run(self, graph: Graph) -> Graph:
        first: dict[tuple[object, ...], Value] = {}
        same: dict[str, Value] = {}
        nodes: list[Node] = []
        for node in graph.nodes:
            current = node.with_inputs(same.get(value.name, value) for value in node.inputs)
            if current.op == "host":
                nodes.append(current)
                continue
            earlier = first.setdefault(_key(current), current.output)
            if earlier is current.output:
                nodes.append(current)
            else:
                same[current.output.name] = earlier
        outputs = tuple((name, same.get(value.name, value)) for name, value in graph.outputs)
        return replace(graph, nodes=tuple(nodes), outputs=outputs)


def _key(node: Node) -> tuple[object, ...]:
    """Equal for equal applications. `repr` keeps 0.0 and -0.0, 1 and True apart."""
    attributes = tuple(sorted((key, repr(item)) for key, item in node.attributes.items()))
    inputs = tuple(value.name for value in node.inputs)
    return node.op, inputs, attributes, node.output.dtype.name, node.output.shape
