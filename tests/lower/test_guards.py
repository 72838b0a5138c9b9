"""What the compute graph takes for granted about extents is checked in every run."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from grainline import pipeline
from grainline.base.dims import symbol
from grainline.base.dtypes import F32
from grainline.base.errors import FeedError, GrainlineError
from grainline.base.knobs import Options
from grainline.graph.ir import Graph, Guard, Node, Value
from grainline.lower import lower

A, B = symbol("a"), symbol("b")
OPTIONS = Options(threads=1, cache=False).resolved()


def _sum(guards=()):
    x, y, z = Value("x", F32, (A,)), Value("y", F32, (B,)), Value("z", F32, (A,))
    wide = Value("wide", F32, (A, B))
    column = Value("column", F32, (A, 1))
    total = Value("total", F32, (A, 1))
    nodes = (
        Node("reshape", (x,), (column,), {}, "column"),
        Node("add", (column, y), (wide,), {}, "wide"),
        Node("reduce", (wide,), (total,), {"kind": "sum", "axes": (1,)}, "total"),
        Node("reshape", (total,), (z,), {}, "flat"),
    )
    return Graph("g", (x, y), (("z", z),), nodes, {}, guards=guards)


def test_a_guard_that_does_not_hold_is_a_feed_error_and_the_next_run_works():
    model = pipeline.compile_graph(_sum((Guard(A, B, "both halves are equally long", "wide"),)), OPTIONS)
    ones = np.ones(3, np.float32)
    np.testing.assert_array_equal(model.run({"x": ones, "y": ones})[0], [6, 6, 6])
    with pytest.raises(FeedError, match=r"both halves are equally long.*found"):
        model.run({"x": ones, "y": np.ones(4, np.float32)})
    np.testing.assert_array_equal(model.run({"x": ones, "y": ones})[0], [6, 6, 6])


def test_a_space_larger_than_memory_is_an_error_even_if_it_is_never_stored(monkeypatch):
    monkeypatch.setattr(lower, "memory_bytes", lambda: 400)
    model = pipeline.compile_graph(_sum(), OPTIONS)
    np.testing.assert_array_equal(model.run({"x": np.ones(2, np.float32), "y": np.ones(50, np.float32)})[0], [100, 100])
    with pytest.raises(GrainlineError, match="number of elements of node 'wide'"):
        model.run({"x": np.ones(3, np.float32), "y": np.ones(50, np.float32)})


def test_a_reshape_that_only_a_run_can_check_compiles():
    x, y = Value("x", F32, (A, B)), Value("y", F32, (6, 2))
    node = Node("reshape", (x,), (y,), {}, "flat")
    guard = Guard(A * B, 12, "a reshape keeps the number of elements", "flat")
    model = pipeline.compile_graph(Graph("g", (x,), (("y", y),), (node,), {}, guards=(guard,)), OPTIONS)
    array = np.arange(12, dtype=np.float32)
    np.testing.assert_array_equal(model.run({"x": array.reshape(3, 4)})[0], array.reshape(6, 2))
    with pytest.raises(FeedError, match="keeps the number of elements"):
        model.run({"x": np.ones((3, 5), np.float32)})


def test_a_bound_run_keeps_the_machine_code_alive():
    ones = np.ones(3, np.float32)
    run = pipeline.compile_graph(_sum(), OPTIONS).run
    gc.collect()
    np.testing.assert_array_equal(run({"x": ones, "y": ones})[0], [6, 6, 6])
