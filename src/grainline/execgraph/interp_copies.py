"""What the copy kernels mean: the mixed ones, their halves, and the kernels that share a source's memory.

A copy to the device is needed when the source lies elsewhere. Asynchronous copies are *buffered*: the bytes are taken
when the copy is submitted, so the host may overwrite its memory right after. `Interpreter.copied` lists every copy that
was submitted, as (kernel, bytes).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from grainline.execgraph.argument_block import ArgumentBlock, allocation_sizes, round_up
from grainline.execgraph.ir import ExecuteNode
from grainline.execgraph.memory_model import DEVICE, HOST, Block

if TYPE_CHECKING:
    from grainline.execgraph.interp import Interpreter

ALIGNMENT, HEADER_BYTES = 64, 64
STRING_HEADER_BYTES = 16


def device_copy_sizes(run: Interpreter, source: int, original_bytes: int) -> tuple[int, int]:
    """(bytes to allocate, bytes to copy) for a copy of `source` to the device.

    Both are 0 where no copy is needed, and for an empty tensor. The allocation follows the original size, the copy the
    contents; the size of strings is only looked at once a copy is known to be needed.
    """
    if not needs_copy(run, source):
        return 0, 0
    copy_bytes = tensor_bytes(run, source)
    if copy_bytes == 0:
        return 0, 0
    return round_up(original_bytes, ALIGNMENT) + HEADER_BYTES, copy_bytes


def needs_copy(run: Interpreter, source: int) -> bool:
    return run.is_discrete and run.place[source] == HOST


def tensor_bytes(run: Interpreter, source: int) -> int:
    """Bytes by shape and element type; of strings one header each, their characters and a zero."""
    value = run.objects.get(source)
    if isinstance(value, np.ndarray) and value.dtype.kind in "OSUT":
        return sum(STRING_HEADER_BYTES + len(str(item).encode()) + 1 for item in value.ravel())
    return len(run.contents(source))


# ---- copies to the device ----------------------------------------------------------------------------------------


def copy_h2d(run: Interpreter, node: ExecuteNode) -> None:
    """Allocates, copies and owns, per tensor; shares what lies on the device already."""
    for source, target, size in zip(node.inputs, node.outputs, node.attributes["sizes"], strict=True):
        allocated, copied = device_copy_sizes(run, source, run.size(size))
        if not needs_copy(run, source):
            run.share(source, target)
            continue
        run.allocate(target, allocated)
        submit_copy(run, node, source, target, copied)


def submit_copy(run: Interpreter, node: ExecuteNode, source: int, target: int, size_bytes: int) -> None:
    if size_bytes > 0:
        staged = run.contents(source)[:size_bytes].copy()
        run.submit(node, partial(np.copyto, run.bytes[target][:size_bytes], staged))
        run.bytes[target] = run.bytes[target][: max(size_bytes, len(run.contents(source)))]
        run.copied.append((node.kernel, size_bytes))


def calc_device_copy_sizes(run: Interpreter, node: ExecuteNode) -> None:
    allocated, copied = node.outputs
    (source,) = node.inputs
    run.sizes[allocated], run.sizes[copied] = device_copy_sizes(run, source, run.size(node.attributes["size_bytes"]))


def alloc_mem_hbm(run: Interpreter, node: ExecuteNode) -> None:
    run.allocate(node.outputs[0], run.sizes[node.inputs[0]])


def share_h2d_copy_result(run: Interpreter, node: ExecuteNode) -> None:
    """The owning result. The allocation hands its ownership over and keeps the address, for the copy to come."""
    device, source, copied = node.inputs
    (result,) = node.outputs
    if run.sizes[copied] == 0 and not needs_copy(run, source):
        run.share(source, result)
    else:
        run.share(device, result)
    run.release(device)


def launch_h2d_copy(run: Interpreter, node: ExecuteNode) -> None:
    device, source, copied = node.inputs
    submit_copy(run, node, source, device, run.sizes[copied])


# ---- copies inside the argument block of a launch ----------------------------------------------------------------


def copy_flow_launch(run: Interpreter, node: ExecuteNode) -> None:
    sources = node.inputs[1:]
    sizes = copy_flow_sizes(run, node, sources)
    blocks = [run.take(size) if size else None for size in sizes]
    prepare(run, node, sources, blocks)
    for source, target, block in zip(sources, node.outputs, blocks, strict=True):
        if block is not None:
            submit_copy(run, node, source, target, tensor_bytes(run, source))


def copy_flow_sizes(run: Interpreter, node: ExecuteNode, sources: tuple[int, ...]) -> list[int]:
    block = argument_block(run, node)
    given = [run.size(size) for size in node.attributes["sizes"]]
    tensors = [(needs_copy(run, s), tensor_bytes(run, s), size) for s, size in zip(sources, given, strict=True)]
    return allocation_sizes(block.merged_bytes, tensors)


def argument_block(run: Interpreter, node: ExecuteNode) -> ArgumentBlock:
    return run.argument_blocks.setdefault(node.inputs[0], ArgumentBlock(node.attributes["arguments"]))


def prepare(run: Interpreter, node: ExecuteNode, sources: tuple[int, ...], blocks: list[Block | None]) -> None:
    """Owns every result and embeds what has no block. No copy is submitted here."""
    check_cardinalities(node, sources, blocks)
    arguments = argument_block(run, node)
    arguments.reset(len(run.tilings[node.inputs[0]].words) * 8)
    for source, target, block, positions in zip(sources, node.outputs, blocks, node.attributes["table"], strict=True):
        if not needs_copy(run, source):
            run.share(source, target)
        elif block is not None:
            run.own(target, block, tensor_bytes(run, source))
        else:
            data = run.contents(source).tobytes()
            arguments.embed(data, positions)
            run.release(target)
            run.bytes[target], run.place[target] = np.frombuffer(data, np.uint8).copy(), DEVICE
    arguments.align()


def check_cardinalities(node: ExecuteNode, sources: tuple[int, ...], blocks: list[Block | None]) -> None:
    """Inputs, outputs, blocks and the outer length of the table all equal `copy_flow_count`, which is not zero."""
    from grainline.execgraph.interp import InterpError

    counts = {
        "inputs": len(sources),
        "outputs": len(node.outputs),
        "blocks": len(blocks),
        "entries of the table": len(node.attributes["table"]),
    }
    expected = node.attributes.get("copy_flow_count", 0)
    if expected <= 0:
        raise InterpError(f"node {node.id} ({node.kernel}) has no copy_flow_count")
    for what, found in counts.items():
        if found != expected:
            raise InterpError(f"node {node.id} ({node.kernel}): {found} {what}, expected {expected}")


def calc_copy_flow_alloc_sizes(run: Interpreter, node: ExecuteNode) -> None:
    run.sizes[node.outputs[0]] = copy_flow_sizes(run, node, node.inputs[1:])


def alloc_copy_flow_hbm(run: Interpreter, node: ExecuteNode) -> None:
    """One owned block per size; what is still held from the run before goes back first."""
    (vector,) = node.outputs
    for block in run.vectors.pop(vector, []):
        if block is not None:
            run.device_pool.free(block)
    run.vectors[vector] = [run.take(size) if size else None for size in run.sizes[node.inputs[0]]]


def prepare_copy_flow_result(run: Interpreter, node: ExecuteNode) -> None:
    """Takes the blocks over; the vector keeps their addresses, for the copy to come."""
    vector = node.inputs[1]
    prepare(run, node, node.inputs[2:], run.vectors[vector])
    run.sizes[vector] = run.vectors[vector]
    run.vectors[vector] = []


def launch_copy_flow_h2d(run: Interpreter, node: ExecuteNode) -> None:
    vector, *sources = node.inputs
    for source, block in zip(sources, run.sizes[vector], strict=True):
        size_bytes = tensor_bytes(run, source)
        if block is not None and size_bytes and needs_copy(run, source):
            run.submit(node, partial(np.copyto, block.data[:size_bytes], run.contents(source).copy()))
            run.copied.append((node.kernel, size_bytes))


def free_batch(run: Interpreter, node: ExecuteNode) -> None:
    for block in run.vectors.pop(node.released_slot, []):
        if block is not None:
            run.device_pool.free(block)


# ---- copies to and on the host, and results that share -----------------------------------------------------------


def copy_to_host(run: Interpreter, node: ExecuteNode) -> None:
    (source,), (target,) = node.inputs, node.outputs
    size_bytes = run.size(node.attributes["size_bytes"])
    run.synchronise()
    run.allocate(target, size_bytes, HOST)
    run.bytes[target][:] = run.contents(source)[:size_bytes]


def ensure_tensor_at_out_memory(run: Interpreter, node: ExecuteNode) -> None:
    source, target = node.inputs
    size_bytes = run.size(node.attributes["size_bytes"])
    run.submit(node, partial(np.copyto, run.bytes[target][:size_bytes], run.contents(source)[:size_bytes]))


def make_sure_tensor_at_host(run: Interpreter, node: ExecuteNode) -> None:
    if run.place[node.inputs[0]] == HOST:
        share(run, node)
    else:
        copy_to_host(run, node)


def share(run: Interpreter, node: ExecuteNode) -> None:
    run.share(node.inputs[0], node.outputs[0])


def refer(run: Interpreter, node: ExecuteNode) -> None:
    """The address without a share of the ownership."""
    (source,), (target,) = node.inputs, node.outputs
    run.release(target)
    run.bytes[target], run.place[target] = run.contents(source), run.place[source]


COPIES: dict[str, Callable[[Any, ExecuteNode], None]] = {
    "CopyH2D": copy_h2d,
    "MakeSureTensorAtDevice": copy_h2d,
    "CalcDeviceCopySizes": calc_device_copy_sizes,
    "AllocMemHbm": alloc_mem_hbm,
    "ShareH2DCopyResult": share_h2d_copy_result,
    "LaunchH2DCopy": launch_h2d_copy,
    "CopyFlowLaunch": copy_flow_launch,
    "CalcCopyFlowAllocSizes": calc_copy_flow_alloc_sizes,
    "AllocCopyFlowHbm": alloc_copy_flow_hbm,
    "PrepareCopyFlowResult": prepare_copy_flow_result,
    "LaunchCopyFlowH2D": launch_copy_flow_h2d,
    "FreeBatchHbm": free_batch,
    "FreeBatchHbmHoldAddr": free_batch,
    "CopyD2H": copy_to_host,
    "CopyTensorDataH2H": copy_to_host,
    "MakeSureTensorAtHost": make_sure_tensor_at_host,
    "MakeSureTensorAtHostWithoutSync": make_sure_tensor_at_host,
    "EnsureTensorAtOutMemory": ensure_tensor_at_out_memory,
    **dict.fromkeys(
        (
            "BuildTensor",
            "BuildTensorStorage",
            "BuildTensorPureShape",
            "SplitDataTensor",
            "IdentityAddr",
            "IdentityShapeAndAddr",
            "AccessMemCrossStream",
        ),
        share,
    ),
    "BuildRefTensor": refer,
}
