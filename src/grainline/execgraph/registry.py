"""The registry of kernels: what each host function promises to the verifier, the passes, the executors and traces.

A kernel may be called from any thread, so whatever touches shared state carries a *section* (its critical-section
key): "memory" for kernels that produce an owning result or change memory state, "launch" for kernels without outputs
that only submit work in stream order, "" for the rest. The section decides four things: the worker, whether the kernel
is an anchor of the order, which consumers wait for a copy's submission, and what `RemoveLaunchFreeEdge` may touch.

`Traits` hold the lists that the rules refer to:
* GUARDER releases a resource of another node; `hold_address` names the variant that leaves the raw address readable;
* LAUNCH is a real operator submission (`is_launch_node`); the submitting halves of split copies are none;
* ASYNC_COPY submits a copy between places and owns its result (`is_copy_async`);
* HOST_PATH produces host memory, so a Free of it is never a device Free;
* NORMAL_OF_THREE leaves the memory worker when there are exactly three workers;
* PURE depends on its inputs alone and may move to Init with them;
* FREE_STANDING is ordered by its own place, although nothing may need its result;
* CONTROL decides in the run which nodes follow, so that inside of a frame no static order exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag, auto
from types import MappingProxyType
from typing import Any

MEMORY, LAUNCH, NO_SECTION = "memory", "launch", ""

#: What a slot holds: a fed array, a weight of the process-wide store, a block of the run's allocator, the memory of a
#: returned array, scratch of one launch, a tiling decision, a host result (an array or any Python object), sizes that
#: a kernel computed, or blocks that an allocation holds until another node takes them over.
SLOT_KINDS = ("input", "weight", "memory", "output", "workspace", "tiling", "object", "sizes", "blocks")

Kinds = tuple[str, ...]
TENSORS: Kinds = ("input", "weight", "memory", "output", "object")


class Traits(Flag):
    NONE = 0
    GUARDER = auto()
    LAUNCH = auto()
    ASYNC_COPY = auto()
    HOST_PATH = auto()
    NORMAL_OF_THREE = auto()
    PURE = auto()
    FREE_STANDING = auto()
    CONTROL = auto()


@dataclass(frozen=True, slots=True)
class KernelType:
    """A registered kernel. `inputs` and `outputs` give the slot kinds by position, the last input may repeat when
    `repeats`; None = any. `trace` names the attributes that a trace prints behind the slots."""

    name: str
    section: str = NO_SECTION
    inputs: tuple[Kinds, ...] | None = None
    outputs: Kinds | None = None
    traits: Traits = Traits.NONE
    containers: tuple[str, ...] = ("main",)
    hold_address: str = ""
    repeats: bool = False
    trace: tuple[str, ...] = ()

    @property
    def is_guarder(self) -> bool:
        return Traits.GUARDER in self.traits

    @property
    def holds_address(self) -> bool:
        return self.name in _HOLD_ADDRESS


_ANYWHERE = ("init", "main", "deinit")
_OWNER: Kinds = ("memory",)
_FREED: tuple[Kinds, ...] = (("memory", "workspace", "object"),)
_SOURCES: tuple[Kinds, ...] = (TENSORS,)
_T = Traits

_CORE = (
    KernelType("LoadWeight", MEMORY, (), ("weight",), containers=("init",), trace=("weight",)),
    KernelType("ReleaseWeight", MEMORY, (("weight",),), (), _T.GUARDER, ("deinit",)),
    KernelType("InferShape", outputs=(), trace=("group",), traits=_T.FREE_STANDING),
    KernelType("Tiling", inputs=(), outputs=("tiling",)),
    KernelType("HostCall", traits=_T.FREE_STANDING, trace=("host_op",)),
    KernelType("ExtentsTensor", LAUNCH, (("memory", "output"),), (), trace=("values", "offset_bytes")),
    KernelType("CopyMemory", LAUNCH, (TENSORS, ("memory", "output")), (), _T.ASYNC_COPY, trace=("size_bytes",)),
)

_ALLOCATIONS = (
    KernelType("AllocMemory", MEMORY, (), _OWNER, trace=("size_bytes",)),
    KernelType("AllocMemHbm", MEMORY, (("sizes",),), ("blocks",)),
    KernelType("AllocMemHost", MEMORY, (), _OWNER, _T.HOST_PATH, trace=("size_bytes",)),
    KernelType("AllocHostCpuOutputMemory", MEMORY, (), _OWNER, _T.HOST_PATH, trace=("size_bytes",)),
    KernelType("AllocModelOutput", MEMORY, (), ("output",), trace=("output",)),
    KernelType("AllocWorkspace", MEMORY, (("tiling",),), ("workspace",)),
)


def _free(name: str, released: tuple[Kinds, ...] = _FREED) -> tuple[KernelType, KernelType]:
    held = name + "HoldAddr"
    return (
        KernelType(name, MEMORY, released, (), _T.GUARDER, _ANYWHERE, hold_address=held),
        KernelType(held, MEMORY, released, (), _T.GUARDER, _ANYWHERE),
    )


_FREES = (
    *_free("FreeMemory"),
    *_free("FreeMemHbm"),
    *_free("FreeBatchHbm", (("blocks",),)),
    KernelType("FreeTensorMemory", MEMORY, _FREED, (), _T.GUARDER, _ANYWHERE),
)

_TO_DEVICE: dict[str, Any] = dict(
    section=MEMORY, inputs=_SOURCES, containers=("init", "main"), repeats=True, trace=("sizes",)
)

#: Copies between host and device: the mixed kernels, and the halves that they are split into.
_COPIES = (
    KernelType("CopyH2D", traits=_T.ASYNC_COPY | _T.PURE, **_TO_DEVICE),
    KernelType("MakeSureTensorAtDevice", traits=_T.ASYNC_COPY | _T.PURE, **_TO_DEVICE),
    KernelType("CopyFlowLaunch", MEMORY, (("tiling",), TENSORS), None, _T.ASYNC_COPY, repeats=True, trace=("table",)),
    KernelType("CopyD2H", MEMORY, _SOURCES, _OWNER, _T.ASYNC_COPY | _T.HOST_PATH, trace=("size_bytes",)),
    KernelType(
        "EnsureTensorAtOutMemory", MEMORY, (TENSORS, ("output",)), (), _T.ASYNC_COPY | _T.FREE_STANDING,
        trace=("size_bytes",),
    ),
    KernelType("CopyTensorDataH2H", MEMORY, _SOURCES, _OWNER, _T.HOST_PATH, trace=("size_bytes",)),
    KernelType("MakeSureTensorAtHost", MEMORY, _SOURCES, _OWNER, _T.HOST_PATH, trace=("size_bytes",)),
    KernelType("MakeSureTensorAtHostWithoutSync", MEMORY, _SOURCES, _OWNER, _T.HOST_PATH, trace=("size_bytes",)),
    KernelType("CalcDeviceCopySizes", inputs=_SOURCES, outputs=("sizes", "sizes"), traits=_T.PURE),
    KernelType("ShareH2DCopyResult", MEMORY, (("blocks",), TENSORS, ("sizes",)), _OWNER),
    KernelType("LaunchH2DCopy", LAUNCH, (("blocks",), TENSORS, ("sizes",)), ()),
    KernelType("CalcCopyFlowAllocSizes", inputs=(("tiling",), TENSORS), outputs=("sizes",), repeats=True),
    KernelType("AllocCopyFlowHbm", MEMORY, (("sizes",),), ("blocks",), trace=("copy_flow_count",)),
    KernelType(
        "PrepareCopyFlowResult", MEMORY, (("tiling",), ("blocks",), TENSORS), None, repeats=True,
        trace=("copy_flow_count", "table"),
    ),
    KernelType("LaunchCopyFlowH2D", LAUNCH, (("blocks",), TENSORS), (), repeats=True, trace=("copy_flow_count",)),
)  # fmt: skip

#: Results that share the memory of their source.
_SHARING = (
    KernelType("BuildTensor", MEMORY, _SOURCES, _OWNER, _T.NORMAL_OF_THREE),
    KernelType("BuildTensorStorage", MEMORY, _SOURCES, _OWNER, _T.NORMAL_OF_THREE),
    KernelType("BuildTensorPureShape", MEMORY, _SOURCES, _OWNER, _T.NORMAL_OF_THREE),
    KernelType("BuildRefTensor", MEMORY, _SOURCES, _OWNER),
    KernelType("SplitDataTensor", MEMORY, _SOURCES, _OWNER),
    KernelType("IdentityAddr", MEMORY, _SOURCES, _OWNER),
    KernelType("IdentityShapeAndAddr", MEMORY, _SOURCES, _OWNER),
    KernelType("AccessMemCrossStream", MEMORY, _SOURCES, _OWNER, trace=("stream",)),
)

#: Submissions of operators; all but `Launch` exist for graphs made by hand and have the form of `Launch`.
_LAUNCHES = (
    KernelType("Launch", LAUNCH, None, (), _T.LAUNCH, trace=("key",)),
    KernelType("LaunchHcom", NO_SECTION, None, (), _T.LAUNCH, trace=("key",)),
    KernelType("ExecuteOpPrepare", inputs=_SOURCES, outputs=("tiling",), repeats=True),
    KernelType("ExecuteOpLaunch", LAUNCH, None, (), _T.LAUNCH, trace=("key",)),
    KernelType("ExecuteOpFunc", MEMORY, None, (), _T.LAUNCH, trace=("key",)),
    KernelType("ExecuteCustomOp", MEMORY, None, (), _T.LAUNCH, trace=("key",)),
)

_EVENTS = (
    KernelType("SendEvents", MEMORY, (), (), _T.FREE_STANDING, trace=("stream", "events")),
    KernelType("WaitEvents", MEMORY, (), (), _T.FREE_STANDING, trace=("stream", "events")),
)

#: Control flow. A switch notifies the pivot of one branch, a join (WaitAnyone) is ready with any one notification.
#: Values cross by MoveSlot, their extents by PassExtents; what the turns of a loop collect lies in a block that grows.
_CONTROL = (
    KernelType("SwitchNotify", NO_SECTION, (TENSORS,), (), _T.FREE_STANDING | _T.CONTROL, trace=("branches",)),
    KernelType("SwitchTurn", NO_SECTION, None, (), _T.FREE_STANDING | _T.CONTROL, trace=("turn", "limit")),
    KernelType("BranchPivot", NO_SECTION, (), (), _T.FREE_STANDING | _T.CONTROL, trace=("branch",)),
    KernelType("BranchDone", NO_SECTION, (), (), _T.FREE_STANDING | _T.CONTROL),
    KernelType("WaitAnyone", NO_SECTION, (), (), _T.FREE_STANDING | _T.CONTROL),
    KernelType("Enter", NO_SECTION, (), (), _T.FREE_STANDING | _T.CONTROL),
    KernelType("Exit", NO_SECTION, (), (), _T.FREE_STANDING | _T.CONTROL),
    KernelType("PassExtents", NO_SECTION, (), (), _T.FREE_STANDING, trace=("group", "extents")),
    KernelType("EmptySlot", MEMORY, (), None),
    KernelType("MoveSlot", MEMORY, (("memory", "object"), ("memory", "object")), (), _T.FREE_STANDING),
    KernelType("GrowMemory", MEMORY, (("memory",),), (), _T.FREE_STANDING, trace=("size_bytes", "turn")),
)

KERNELS: Mapping[str, KernelType] = MappingProxyType(
    {
        kernel.name: kernel
        for kernel in (*_CORE, *_ALLOCATIONS, *_FREES, *_COPIES, *_SHARING, *_LAUNCHES, *_EVENTS, *_CONTROL)
    }
)

_HOLD_ADDRESS = frozenset(kernel.hold_address for kernel in _FREES if kernel.hold_address)

#: The workers of the multi-worker executor, by number.
WORKERS = ("normal", "memory", "launch")


def is_launch_node(kernel: str) -> bool:
    """Whether a kernel is a real operator submission: what dumps, traces and operator ranges count."""
    return kernel in KERNELS and Traits.LAUNCH in KERNELS[kernel].traits


def is_launch_consumer(kernel: str) -> bool:
    """Whether a kernel reads device memory in stream order: it waits for the copy that fills what it reads."""
    return is_launch_node(kernel) or (kernel in KERNELS and KERNELS[kernel].section == LAUNCH)


def is_copy_async(kernel: str) -> bool:
    return kernel in KERNELS and Traits.ASYNC_COPY in KERNELS[kernel].traits


def worker_of(kernel: str, threads: int) -> str:
    """The worker that runs a kernel when there are `threads` workers in all (at least 2).

    With two workers launch tasks share the thread of the normal ones; their class stays "launch".
    """
    if threads < 2:
        raise ValueError(f"expected at least 2 workers, found {threads}")
    found = KERNELS.get(kernel)
    if found is None:
        return "normal"
    if threads == 3 and Traits.NORMAL_OF_THREE in found.traits:
        return "normal"
    if kernel == "ExecuteOpPrepare":  # it prepares the launch's own blocks, although it carries no section
        return "memory"
    return found.section or ("launch" if Traits.LAUNCH in found.traits else "normal")


def trace(kernel: str, inputs: tuple[int, ...], outputs: tuple[int, ...], attributes: Mapping[str, Any]) -> list[str]:
    """What a trace prints of a node: its slots, then the attributes that its kernel names."""
    slots = [f"slots {list(inputs)} -> {list(outputs)}"]
    return slots + [f"{name}={attributes[name]}" for name in KERNELS[kernel].trace if name in attributes]
