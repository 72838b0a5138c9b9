"""Subscribers that write tensors to disk: a range of operators, or what a failing node saw.

A folder holds one .npy file per tensor and `index.json`: for every file the operator, its place in the run, the slot's
label, and whether the operator read or wrote it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grainline.base.errors import OptionError
from grainline.execgraph.ir import ExecuteGraph, ExecuteNode
from grainline.execgraph.registry import is_launch_node
from grainline.runtime.watch import NodeEvent, Subscriber


class _Folder:
    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.rows: list[dict[str, Any]] = []

    def write(self, event: NodeEvent, place: int, slots: Sequence[tuple[int, str]]) -> None:
        for number, (slot, access) in enumerate(slots):
            tensor = event.read(slot)
            if not isinstance(tensor, np.ndarray) or tensor.dtype.hasobject:
                continue
            safe = re.sub(r"[^A-Za-z0-9_.-]", "_", event.name).lstrip(".")[:80]
            file = f"{place:04}_{safe}_{access}_{number}.npy"
            np.save(self.path / file, tensor)
            label = event.graph.slots[slot].label
            self.rows.append({"file": file, "place": place, "operator": event.name, "slot": label, "access": access})

    def close(self) -> None:
        (self.path / "index.json").write_text(json.dumps(self.rows, indent=1))


class DataDump(Subscriber):
    """What the operators from `first` to `last` (names; None: to the end) read and wrote, of one run after the other.

    Only real submissions of operators count (`is_launch_node`): the range opens when `first` starts and closes behind
    `last`, each once per run, whatever else belongs to the operator. Inputs are written when a launch starts, because
    it may work in place, outputs when it has ended. OptionError when a name of the range is no launch of the graph.
    """

    def __init__(self, folder: Path, first: str | None = None, last: str | None = None) -> None:
        self._path, self._first, self._last = folder, first, last
        self._is_open = self._is_over = False
        self._place = -1
        self._runs = 0

    def run_started(self, graph: ExecuteGraph, feeds: Mapping[str, Any]) -> None:
        names = {node.compute_node for node in graph.main if is_launch_node(node.kernel)}
        for name in (self._first, self._last):
            if name is not None and name not in names:
                raise OptionError("no launch has this name", expected=f"one of {sorted(names)}", found=repr(name))
        self._folder = _Folder(self._path / f"run_{self._runs}")
        self._is_open, self._is_over, self._place = self._first is None, False, -1

    def on_node(self, event: NodeEvent) -> None:
        if not is_launch_node(event.node.kernel) or event.kind not in ("node_started", "node_ended"):
            return
        if event.kind == "node_started":
            self._place += 1
            self._is_open |= event.name == self._first and not self._is_over
        if self._is_open:
            wanted = "read" if event.kind == "node_started" else "write"
            views = [(slot, access) for slot, access in operands(event.node) if wanted in access]
            self._folder.write(event, self._place, [(slot, wanted) for slot, _ in views])
        if event.kind == "node_ended" and self._is_open and event.name == self._last:
            self._is_open, self._is_over = False, True

    def run_ended(self, graph: ExecuteGraph, error: BaseException | None) -> None:
        self._folder.close()
        self._runs += 1


class ExceptionDump(Subscriber):
    """When a node fails: its operands, and in `failure.json` the node with its attributes and the message."""

    def __init__(self, folder: Path) -> None:
        self._path = folder
        self._failed: NodeEvent | None = None

    def run_started(self, graph: ExecuteGraph, feeds: Mapping[str, Any]) -> None:
        self._failed = None

    def on_node(self, event: NodeEvent) -> None:
        if event.kind != "node_failed" or self._failed is not None:
            return
        self._failed = event
        folder = _Folder(self._path)
        folder.write(event, event.node.id, operands(event.node))
        folder.close()

    def run_ended(self, graph: ExecuteGraph, error: BaseException | None) -> None:
        if self._failed is None:
            return
        node = self._failed.node
        facts = {
            "node": node.id,
            "kernel": node.kernel,
            "operator": node.compute_node,
            "worker": self._failed.worker,
            "attributes": {name: str(part) for name, part in node.attributes.items()},
            "error": str(error),
        }
        (self._path / "failure.json").write_text(json.dumps(facts, indent=1))


def operands(node: ExecuteNode) -> list[tuple[int, str]]:
    """(slot, access) of what a node touches: the views of a launch, or the slots it lists."""
    if "views" in node.attributes:
        return [(view.slot, view.access) for view in node.attributes["views"]]
    return [*((slot, "read") for slot in node.inputs), *((slot, "write") for slot in node.outputs)]
