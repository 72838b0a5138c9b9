"""Laws of the weight store: equal weights exist once, as long as somebody holds them."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grainline.base.dtypes import F32, I64
from grainline.execgraph.ir import Weight
from grainline.runtime.weights import held_count, hold

SHAPE = (100, 100)


def weight(value: float, **parts: Any) -> Weight:
    return Weight("w", F32, SHAPE, load=lambda: np.full(SHAPE, value, np.float32), **parts)


def test_equal_contents_are_shared_and_freed_with_the_last_holder() -> None:
    gc.collect()
    before = held_count()
    one, two, other = hold(weight(1)), hold(weight(1)), hold(weight(2))
    assert one is two and one is not other
    assert held_count() == before + 2
    del one, two
    gc.collect()
    assert held_count() == before + 1
    del other
    gc.collect()
    assert held_count() == before


def test_layouts_are_kept_apart() -> None:
    dense = hold(weight(3))
    packed = hold(weight(3, layout="doubled", pack=lambda a: a * 2))
    assert dense.array[0, 0] == 3 and packed.array[0, 0] == 6


def test_an_identity_is_found_without_loading() -> None:
    loads = []

    def load() -> np.ndarray[Any, Any]:
        loads.append(1)
        return np.zeros(SHAPE, np.float32)

    first = hold(Weight("a", F32, SHAPE, "file:0", load=load))
    second = hold(Weight("b", F32, SHAPE, "file:0", load=load))
    assert first is second and len(loads) == 1


def test_a_mapped_weight_is_not_copied_and_its_pages_go_after_packing(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    data = np.arange(1 << 20, dtype=np.float32)
    file.write_bytes(b"\0" * 64 + data.tobytes())
    with file.open("rb") as handle:
        mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)

    def load() -> np.ndarray[Any, Any]:
        return np.frombuffer(memoryview(mapped), np.float32, count=len(data), offset=64)

    dense = hold(Weight("w", F32, data.shape, "dense", load=load))
    assert np.shares_memory(dense.array, load())
    packed = hold(Weight("w", F32, data.shape, "packed", "negated", load, lambda a: -a))
    np.testing.assert_array_equal(packed.array, -data)
    np.testing.assert_array_equal(load(), data)


def test_a_load_that_gives_something_else_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected dtype i64"):
        hold(Weight("w", I64, SHAPE, load=lambda: np.zeros(SHAPE, np.float32)))
    with pytest.raises(ValueError, match="expected shape"):
        hold(Weight("w", F32, (3,), load=lambda: np.zeros(SHAPE, np.float32)))
