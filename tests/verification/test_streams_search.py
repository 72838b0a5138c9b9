"""Random graphs on several streams in the native core: same bits as in sequence, whatever the device does and holds."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grainline._native", reason="the native core is not built")

from grainline.base.errors import OutOfMemory
from grainline.execgraph.interp import interpret
from grainline.execgraph.ir import ExecuteGraph
from grainline.execgraph.passes import PassOptions, optimise
from grainline.execgraph.placement import place_on_discrete
from grainline.runtime.device import Device
from grainline.runtime.executor import ModelExecutor
from tests.execgraph.test_streams import ladder, without_waits
from tests.execgraph.toy import CALLABLES, feeds_of, machine_code, random_graph

SEED = int(os.environ.get("GRAINLINE_TEST_SEED", "0"))
KINDS: tuple[dict[str, Any], ...] = (
    {"executor": "sequential"},
    {"executor": "topological"},
    {"executor": "multi-worker", "workers": 2},
    {"executor": "multi-worker", "workers": 3},
)


def on_streams(graph: ExecuteGraph, streams: int, device: Device | None) -> ExecuteGraph:
    placed = graph if device is None else place_on_discrete(graph)
    return optimise(placed, PassOptions(streams=streams))


def loaded(graph: ExecuteGraph, device: Device | None, options: dict[str, Any]) -> ModelExecutor:
    addresses, image = machine_code()
    return ModelExecutor(graph, addresses, keep_alive=image, device=device, **options).load()


def check(seed: int) -> int:
    """One graph on a device of random size and pace, by every executor. How many runs had room."""
    rng = random.Random(seed)
    graph = random_graph(seed, size=rng.randint(6, 24))
    count, streams = rng.choice((1, 37, 300)), rng.choice((2, 2, 3))
    feeds, fitted = feeds_of(count, seed), 0
    expected = interpret(graph, feeds, CALLABLES)
    for options in KINDS:
        capacity = rng.choice((8 << 10, 32 << 10, 96 << 10, 1 << 20))
        device = rng.choice((None, Device("discrete", capacity_bytes=capacity, is_checked=rng.random() < 0.7)))
        executor = loaded(on_streams(graph, streams, device), device, options)
        if device is not None:
            device.set_delay(rng.choice((0, 0, 2e-5)))
        for _ in range(3):
            try:
                results = executor.run(feeds)
            except OutOfMemory:
                assert device is not None, "the host has room"
                continue
            fitted += 1
            for left, right in zip(expected, results, strict=True):
                np.testing.assert_array_equal(
                    left, right, err_msg=f"seed {seed}, {streams} streams, {options}, {capacity}"
                )
        executor.trim()
        assert executor.statistics()["held_bytes"] == 0, f"seed {seed}, {options}: a block is not home"
    return fitted


def test_random_graphs_on_several_streams_run_as_in_sequence() -> None:
    assert sum(check(seed) for seed in range(SEED, SEED + 60)) > 300, "hardly any run had room"


@pytest.mark.slow
def test_three_thousand_random_graphs_on_several_streams_run_as_in_sequence() -> None:
    for seed in range(SEED, SEED + 3000):
        check(seed)


def test_without_waits_a_slow_device_computes_something_else() -> None:
    """The search can fail."""
    device = Device("discrete")
    good = on_streams(ladder(8), 2, device)
    bad = replace(good, main=without_waits(good).main)
    feeds = {"x": feeds_of(200)["x"]}
    expected = interpret(ladder(8), feeds, CALLABLES)
    device.set_delay(2e-4)
    wrong = {
        name: sum(not np.array_equal(loaded(graph, device, KINDS[0]).run(feeds)[0], expected[0]) for _ in range(10))
        for name, graph in (("good", good), ("bad", bad))
    }
    assert wrong["good"] == 0 and wrong["bad"] > 0
