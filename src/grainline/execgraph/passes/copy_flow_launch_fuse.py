"""launch(copy(x), copy(y), ...)  becomes  launch(CopyFlowLaunch(x, y, ...)).

Host tensors that only launches use travel in the argument block of the launch, or in blocks that one node allocates for
all of them. Each launch gets its own fused node, named after it; `table[i]` lists the argument positions that output i
feeds. A copy qualifies when nothing but core launches and Frees uses what it makes, and copying it once per launch is
no waste: it feeds one launch, or is small enough to be embedded. A launch of another frame
reads one copy in every turn.
"""

from __future__ import annotations

from dataclasses import dataclass

from grainline.base.dims import Extent
from grainline.execgraph.argument_block import EMBED_LIMIT_BYTES
from grainline.execgraph.draft import Draft
from grainline.execgraph.ir import RELEASE_INDEX, ExecuteGraph, ExecuteNode

TARGETS = frozenset(("Launch",))
COPIES = frozenset(("CopyH2D", "MakeSureTensorAtDevice"))


@dataclass(frozen=True)
class CopyFlowLaunchFuse:
    """Always registered. A copy disappears, with its Frees, when no launch uses it any more."""

    name: str = "copy_flow_launch_fuse"

    def run(self, graph: ExecuteGraph) -> ExecuteGraph:
        """`graph` itself when no copy qualifies."""
        draft = Draft(graph)
        copies = [node for node in graph.main if node.kernel in COPIES and _qualifies(draft, node)]
        if not copies:
            return graph
        maker = {slot: node.id for node in copies for slot in node.outputs}
        for launch in graph.main:
            if launch.kernel in TARGETS and not maker.keys().isdisjoint(launch.inputs):
                _fuse(draft, launch, maker)
        for copy in copies:
            _drop(draft, copy)
        return draft.finish()


def _qualifies(draft: Draft, copy: ExecuteNode) -> bool:
    users = [draft.nodes[user] for slot in copy.outputs for user in draft.readers(slot)]
    launches = [user for user in users if user.kernel in TARGETS]
    if not launches or any(user.kernel != "FreeMemory" for user in users if user not in launches):
        return False
    if any(user.owner != copy.owner for user in users):
        return False
    return len(launches) == 1 or all(_is_small(size) for size in copy.attributes["sizes"])


def _is_small(size: Extent) -> bool:
    return isinstance(size, int) and size <= EMBED_LIMIT_BYTES


def _fuse(draft: Draft, launch: ExecuteNode, maker: dict[int, int]) -> None:
    used = [slot for slot in dict.fromkeys(launch.inputs) if slot in maker]
    sources, sizes, table = [], [], []
    controls: set[int] = set()
    for slot in used:
        copy = draft.nodes[maker[slot]]
        position = copy.outputs.index(slot)
        sources.append(copy.inputs[position])
        sizes.append(copy.attributes["sizes"][position])
        table.append(tuple(at for at, view in enumerate(launch.attributes["views"]) if view.slot == slot))
        controls.update(copy.controls)
    outputs = [draft.slot("memory", draft.slots[slot]) for slot in used]
    attributes = {
        "copy_flow_count": len(used),
        "table": tuple(table),
        "sizes": tuple(sizes),
        "arguments": len(launch.attributes["views"]) + len(launch.attributes["words"]),
    }
    # A direct edge from a copy would close a cycle once the copy waits for what the launch waits for.
    for copy_id in {maker[slot] for slot in used}:
        draft.unorder(copy_id, launch.id)
    fused = draft.add("CopyFlowLaunch", (launch.inputs[0], *sources), outputs, controls, attributes, like=launch)
    for copy_id in {maker[slot] for slot in used}:
        for waiting in draft.waiting(copy_id):
            draft.order(fused, waiting)
    for old, new in zip(used, outputs, strict=True):
        draft.rewire(launch.id, old, new)
        _guard(draft, launch, old, new)


def _guard(draft: Draft, launch: ExecuteNode, old: int, new: int) -> None:
    """A guarder for the new output, with this launch's and the non-launches' edges of the old one."""
    for guarder in [draft.nodes[node_id] for node_id in draft.guarders(old)]:
        others = (control for control in guarder.controls if draft.nodes[control].kernel not in TARGETS)
        draft.add(guarder.kernel, (new,), (), {*others, launch.id}, {RELEASE_INDEX: 0}, like=launch)
        draft.unorder(launch.id, guarder.id)


def _drop(draft: Draft, copy: ExecuteNode) -> None:
    users = [draft.nodes[user] for slot in copy.outputs for user in draft.readers(slot)]
    if all(user.is_guarder for user in users):
        for user in users:
            draft.remove(user.id)
        draft.remove(copy.id)
