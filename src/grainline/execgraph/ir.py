"""The execution graph: WHEN each host kernel runs and WHERE its memory lies.

An `ExecuteGraph` has three containers of `ExecuteNode`s: `init` (once at load), `main` (every run) and `deinit` (once
at unload). A node runs one *kernel* (a host function of `registry.py`) over value *slots*. Order comes only from
edges: a data edge from the producer of a slot to every node that lists the slot in `inputs`, and control edges
(`controls`). The position of a node in its container says nothing; `order.py` derives the execution order.

A node belongs to an *owner graph* (`owner`): 0 is the container itself, another number one of its sub-graphs.
`relations` say which launches a Free without an edge from them belongs to.

Extents (`int | Expr`) stand for every shape, byte size, offset and launch word. Symbols are bound by the shapes of the
graph inputs (InferShape group 0) or by the shapes that a HostCall returned (InferShape group > 0, *run-time symbols*).

The kernels that lowering emits, with inputs -> outputs and attributes:
* `LoadWeight` () -> weight slot; weight (index). Init.
* `ReleaseWeight` weight slot -> (); guarder. DeInit.
* `InferShape` slots -> (); group, shapes (one per input slot, None = unchecked). Group 0 reads every graph input.
  It checks shapes, binds symbols and makes the extents of its group known.
* `AllocMemory` () -> memory slot; size_bytes (Extent). Blocks are aligned to 64 bytes.
* `AllocModelOutput` () -> output slot; output (index). The memory is the array that the user gets.
* `Tiling` () -> tiling slot; variants (`Variant`s). Picks variant, grain G and homes h for the actual extents, and
  writes the words: it waits for those of the launch too, and not for the offsets of its views.
* `AllocWorkspace` tiling slot -> workspace slot. Scratch of the chosen variant: bytes per home x homes.
* `Launch` tiling slot [, workspace slot], slots of the views -> (); key, views (`View`s), words (Extents),
  workspace (0 or 1: how many workspace slots stand at inputs[1]). Runs the chosen tile kernel to completion.
* `HostCall` slots -> object slots; host_op (index). Runs a Python callable on NumPy views of the inputs.
* `ExtentsTensor` slot -> (); values (Extents), offset_bytes. Writes them as i64 into the block of the slot.
* `CopyMemory` source slot, target slot -> (); size_bytes, source_offset, target_offset (Extents).
* `FreeMemory` slot -> (); guarder of a memory, workspace or object slot.

Control flow (`frames.py` has the shape of it):
* `SwitchNotify` slot -> (); branches. The slot holds a bool (true is branch 0) or an i64; the rest of the graph waits.
* `SwitchTurn` slots -> (); turn, limit (Extents), trips, condition (slots or -1). Branch 0, the body, while turn is
  below `limit` and below the i64 in `trips`, and the bool in `condition` is true; else branch 1.
* `EmptySlot` () -> memory or object slot. Holds nothing until a `MoveSlot` fills it.
* `MoveSlot` source, target -> (). What the source owns becomes the target's, which gives its own back first.
* `PassExtents` () -> (); group, first, extents, turn. Extents that InferShape `group` reads as its passed ones, from
  number `first` on. With `turn` not 0 they must be what was passed before.
* `GrowMemory` slot -> (); size_bytes, turn, limit (Extents). Room for turn + 1 pieces of that size, contents kept;
  for `limit` of them at once where that is known (0: not).
`InferShape` has `passed` as well: the shape made of the extents that are passed to it.

A guarder releases the resource in the input that `ReleaseResourceIndex` names; control edges from every user of the
resource order it last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grainline.base.dims import Extent
from grainline.base.dtypes import DType
from grainline.execgraph.frames import Frame
from grainline.execgraph.registry import KERNELS

Shape = tuple[Extent, ...]

RELEASE_INDEX = "ReleaseResourceIndex"


@dataclass(frozen=True, slots=True)
class Slot:
    """One value cell. `shape` is None when only the run knows the rank, or when the slot is no tensor."""

    id: int
    kind: str
    label: str
    dtype: DType | None = None
    shape: Shape | None = None


@dataclass(frozen=True, slots=True)
class Input:
    """A graph input. `default` is the index of the weight that stands in for a missing feed, or None."""

    name: str
    dtype: DType
    shape: Shape | None
    slot: int
    default: int | None = None
    kind: str = "tensor"


@dataclass(frozen=True, slots=True)
class Output:
    """A graph output. Its slot has kind "output" (tensor memory) or "object" (whatever a HostCall returned)."""

    name: str
    dtype: DType
    shape: Shape | None
    slot: int
    kind: str = "tensor"


@dataclass(frozen=True, slots=True)
class Weight:
    """A constant that Init loads.

    `load` gives the array (C-contiguous, native byte order, possibly mapped from a file). `pack`, if any, turns it
    into the bytes that kernels read; `layout` names what `pack` does and is part of the identity of the packed copy.
    `identity` says where the source bytes come from so that equal weights are found without reading; "" = unknown.
    `shape` and `dtype` describe the packed array.
    """

    label: str
    dtype: DType
    shape: tuple[int, ...]
    identity: str = ""
    layout: str = "dense"
    load: Callable[[], np.ndarray[Any, Any]] | None = field(default=None, compare=False, repr=False)
    pack: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class HostOp:
    """A host fallback. `call(*inputs) -> tuple of outputs`; tensors are NumPy arrays, inputs are read-only views.

    An absent optional input is None (slot id -1 in the node's `arguments` attribute).
    """

    name: str
    call: Callable[..., tuple[Any, ...]] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Variant:
    """One compiled realisation of a launch.

    `key` names the native function. It is called for block ranges of [0, blocks). `cost_ps` predicts the single-thread
    picoseconds of the whole launch with its data in the nearest caches, `traffic_bytes` are the distinct bytes it
    touches, `task_ps` is done again by every task. `scratch_bytes` is needed once per home. `words` follow the launch's
    words.
    """

    key: str
    blocks: Extent
    cost_ps: Extent = 0
    scratch_bytes: Extent = 0
    words: tuple[Extent, ...] = ()
    traffic_bytes: Extent = 0
    task_ps: Extent = 0

    @property
    def extents(self) -> tuple[Extent, ...]:
        """Everything that depends on the extents of a run."""
        return (self.blocks, self.cost_ps, self.scratch_bytes, self.traffic_bytes, self.task_ps, *self.words)


@dataclass(frozen=True, slots=True)
class LaunchTable:
    """What a launch does by extents that stand for all others; without a table it is chosen by predicted time.

    `axes`: (extent, its representative values, ascending). `rows`: one per point of their product, the last axis
    fastest: (variant for one thread, variant for more, its blocks at this point, blocks of a task, threads). A launch
    takes the row that is nearest to its extents, and tasks in proportion to its blocks; as they stand for 0 blocks.
    """

    axes: tuple[tuple[Extent, tuple[int, ...]], ...]
    rows: tuple[tuple[int, int, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class View:
    """A buffer argument: the address of `slot` plus `offset_bytes`; `access` is read, write or readwrite."""

    slot: int
    offset_bytes: Extent = 0
    access: str = "read"


@dataclass(frozen=True, slots=True)
class Guard:
    """`left == right` must hold in a run, checked as soon as both are known; `reason` says what relies on it. Guards
    and limits of a sub-graph (`owner`) hold in every turn of it."""

    left: Extent
    right: Extent
    reason: str
    node: str = ""
    owner: int = 0


@dataclass(frozen=True, slots=True)
class Limit:
    """`extent <= greatest` must hold in a run; `what` names the extent in the message."""

    extent: Extent
    greatest: int
    what: str
    owner: int = 0


@dataclass(frozen=True, slots=True)
class ExecuteNode:
    """One application of a kernel. `compute_node` is the operator's name, for messages and profiles; `owner` the
    sub-graph that the node belongs to (0: none)."""

    id: int
    kernel: str
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    controls: tuple[int, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    compute_node: str = ""
    owner: int = 0

    @property
    def section(self) -> str:
        return KERNELS[self.kernel].section

    @property
    def is_guarder(self) -> bool:
        return KERNELS[self.kernel].is_guarder

    @property
    def released_slot(self) -> int:
        """The slot whose resource this guarder releases."""
        return self.inputs[self.attributes[RELEASE_INDEX]]


@dataclass(frozen=True, slots=True, eq=False)
class Relations:
    """Pairs (Free, Launch) as two columns of node ids, in ascending order and without duplicates.

    A Free whose edge from a launch was removed keeps the pair: memory may leave the process's pools only when every
    launch of a Free that has run was submitted.
    """

    free_ids: np.ndarray[Any, np.dtype[np.int64]]
    launch_ids: np.ndarray[Any, np.dtype[np.int64]]

    @staticmethod
    def of(free_ids: Any, launch_ids: Any) -> Relations:
        """The relations of two equally long columns of node ids (below 2**31) in any order."""
        keys = distinct(np.asarray(free_ids, np.int64) << 32 | np.asarray(launch_ids, np.int64))
        return Relations(keys >> 32, keys & 0xFFFFFFFF)

    def merged(self, pairs: Iterable[tuple[int, int]]) -> Relations:
        """These relations and more; what is known already is not repeated."""
        more = np.array(sorted(pairs), np.int64).reshape(-1, 2)
        return Relations.of(np.append(self.free_ids, more[:, 0]), np.append(self.launch_ids, more[:, 1]))

    def pairs(self) -> list[tuple[int, int]]:
        return list(zip(self.free_ids.tolist(), self.launch_ids.tolist(), strict=True))

    def __len__(self) -> int:
        return len(self.free_ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Relations) and self.pairs() == other.pairs()

    def __hash__(self) -> int:
        return hash((self.free_ids.tobytes(), self.launch_ids.tobytes()))


def distinct(keys: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The keys in ascending order, each once (np.unique hashes, which takes 15 times as long for a million)."""
    keys = np.sort(keys)
    return keys[np.append(True, keys[1:] != keys[:-1])[: len(keys)]]


NO_RELATIONS = Relations.of((), ())


@dataclass(frozen=True, slots=True)
class ExecuteGraph:
    """`slots[i].id == i`; node ids are unique over all containers; `verify.py` lists the other invariants."""

    name: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    slots: tuple[Slot, ...]
    init: tuple[ExecuteNode, ...]
    main: tuple[ExecuteNode, ...]
    deinit: tuple[ExecuteNode, ...]
    weights: tuple[Weight, ...] = ()
    host_ops: tuple[HostOp, ...] = ()
    guards: tuple[Guard, ...] = ()
    limits: tuple[Limit, ...] = ()
    relations: Relations = NO_RELATIONS
    frames: tuple[Frame, ...] = ()

    def launches(self) -> tuple[ExecuteNode, ...]:
        return tuple(node for node in self.main if node.kernel == "Launch")

    def variants(self) -> tuple[Variant, ...]:
        """Every variant of every launch, in node order."""
        tilings = (node for node in self.main if node.kernel == "Tiling")
        return tuple(variant for node in tilings for variant in node.attributes["variants"])
