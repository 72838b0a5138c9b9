"""What one call and one node of the executor cost, through the Python binding.

    python -m benchmarks.executor

The nodes are those of the executor's tests (`tests/execgraph/toy.py`), hence the module form. Prints, asserts nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import machine
from grainline.base.dims import symbol
from grainline.base.dtypes import I64
from grainline.execgraph.builder import GraphBuilder
from grainline.execgraph.ir import View
from grainline.runtime.executor import ModelExecutor
from tests.execgraph.toy import machine_code, variant

N = symbol("N")
SIZES = (200, 4000)


def best_ns(call: Callable[[], Any], calls: int, rounds: int = 15) -> float:
    found = []
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        for _ in range(calls):
            call()
        found.append((time.perf_counter_ns() - begin) / calls)
    return min(found)


def executor_of(step: Callable[[GraphBuilder, int, int], int], count: int) -> ModelExecutor:
    """`step(builder, slot, out)` adds one step and gives the slot that the next one reads."""
    builder = GraphBuilder("bench")
    slot = builder.input("x", I64, (N,))
    out = builder.model_output("out", I64, (N,))
    for _ in range(count):
        slot = step(builder, slot, out)
    addresses, image = machine_code()
    return ModelExecutor(builder.finish(), addresses, keep_alive=image).load()


def empty_copy(builder: GraphBuilder, slot: int, out: int) -> int:
    builder.copy(slot, out, 0)
    return slot


def skipped_launch(builder: GraphBuilder, slot: int, out: int) -> int:
    views = [View(slot), View(slot), View(out, 0, "write")]
    builder.launch("mix", [variant("mix", 0 * N, 1000)], views, [N])
    return slot


def small_launch(builder: GraphBuilder, slot: int, out: int) -> int:
    views = [View(slot), View(slot), View(out, 0, "write")]
    builder.launch("mix", [variant("mix", N, 1000)], views, [N])
    return slot


def block(builder: GraphBuilder, slot: int, out: int) -> int:
    memory = builder.memory(I64, (N,), N * 8)
    builder.copy(slot, memory, 0)
    return memory


def main() -> None:
    feeds = {"x": np.zeros(4, np.int64)}
    nothing = executor_of(empty_copy, 0)
    call_ns = best_ns(lambda: nothing.run(feeds), 20_000)
    print(machine())
    print(f"one call, one input, one output: {call_ns:.0f} ns")
    for step in (empty_copy, skipped_launch, small_launch, block):
        for size in SIZES:
            executor = executor_of(step, size)
            elapsed_ns = best_ns(lambda executor=executor: executor.run(feeds), 100_000 // size)
            print(f"{step.__name__:15} x {size}: {(elapsed_ns - call_ns) / size:.2f} ns each")
    launches = executor_of(skipped_launch, 1000)
    other = {"x": np.zeros(5, np.int64)}
    same_ns = best_ns(lambda: launches.run(feeds), 100)
    changing_ns = best_ns(lambda: (launches.run(feeds), launches.run(other)), 100) / 2
    print(f"a new shape: {(changing_ns - same_ns) / 1000:.1f} ns per launch")


if __name__ == "__main__":
    main()
