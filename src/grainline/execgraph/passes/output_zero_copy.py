"""copy(memory, output)  becomes  the memory being the output's.

A result that ends in a block of the run and is then copied into the returned array is produced in that array: the
allocation becomes the output's, the copy and the block's Free go. It holds when the copy moves the whole block, is the
only writer of the output, and nothing writes the block behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from grainline.base import dims
from grainline.execgraph.draft import Draft
from grainline.execgraph.ir import ExecuteGraph, ExecuteNode, Slot
from grainline.execgraph.verify import touches


@dataclass(frozen=True)
class OutputZeroCopy:
    """Returned arrays are written directly. Runs before Frees are retyped: it looks for their original types."""

    name: str = "output_zero_copy"

    def run(self, graph: ExecuteGraph) -> ExecuteGraph:
        draft = Draft(graph)
        for node in graph.main:
            if node.kernel == "CopyMemory" and graph.slots[node.inputs[1]].kind == "output":
                _replace(draft, node)
        return graph if len(draft.nodes) == len(graph.init + graph.main + graph.deinit) else draft.finish()


def _replace(draft: Draft, copy: ExecuteNode) -> None:
    source, output = copy.inputs
    producers = draft.producers()
    allocation = draft.nodes[producers[source]] if source in producers else None
    target = draft.nodes[producers[output]]
    if allocation is None or (allocation.kernel, target.kernel) != ("AllocMemory", "AllocModelOutput"):
        return
    if not _is_whole(copy, allocation, draft.slots[output]):
        return
    others = [draft.nodes[user] for user in draft.readers(source) if user != copy.id]
    if not _is_last_writer(draft, copy, others) or not _have_one_shape(draft, source, output, others):
        return
    for user in others:
        if user.is_guarder:
            draft.remove(user.id)
        else:
            draft.rewire(user.id, source, output)
    draft.remove(allocation.id, pass_on=True)
    draft.remove(copy.id, pass_on=True)


def _is_whole(copy: ExecuteNode, allocation: ExecuteNode, output: Slot) -> bool:
    """The copy moves every byte of the block, and the output has as many."""
    assert output.shape is not None and output.dtype is not None
    size = dims.product(output.shape) * output.dtype.size_bytes
    attributes = copy.attributes
    offsets = (attributes["source_offset"], attributes["target_offset"])
    return offsets == (0, 0) and attributes["size_bytes"] == allocation.attributes["size_bytes"] == size


def _is_last_writer(draft: Draft, copy: ExecuteNode, others: list[ExecuteNode]) -> bool:
    """Nobody else writes the output, and whoever writes the block comes before the copy."""
    source, output = copy.inputs
    on_output = [draft.nodes[user] for user in draft.readers(output) if user != copy.id]
    if any(touches(node).get(output, False) for node in on_output):
        return False
    return all(node.id in copy.controls or not touches(node).get(source, False) for node in others) and all(
        copy.id not in node.controls for node in others if not node.is_guarder
    )


def _have_one_shape(draft: Draft, source: int, output: int, others: list[ExecuteNode]) -> bool:
    """A host call sees the shape of the slot it reads."""
    shapes = {(draft.slots[slot].shape, draft.slots[slot].dtype) for slot in (source, output)}
    return len(shapes) == 1 or not any(node.kernel == "HostCall" for node in others)
