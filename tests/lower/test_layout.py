"""Layouts address exactly the elements that NumPy's views address."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grainline.base import dims
from grainline.base.dims import symbol
from grainline.lower import layout as lay


def addresses(layout: lay.Layout) -> np.ndarray:
    """The buffer position of every element, by the definition of a layout."""
    out = np.empty(layout.shape, np.int64)
    for index in itertools.product(*(range(int(d)) for d in layout.shape)):
        position = layout.offset
        for coordinate, factors in zip(index, layout.axes, strict=True):
            for extent, stride in reversed(factors):
                position += (coordinate % extent) * stride
                coordinate //= extent
        out[index] = position
    return out


def _split(draw, total):
    """A random shape with `total` elements."""
    shape = []
    for _ in range(draw(st.integers(0, 4))):
        divisors = [d for d in range(1, total + 1) if total % d == 0]
        d = draw(st.sampled_from(divisors))
        shape.append(d)
        total //= d
    return (*shape, total)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_chains_of_views_address_what_numpy_addresses(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    array = np.arange(int(np.prod(shape)))
    array = array.reshape(shape)
    layout = lay.dense(shape)
    for _ in range(data.draw(st.integers(1, 5))):
        kind = data.draw(st.sampled_from(["transpose", "reshape", "slice", "expand"]))
        if kind == "transpose":
            perm = tuple(data.draw(st.permutations(range(array.ndim))))
            layout, array = lay.transpose(layout, perm), array.transpose(perm)
        elif kind == "reshape":
            target = _split(data.draw, array.size)
            reshaped = lay.reshape(layout, target)
            if reshaped is None:
                continue
            layout, array = reshaped, array.reshape(target)
        elif kind == "slice":
            starts = tuple(data.draw(st.integers(0, d - 1)) for d in array.shape)
            steps = tuple(data.draw(st.sampled_from([1, 2, -1])) for _ in array.shape)
            picks = [slice(b, None, s) for b, s in zip(starts, steps, strict=True)]
            picked = array[tuple(picks)]
            sliced = lay.slice_(layout, starts, steps, picked.shape)
            if sliced is None:
                continue
            layout, array = sliced, picked
        else:
            target = (data.draw(st.integers(1, 3)), *(3 if d == 1 else d for d in array.shape))
            layout, array = lay.expand(layout, target), np.broadcast_to(array, target)
        assert layout.shape == array.shape
        np.testing.assert_array_equal(addresses(layout), array)


def test_dense_reshapes_never_fail_and_stay_dense():
    b, n = symbol("b"), symbol("n")
    layout = lay.dense((b, n, 384))
    for target in ((b * n, 384), (b, n, 12, 32), (b * n * 12, 32), (b, n * 384)):
        reshaped = lay.reshape(layout, target)
        assert reshaped is not None and reshaped.is_dense() and reshaped.shape == target


def test_a_dense_reshape_needs_no_provable_division():
    """[b + 2, b + 3] has an element count that no polynomial rule splits; the guards of the graph hold the sizes equal."""
    b = symbol("b")
    layout = lay.dense((b + 2, 11, b + 3))
    for target in ((1, b + 2, 11, b + 3), (b + 2, 1, 11, b + 3), (dims.floordiv((b + 2) * (b + 3) * 11, 4), 4)):
        reshaped = lay.reshape(layout, target)
        assert reshaped is not None and reshaped.is_dense() and reshaped.shape == target
    assert lay.reshape(lay.dense((2, 3)), (7,)) is None


@pytest.mark.parametrize("extent", [1, 2, 4, symbol("n")])
def test_a_slice_of_nothing_begins_inside_the_buffer(extent):
    """Also one past the end of an axis that runs backward, and where only a run knows that it is empty."""
    back = lay.slice_(lay.dense((extent, 3)), (extent - 1, 0), (-1, 1), (extent, 3))
    for length in (0, dims.maximum(symbol("n") - 4, 0)):
        for step in (1, -1):
            nothing = lay.slice_(back, (extent, 0), (step, 1), (length, 3))
            for n in (1, 2, 4):
                assert dims.evaluate(nothing.offset, {"n": n}) >= 0


def test_strides_stay_apart_where_an_axis_is_empty():
    b = symbol("b")
    layout = lay.dense((b, 0, 4))
    assert all(stride != 0 for axis in layout.axes for _, stride in axis) and layout.is_dense()


def test_heads_merge_and_split_without_a_copy():
    b, n = symbol("b"), symbol("n")
    heads = lay.transpose(lay.reshape(lay.dense((b, n, 384)), (b, n, 12, 32)), (0, 2, 1, 3))
    merged = lay.reshape(heads, (b * 12, n, 32))
    assert merged is not None and merged.shape == (12 * b, n, 32)
    assert lay.reshape(merged, (b, 12, n, 32)) == heads


def test_permuted_makes_the_transpose_row_major():
    b, n = symbol("b"), symbol("n")
    layout = lay.permuted((b, 12, n, 32), (0, 2, 1, 3))
    seen = lay.transpose(layout, (0, 2, 1, 3))
    assert seen.is_dense()
    assert lay.reshape(seen, (b, n, 384)).is_dense()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_refine_is_a_common_refinement(data):
    extents = data.draw(st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=4))
    total = int(np.prod(extents))
    a = [d for d in _split(data.draw, total) if d != 1] or [total]
    b = [d for d in _split(data.draw, total) if d != 1] or [total]
    common = lay.refine([[total], a, b])
    if common is None:
        return
    assert int(np.prod(common)) == total
    for factors in (a, b):
        strides = lay.split(tuple((e, int(np.prod(factors[i + 1 :]))) for i, e in enumerate(factors)), common)
        assert strides == [int(np.prod(common[i + 1 :])) for i in range(len(common))]
