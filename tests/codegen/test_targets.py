"""Code for narrower machines than this one computes the same: AVX2, and x86-64 without FMA or masks."""

import re

import numpy as np
import pytest
from harness import Compiled, check
from test_math import avx2_target
from test_rows import POINTWISE, ROW_KERNELS, arguments

from grainline.base.dims import symbol
from grainline.base.dtypes import BOOL, F16, F32, F64, I8, I32, I64, U8
from grainline.codegen.kernel import emit
from grainline.codegen.llvm import assembly
from grainline.kernels import pointwise
from grainline.plan.planner import plan
from grainline.plan.target import Target
from grainline.tile.build import ProgramBuilder

M, N = symbol("M"), symbol("N")
TARGETS = {"avx2": avx2_target, "baseline": lambda: Target("x86-64", "", 16, 1)}


@pytest.mark.parametrize("kernel", [*ROW_KERNELS, *POINTWISE], ids=lambda k: k.__name__)
@pytest.mark.parametrize("target", TARGETS)
def test_kernels(kernel, target):
    program = kernel(M, N)
    compiled = Compiled(program, target=TARGETS[target]())
    for n in (1, 7, 16, 31, 66, 100):
        env = {"M": 5, "N": n}
        check(program, arguments(program, env), env, compiled=compiled)


@pytest.mark.parametrize("cpu", ["skylake-avx512", "icelake-server", "emeraldrapids", "znver4", "znver5"])
def test_wide_registers_are_used_where_the_processor_has_them(cpu):
    """LLVM prefers half of a register on some processors; loops over packets must not follow it."""
    features = "+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512cd,+fma,+avx2,+f16c"
    target = Target(cpu, features, 64, 1)
    for kernel in (*ROW_KERNELS, *POINTWISE):
        for variant in plan(kernel(M, N), target).variants:
            code = assembly(emit(variant).text, target)
            arithmetic = [line for line in code.splitlines() if re.search(r"\tv(fm|add|mul|max|movu)\w*ps", line)]
            narrow = [line for line in arithmetic if "ymm" in line and not re.search(r"\tv(add|max)ps", line)]
            assert any("zmm" in line for line in arithmetic), f"{kernel.__name__}: no wide register"
            assert not narrow, f"{kernel.__name__}: {narrow}"  # sums alone meet in halves


@pytest.mark.parametrize("target", TARGETS)
def test_gathers_and_faults(target):
    program = pointwise.gather_rows(M, N, 20)
    compiled = Compiled(program, target=TARGETS[target]())
    table = np.random.default_rng(0).normal(size=(11, 20)).astype(np.float32)
    for bad in (3, 11, -12):
        index = np.array([0, 10, -1, -11, bad, 5], np.int64)
        check(program, [table, index, np.zeros((6, 20), np.float32)], {"M": 6, "N": 11}, compiled=compiled)


@pytest.mark.parametrize("dtype", [F32, F64, I64, I32, I8, U8, BOOL, F16], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_transposes_of_every_width(dtype, target):
    p = ProgramBuilder("transpose")
    i, j = p.root("i", M), p.root("j", N)
    x, y = p.view("x", dtype, (N, M)), p.view("y", dtype, (M, N), access="write")
    p.store(y, (i, j), p.load(x, (j, i)))
    program = p.finish()
    compiled = Compiled(program, target=TARGETS[target]())
    for m, n in ((1, 1), (3, 17), (9, 33)):
        data = (np.random.default_rng(1).normal(size=(n, m)) * 50).astype(np.int32).astype(dtype.numpy)
        check(program, [data, np.zeros((m, n), dtype.numpy)], {"M": m, "N": n}, compiled=compiled)
