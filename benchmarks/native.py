"""Tile programs at their native entry: planned, compiled, bound to arrays, launched without a session around them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from grainline import _native
from grainline.base.dims import evaluate
from grainline.codegen.cache import ObjectCache
from grainline.codegen.compile import compile_kernels
from grainline.codegen.kernel import emit_variants
from grainline.codegen.llvm import compile_object
from grainline.plan.machine import machine_of
from grainline.plan.planner import plan
from grainline.plan.target import host_target
from grainline.plan.types import DEFAULT_OPTIONS, Plan, PlannerOptions
from grainline.tile.ir import TileProgram


@cache
def _ready() -> None:
    """Loads LLVM and its target, which the first kernel of a process would pay for."""
    compile_object("define void @nothing() { ret void }", host_target())


class NativeKernel:
    """One kernel and its arguments. `compile_ms` is the CPU time from the tile program to callable code.

    Of several plans the one that its prediction favours at `env` is launched, as a tiling node would.
    """

    def __init__(
        self,
        program: TileProgram,
        arrays: Sequence[np.ndarray],
        env: Mapping[str, int],
        homes: int = 1,
        options: PlannerOptions = DEFAULT_OPTIONS,
    ) -> None:
        _ready()
        start = time.thread_time()
        plans = plan(program, host_target(), options).variants
        emitted = emit_variants(plans)
        self.kernels = compile_kernels(emitted, ObjectCache(None))
        self.compile_ms = (time.thread_time() - start) * 1e3
        launches = [self._choose(each, env, homes) for each in plans]
        number = min(range(len(plans)), key=lambda k: launches[k][2])
        self.plan, kernel = plans[number], emitted[number]
        self.grain, self.homes, _ = launches[number]
        self.arrays = list(arrays)
        self.blocks = evaluate(self.plan.blocks, env)
        self.scratch_bytes = evaluate(self.plan.scratch_bytes, env)
        self.address = self.kernels[kernel.symbol].address
        words = [evaluate(word, env) for word in kernel.words]
        self.args = [array.ctypes.data for array in arrays] + [word % 2**64 for word in words]

    def launch(self, times: int = 1) -> list[int]:
        """Launches all blocks `times` times from native code; the wall nanoseconds of each launch."""
        return _native.dispatch(self.address, self.args, self.blocks, self.grain, self.homes, self.scratch_bytes, times)

    @staticmethod
    def _choose(each: Plan, env: Mapping[str, int], homes: int) -> tuple[int, int, float]:
        """(blocks per task, homes, predicted picoseconds), by the native function that a tiling node calls."""
        extents = (each.cost_ps, each.traffic_bytes, each.task_ps, each.blocks)
        costs = machine_of(each.target).costs()
        return _native.choose_launch(*(evaluate(extent, env) for extent in extents), homes, True, costs)
