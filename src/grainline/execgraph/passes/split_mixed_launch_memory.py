"""A copy that allocates and submits becomes a chain whose parts belong to one worker each.

    CopyH2D, per tensor   CalcDeviceCopySizes   -> AllocMemHbm      -> ShareH2DCopyResult    -> LaunchH2DCopy
    CopyFlowLaunch        CalcCopyFlowAllocSizes -> AllocCopyFlowHbm -> PrepareCopyFlowResult -> LaunchCopyFlowH2D
                          normal                  memory              memory                   launch

The third node makes what consumers and Frees read, and *takes the ownership over*: the allocation keeps an address
only. So a block lives as long as its result, and the submission, which has no outputs, must come before the Free: it
gets an edge to it, like every launch that uses the block. Whoever reads the contents in stream order waits for the
submission; whoever only needs the address does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from grainline.execgraph.draft import Draft
from grainline.execgraph.ir import ExecuteGraph, ExecuteNode
from grainline.execgraph.registry import is_copy_async, is_launch_consumer

H2D_COPIES = frozenset(("CopyH2D", "MakeSureTensorAtDevice"))


@dataclass(frozen=True)
class SplitMixedLaunchMemory:
    """Splits every copy kernel of Main. Runs once, before `RemoveLaunchFreeEdge`, and only with several workers."""

    name: str = "split_mixed_launch_memory"

    def run(self, graph: ExecuteGraph) -> ExecuteGraph:
        """`graph` itself when it has no copies. ValueError for a CopyFlowLaunch without a count."""
        mixed = [node for node in graph.main if node.kernel in H2D_COPIES or node.kernel == "CopyFlowLaunch"]
        if not mixed:
            return graph
        draft = Draft(graph)
        for node in mixed:
            if node.kernel == "CopyFlowLaunch":
                _split_copy_flow(draft, node.id)
            else:
                _split_h2d(draft, node.id)
        return draft.finish()


def _split_h2d(draft: Draft, node_id: int) -> None:
    """One chain per tensor. The first keeps the node's id in its last part."""
    node = draft.nodes[node_id]
    waiting = draft.waiting(node.id)
    for source, result, size in zip(node.inputs, node.outputs, node.attributes["sizes"], strict=True):
        alloc_size, copy_size = draft.slot("sizes"), draft.slot("sizes")
        block = draft.slot("blocks", label=draft.slots[result].label)
        attributes = {"size_bytes": size}
        like = replace(node, compute_node="")
        calc = draft.add(
            "CalcDeviceCopySizes", (source,), (alloc_size, copy_size), node.controls, attributes, like=like
        )  # fmt: skip
        draft.add("AllocMemHbm", (alloc_size,), (block,), like=like)
        share = draft.add("ShareH2DCopyResult", (block, source, copy_size), (result,), like=like)
        launch = draft.add("LaunchH2DCopy", (block, source, copy_size), (), (share,), like=node)
        _hand_over(draft, node, waiting, (source,), (calc, share), launch)
        _wait_for_contents(draft, result, launch)
    draft.remove(node.id)


def _split_copy_flow(draft: Draft, node_id: int) -> None:
    """Prepare keeps the node's id, so that whoever knows the fused node finds its results."""
    node = draft.nodes[node_id]
    count = node.attributes.get("copy_flow_count", 0)
    if not isinstance(count, int) or count <= 0 or count != len(node.outputs):
        raise ValueError(f"node {node.id}: copy_flow_count is {count!r}, with {len(node.outputs)} outputs")
    tiling, *sources = node.inputs
    waiting = draft.waiting(node.id)
    sizes, blocks = draft.slot("sizes"), draft.slot("blocks")
    counted = {"copy_flow_count": count}
    placed = {name: node.attributes[name] for name in ("table", "arguments")}
    measured = {**counted, "sizes": node.attributes["sizes"], "arguments": node.attributes["arguments"]}
    like = replace(node, compute_node="")
    calc = draft.add("CalcCopyFlowAllocSizes", node.inputs, (sizes,), node.controls, measured, like=like)
    draft.add("AllocCopyFlowHbm", (sizes,), (blocks,), (), counted, like=like)
    inputs = (tiling, blocks, *sources)
    draft.change(node.id, kernel="PrepareCopyFlowResult", inputs=inputs, controls=(), attributes=counted | placed)
    launch = draft.add("LaunchCopyFlowH2D", (blocks, *sources), (), (node.id,), counted, like=node)
    for follower in waiting:
        draft.unorder(node.id, follower)
    _hand_over(draft, node, waiting, sources, (calc, node.id), launch)
    for result in node.outputs:
        _wait_for_contents(draft, result, launch)


def _hand_over(
    draft: Draft, node: ExecuteNode, waiting: Iterable[int], sources: Iterable[int], parts: Iterable[int], launch: int
) -> None:
    """Whoever waited for the copy waits for its submission; the sources live until every part has read them."""
    for follower in waiting:
        draft.order(launch, follower)
    for source in sources:
        for guarder in draft.guarders(source):
            for part in (*parts, launch):
                draft.order(part, guarder)


def _wait_for_contents(draft: Draft, result: int, launch: int) -> None:
    """Edges from the submission to what reads `result` in stream order, directly or through a reference to it."""
    for user in draft.readers(result):
        consumer = draft.nodes[user]
        if consumer.is_guarder or is_launch_consumer(consumer.kernel) or is_copy_async(consumer.kernel):
            draft.order(launch, user)
        if consumer.kernel != "BuildRefTensor":
            continue
        for behind in (b for slot in consumer.outputs for b in draft.readers(slot)):
            if is_launch_consumer(draft.nodes[behind].kernel):
                draft.order(launch, behind)
                _release_after(draft, draft.readers(result), behind)


def _release_after(draft: Draft, users: Iterable[int], launch: int) -> None:
    """The launch behind a reference uses the block too."""
    for user in users:
        if draft.nodes[user].is_guarder:
            draft.order(launch, user)
