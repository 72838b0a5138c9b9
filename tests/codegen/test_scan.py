"""Running sums: ordered, per lane, in text, in the interpreter and compiled."""

from __future__ import annotations

import numpy as np
import pytest

from grainline.base.dims import symbol
from grainline.base.dtypes import F32, I64, DType
from grainline.plan.planner import plan
from grainline.plan.target import host_target
from grainline.tile.build import ProgramBuilder
from grainline.tile.ir import TileProgram
from grainline.tile.text import from_text, to_text
from grainline.tile.verify import verify
from tests.codegen.harness import check


def running_sums(dtype: DType, exclusive: bool) -> TileProgram:
    """y[m, n] = sum of (x * 2)[m, 0..n]"""
    m, n = symbol("M"), symbol("N")
    p = ProgramBuilder("running_sums")
    r, a = p.root("r", m), p.axis("n", n)
    x, y = p.view("x", dtype, (m, n)), p.view("y", dtype, (m, n), access="write")
    p.store(y, (r, a), p.scan(p.load(x, (r, a)) * 2, a, exclusive=exclusive) - 1)
    return p.finish()


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("dtype", [F32, I64], ids=str)
def test_compiled_equals_interpreter_bit_for_bit(dtype: DType, exclusive: bool) -> None:
    program = running_sums(dtype, exclusive)
    random = np.random.default_rng(2)
    for m, n in [(1, 1), (3, 0), (5, 7), (37, 19), (64, 33)]:
        x = (random.standard_normal((m, n)) * 100).astype(dtype.numpy)
        check(program, [x, np.zeros_like(x)], {"M": m, "N": n}, rtol=0, atol=0)


def test_text_parses_back() -> None:
    text = to_text(running_sums(F32, True))
    again = from_text(text)
    verify(again)
    assert to_text(again) == text and "scan" in text


def test_lanes_along_the_axis_are_refused() -> None:
    result = plan(running_sums(F32, False), host_target())
    assert result.variants[0].mapping.kind == "whole"
