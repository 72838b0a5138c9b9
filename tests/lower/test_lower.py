"""Compiled random graphs give what the graph interpreter gives, at several shapes of one compilation."""

from __future__ import annotations

import numpy as np
import pytest

from grainline import pipeline
from grainline.base.dims import evaluate
from grainline.base.knobs import Options
from grainline.graph.interp import run as interpret
from grainline.graph.text import show
from tests.lower.random_graphs import random_graph

OPTIONS = Options(threads=2).resolved()


@pytest.mark.parametrize("seed", range(40))
def test_compiled_equals_interpreted(seed):
    case = random_graph(seed, steps=14)
    compiled = pipeline.compile_graph(case.graph, OPTIONS)
    rng = np.random.default_rng(seed)
    for env in (case.env, {"b": 2, "l": 7}, {"b": 1, "l": 1}, {"b": 3, "l": 16}):
        feeds = {
            v.name: rng.standard_normal([evaluate(d, env) for d in v.shape]).astype(np.float32)
            for v in case.graph.inputs
        }
        expected = interpret(case.graph, feeds)
        found = compiled.run(feeds)
        for (name, _), want, got in zip(case.graph.outputs, expected, found, strict=True):
            assert got.shape == want.shape, f"seed {seed} {env} {name}: {got.shape}, expected {want.shape}"
            scale = max(1.0, float(np.abs(want).max(initial=0)))
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4 * scale, err_msg=f"seed {seed} {env} {name}")


@pytest.mark.parametrize("seed", range(3))
def test_R02_lowering_does_not_change_the_compute_graph(seed):
    """Three executors of one compute graph are built from the same text and give the same bits."""
    case = random_graph(seed, steps=10)
    before = show(case.graph)
    built = [pipeline.compile_graph(case.graph, OPTIONS) for _ in range(3)]
    assert show(case.graph) == before
    results = [one.run(case.feeds) for one in built]
    for other in results[1:]:
        for left, right in zip(results[0], other, strict=True):
            assert left.tobytes() == right.tobytes()
