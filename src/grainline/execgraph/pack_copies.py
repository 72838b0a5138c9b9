"""The copies of a graph to the device as rows: one per tensor, and one per launch whose copies are fused.

The nodes of one chain speak of one row, so the slots between them (sizes, blocks) need no place of their own in a
native run.
"""

from __future__ import annotations

from dataclasses import dataclass

from grainline.base.dims import Extent
from grainline.execgraph.ir import ExecuteGraph, ExecuteNode

H2D_COPIES = ("CopyH2D", "MakeSureTensorAtDevice")
H2D_CHAIN = ("CalcDeviceCopySizes", "AllocMemHbm", "ShareH2DCopyResult", "LaunchH2DCopy")
COPY_FLOW_CHAIN = ("CalcCopyFlowAllocSizes", "AllocCopyFlowHbm", "PrepareCopyFlowResult", "LaunchCopyFlowH2D")


@dataclass(frozen=True, slots=True)
class TensorCopy:
    """One tensor: slots, bytes, the frame that copies it, and the argument positions of its launch that are addresses
    in it (copy flows)."""

    source: int
    target: int
    size_bytes: Extent
    owner: int
    positions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CopyFlow:
    """The tensors [begin, end) that are copied for the launch with this tiling slot."""

    tiling: int
    begin: int
    end: int


class CopyTables:
    """Rows for every copy of Main, and which rows each of their nodes speaks of. ValueError when a chain is torn."""

    def __init__(self, graph: ExecuteGraph) -> None:
        self.tensors: list[TensorCopy] = []
        self.flows: list[CopyFlow] = []
        self.flow_of_tiling: dict[int, int] = {}
        self._tensors_of: dict[int, tuple[int, int]] = {}
        self._row_of: dict[int, int] = {}  # slot of sizes or blocks, tensor of a chain, or flow of one
        sizes = {node.outputs[0]: node for node in graph.main if node.kernel in (H2D_CHAIN[0], COPY_FLOW_CHAIN[0])}
        blocks = {
            node.outputs[0]: sizes[node.inputs[0]]
            for node in graph.main
            if node.kernel in (H2D_CHAIN[1], COPY_FLOW_CHAIN[1])
        }
        for node in graph.main:
            if node.kernel in H2D_COPIES:
                self._tensors_of[node.id] = self._add(node, node.inputs, node.attributes["sizes"])
            elif node.kernel == "CopyFlowLaunch":
                self._add_flow(node, node, node.inputs[1:])
            elif node.kernel == "ShareH2DCopyResult":
                self._add_chain(blocks[node.inputs[0]], node)
            elif node.kernel == "PrepareCopyFlowResult":
                self._add_flow(blocks[node.inputs[1]], node, node.inputs[2:])

    def _add(
        self,
        maker: ExecuteNode,
        sources: tuple[int, ...],
        sizes: tuple[Extent, ...],
        table: tuple[tuple[int, ...], ...] | None = None,
    ) -> tuple[int, int]:
        begin = len(self.tensors)
        positions = table or ((),) * len(sources)
        tensors = zip(sources, maker.outputs, sizes, positions, strict=True)
        self.tensors += [TensorCopy(s, target, size, maker.owner, at) for s, target, size, at in tensors]
        return begin, len(self.tensors)

    def _add_chain(self, calc: ExecuteNode, share: ExecuteNode) -> None:
        block, source, copy_size = share.inputs
        if (source,) != calc.inputs or copy_size != calc.outputs[1]:
            raise ValueError(f"node {share.id} ({share.kernel}) does not belong to the sizes of node {calc.id}")
        row, _ = self._add(share, (source,), (calc.attributes["size_bytes"],))
        self._row_of |= dict.fromkeys((block, *calc.outputs), row)

    def _add_flow(self, calc: ExecuteNode, prepare: ExecuteNode, sources: tuple[int, ...]) -> None:
        """`calc` knows the sizes, `prepare` the results; of a fused node they are the same."""
        if sources != calc.inputs[1:] or calc.inputs[0] != prepare.inputs[0]:
            raise ValueError(f"node {prepare.id} ({prepare.kernel}) does not belong to the sizes of node {calc.id}")
        rows = self._add(prepare, sources, calc.attributes["sizes"], prepare.attributes["table"])
        tiling = prepare.inputs[0]
        if tiling in self.flow_of_tiling:
            raise ValueError(f"node {prepare.id} ({prepare.kernel}) is the second copy flow of its launch")
        number = self.flow_of_tiling[tiling] = len(self.flows)
        self.flows.append(CopyFlow(tiling, *rows))
        if calc is not prepare:
            self._row_of |= dict.fromkeys((prepare.inputs[1], *calc.outputs), number)

    def tensors_of(self, node: ExecuteNode) -> tuple[int, int]:
        """Begin and end of the rows of a node that copies whole tensors."""
        return self._tensors_of[node.id]

    def tensor_of(self, node: ExecuteNode) -> int:
        """The row of a node of an H2D chain."""
        return self._row_of[node.outputs[0] if node.kernel == "CalcDeviceCopySizes" else node.inputs[0]]

    def flow_of(self, node: ExecuteNode) -> int:
        """The flow of a node of a CopyFlow chain, or of the fused node."""
        if node.kernel in ("CopyFlowLaunch", "CalcCopyFlowAllocSizes", "PrepareCopyFlowResult"):
            return self.flow_of_tiling[node.inputs[0]]
        return self._row_of[node.inputs[0]]
