"""Graphs whose Frees do not wait for their launches, on the native executor with several workers."""

from __future__ import annotations

import numpy as np
import pytest

import grainline
from grainline.execgraph.interp import interpret
from grainline.execgraph.passes import PassOptions, optimise
from grainline.runtime.executor import ModelExecutor
from tests.execgraph.toy import CALLABLES, feeds_of, machine_code, random_graph


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("seed", range(12))
def test_several_workers_give_what_the_interpreter_gives(seed: int, workers: int) -> None:
    graph = random_graph(seed, size=20)
    early = optimise(graph, PassOptions(is_multi_worker=True))
    assert len(early.relations), f"seed {seed}: no edge went"
    addresses, image = machine_code()
    executor = ModelExecutor(early, addresses, keep_alive=image, executor="multi-worker", workers=workers).load()
    for count in (37, 1, 64, 37):
        expected = interpret(graph, feeds_of(count), CALLABLES)
        for left, right in zip(expected, executor.run(feeds_of(count)), strict=True):
            np.testing.assert_array_equal(left, right, err_msg=f"seed {seed}, workers {workers}, N {count}")


def test_explain_says_what_became_of_the_edges(encoder_fp32: str) -> None:
    told = grainline.load(encoder_fp32, executor="multi-worker", workers=3, cache=False).explain()
    assert "edges removed, each proven by the static order" in told
    assert "Launch -> Free" not in grainline.load(encoder_fp32, executor="sequential", cache=False).explain()
