"""main(n)  becomes  init(n) when n is pure and everything it reads is constant.

A pure node of Main whose inputs all come from Init runs once, at load; its result is a constant store like a weight,
and its guarder runs in DeInit. Copies of weights to a device are what moves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from grainline.execgraph.draft import Draft
from grainline.execgraph.ir import ExecuteGraph, ExecuteNode
from grainline.execgraph.registry import KERNELS, Traits


@dataclass(frozen=True)
class ConstantExpressionMotion:
    """Stops at allocations, launches and host calls: they are not pure."""

    name: str = "constant_expression_motion"

    def run(self, graph: ExecuteGraph) -> ExecuteGraph:
        """`graph` itself when nothing moves."""
        draft = Draft(graph)
        constant = {slot for node in graph.init for slot in node.outputs}
        candidates = [node for node in graph.main if Traits.PURE in KERNELS[node.kernel].traits]
        moved: set[int] = set()
        while True:
            found = [node for node in candidates if node.id not in moved and _is_constant(node, constant)]
            if not found:
                break
            for node in found:
                moved.add(node.id)
                constant.update(node.outputs)
        if not moved:
            return graph
        for node_id in moved:
            _move(draft, node_id, moved)
        _forget(draft, moved)
        return draft.finish()


def _is_constant(node: ExecuteNode, constant: set[int]) -> bool:
    """All inputs come from Init, and no extent waits for the shapes of a run."""
    sizes = (*node.attributes.get("sizes", ()), node.attributes.get("size_bytes", 0))
    return set(node.inputs) <= constant and all(isinstance(size, int) for size in sizes)


def _move(draft: Draft, node_id: int, moved: set[int]) -> None:
    node = draft.nodes[node_id]
    draft.change(node_id, controls=tuple(control for control in node.controls if control in moved))
    draft.move(node_id, "init")
    for slot in node.outputs:
        if draft.slots[slot].kind == "memory":
            draft.slots[slot] = replace(draft.slots[slot], kind="weight")
        for guarder in draft.guarders(slot):
            draft.change(guarder, kernel="ReleaseWeight", controls=())
            draft.move(guarder, "deinit")


def _forget(draft: Draft, moved: set[int]) -> None:
    """Init is over before Main starts, so nobody there waits for what moved."""
    for node in draft.main():
        if not moved.isdisjoint(node.controls):
            draft.change(node.id, controls=tuple(control for control in node.controls if control not in moved))
