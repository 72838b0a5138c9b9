"""How much memory of the run's allocator each node of a profiled run takes or gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grainline.base.dims import evaluate, symbols
from grainline.execgraph.ir import ExecuteGraph, ExecuteNode, Extent


def memory_changes(
    graph: ExecuteGraph, records: Sequence[Mapping[str, Any]], extents: Mapping[str, int]
) -> dict[int, int]:
    """Bytes by node id: positive for an allocation, negative for the Free of its slot.

    `records` are those of `ModelExecutor.run_profiled`. A block whose size only the run knew counts as empty, at both
    ends; returned arrays belong to the caller and do not count.
    """
    launched = {record["node"]: record["homes"] * record["scratch_bytes"] for record in records if "homes" in record}
    scratch = {node.inputs[0]: launched.get(node.id, 0) for node in graph.main if node.kernel == "Launch"}
    held: dict[int, int] = {}
    changes: dict[int, int] = {}
    for node in graph.main:
        size_bytes = _taken(node, extents, scratch)
        if size_bytes is not None:
            held[node.outputs[0]] = changes[node.id] = size_bytes
    for node in graph.main:
        if node.is_guarder:
            changes[node.id] = -held.get(node.released_slot, 0)
    return changes


def _taken(node: ExecuteNode, extents: Mapping[str, int], scratch: Mapping[int, int]) -> int | None:
    if node.kernel == "AllocWorkspace":
        return scratch.get(node.inputs[0], 0)
    if node.kernel == "AllocMemory":
        return _size(node.attributes["size_bytes"], extents)
    return None


def _size(extent: Extent, extents: Mapping[str, int]) -> int:
    return evaluate(extent, extents) if all(name in extents for name in symbols(extent)) else 0
