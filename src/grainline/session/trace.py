"""A trace of runs: the run itself, its nodes by worker, what streams did, the pool's threads, its memory.

Every event carries the run's number; launches also what their tiling chose, the run the shapes and bytes. `timeline`
has the format.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from grainline.session.timeline import Timeline, pool_track, stream_track, worker_track

_TIMES = ("name", "start_ns", "elapsed_ns", "memory_bytes", "worker", "commands")

PoolSpan = tuple[int, int, int, int]  # home, begin_ns, end_ns, tasks


class Trace:
    """Collects events; may be filled from several threads."""

    def __init__(self) -> None:
        self.start_ns = time.monotonic_ns()
        self._timeline = Timeline(self.start_ns)
        self._run_ids = itertools.count(1)

    @property
    def events(self) -> list[dict[str, Any]]:
        return self._timeline.events

    def measure(self, compiled: Any, feeds: Any, names: Any, cancel: Any = None) -> list[np.ndarray]:
        """One run of a `CompiledModel` and its nodes under the clock; the arguments are those of its `run`."""
        run_id, caller = next(self._run_ids), threading.get_native_id()
        begin_ns = time.monotonic_ns()
        arrays, nodes = compiled.timed_run(feeds, names, cancel)
        end_ns = time.monotonic_ns()
        facts = {"run_id": run_id, **_run_facts(feeds, arrays)}
        self._timeline.name_track(caller, "caller, worker 0")
        self._timeline.span(caller, "model_run", "Session", begin_ns, end_ns - begin_ns, facts)
        for node in nodes:
            self._node(node, run_id, caller)
            for command in node.get("commands", _inline_command(node)):
                self._command(command, node, run_id, caller)
        self._memory(nodes)
        return arrays

    def add_pool(self, spans: Iterable[PoolSpan]) -> None:
        """What the pool's threads did meanwhile. Home 0 is the thread that dispatched: a stream's, or the caller."""
        caller = threading.get_native_id()
        for home, begin_ns, end_ns, tasks in sorted(spans, key=lambda span: span[1]):
            track = pool_track(home) if home else self._timeline.stream_at(begin_ns, end_ns) or caller
            if home:
                self._timeline.name_track(track, f"pool thread {home}")
            self._timeline.span(track, "tasks", "Pool", begin_ns, end_ns - begin_ns, {"home": home, "tasks": tasks})

    def save(self, path: str) -> None:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.events, file)

    def _node(self, node: dict[str, Any], run_id: int, caller: int) -> None:
        worker = node.get("worker", 0)
        track, begin_ns, elapsed_ns = worker_track(worker, caller), node["start_ns"], node["elapsed_ns"]
        facts = {"run_id": run_id, **{key: part for key, part in node.items() if key not in _TIMES}}
        if worker:
            self._timeline.name_track(track, f"worker {worker}")
        self._timeline.span(track, node["name"], "Node", begin_ns, elapsed_ns, facts)

    def _command(self, command: dict[str, Any], node: dict[str, Any], run_id: int, caller: int) -> None:
        """What the stream did, and an arrow from its submission to its completion."""
        worker, stream, begin_ns = worker_track(node["worker"], caller), command["stream"], command["start_ns"]
        track, facts = stream_track(stream), {"run_id": run_id, "kind": command["kind"]}
        self._timeline.name_track(track, f"stream {stream}")
        self._timeline.stream_span(track, node["name"], begin_ns, command["elapsed_ns"], facts)
        last_ns = begin_ns + max(command["elapsed_ns"] - 1, 0)  # a viewer looks for the span that is open there
        self._timeline.arrow(command["kind"], (worker, command["submitted_ns"]), (track, last_ns))

    def _memory(self, nodes: list[dict[str, Any]]) -> None:
        """The bytes that the memory blocks of the run hold."""
        held = 0
        for node in sorted(nodes, key=lambda node: node["start_ns"] + node["elapsed_ns"]):
            if change := node.get("memory_bytes", 0):
                held += change
                self._timeline.counter("memory of the run", node["start_ns"] + node["elapsed_ns"], held)


def _inline_command(node: dict[str, Any]) -> list[dict[str, Any]]:
    """An inline stream completes a launch while it is submitted."""
    times = {"submitted_ns": node["start_ns"], "start_ns": node["start_ns"], "elapsed_ns": node["elapsed_ns"]}
    return [{"stream": 0, "kind": "launch", **times}] if "tile_kernel" in node else []


def _run_facts(feeds: Any, arrays: list[np.ndarray]) -> dict[str, Any]:
    inputs = {name: np.asarray(array) for name, array in feeds.items()}
    return {
        "input_shapes": {name: list(array.shape) for name, array in inputs.items()},
        "output_shapes": [list(array.shape) for array in arrays],
        "input_size_bytes": sum(array.nbytes for array in inputs.values()),
        "output_size_bytes": sum(array.nbytes for array in arrays),
    }
