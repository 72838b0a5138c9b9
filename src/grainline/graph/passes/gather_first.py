"""Rows are gathered before they are computed: gather(f(x, y), i) -> f(gather(x, i), gather(y, i)).

Law: a pointwise operator computes each element from the same element of its operands, so picking rows commutes with
it. It is applied to tables made from constants (a dequantised embedding, say): the table itself then never exists.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from grainline.base.dims import product
from grainline.graph.ir import Graph, Node, Value
from grainline.graph.names import Names, names_of
from grainline.graph.ops import is_pointwise

#: tables below this many elements are cheaper to compute once at load
SMALL_TABLE = 65536


@dataclass(frozen=True)
class GatherFirst:
    name = "gather_first"

    def run(self, graph: Graph) -> Graph:
        producers, names = graph.producers(), names_of(graph)
        nodes: list[Node] = []
        for node in graph.nodes:
            nodes.extend(_rows_first(node, graph, producers, names) if node.op == "gather" else (node,))
        return replace(graph, nodes=tuple(nodes))


def _rows_first(gather: Node, graph: Graph, producers: dict[str, Node], names: Names) -> list[Node]:
    """The nodes that replace `gather`, in order; itself when the law does not apply."""
    table, indices = gather.inputs
    maker = producers.get(table.name)
    if gather.attributes["axis"] != 0 or maker is None or not is_pointwise(maker.op):
        return [gather]
    size = product(table.shape or ())
    if not isinstance(size, int) or size < SMALL_TABLE or not _from_constants(maker, graph, producers):
        return [gather]
    nodes: list[Node] = []
    operands: list[Value] = []
    for value in maker.inputs:
        shape = value.shape or ()
        if len(shape) < len(table.shape or ()) or shape[0] == 1:
            if len(shape) == len(table.shape or ()):
                return [gather]
            operands.append(value)
            continue
        rows = Value(
            names.fresh(f"{gather.output.name}__rows"),
            value.dtype,
            (*(indices.shape or ()), *shape[1:]),
        )
        picked = Node("gather", (value, indices), (rows,), gather.attributes, gather.name)
        nodes.extend(_rows_first(picked, graph, producers, names))
        operands.append(rows)
    nodes.append(replace(maker, inputs=tuple(operands), outputs=gather.outputs))
    return nodes


def _from_constants(node: Node, graph: Graph, producers: dict[str, Node]) -> bool:
    """Whether the node's result is computed from constants by pointwise operators alone."""
    for value in node.inputs:
        if value.name in graph.constants:
            continue
        above = producers.get(value.name)
        if above is None or not is_pointwise(above.op) or not _from_constants(above, graph, producers):
            return False
    return True
