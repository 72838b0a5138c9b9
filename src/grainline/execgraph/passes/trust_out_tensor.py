"""drop(InferShape) when it only checks a returned result again.

Behind a host call, InferShape binds the symbols of the results and checks their shapes. Where it binds nothing that the
graph uses, and its results are returned without anyone reading their memory, the shape that the result carries is
trusted. Runs only with the option `trust_shape_on_out_tensor`.
"""

from __future__ import annotations

from dataclasses import dataclass

from grainline.base import dims
from grainline.execgraph.draft import Draft
from grainline.execgraph.ir import ExecuteGraph, ExecuteNode


@dataclass(frozen=True)
class TrustOutTensor:
    name: str = "trust_out_tensor"

    def run(self, graph: ExecuteGraph) -> ExecuteGraph:
        """`graph` itself when every check is needed."""
        draft = Draft(graph)
        for node in graph.main:
            if node.kernel == "InferShape" and node.attributes["group"] > 0 and _is_repeated(draft, graph, node):
                draft.remove(node.id, pass_on=True)
        if len(draft.nodes) == len(graph.init) + len(graph.main) + len(graph.deinit):
            return graph
        left = sorted((n for n in draft.main() if n.kernel == "InferShape"), key=lambda n: n.attributes["group"])
        for group, node in enumerate(left):
            draft.change(node.id, attributes={**node.attributes, "group": group})
        return draft.finish()


def _is_repeated(draft: Draft, graph: ExecuteGraph, node: ExecuteNode) -> bool:
    if not {output.slot for output in graph.outputs}.issuperset(node.inputs):
        return False
    if any(draft.readers(slot) != [node.id] for slot in node.inputs):
        return False
    known = {s for i in graph.inputs for extent in i.shape or () for s in dims.symbols(extent)}
    own = {s for shape in node.attributes["shapes"] for extent in shape or () for s in dims.symbols(extent)}
    return own <= known
