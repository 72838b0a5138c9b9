"""Sub-graphs: branches and loops by the interpreter and by every executor, and graphs whose frames are wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grainline._native", reason="the native core is not built")

from grainline.base.dims import symbol
from grainline.base.dtypes import BOOL, I64
from grainline.base.errors import EndOfSequence, KernelError
from grainline.execgraph.builder import GraphBuilder
from grainline.execgraph.flow import Loop, Switch
from grainline.execgraph.interp import interpret
from grainline.execgraph.ir import ExecuteGraph, View
from grainline.execgraph.text import parse, print_graph
from grainline.execgraph.verify import verify
from tests.execgraph.toy import CALLABLES, variant
from tests.runtime.test_executors import loaded

N, M, T = symbol("N"), symbol("M"), symbol("T")
KINDS: tuple[dict[str, Any], ...] = (
    {"executor": "auto"},
    {"executor": "sequential"},
    {"executor": "topological"},
    {"executor": "priority-topological"},
    {"executor": "multi-worker", "workers": 3},
)


def mix(builder: GraphBuilder, a: int, b: int, target: int, n: Any, name: str) -> None:
    builder.launch("mix", [variant("mix", n)], [View(a), View(b), View(target, 0, "write")], [n], name)


def branches() -> ExecuteGraph:
    """c ? 3x + x of length N : the first N//2 elements of x."""
    builder = GraphBuilder("branches")
    x, c = builder.input("x", I64, (N,)), builder.input("c", BOOL, ())
    result = builder.empty_slot("memory", I64, (M,), "result")
    switch = Switch(builder, c, 2, "choose")
    feeders = []
    with switch.branch():
        own = builder.memory(I64, (N,), N * 8, "own")
        mix(builder, x, x, own, N, "then")
        builder.move(own, result)
        feeders.append(builder.pass_extents(None, 0, (N,)))
    with switch.branch():
        half = builder.memory(I64, (N // 2,), N // 2 * 8, "half")
        builder.copy(x, half, N // 2 * 8)
        builder.guard(N // 2 * 2, N, "an even length", "else")
        builder.move(half, result)
        feeders.append(builder.pass_extents(None, 0, (N // 2,)))
    switch.join((M,), feeders)
    out = builder.model_output("out", I64, (M,))
    builder.copy(result, out, M * 8)
    return builder.finish()


def doubling(collects: bool = True) -> ExecuteGraph:
    """`trips` times: y = y + y behind each other, its length doubles; all first elements are collected."""
    builder = GraphBuilder("doubling")
    x, trips = builder.input("x", I64, (N,)), builder.input("trips", I64, ())
    carried = builder.empty_slot("memory", I64, (M,), "carried")
    collected = builder.empty_slot("memory", I64, None, "collected")
    first = builder.memory(I64, (N,), N * 8, "first")
    builder.copy(x, first, N * 8)
    builder.move(first, carried)
    feeder = builder.pass_extents(None, 0, (0, N))
    loop = Loop(builder, (T, M), (feeder,), "count")
    with loop.body(T, trips=trips):
        longer = builder.memory(I64, (2 * M,), 16 * M, "longer")
        builder.copy(carried, longer, 8 * M)
        builder.copy(carried, longer, 8 * M, target_offset=8 * M)
        builder.grow(collected, 8, T)
        builder.copy(carried, collected, 8, target_offset=8 * T)
        builder.move(longer, carried)
        loop.pass_on(0, (T + 1, 2 * M))
    t, m = symbol("t"), symbol("m")
    loop.leave((t, m), (T, M))
    for name, slot, shape in (("y", carried, (m,)), ("firsts", collected, (t,))):
        builder.copy(slot, builder.model_output(name, I64, shape), 8 * shape[0])
    return builder.finish()


def check(graph: ExecuteGraph, feeds: dict[str, Any], expected: list[Any]) -> None:
    assert verify(graph) == []
    assert parse(print_graph(graph)) == replace(graph, guards=(), limits=())
    for found, wanted in zip(interpret(graph, feeds, CALLABLES), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    for options in KINDS:
        executor = loaded(graph, **options)
        for _ in range(3):
            for found, wanted in zip(executor.run(feeds), expected, strict=True):
                np.testing.assert_array_equal(found, wanted, err_msg=str(options))
        assert executor.statistics()["states"] == 1


def test_one_branch_runs_and_its_extents_are_those_of_the_result() -> None:
    x = np.arange(6)
    check(branches(), {"x": x, "c": np.array(True)}, [4 * x])
    check(branches(), {"x": x, "c": np.array(False)}, [x[:3]])


def test_a_guard_of_a_branch_holds_in_that_branch_alone() -> None:
    x = np.arange(5)
    check(branches(), {"x": x, "c": np.array(True)}, [4 * x])
    executor = loaded(branches())
    for _ in range(3):
        with pytest.raises(KernelError, match="even length"):
            executor.run({"x": x, "c": np.array(False)})
        assert executor.run({"x": x, "c": np.array(True)})[0].tolist() == (4 * x).tolist()


@pytest.mark.parametrize("trips", [0, 1, 2, 5, -3])
def test_a_carried_shape_changes_with_every_turn(trips: int) -> None:
    x, turns = np.arange(1, 4), max(trips, 0)
    check(doubling(), {"x": x, "trips": np.array(trips)}, [np.tile(x, 2**turns), np.ones(turns, int)])


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_fault_at_any_node_of_a_body_ends_the_run_and_the_next_is_right(options: dict[str, Any]) -> None:
    """In the first turn or a later one; nothing of the turns before stays behind."""
    executor = loaded(doubling(), **options)
    x = np.arange(1, 4)
    feeds = {"x": x, "trips": np.array(3)}
    expected = executor.run(feeds)
    for number, (_, kernel, _) in enumerate(executor._native.nodes()):
        executor._native.override_node_for_test(number, ("kernel_failed", "end_of_sequence")[number % 2])
        with pytest.raises((KernelError, EndOfSequence)[number % 2]):
            executor.run(feeds)
        executor._native.override_node_for_test(number, "")
        for found, wanted in zip(executor.run(feeds), expected, strict=True):
            np.testing.assert_array_equal(found, wanted, err_msg=f"behind a fault of {kernel}")
    executor.trim()
    assert executor.statistics()["held_bytes"] == 0, "a failed run keeps blocks"


def test_edges_that_cross_a_border_are_found() -> None:
    """Every check can fail: an edge from outside into a turn would be notified once and waited for in every turn."""
    graph = doubling()
    outside = next(node for node in graph.main if node.kernel == "EmptySlot")
    inside = next(node for node in graph.main if node.kernel == "GrowMemory")
    crossing = replace(inside, controls=(*inside.controls, outside.id))
    broken = replace(graph, main=tuple(crossing if node is inside else node for node in graph.main))
    assert any("of another frame" in problem for problem in verify(broken))
    homeless = replace(graph, frames=())
    assert any("has no frame" in problem for problem in verify(homeless))
