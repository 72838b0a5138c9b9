"""Packed weights lie side by side in huge pages: a product reads its weights once per run, front to back, and with
4 KiB pages the address translation alone costs up to a tenth of a small product.

A chunk is one anonymous mapping that is filled front to back. Every array in it keeps it alive; it goes back to the
system with the last of them.
"""

from __future__ import annotations

import mmap
import weakref
from typing import Any

import numpy as np

HUGE_PAGE_BYTES = 2 << 20
CHUNK_BYTES = 8 << 20
ALIGNMENT = 64
#: smaller arrays gain nothing from huge pages
LEAST_BYTES = 1 << 16


class _Chunk:
    """A mapping and how much of it is taken. Arrays hold the mapping through their base, and the chunk beside it."""

    def __init__(self, size_bytes: int) -> None:
        pages = -(-size_bytes // HUGE_PAGE_BYTES)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        mapping = mmap.mmap(-1, pages * HUGE_PAGE_BYTES, flags=flags)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            mapping.madvise(mmap.MADV_HUGEPAGE)
        self.memory = np.frombuffer(mapping, np.uint8)
        self.taken = 0

    def take(self, size_bytes: int) -> np.ndarray[Any, Any] | None:
        begin = -(-self.taken // ALIGNMENT) * ALIGNMENT
        if begin + size_bytes > len(self.memory):
            return None
        self.taken = begin + size_bytes
        return self.memory[begin : begin + size_bytes]


class _Slice(np.ndarray):  # type: ignore[type-arg]
    """An array that also keeps its chunk, so that the chunk goes on being filled while somebody uses it."""

    chunk: _Chunk | None = None


_filling: weakref.ref[_Chunk] | None = None


def placed(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array, moved into a chunk when it is large enough. The caller serialises calls."""
    global _filling
    if array.nbytes < LEAST_BYTES or array.dtype.kind == "O":
        return array
    chunk = None if _filling is None else _filling()
    memory = None if chunk is None else chunk.take(array.nbytes)
    if chunk is None or memory is None:
        chunk = _Chunk(max(CHUNK_BYTES, array.nbytes))
        memory = chunk.take(array.nbytes)
        assert memory is not None
        _filling = weakref.ref(chunk)
    moved = memory.view(array.dtype).reshape(array.shape).view(_Slice)
    moved.chunk = chunk
    moved[...] = array
    return moved
