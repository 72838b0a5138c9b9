"""`ModelExecutor`: the Python face of one execution graph in the native core.

States: *init* <-> *loaded*. `load` runs the Init container (weights, and their copies to the device), `run` the Main
container, `unload` the DeInit container. A loaded executor may run in several threads at once; load and unload may not
overlap with runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grainline.base.dims import Expr, evaluate, symbols
from grainline.base.dtypes import DType
from grainline.base.errors import StateError
from grainline.base.knobs import EXECUTORS, chosen_executor
from grainline.execgraph.ir import ExecuteGraph, ExecuteNode, Shape
from grainline.execgraph.order import execution_order
from grainline.execgraph.pack import Packed, pack
from grainline.execgraph.registry import KERNELS, MEMORY
from grainline.runtime import hostcalls
from grainline.runtime.device import Device
from grainline.runtime.watch import Subscriber, teller
from grainline.runtime.weights import WeightHold, hold

#: What a log of a run holds; numbers as in enum EventKind of native/exec/observer.h.
EVENTS = ("node_started", "node_ended", "node_failed", "node_parked", "node_resumed")

#: What a stream does; numbers as in enum CommandKind of native/device/command_log.h.
COMMANDS = ("launch", "copy", "fill")


class ModelExecutor:
    """Runs `graph`; `addresses` gives the native function of every kernel key.

    `keep_alive` is whatever owns the machine code. `threads` bounds the threads of one launch (0: all allowed).
    `executor` is one of `EXECUTORS`; "multi-worker" needs at least 2 `workers`, the caller of `run` being one of them.
    `packed` is the packed Main container of `graph` where it is known already. `device` is where it runs (None: the
    host); a graph for a device with memory of its own is one that `place_on_discrete` made.

    ValueError for a graph that cannot be packed (`execgraph.pack`) and for a key without an address; OptionError.
    """

    def __init__(
        self,
        graph: ExecuteGraph,
        addresses: Mapping[str, int],
        *,
        keep_alive: Any = None,
        threads: int = 0,
        packed: Packed | None = None,
        executor: str = "auto",
        workers: int = 0,
        device: Device | None = None,
    ) -> None:
        self.graph = graph
        self.packed = pack(graph) if packed is None else packed
        missing = [key for key in self.packed.keys if key not in addresses]
        if missing:
            raise ValueError(f"the kernel keys {missing} have no machine code")
        self._addresses = [addresses[key] for key in self.packed.keys]
        self._keep_alive = keep_alive
        self._threads = threads
        self._device = device
        self._kind, self._workers = chosen_executor(executor, workers, {})
        self._weights: dict[int, WeightHold] = {}
        self._native: Any = None

    @property
    def is_loaded(self) -> bool:
        return self._native is not None

    def load(self) -> ModelExecutor:
        """Runs Init: takes every weight from the process-wide store, or puts a copy of it on the device.

        StateError when loaded already; OutOfMemory when the device has no room; what its first failing copy met.
        """
        from grainline import _native

        if self.is_loaded:
            raise StateError("the executor is loaded already", expected="state init", found="state loaded")
        graph = self.graph
        native = _native.Executor(
            self.packed.blob,
            list(self.packed.strings),
            self._addresses,
            [_numpy(v.dtype, v.kind) for v in graph.inputs],
            [_numpy(v.dtype, v.kind) for v in graph.outputs],
            [None if slot.dtype is None else _numpy(slot.dtype, "tensor") for slot in graph.slots],
            hostcalls.adapters(graph),
            thread_limit=self._threads,
            kind=EXECUTORS.index(self._kind),
            workers=self._workers,
            code=self._keep_alive,
            device=None if self._device is None else self._device.native,
        )
        self._load_weights(native)
        self._native = native
        self.run = native.run  # without a Python frame of ours in between
        return self

    def _load_weights(self, native: Any) -> None:
        graph = self.graph
        order = execution_order(graph.init)
        held = {n.outputs[0]: hold(graph.weights[n.attributes["weight"]]) for n in order if n.kernel == "LoadWeight"}
        for node in order:
            if node.kernel != "LoadWeight":  # a copy to the device
                for source, target in zip(node.inputs, node.outputs, strict=True):
                    native.copy_weight(target, held[source].array)
        native.finish_weights()
        for slot in held.keys() - _only_copied(graph):
            self._weights[slot] = held[slot]
            native.set_weight(slot, held[slot].array)

    def run(
        self, feeds: Mapping[str, Any], names: Sequence[str] | None = None, cancel: np.ndarray[Any, Any] | None = None
    ) -> list[Any]:
        """Runs Main once. Returns the outputs in `names`, or all in the model's order; the arrays are the caller's.

        `cancel`: an int32 array of one element; the run ends with Cancelled soon after it becomes nonzero.
        FeedError for feeds or names that do not fit; KernelError names the node that failed; OutOfMemory.
        """
        raise self._not_loaded()

    def run_profiled(
        self, feeds: Mapping[str, Any], names: Sequence[str] | None = None, cancel: np.ndarray[Any, Any] | None = None
    ) -> tuple[list[Any], list[dict[str, Any]]]:
        """As `run`; the second part has one record per node: name, kernel, node, start_ns, elapsed_ns, worker; for a
        launch also what its tiling chose: tile_kernel, variant, blocks, grain, homes, scratch_bytes, and output_shapes;
        where a node takes memory blocks of the run (or, negative, gives them back) also memory_bytes.

        commands: what the node submitted to streams that complete it later, each with stream, kind, submitted_ns,
        start_ns and elapsed_ns. A launch without any was complete when its node had run.
        """
        results, times, submitted = self._loaded().run_profiled(feeds, names, cancel)
        commands: dict[int, list[dict[str, Any]]] = {}
        for number, stream, kind, submitted_ns, begin_ns, end_ns in submitted:
            command = {"stream": stream, "kind": COMMANDS[kind], "submitted_ns": submitted_ns}
            command |= {"start_ns": begin_ns, "elapsed_ns": end_ns - begin_ns}
            commands.setdefault(number, []).append(command)
        nodes = self._native.nodes()
        extents = self._extents(feeds)
        records = []
        for number, begin_ns, end_ns, worker, taken_bytes, chosen in times:
            node_id, kernel, compute_node = nodes[number]
            record = {"name": compute_node or kernel, "kernel": kernel, "node": node_id}
            record |= {"start_ns": begin_ns, "elapsed_ns": end_ns - begin_ns, "worker": worker}
            if taken_bytes and KERNELS[kernel].section == MEMORY:
                record["memory_bytes"] = taken_bytes
            if number in commands:
                record["commands"] = commands[number]
            if chosen is not None:
                record |= dict(zip(("variant", "blocks", "grain", "homes", "scratch_bytes"), chosen, strict=True))
                record["tile_kernel"] = self.packed.tile_kernels[node_id][chosen[0]]
                record["output_shapes"] = [_known(shape, extents) for shape in self.packed.results[node_id]]
            records.append(record)
        return results, records

    def run_watched(
        self, feeds: Mapping[str, Any], subscribers: Sequence[Subscriber], names: Sequence[str] | None = None
    ) -> list[Any]:
        """As `run`, with subscribers told of the run and of every event of its nodes; see `runtime.watch`."""
        native = self._loaded()
        for subscriber in subscribers:
            subscriber.run_started(self.graph, feeds)
        error: BaseException | None = None
        try:
            tell = teller(self.graph, self._order(), self._extents(feeds), subscribers)
            return native.run_watched(feeds, names, tell)
        except BaseException as raised:
            error = raised
            raise
        finally:
            for subscriber in subscribers:
                subscriber.run_ended(self.graph, error)

    def _order(self) -> list[ExecuteNode]:
        """The nodes by node number."""
        by_id = {node.id: node for node in self.graph.main}
        return [by_id[node_id] for node_id, _, _ in self._native.nodes()]

    def _extents(self, feeds: Mapping[str, Any]) -> dict[str, int]:
        """The symbols that stand alone in an input's shape, with their extents in this run."""
        found: dict[str, int] = {}
        for graph_input in self.graph.inputs:
            for extent, size in zip(graph_input.shape or (), np.shape(feeds.get(graph_input.name, ())), strict=False):
                if isinstance(extent, Expr) and str(extent).isidentifier():
                    found[str(extent)] = size
        return found

    def run_logged(
        self, feeds: Mapping[str, Any], names: Sequence[str] | None = None, capacity: int = 1 << 16
    ) -> tuple[list[Any], list[tuple[int, int, int, str]]]:
        """As `run`; the second part is the log of what happened, in an order that respects every edge: (time in ns,
        position of the node, worker, one of `EVENTS`). Of more than `capacity` events the newest are kept.
        """
        results, events = self._loaded().run_logged(feeds, names, None, capacity)
        return results, [(time_ns, node, worker, EVENTS[kind]) for time_ns, node, worker, kind in events]

    def _loaded(self) -> Any:
        if self._native is None:
            raise self._not_loaded()
        return self._native

    def _not_loaded(self) -> StateError:
        return StateError("the executor is not loaded", expected="state loaded", found="state init")

    def unload(self) -> None:
        """Runs DeInit: gives the weights and all memory of idle runs back. StateError while a run is under way."""
        if self._native is not None and self._native.active_runs():
            raise StateError("the executor is running", expected="no run under way", found=self._native.active_runs())
        self.__dict__.pop("run", None)
        self._native = None
        for node in self.graph.deinit:
            self._weights.pop(node.released_slot, None)

    def trim(self) -> int:
        """Gives idle memory back to the system; returns the bytes."""
        from grainline import _native

        return self._native.trim() + _native.trim_outputs()

    def statistics(self) -> dict[str, int]:
        """states, held_bytes, allocations, growths, peak_bytes of the idle runs."""
        return self._loaded().statistics()


def _only_copied(graph: ExecuteGraph) -> set[int]:
    """The weights that nobody needs once they are on the device. (A saved graph has no Main, and no host calls.)"""
    defaults = {graph_input.default for graph_input in graph.inputs}
    loads = {node.outputs[0]: node.attributes["weight"] for node in graph.init if node.kernel == "LoadWeight"}
    copied = {slot for node in graph.init for slot in node.inputs}
    used = {slot for node in graph.main for slot in node.inputs} | {output.slot for output in graph.outputs}
    return {slot for slot in copied - used if loads[slot] not in defaults}


def _known(shape: Shape, extents: Mapping[str, int]) -> list[int | str]:
    """A shape in numbers; an extent that only the run knew stays an expression."""
    return [
        evaluate(extent, extents) if all(name in extents for name in symbols(extent)) else str(extent)
        for extent in shape
    ]


def _numpy(dtype: DType, kind: str) -> np.dtype[Any] | None:
    """The NumPy dtype of a tensor, or None for a slot that may hold any Python object."""
    return dtype.numpy if kind == "tensor" else None
