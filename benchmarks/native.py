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
from grainline.codegen.kernel import emit
from grainline.codegen.llvm import compile_object
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
        emitted = [emit(each) for each in plans]
        self.kernels = compile_kernels(emitted, ObjectCache(None))
        self.compile_ms = (time.thread_time() - start) * 1e3
        number = min(range(len(plans)), key=lambda k: self._end_ps(plans[k], env, homes))
        self.plan, kernel = plans[number], emitted[number]
        self.arrays = list(arrays)
        self.blocks = evaluate(self.plan.blocks, env)
        self.grain, self.homes = _native.choose_grain(evaluate(self.plan.cost_ps, env), self.blocks, homes, True)
        self.scratch_bytes = evaluate(self.plan.scratch_bytes, env)
        self.address = self.kernels[kernel.symbol].address
        words = [evaluate(word, env) for word in kernel.words]
        self.args = [array.ctypes.data for array in arrays] + [word % 2**64 for word in words]

    def launch(self, times: int = 1) -> list[int]:
        """Launches all blocks `times` times from native code; the wall nanoseconds of each launch."""
        return _native.dispatch(self.address, self.args, self.blocks, self.grain, self.homes, self.scratch_bytes, times)

    @staticmethod
    def _end_ps(each: Plan, env: Mapping[str, int], homes: int) -> int:
        """When a plan ends by its prediction, in picoseconds: the rule of a tiling node."""
        cost = evaluate(each.cost_ps, env)
        return cost // _native.choose_grain(cost, evaluate(each.blocks, env), homes, True)[1]
