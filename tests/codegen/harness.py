"""Runs tile programs through plan, emit, LLVM and ctypes, with guard elements around every written array."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np

from grainline.base.dims import evaluate
from grainline.codegen.cache import ObjectCache
from grainline.codegen.compile import compile_kernels
from grainline.codegen.kernel import emit
from grainline.plan.planner import plan
from grainline.plan.target import Target, host_target
from grainline.plan.types import DEFAULT_OPTIONS, Plan, PlannerOptions
from grainline.tile.interp import interpret
from grainline.tile.ir import TileProgram

GUARD = 17
ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


class Compiled:
    """A callable kernel that keeps its code alive."""

    def __init__(self, program: TileProgram, options: PlannerOptions = DEFAULT_OPTIONS, target: Target | None = None):
        self.plan: Plan = plan(program, target or host_target(), options).variants[0]
        self.emitted = emit(self.plan)
        self.kernel = compile_kernels([self.emitted], ObjectCache(None))[self.emitted.symbol]
        self.entry = ENTRY(self.kernel.address)

    def launch(self, arrays: Sequence[np.ndarray], env: Mapping[str, int], parts: int = 1) -> int:
        """Runs all blocks in `parts` ranges; returns the first fault code."""
        words = [a.ctypes.data for a in arrays] + [evaluate(w, env) for w in self.emitted.words]
        args = (ctypes.c_int64 * max(len(words), 1))(*words)
        scratch_bytes = evaluate(self.plan.scratch_bytes, env)
        scratch = np.full(scratch_bytes + 64, 0xFF, np.uint8)
        blocks = evaluate(self.plan.blocks, env)
        cuts = [blocks * k // parts for k in range(parts + 1)]
        for begin, end in zip(cuts, cuts[1:], strict=False):
            code = self.entry(ctypes.addressof(args), begin, end, scratch.ctypes.data)
            assert (scratch[scratch_bytes:] == 0xFF).all(), "wrote behind the scratch"
            if code:
                return int(code)
        return 0


def guarded(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(a copy of `array` inside a larger one, the larger one): 17 elements on both sides hold a pattern."""
    outer = np.empty(array.size + 2 * GUARD, array.dtype)
    outer.view(np.uint8)[:] = 0xA5 if array.dtype != bool else 1
    inner = outer[GUARD : GUARD + array.size].reshape(array.shape)
    inner[...] = array
    return inner, outer


def check(
    program: TileProgram,
    arrays: Sequence[np.ndarray],
    env: Mapping[str, int],
    options: PlannerOptions = DEFAULT_OPTIONS,
    rtol: float = 2e-5,
    atol: float = 1e-6,
    compiled: Compiled | None = None,
    parts: int = 1,
) -> list[np.ndarray]:
    """Compares a compiled launch with the interpreter, element by element, guards included."""
    expected = [np.array(a, copy=True) for a in arrays]
    expected_code = interpret(program, expected, env)
    compiled = compiled or Compiled(program, options)
    pairs = [guarded(a) for a in arrays]
    before = [outer.copy() for _, outer in pairs]
    code = compiled.launch([inner for inner, _ in pairs], env, parts)
    label = f"{program.name} {compiled.plan.mapping} {dict(env)}"
    assert code == expected_code, f"{label}: fault code {code}, expected {expected_code}"
    for view, (inner, outer), old, want in zip(program.views, pairs, before, expected, strict=True):
        for side in (slice(0, GUARD), slice(outer.size - GUARD, outer.size)):
            assert outer[side].tobytes() == old[side].tobytes(), f"{label}: wrote outside view {view.name}"
        if code == 0:
            assert_same(inner, want, rtol, atol, f"{label}: view {view.name}")
    return [inner for inner, _ in pairs]


def assert_same(found: np.ndarray, want: np.ndarray, rtol: float, atol: float, label: str) -> None:
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(found, want, err_msg=label)
    else:
        np.testing.assert_allclose(
            found.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol, err_msg=label
        )
