"""Sub-graphs: branches and loops by the interpreter and by every executor, and graphs whose frames are wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grainline._native", reason="the native core is not built")

from grainline.base.dims import symbol
from grainline.base.dtypes import BOOL, I64
from grainline.base.errors import EndOfSequence, KernelError
from grainline.execgraph.builder import GraphBuilder, Result
from grainline.execgraph.flow import Loop, Switch
from grainline.execgraph.interp import interpret
from grainline.execgraph.ir import ExecuteGraph, View
from grainline.execgraph.order import entries, execution_order
from grainline.execgraph.passes import PassOptions, optimise
from grainline.execgraph.text import parse, print_graph
from grainline.execgraph.verify import verify
from grainline.runtime.device import Device
from grainline.runtime.executor import ModelExecutor
from tests.execgraph.toy import CALLABLES, variant
from tests.runtime.test_discrete import loaded as loaded_on_discrete
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


def computed_bounds() -> ExecuteGraph:
    """y = x; while 5 - turn != 0, at most 4k times: y = 5 (3y + x) + (y + 1). Trip count and condition are launches' work.
    Then r = 2 (4k != 0 ? 3x + y : [N, 0, 0]), which a host call reads."""
    builder = GraphBuilder("computed bounds")
    x, k = builder.input("x", I64, (3,)), builder.input("k", I64, ())
    zero = builder.weight("zero", I64, (1,), lambda: np.zeros(1, np.int64))
    trips, flag = builder.memory(I64, (), 8, "trips"), builder.memory(BOOL, (), 1, "flag")
    mix(builder, k, k, trips, 1, "trips")
    builder.copy(k, flag, 1)
    carried = builder.empty_slot("memory", I64, (3,), "carried")
    condition = builder.empty_slot("memory", BOOL, (), "condition")
    first, true = builder.memory(I64, (3,), 24, "first"), builder.memory(BOOL, (), 1, "true")
    builder.copy(x, first, 24)
    builder.copy(builder.weight("one", BOOL, (), lambda: np.array(True)), true, 1)
    builder.move(first, carried)
    builder.move(true, condition)
    loop = Loop(builder, (T,), (builder.pass_extents(None, 0, (0,)),), "count")
    with loop.body(T, trips=trips, condition=condition):
        (seen,) = builder.host_call("Add", lambda y: (y + 1,), [carried], [Result(I64, (3,), "seen")])
        longer, left = builder.memory(I64, (3,), 24, "next"), builder.memory(I64, (1,), 8, "left")
        mix(builder, carried, x, longer, 3, "next")
        builder.launch("update", [variant("update", 3)], [View(longer, 0, "readwrite"), View(seen)], [3], "update")
        number, goes_on = builder.memory(I64, (1,), 8, "number"), builder.memory(BOOL, (), 1, "goes_on")
        builder.extents_tensor(number, [5 - T])
        mix(builder, zero, number, left, 1, "left")
        builder.copy(left, goes_on, 1)
        builder.move(goes_on, condition)
        builder.move(longer, carried)
        loop.pass_on(0, (T + 1,))
    loop.leave((), ())
    builder.copy(carried, builder.model_output("y", I64, (3,)), 24)
    chosen = builder.empty_slot("memory", I64, (3,), "chosen")
    switch = Switch(builder, flag, 2, "choose")
    with switch.branch():
        own = builder.memory(I64, (3,), 24, "own")
        mix(builder, x, carried, own, 3, "then")
        builder.move(own, chosen)
    with switch.branch():
        other = builder.memory(I64, (3,), 24, "other")
        builder.extents_tensor(other, [7, 0, 0])
        builder.move(other, chosen)
    switch.join((), ())
    result = builder.host_call("Mul", lambda a: (2 * a,), [chosen], [Result(I64, (3,), "r")])[0]
    builder.object_output("r", I64, result)
    return builder.finish()


def around() -> ExecuteGraph:
    """a = 4x and b = x in front of a branch, b = 5b + a behind it, and c ? 4x : x from the branch."""
    builder = GraphBuilder("around")
    x, c = builder.input("x", I64, (N,)), builder.input("c", BOOL, ())
    a = builder.memory(I64, (N,), N * 8, "a")
    b = builder.memory(I64, (N,), N * 8, "b")
    mix(builder, x, x, a, N, "in front")
    builder.copy(x, b, N * 8)
    chosen = builder.empty_slot("memory", I64, (N,), "chosen")
    switch = Switch(builder, c, 2, "choose")
    for name in ("then", "else"):
        with switch.branch():
            own = builder.memory(I64, (N,), N * 8, name)
            mix(builder, x, x, own, N, name) if name == "then" else builder.copy(x, own, N * 8)
            builder.move(own, chosen)
    switch.join((), ())
    builder.launch("update", [variant("update", N)], [View(b, 0, "readwrite"), View(a)], [N], "behind")
    for name, slot in (("b", b), ("chosen", chosen)):
        builder.copy(slot, builder.model_output(name, I64, (N,)), N * 8)
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
    check_on_discrete(graph, feeds, expected)


def check_on_discrete(graph: ExecuteGraph, feeds: dict[str, Any], expected: list[Any]) -> None:
    """Memory is touched where it lies, whoever walks the graph; at the end the device is as it was."""
    for options in KINDS:
        device = Device("discrete", is_checked=True)
        is_multi_worker = options["executor"] == "multi-worker"
        executor = loaded_on_discrete(graph, device, **options)
        assert verify(executor.graph) == [] and bool(is_multi_worker) == any(
            node.kernel == "LaunchH2DCopy" for node in executor.graph.main
        )
        for found, wanted in zip(interpret(executor.graph, feeds, CALLABLES, device="discrete"), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
        at_rest = device.statistics()["live_bytes"]
        for delay in (0, 0, 0.0002):
            device.set_delay(delay)
            for found, wanted in zip(executor.run(feeds), expected, strict=True):
                np.testing.assert_array_equal(found, wanted, err_msg=str(options))
            executor.trim()
            assert device.statistics()["live_bytes"] == at_rest, "a run keeps memory of the device"


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


@pytest.mark.parametrize("k", [0, 1, 2])
def test_launches_compute_what_a_switch_reads(k: int) -> None:
    """The trip count ends the loop for k = 1, the condition for k = 2."""
    x = np.array([1, -2, 3])
    y = x
    for _ in range(min(4 * k, 6)):
        y = 5 * (3 * y + x) + (y + 1)
    check(computed_bounds(), {"x": x, "k": np.array(k)}, [y, 2 * (3 * x + y) if k else np.array([14, 0, 0])])


def test_switches_on_the_device_cost_a_copy_per_turn_and_no_more() -> None:
    """A trip count comes home once, a condition and what a host call reads once per turn, an input goes there once."""
    executor = loaded_on_discrete(computed_bounds(), executor="sequential")
    _, events = executor.run_logged({"x": np.arange(3), "k": np.array(2)})
    kernels = {number: kernel for number, (_, kernel, _) in enumerate(executor._native.nodes())}
    ran = Counter(kernels[node] for _, node, _, kind in events if kind == "node_ended")
    turns, by_call, once = 6, 1, ("trips", "first condition", "flag", "chosen")
    assert ran["CopyD2H"] == turns * (1 + by_call) + len(once)


# ---- several workers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [branches, doubling, computed_bounds, around])
def test_what_the_graph_itself_branches_or_turns_stands_together(make: Callable[[], ExecuteGraph]) -> None:
    graph = make()
    order = execution_order(graph.main, graph.frames)
    entry = entries(order, graph.frames)
    place = {node.id: number for number, node in enumerate(order)}
    for first in set(entry.values()):
        held = [number for number, node in enumerate(order) if entry.get(node.id) == first]
        assert held == list(range(place[first], place[first] + len(held)))
    assert all(node.id in entry for node in order if node.owner)
    again = {later: set(node.attributes.get("again", ())) for later, node in enumerate(order)}
    for node in order:
        for earlier in set(node.controls) - again[place[node.id]]:
            assert place[earlier] < place[node.id], "an edge of the graph points back"


def test_no_free_runs_ahead_of_a_launch_behind_a_branch_that_it_stands_in_front_of() -> None:
    """The branch takes memory, and may have to wait for every launch of the Frees in front of it."""
    graph = optimise(around(), PassOptions(is_multi_worker=True))
    order = execution_order(graph.main, graph.frames)
    place = {node.id: number for number, node in enumerate(order)}
    switch = next(node for node in order if node.kernel == "SwitchNotify")
    exit_id = graph.frames[0].exit
    pairs = [(order[place[free]], order[place[launch]]) for free, launch in graph.relations.pairs()]
    for free, launch in pairs:
        assert place[free.id] > place[exit_id] or place[launch.id] < place[switch.id]
    (both,) = [free for free, launch in pairs if launch.compute_node == "in front"]
    assert [launch.compute_node for free, launch in pairs if free is both] == ["in front", "behind"]
    early = replace(both, controls=tuple(control for control in both.controls if control != exit_id))
    broken = replace(graph, main=tuple(early if node is both else node for node in graph.main))
    assert early != both and any("may still need" in problem for problem in verify(broken))
    for flag in (True, False):
        x = np.arange(1, 6)
        check(around(), {"x": x, "c": np.array(flag)}, [9 * x, 4 * x if flag else x])


@pytest.mark.parametrize("load", [loaded, loaded_on_discrete])
def test_the_caller_runs_every_turn_and_the_others_run_the_rest(load: Callable[..., ModelExecutor]) -> None:
    executor = load(computed_bounds(), executor="multi-worker", workers=3)
    _, events = executor.run_logged({"x": np.arange(3), "k": np.array(2)})
    runs = Counter(node for _, node, _, kind in events if kind == "node_ended")
    workers: dict[bool, set[int]] = {True: set(), False: set()}
    for _, node, worker, _ in events:
        workers[runs[node] > 1].add(worker)
    assert max(runs.values()) == 7, "six turns and the look that ends them"
    assert workers == {True: {0}, False: {0, 1, 2}}


@pytest.mark.parametrize("moment", ["submission", "completion"])
@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_fault_of_any_command_of_any_turn_ends_the_run_and_the_next_is_right(
    options: dict[str, Any], moment: str
) -> None:
    device, feeds = Device("discrete", is_checked=True), {"x": np.arange(3), "k": np.array(1)}
    executor = loaded_on_discrete(computed_bounds(), device, **options)
    expected = executor.run(feeds)
    executor.trim()
    at_rest = device.statistics()["live_bytes"]
    for after in count():
        device.inject(moment, after=after)
        try:
            executor.run(feeds)
            break  # the run has no more commands
        except KernelError as problem:
            assert "injected" in str(problem)
        executor.trim()
        assert device.statistics()["live_bytes"] == at_rest, f"command {after} leaks"
        for found, wanted in zip(executor.run(feeds), expected, strict=True):
            np.testing.assert_array_equal(found, wanted, err_msg=f"behind a fault of command {after}")
    assert after > 4 * 6, "every turn submits several commands"


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_fault_at_any_node_of_a_body_ends_the_run_and_the_next_is_right(options: dict[str, Any]) -> None:
    """In the first turn or a later one; nothing of the turns before stays behind."""
    for executor, feeds in (
        (loaded(doubling(), **options), {"x": np.arange(1, 4), "trips": np.array(3)}),
        (loaded_on_discrete(doubling(), **options), {"x": np.arange(1, 4), "trips": np.array(3)}),
        (loaded_on_discrete(computed_bounds(), **options), {"x": np.arange(3), "k": np.array(2)}),
    ):
        check_faults(executor, feeds)


def check_faults(executor: ModelExecutor, feeds: dict[str, Any]) -> None:
    expected, events = executor.run_logged(feeds)
    kernels = [kernel for _, kernel, _ in executor._native.nodes()]
    for number in sorted({node for _, node, _, _ in events}):
        executor._native.override_node_for_test(number, ("kernel_failed", "end_of_sequence")[number % 2])
        with pytest.raises((KernelError, EndOfSequence)[number % 2]):
            executor.run(feeds)
        executor._native.override_node_for_test(number, "")
        for found, wanted in zip(executor.run(feeds), expected, strict=True):
            np.testing.assert_array_equal(found, wanted, err_msg=f"behind a fault of {kernels[number]}")
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
