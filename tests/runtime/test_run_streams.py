"""Several streams in a run: what a model does with them, memory that comes home, failures, and forks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grainline._native", reason="the native core is not built")

import grainline
from grainline.base.errors import EndOfSequence, KernelError
from grainline.execgraph.interp import interpret
from grainline.runtime.device import Device
from tests.execgraph.test_streams import branches
from tests.execgraph.toy import CALLABLES, feeds_of, random_graph
from tests.fixtures.models import decoder_block
from tests.runtime.company import check_fork
from tests.verification.test_streams_search import KINDS, loaded, on_streams

SWITCH = "ENABLE_DYNAMIC_SHAPE_MULTI_STREAM"


def x_of(count: int) -> dict[str, Any]:
    """Feeds of a graph with the input x alone."""
    return {"x": feeds_of(count)["x"]}


@pytest.fixture
def several_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")


def kernels(model: Any) -> Counter[str]:
    return Counter(node.kernel for node in model.compiled.executor.graph.main)


def launches_by_stream(model: Any) -> Counter[int]:
    main = model.compiled.executor.graph.main
    return Counter(node.attributes["stream"] for node in main if node.kernel == "Launch")


@pytest.mark.parametrize("device", ["cpu", "discrete"])
@pytest.mark.parametrize("options", [{}, {"executor": "topological"}, {"workers": 3}], ids=str)
def test_a_model_runs_its_branches_on_two_streams(
    options: dict[str, Any], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = decoder_block(hidden=128, heads=4, kv_heads=2, inner=172, layers=2).SerializeToString()
    one = grainline.load(data, cache=False)
    monkeypatch.setenv(SWITCH, "1")
    two = grainline.load(data, cache=False, device=device, **options)
    assert set(launches_by_stream(two)) == {0, 1} and min(launches_by_stream(two).values()) > 2
    found = kernels(two)
    assert found["SendEvents"] >= 2 and found["WaitEvents"] >= 2 and found["AccessMemCrossStream"]
    assert not any(name.endswith("HoldAddr") or name == "LaunchH2DCopy" for name in found), "edges of Frees stay"
    assert not kernels(one)["SendEvents"]
    random = np.random.default_rng(3)
    for batch, length in ((1, 1), (2, 7), (3, 40), (2, 7)):
        feeds = {"hidden": random.standard_normal((batch, length, 128)).astype(np.float32)}
        for a, b in zip(one.run(feeds), two.run(feeds), strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.usefixtures("several_streams")
def test_explain_says_what_runs_on_which_stream() -> None:
    data = decoder_block(hidden=128, heads=4, kv_heads=2, inner=172, layers=1).SerializeToString()
    model = grainline.load(data, cache=False)
    counts = launches_by_stream(model)
    assert f"2 streams: {counts[0]} and {counts[1]} launches" in model.explain()


def test_a_saved_model_belongs_to_its_number_of_streams(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = decoder_block(hidden=128, heads=4, kv_heads=2, inner=172, layers=1).SerializeToString()
    feeds = {"hidden": np.ones((2, 5, 128), np.float32)}
    expected = grainline.load(data, cache_dir=tmp_path).run(feeds)
    monkeypatch.setenv(SWITCH, "1")
    for _ in range(2):
        model = grainline.load(data, cache_dir=tmp_path)
        assert "2 streams" in model.explain()
        assert all(np.array_equal(a, b) for a, b in zip(expected, model.run(feeds), strict=True))
    monkeypatch.setenv(SWITCH, "0")
    assert "2 streams" not in grainline.load(data, cache_dir=tmp_path).explain()


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_memory_of_all_streams_comes_home(options: dict[str, Any]) -> None:
    executor = loaded(on_streams(branches(3), 3, None), None, options)
    for _ in range(20):
        executor.run(x_of(1000))
    before = executor.statistics()
    for count in range(200):
        executor.run(x_of(1000 - count))
    after = executor.statistics()
    assert (after["held_bytes"], after["growths"]) == (before["held_bytes"], before["growths"]), "a run keeps blocks"
    executor.trim()
    assert executor.statistics()["held_bytes"] == 0


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("is_discrete", [False, True])
def test_a_fault_at_any_node_ends_the_run_and_the_next_is_right(is_discrete: bool, options: dict[str, Any]) -> None:
    for seed in range(4):
        graph = random_graph(seed, size=12)
        device = Device("discrete", is_checked=True) if is_discrete else None
        executor = loaded(on_streams(graph, 2, device), device, options)
        feeds = feeds_of(9, seed)
        expected = interpret(graph, feeds, CALLABLES)
        executor.run(feeds)
        for number in range(0, len(executor._native.nodes()), 3):
            executor._native.override_node_for_test(number, ("kernel_failed", "end_of_sequence")[number % 2])
            with pytest.raises((KernelError, EndOfSequence)[number % 2]):
                executor.run(feeds)
            executor._native.override_node_for_test(number, "")
            for left, right in zip(expected, executor.run(feeds), strict=True):
                np.testing.assert_array_equal(left, right, err_msg=f"seed {seed}, node {number}")
        executor.trim()
        assert executor.statistics()["held_bytes"] == 0, f"seed {seed}: a failed run keeps blocks"


@pytest.mark.parametrize("moment", ["submission", "completion"])
def test_a_failing_command_of_any_stream_fails_the_run(moment: str) -> None:
    device = Device("discrete", is_checked=True)
    graph = random_graph(5, size=16)
    executor = loaded(on_streams(graph, 3, device), device, KINDS[0])
    feeds = feeds_of(40)
    expected = interpret(graph, feeds, CALLABLES)
    failed = 0
    for after in range(0, 60, 2):
        device.inject(moment, after=after)
        try:
            executor.run(feeds)
        except KernelError:
            failed += 1
        else:
            break  # fewer commands than that
        for left, right in zip(expected, executor.run(feeds), strict=True):
            np.testing.assert_array_equal(left, right, err_msg=f"after {after}")
    assert failed > 10


def test_a_forked_child_has_streams_of_its_own() -> None:
    device = Device("discrete")
    check_fork(loaded(on_streams(branches(2), 2, device), device, KINDS[0]), x_of(9))
