"""Rules of the origin that only runs of the native core can show: what is kept, who waits, what is said."""

from __future__ import annotations

import gc
import logging
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grainline._native", reason="the native core is not built")

import grainline
from grainline import pipeline
from grainline.execgraph.interp import interpret
from grainline.execgraph.ir import ExecuteGraph
from grainline.execgraph.passes import PassOptions, optimise, passes_of
from grainline.execgraph.placement import place_on_discrete
from grainline.execgraph.text import parse, print_graph
from grainline.runtime.device import Device
from grainline.runtime.executor import ModelExecutor
from tests.execgraph.toy import CALLABLES, feeds_of, machine_code, random_graph
from tests.fixtures.models import decoder_block
from tests.runtime.test_discrete import sum_of_inputs

MULTI = PassOptions(is_multi_worker=True)


def loaded(graph: Any, device: Device, workers: int) -> ModelExecutor:
    addresses, image = machine_code()
    options = {"executor": "multi-worker", "workers": workers}
    return ModelExecutor(graph, addresses, keep_alive=image, device=device, **options).load()


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("seed", [3, 5])
def test_R22_a_thousand_runs_keep_what_one_keeps(seed: int, workers: int) -> None:
    """Copy chains, fused copies, launches, host calls, in shapes that change; every block comes back."""
    graph, device = random_graph(seed, size=16), Device("discrete", capacity_bytes=1 << 20, is_checked=True)
    executor = loaded(optimise(place_on_discrete(graph), MULTI), device, workers)
    cases = [(feeds_of(n, n), interpret(graph, feeds_of(n, n), CALLABLES)) for n in (37, 5, 0, 64, 200)]

    def run(number: int) -> None:
        feeds, expected = cases[number % len(cases)]
        for left, right in zip(expected, executor.run(feeds), strict=True):
            np.testing.assert_array_equal(left, right, err_msg=f"seed {seed}, run {number}")

    for number in range(20):
        run(number)
    gc.collect()
    blocks, before, live = sys.getallocatedblocks(), executor.statistics(), device.statistics()["live_bytes"]
    for number in range(1000):
        run(number)
    after = executor.statistics()
    gc.collect()
    assert (after["growths"], after["held_bytes"]) == (before["growths"], before["held_bytes"])
    assert device.statistics()["live_bytes"] == live
    assert sys.getallocatedblocks() - blocks < 200, "Python objects stay behind"
    executor.unload()
    gc.collect()
    assert device.statistics()["live_bytes"] == 0, "memory of the device stays taken"


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_R24_no_launch_starts_before_the_copies_it_reads_are_submitted(workers: int) -> None:
    """With a device that is slow to take anything, in the order that the log tells."""
    graph = place_on_discrete(sum_of_inputs(6, elements=16))
    for one in passes_of(MULTI)[1]:
        graph = one.run(graph)
    device = Device("discrete")
    executor = loaded(graph, device, workers)
    device.set_delay(2e-4)
    copies_of = {
        node.id: [c for c in node.controls if any(n.id == c and n.kernel == "LaunchH2DCopy" for n in graph.main)]
        for node in graph.main
        if node.kernel == "Launch"
    }
    assert sum(map(len, copies_of.values())) >= 6
    feeds = {f"x{i}": np.arange(16) * i for i in range(6)}
    for _ in range(5):
        _, events = executor.run_logged(feeds)
        ids = [node_id for node_id, _, _ in executor._native.nodes()]
        place = {(ids[node], kind): position for position, (_, node, _, kind) in enumerate(events)}
        for launch, copies in copies_of.items():
            for copy in copies:
                assert place[copy, "node_ended"] < place[launch, "node_started"], f"launch {launch}, copy {copy}"


@pytest.mark.parametrize("options", [{}, {"workers": 3}, {"device": "discrete"}], ids=str)
def test_R70_a_run_says_nothing_at_the_default_level(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    data = decoder_block(hidden=64, heads=2, kv_heads=2, inner=96, layers=1).SerializeToString()
    model = grainline.load(data, cache=False, **options)
    caplog.clear()
    capfd.readouterr()
    with caplog.at_level(logging.INFO):
        for length in (1, 5, 1):
            model.run({"hidden": np.ones((1, length, 64), np.float32)})
    assert caplog.records == [] and capfd.readouterr() == ("", "")


def test_the_graph_is_shown_behind_each_pass_that_changed_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At GRAINLINE_DEBUG=2; what the last pass left is what runs, and is text that parses back."""
    data = decoder_block(hidden=64, heads=2, kv_heads=2, inner=96, layers=1).SerializeToString()
    changed: list[str] = []
    seen = pipeline.show_execute_graph

    def show(name: str, graph: ExecuteGraph) -> None:
        changed.append(name)
        seen(name, graph)

    monkeypatch.setattr(pipeline, "show_execute_graph", show)
    monkeypatch.setenv("GRAINLINE_DEBUG", "2")
    with caplog.at_level(logging.INFO, "grainline"):
        model = grainline.load(data, cache=False, workers=3, device="discrete")
    dumps = [record.getMessage().split(":\n", 1) for record in caplog.records if "after" in record.getMessage()[:6]]
    shown = [title.removeprefix("after ") for title, _ in dumps]
    assert shown[-len(changed) :] == changed and {"fuse", "fold_constants"} & set(shown), "of both graphs"
    assert changed[-2:] == ["split_mixed_launch_memory", "remove_launch_free_edge"]
    assert dumps[-1][1] == print_graph(model.compiled.executor.graph)
    assert print_graph(parse(dumps[-1][1])) == dumps[-1][1]
    caplog.clear()
    monkeypatch.setenv("GRAINLINE_DEBUG", "1")
    with caplog.at_level(logging.INFO, "grainline"):
        grainline.load(data, cache=False)
    assert not any("after" in record.getMessage()[:6] for record in caplog.records)
