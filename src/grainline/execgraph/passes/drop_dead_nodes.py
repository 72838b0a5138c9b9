"""drop(n) when nothing that n produces is used: allocations whose block only a guarder touches, and that guarder."""

from __future__ import annotations

from dataclasses import dataclass, replace

from grainline.execgraph.ir import ExecuteGraph


@dataclass(frozen=True)
class DropDeadNodes:
    """Removes memory that nobody reads or writes. Slots keep their numbers."""

    name: str = "drop_dead_nodes"

    def run(self, graph: ExecuteGraph) -> ExecuteGraph:
        used = {slot for node in graph.main if not node.is_guarder for slot in node.inputs}
        dead = {
            slot for node in graph.main if node.kernel == "AllocMemory" for slot in node.outputs if slot not in used
        }
        main = tuple(node for node in graph.main if dead.isdisjoint((*node.inputs, *node.outputs)))
        return graph if not dead else replace(graph, main=main)
