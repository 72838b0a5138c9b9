"""Models on the discrete device: the same bits as on the host, whoever runs the graph and whatever the device does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("grainline._native", reason="the native core is not built")

import grainline
from grainline.execgraph.interp import interpret
from grainline.execgraph.ir import ExecuteGraph
from grainline.execgraph.passes import PassOptions, optimise
from grainline.execgraph.placement import place_on_discrete
from grainline.runtime.device import Device
from grainline.runtime.executor import ModelExecutor
from tests.execgraph.toy import CALLABLES, feeds_of, machine_code, random_graph

KINDS: tuple[dict[str, Any], ...] = (
    {"executor": "sequential"},
    {"executor": "topological"},
    {"executor": "priority-topological"},
    {"executor": "multi-worker", "workers": 2},
    {"executor": "multi-worker", "workers": 3},
    {"executor": "multi-worker", "workers": 4},
)
SHAPES = (37, 1, 0, 200, 37)


def placed(graph: ExecuteGraph, options: dict[str, Any]) -> ExecuteGraph:
    return optimise(place_on_discrete(graph), PassOptions(is_multi_worker=options["executor"] == "multi-worker"))


def loaded(graph: ExecuteGraph, device: Device, **options: Any) -> ModelExecutor:
    addresses, image = machine_code()
    return ModelExecutor(graph, addresses, keep_alive=image, device=device, **options).load()


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_give_what_the_interpreter_gives(seed: int, options: dict[str, Any]) -> None:
    graph = random_graph(seed, size=20)
    executor = loaded(placed(graph, options), Device("discrete", is_checked=True), **options)
    for count in SHAPES:
        expected = interpret(graph, feeds_of(count, seed), CALLABLES)
        for left, right in zip(expected, executor.run(feeds_of(count, seed)), strict=True):
            np.testing.assert_array_equal(left, right, err_msg=f"seed {seed}, {options}, N {count}")


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_an_encoder_gives_the_bits_of_the_host(options: dict[str, Any], encoder_fp32: str) -> None:
    host = grainline.load(encoder_fp32)
    other = grainline.load(encoder_fp32, device=Device("discrete", is_checked=True), **options)
    random = np.random.default_rng(5)
    for batch, length in ((1, 8), (3, 17), (2, 64), (1, 8)):
        feeds = {
            info.name: random.integers(0, 2 if "mask" in info.name else 1000, (batch, length)).astype(np.int64)
            for info in host.inputs
        }
        for a, b in zip(host.run(feeds), other.run(feeds), strict=True):
            assert a.tobytes() == b.tobytes()
