"""`grainline run` and `grainline explain`: load with progress, run once, say what came out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grainline.session.model import Model, load
from grainline.session.options import onnx_type
from grainline.tools.feeding import make_feeds
from grainline.tools.waiting import progress_on_stderr
from grainline.tools.writable import check_folder


def load_with_progress(path: Path, threads: int | None) -> Model:
    with progress_on_stderr(f"compiling {path.name}"):
        return load(path, threads=threads)


def run_model(
    path: Path,
    input_options: Sequence[str],
    shape_options: Sequence[str],
    threads: int | None,
    output: Path | None,
    seed: int,
) -> Iterator[str]:
    if output is not None:
        check_folder(output)
    begin = time.perf_counter()
    model = load_with_progress(path, threads)
    loaded_s = time.perf_counter() - begin
    feeds = make_feeds(model.inputs, input_options, shape_options, seed)
    begin = time.perf_counter()
    with progress_on_stderr("running"):
        arrays = model.run(feeds)
    run_s = time.perf_counter() - begin
    yield f"loaded in {loaded_s * 1e3:.0f} ms, ran in {run_s * 1e3:.2f} ms"
    for name, array in feeds.items():
        yield f"in   {name}: {summary(array)}"
    for info, result in zip(model.outputs, arrays):
        yield f"out  {info.name}: {summary(result) if isinstance(result, np.ndarray) else shortened(info.type, result)}"
    if output is not None:
        yield from save(output, [info.name for info in model.outputs], arrays)


def summary(array: np.ndarray) -> str:
    """`tensor(float)[2, 3] min -1.2 mean 0.01 max 1.4`"""
    head = f"{onnx_type(array.dtype)}{list(array.shape)}"
    if array.size == 0 or array.dtype.kind not in "fiub":
        return head
    wide = array.astype(np.float64)
    return f"{head} min {wide.min():.6g} mean {wide.mean():.6g} max {wide.max():.6g}"


def shortened(kind: str, result: Any) -> str:
    """What is no tensor: its type, its length and its first entry."""
    if not isinstance(result, list) or not result:
        return f"{kind} {result}"
    first = summary(result[0]) if isinstance(result[0], np.ndarray) else result[0]
    return f"{kind} of {len(result)}, the first {first}"


def save(folder: Path, names: Sequence[str], results: Sequence[Any]) -> Iterator[str]:
    """Writes each array into the folder, which exists, under its name with the letters that every file system has."""
    for index, (name, array) in enumerate(zip(names, results)):
        if not isinstance(array, np.ndarray):
            yield f"not saved: {name} is no tensor"
            continue
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name).lstrip(".") or f"output_{index}"
        path = folder / f"{safe}.npy"
        np.save(path, array)
        yield f"saved {path}"
