"""The process-wide store of weights: every distinct weight exists once, whoever loads it.

A weight is identified by the bytes of its source and by the layout that its consumers read. The store keeps it as long
as somebody holds it (`WeightHold`) and forgets it with the last holder. A dense weight that is mapped from a file stays
mapped: no copy is made. A packed weight is a fresh array; its source is dropped as soon as it is packed.

`identity` (where the bytes come from) finds a weight without touching its bytes: mapped pages stay cold. A weight
without it is found by its content hash.
"""

from __future__ import annotations

import hashlib
import mmap
import threading
import weakref
from typing import Any

import numpy as np

from grainline.execgraph.ir import Weight
from grainline.runtime.arena import placed

_SMALL_BYTES = 1024  # below this, sharing costs more than it saves


class WeightHold:
    """Keeps one weight in the store. `array` is dense, aligned to its element type, and must not be written."""

    __slots__ = ("__weakref__", "array")

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array


#: declared cache: (identity or content hash, layout, dtype, shape) -> whoever holds the weight now
_held: weakref.WeakValueDictionary[tuple[Any, ...], WeightHold] = weakref.WeakValueDictionary()
_lock = threading.RLock()


def _renew_lock() -> None:
    """The child of a fork may have been forked while another thread held the lock."""
    global _lock
    _lock = threading.RLock()


def hold(weight: Weight) -> WeightHold:
    """The shared copy of `weight`, made if nobody holds one. ValueError when `load` gives the wrong array."""
    assert weight.load is not None, "the graph was read from text: its weights cannot be loaded"
    with _lock:
        source = None if weight.identity else weight.load()
        if source is not None and source.nbytes < _SMALL_BYTES:
            return WeightHold(_packed(weight, source))
        content = weight.identity if source is None else _digest(source)
        place = (content, weight.layout, weight.dtype.name, weight.shape)
        found = _held.get(place)
        if found is None:
            found = WeightHold(_packed(weight, weight.load() if source is None else source))
            _held[place] = found
        return found


def held_count() -> int:
    """How many distinct weights are alive, small ones and private ones left out."""
    return len({id(entry) for entry in _held.values()})


def _digest(array: np.ndarray[Any, Any]) -> bytes:
    if array.dtype.kind == "O":
        return repr(array.tolist()).encode()
    dense = np.ascontiguousarray(array)
    head = f"{array.dtype.str}{array.shape}".encode()
    return hashlib.blake2b(memoryview(dense.reshape(-1).view(np.uint8)), digest_size=20, key=head[:64]).digest()


def _packed(weight: Weight, source: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array = source if weight.pack is None else weight.pack(source)
    if array is not source:
        _drop_pages(source)
    if weight.dtype.kind != "s" and array.dtype != weight.dtype.numpy:
        raise ValueError(f"weight {weight.label!r}: expected dtype {weight.dtype}, found {array.dtype}")
    if array.shape != weight.shape:
        raise ValueError(f"weight {weight.label!r}: expected shape {weight.shape}, found {array.shape}")
    array = np.require(array, requirements=("C_CONTIGUOUS", "ALIGNED"))
    return array if weight.pack is None else placed(array)


def _drop_pages(array: np.ndarray[Any, Any]) -> None:
    """Takes the pages of an array that is mapped from a file out of our resident memory; reading brings them back."""
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if not isinstance(base, mmap.mmap) or array.nbytes < mmap.PAGESIZE or not hasattr(base, "madvise"):
        return
    offset = array.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data
    begin = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (offset + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - begin
    if offset >= 0 and length > 0:
        base.madvise(mmap.MADV_DONTNEED, begin, length)


def _register_fork_hook() -> None:
    import os

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_renew_lock)


_register_fork_hook()
