"""Packed weights share chunks, keep them alive, and let them go."""

from __future__ import annotations

import gc
import weakref

import numpy as np

from grainline.runtime import arena


def test_arrays_keep_their_values_and_never_overlap():
    rng = np.random.default_rng(7)
    sources = [rng.standard_normal(int(rng.integers(20_000, 400_000))).astype(np.float32) for _ in range(20)]
    moved = [arena.placed(source) for source in sources]
    for got, want in zip(moved, sources, strict=True):
        np.testing.assert_array_equal(got, want)
        assert got.ctypes.data % arena.ALIGNMENT == 0
    spans = sorted((array.ctypes.data, array.ctypes.data + array.nbytes) for array in moved)
    assert all(end <= begin for (_, end), (begin, _) in zip(spans, spans[1:], strict=False))


def test_a_chunk_goes_with_its_last_array():
    first = arena.placed(np.zeros(100_000, np.float32))
    chunk = weakref.ref(first.chunk)
    second = arena.placed(np.ones(100_000, np.float32))
    assert second.chunk is chunk(), "two arrays fit one chunk"
    del first
    gc.collect()
    assert chunk() is not None and second[0] == 1
    del second
    gc.collect()
    assert chunk() is None


def test_small_arrays_stay_where_they_are():
    small = np.zeros(10, np.float32)
    assert arena.placed(small) is small
