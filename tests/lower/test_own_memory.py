"""What a launch writes is memory of its own: kernels are planned on that (`PlannerOptions.may_alias`).

Lowered and optimised graphs run in the interpreter of execution graphs, whose pool hands freed blocks out at once, on
the compiled kernels. Each launch is looked at: a block that it writes is none that it reads.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from grainline.base.dims import evaluate
from grainline.base.dtypes import F32
from grainline.codegen.cache import ObjectCache
from grainline.codegen.compile import compile_kernels
from grainline.execgraph.interp import interpret
from grainline.execgraph.passes import PassOptions, optimise
from grainline.graph import interp as meaning
from grainline.graph.ir import Graph
from grainline.graph.passes import run_passes
from grainline.importer.model import import_model
from grainline.lower.lower import lower
from grainline.pipeline import KernelTable
from grainline.plan.target import host_target
from grainline.tile.ir import View
from tests.flow.random_models import RandomModel
from tests.lower.random_graphs import random_graph

SEED = int(os.environ.get("GRAINLINE_TEST_SEED", "0"))
ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
LINE = 64


class Watched:
    """A compiled kernel that looks at the blocks behind its views before it runs."""

    def __init__(self, address: int, views: Sequence[View]) -> None:
        self.entry = ENTRY(address)
        self.views = views
        self.launches = 0

    def __call__(self, arguments: Sequence[Any], begin: int, end: int, scratch: np.ndarray) -> None:
        blocks = list(zip(self.views, arguments))
        for view, block in blocks:
            shared = [v.name for v, other in blocks if v.access == "read" and np.may_share_memory(block, other)]
            assert view.access == "read" or not shared, f"{view.name} is written where {shared} is read"
        words = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments]
        own = np.empty(scratch.size + LINE, np.uint8)
        args = np.array(words, np.int64)
        assert self.entry(args.ctypes.data, begin, end, own.ctypes.data + -own.ctypes.data % LINE) == 0
        self.launches += 1


def watched_run(graph: Graph, feeds: Sequence[dict[str, np.ndarray]], label: str) -> int:
    """Runs `feeds` one after the other and compares with the compute graph's meaning; returns the watched launches."""
    table = KernelTable(host_target())
    lowered = lower(run_passes(graph), table.backend()).graph
    compiled = compile_kernels(table.emitted(), ObjectCache(None))
    kernels = {
        kernel.symbol: Watched(compiled[kernel.symbol].address, plan.program.views)
        for key, result in table.plans.items()
        for plan, kernel in zip(result.variants, table.kernels[key], strict=True)
    }
    for passes in (PassOptions(), PassOptions(is_multi_worker=True)):
        optimised = optimise(lowered, passes)
        for number, each in enumerate(feeds):
            found = interpret(optimised, each, kernels)
            for got, want in zip(found, meaning.run(graph, each), strict=True):
                scale = max(1.0, float(np.abs(want).max(initial=0)))
                np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4 * scale, err_msg=f"{label}, feeds {number}")
    return sum(kernel.launches for kernel in kernels.values())


def test_a_block_that_is_read_and_written_is_noticed() -> None:
    views = (View("x", F32, (4,), (1,)), View("y", F32, (4,), (1,), access="write"))
    block = np.zeros(32, np.uint8)
    with pytest.raises(AssertionError, match="y is written where"):
        Watched(0, views)([block, block[16:]], 0, 1, block)


@pytest.mark.parametrize("seed", range(SEED, SEED + 20))
def test_launches_of_random_graphs_write_memory_of_their_own(seed: int) -> None:
    case = random_graph(seed, steps=14)
    rng = np.random.default_rng(seed)
    feeds = [case.feeds]
    for env in ({"b": 1, "l": 1}, {"b": 3, "l": 16}):
        shapes = {v.name: [evaluate(d, env) for d in v.shape or ()] for v in case.graph.inputs}
        feeds.append({name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()})
    assert watched_run(case.graph, feeds, f"seed {seed}") > 0


@pytest.mark.parametrize("seed", range(SEED, SEED + 12))
def test_launches_inside_loops_and_branches_write_memory_of_their_own(seed: int) -> None:
    """A carried value's block may be the one that the turn before has written, never the one that this turn writes."""
    built = RandomModel(seed)
    graph = import_model(built.model.SerializeToString())
    watched_run(graph, [built.feeds(number) for number in range(4)], f"seed {seed}")
