"""Pointwise work moves above views: f(view(x), scalar) -> view(f(x, scalar)).

Law: reshape and transpose only rearrange elements, so a pointwise operator whose other operands have one element gives
the same elements before and after them. Above the view the operator meets the node that made `x` and can fuse with it.
Only views with a single reader are crossed, so nothing is computed twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from grainline.graph.ir import Graph, Node, Value
from grainline.graph.names import Names, names_of
from grainline.graph.ops import is_pointwise

CROSSED = ("reshape", "transpose")


@dataclass(frozen=True)
class HoistPointwise:
    name = "hoist_pointwise"

    def run(self, graph: Graph) -> Graph:
        readers = graph.consumers()
        kept = graph.output_names()
        producers = dict(graph.producers())
        names = names_of(graph)
        nodes: list[Node] = []
        for node in graph.nodes:
            chain = _views_above(node, producers, readers, kept)
            for new in _hoist(node, chain, names) if chain else (node,):
                for value in new.outputs:
                    producers[value.name] = new
                nodes.append(new)
        return _without_dead_views(replace(graph, nodes=tuple(nodes)))


def _views_above(node: Node, producers: dict[str, Node], readers: dict[str, list[Node]], kept: set[str]) -> list[Node]:
    """The views between `node` and the value it should read instead, nearest first."""
    if not is_pointwise(node.op):
        return []
    wide = [v for v in node.inputs if v.shape is None or any(d != 1 for d in v.shape)]
    if len(wide) != 1 or node.inputs.count(wide[0]) != 1 or node.output.shape != wide[0].shape:
        return []
    chain: list[Node] = []
    value = wide[0]
    scalar_rank = max((len(v.shape or ()) for v in node.inputs if v is not wide[0]), default=0)
    while True:
        above = producers.get(value.name)
        if above is None or above.op not in CROSSED or value.name in kept:
            return chain
        if len(readers.get(value.name, ())) != 1:
            return chain
        if above.inputs[0].shape is None or len(above.inputs[0].shape) < scalar_rank:
            return chain
        chain.append(above)
        value = above.inputs[0]


def _hoist(node: Node, chain: list[Node], names: Names) -> list[Node]:
    """The node over the chain's source, then the chain over its result."""
    below, source = chain[0].output, chain[-1].inputs[0]
    value = Value(names.fresh(f"{node.output.name}__above"), node.output.dtype, source.shape)
    moved = replace(
        node,
        inputs=tuple(source if v == below else v for v in node.inputs),
        outputs=(value,),
    )
    nodes = [moved]
    for view in reversed(chain):
        shape, name = view.output.shape, f"{node.output.name}__view"
        out = node.output if view is chain[0] else Value(names.fresh(name), value.dtype, shape)
        nodes.append(replace(view, inputs=(value,), outputs=(out,)))
        value = out
    return nodes


def _without_dead_views(graph: Graph) -> Graph:
    live = graph.output_names()
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node.op in CROSSED and node.output.name not in live:
            continue
        live.update(v.name for v in node.inputs)
        kept.append(node)
    return replace(graph, nodes=tuple(reversed(kept)))
