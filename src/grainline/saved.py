"""Compiled models on disk, so that the next process starts without importing, lowering, planning or LLVM.

A saved model is one entry of the kernel cache's folder: a pickle of the packed Program, the weights' recipes and the
model's description; the machine code is found through the kernel entries it names. The folder is the owner's alone and
entries are hash-checked (see `codegen/cache.py`), which is what makes unpickling them as safe as running their code.

The key covers the model (content of bytes; path, size, times and inode of a file), the memory that its limits were
made for, whether its graph is for several workers and for which device, whether pool threads stay hot, the processor
and its prices, the LLVM wheel, and every source file of this package. Weights are not stored: a recipe says where in
the model they lie and what is computed from them. A model with host operators, external data or a cost policy of its
own is not saved.
Whatever goes wrong while loading means "not saved".
"""

from __future__ import annotations

import hashlib
import io
import mmap
import os
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from grainline.base import log
from grainline.base.files import stamp
from grainline.base.knobs import HOT_THREADS, Options, is_multi_worker, stream_count
from grainline.base.memory import memory_bytes
from grainline.codegen.cache import ObjectCache, open_cache
from grainline.compiled import CompiledModel
from grainline.execgraph.ir import ExecuteGraph
from grainline.execgraph.pack import Packed
from grainline.graph.ir import ModelInfo
from grainline.graph.lookups import Lookup
from grainline.plan.machine import machine_of, use_machine
from grainline.plan.target import host_target, llvm_stamp
from grainline.runtime.device import device_of
from grainline.runtime.executor import ModelExecutor

MAGIC = b"GRAINLINE"
MODEL_DATA = "model data"


@dataclass(frozen=True)
class Record:
    """`graph` is the execution graph without its Main container, which `packed` holds. `kernels` maps symbol -> name
    of the object's cache entry."""

    info: ModelInfo
    graph: ExecuteGraph
    packed: Packed
    kernels: dict[str, str]
    explanation: str
    lookups: tuple[Lookup, ...]


@dataclass(frozen=True)
class Spot:
    """Where a model is saved: the store and the entry's name, and the model's data for the weights' recipes."""

    store: ObjectCache
    name: str
    data: memoryview


def open_or_compile(source: Any, options: Options) -> CompiledModel:
    """The saved model if there is one, else a fresh compilation, which is saved. Errors are those of the pipeline."""
    if options.memory_limit_bytes:
        from grainline import _native

        _native.set_memory_limit(options.memory_limit_bytes)
    spot = locate(source, options)
    # Whoever wants to see the steps gets them run.
    found = None if spot is None or log.is_shown(1) else load(spot, options)
    if found is not None:
        return found
    from grainline.pipeline import compile_model

    return compile_model(source, options, spot)


def locate(source: Any, options: Options) -> Spot | None:
    """The spot of a model, or None when it cannot be saved (no cache, no file). OptionError: a broken calibration."""
    if not options.cache or options.cost_policy is not None:
        return None
    try:
        identity, data = _identity(source)
    except (OSError, ValueError):
        return None
    store = open_cache(None if options.cache_dir is None else Path(options.cache_dir))
    if identity is None or store.folder is None:
        return None
    # Other kernels, fewer edges, other grains.
    shape = (is_multi_worker(workers=options.workers), stream_count(), HOT_THREADS.read())
    target = host_target(store.folder)
    processor = (target.cpu, target.features, machine_of(target))
    place = (shape, options.device_name or "cpu")
    digest = hashlib.sha256(repr((identity, memory_bytes(), place, processor, _environment())).encode()).hexdigest()
    return Spot(store, f"model-{digest}", data)


def load(spot: Spot, options: Options) -> CompiledModel | None:
    """The saved model, loaded, or None."""
    body = spot.store.read(spot.name)
    if body is None or not body.startswith(MAGIC):
        return None
    try:
        record: Record = _Unpickler(io.BytesIO(body[len(MAGIC) :]), spot.data).load()
        kernels = _link(record, spot.store)
        if kernels is None:
            return None
        use_machine(host_target(spot.store.folder))
        executor = ModelExecutor(
            record.graph,
            {symbol: kernel.address for symbol, kernel in kernels.items()},
            keep_alive=kernels,
            threads=options.threads or 0,
            executor=options.executor or "auto",
            workers=options.workers or 0,
            packed=record.packed,
            device=device_of(options),
        )
        return CompiledModel(record.info, executor, record.explanation, record.lookups, spot.data)
    except Exception:
        return None


def save(spot: Spot, model: CompiledModel, kernels: dict[str, str], data: memoryview | None) -> None:
    """Saves `model` unless recipes cannot describe it. `data` is the buffer its weights lie in."""
    graph = model.executor.graph
    if graph.host_ops or model.info.other_files:
        return
    bare = replace(graph, main=())
    record = Record(model.info, bare, model.executor.packed, kernels, model.explanation, model.lookups)
    out = io.BytesIO(MAGIC)
    out.seek(0, io.SEEK_END)
    try:
        _Pickler(out, data).dump(record)
    except (pickle.PicklingError, TypeError, AttributeError):
        return
    spot.store.write(spot.name, out.getvalue())


class _Pickler(pickle.Pickler):
    """Writes the model's data by name."""

    def __init__(self, out: io.BytesIO, data: memoryview | None) -> None:
        super().__init__(out, protocol=5)
        self._data = data

    def persistent_id(self, item: Any) -> str | None:
        return MODEL_DATA if self._data is not None and item is self._data else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, source: io.BytesIO, data: memoryview) -> None:
        super().__init__(source)
        self._data = data

    def persistent_load(self, name: Any) -> memoryview:
        if name != MODEL_DATA:
            raise pickle.UnpicklingError(f"unknown name {name!r}")
        return self._data


def _link(record: Record, store: ObjectCache) -> dict[str, Any] | None:
    from grainline.codegen.compile import saved_kernel

    kernels = {symbol: saved_kernel(symbol, name, store) for symbol, name in record.kernels.items()}
    return None if None in kernels.values() else kernels


def _identity(source: Any) -> tuple[Any, memoryview]:
    if isinstance(source, bytes):
        return ("bytes", hashlib.sha256(source).hexdigest()), memoryview(source)
    if not isinstance(source, str | os.PathLike):
        return None, memoryview(b"")
    with open(source, "rb") as file:
        status = os.fstat(file.fileno())
        data = memoryview(mmap.mmap(file.fileno(), status.st_size, access=mmap.ACCESS_READ))
    return ("file", os.path.realpath(source), stamp(status)), data


@lru_cache(maxsize=1)
def _environment() -> tuple[Any, ...]:
    """Python, NumPy's and LLVM's files, and every source file of the package."""
    import numpy

    sources = hashlib.sha256(repr(sorted(_sources(Path(__file__).parent))).encode()).hexdigest()
    return sys.version, numpy.__version__, llvm_stamp(), sources


def _sources(folder: Path | str) -> Iterator[tuple[str, int, int]]:
    """Path, size and time of what this package is made of."""
    for entry in os.scandir(folder):
        if entry.is_dir():
            yield from _sources(entry.path)
        elif entry.name.endswith((".py", ".so")):
            status = entry.stat()
            yield entry.path, status.st_size, status.st_mtime_ns
