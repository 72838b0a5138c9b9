"""A trace of runs in the format that trace viewers read: one event per run and per timed node.

Every event carries the run's number, the thread, the shapes and the bytes. Times are microseconds since the start.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from typing import Any

import numpy as np


class Trace:
    """Collects events; may be filled from several threads."""

    def __init__(self) -> None:
        self.start_ns = time.monotonic_ns()
        self.events: list[dict[str, Any]] = []
        self._run_ids = itertools.count(1)

    def measure(self, compiled: Any, feeds: Any, names: Any, cancel: Any = None) -> list[np.ndarray]:
        """One run of `compiled` under the clock. A compiled model with `timed_run` also times its nodes."""
        run_id = next(self._run_ids)
        begin_ns = time.monotonic_ns()
        nodes: list[dict[str, Any]] = []
        if hasattr(compiled, "timed_run"):
            arrays, nodes = compiled.timed_run(feeds, names)
        else:
            arrays = compiled.run(feeds, names) if cancel is None else compiled.run(feeds, names, cancel=cancel)
        end_ns = time.monotonic_ns()
        self._add("model_run", "Session", begin_ns, end_ns - begin_ns, run_id, _run_facts(feeds, arrays))
        for node in nodes:
            facts = {key: part for key, part in node.items() if key not in ("name", "start_ns", "elapsed_ns")}
            self._add(node["name"], "Node", node["start_ns"], node["elapsed_ns"], run_id, facts)
        return arrays

    def _add(self, name: str, kind: str, at_ns: int, elapsed_ns: int, run_id: int, facts: dict[str, Any]) -> None:
        self.events.append({
            "name": name,
            "cat": kind,
            "ph": "X",
            "ts": (at_ns - self.start_ns) / 1e3,
            "dur": elapsed_ns / 1e3,
            "pid": os.getpid(),
            "tid": threading.get_native_id(),
            "args": {"run_id": run_id, **facts},
        })  # fmt: skip

    def save(self, path: str) -> None:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.events, file)


def _run_facts(feeds: Any, arrays: list[np.ndarray]) -> dict[str, Any]:
    inputs = {name: np.asarray(array) for name, array in feeds.items()}
    return {
        "input_shapes": {name: list(array.shape) for name, array in inputs.items()},
        "output_shapes": [list(array.shape) for array in arrays],
        "input_size_bytes": sum(array.nbytes for array in inputs.values()),
        "output_size_bytes": sum(array.nbytes for array in arrays),
    }
