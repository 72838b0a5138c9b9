"""Packet widths, root orders, code identity: what a mapping may change, and what it may not."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from harness import Compiled, check
from test_rows import arguments

from grainline.base.dims import symbol
from grainline.base.dtypes import F32
from grainline.codegen.kernel import emit
from grainline.codegen.llvm import compile_object
from grainline.kernels import pointwise, rows
from grainline.plan.planner import plan
from grainline.plan.target import host_target
from grainline.plan.types import PlannerOptions
from grainline.tile.build import ProgramBuilder

M, N = symbol("M"), symbol("N")
PACKET_WIDTHS = (1, 2, 4, 8, 16)


@pytest.mark.parametrize("width", PACKET_WIDTHS)
@pytest.mark.parametrize("mapping", ["local", "whole"])
def test_every_packet_width_serves_every_length(mapping, width):
    for kernel in (rows.softmax, rows.layer_norm):
        compiled = Compiled(kernel(M, N), PlannerOptions(mapping=mapping, packet_width=width))
        assert compiled.plan.mapping.width == width
        for n in (1, 2, width - 1, width, width + 1, 4 * width + 3, 66):
            for m in (1, width + 1):
                env = {"M": m, "N": n}
                check(kernel(M, N), arguments(kernel(M, N), env), env, compiled=compiled)


def moved_axes():
    """y[c, a, b] = x[a, b, c] + a * b"""
    p = ProgramBuilder("moved")
    a, b, c = p.parallel(("a", symbol("A")), ("b", symbol("B")), ("c", symbol("C")))
    shape = [axis.extent for axis in (a, b, c)]
    x, y = p.view("x", F32, shape), p.view("y", F32, (shape[2], shape[0], shape[1]), access="write")
    p.store(y, (c, a, b), p.load(x, (a, b, c)) + p.cast(p.coord(a) * p.coord(b), F32))
    return p.finish()


@pytest.mark.parametrize("order", permutations(range(3)), ids=str)
def test_a_root_order_changes_the_walk_and_nothing_else(order):
    compiled = Compiled(moved_axes(), PlannerOptions(mapping="whole", root_axis_order=order))
    assert compiled.plan.mapping.lane_axis is compiled.plan.program.roots[order[-1]]
    assert compiled.plan.mapping.order == tuple(compiled.plan.program.roots[k] for k in order)
    for shape in ((1, 1, 1), (3, 4, 18), (17, 2, 5), (2, 0, 3)):
        env = dict(zip("ABC", shape, strict=True))
        data = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        for parts in (1, 3):
            check(
                moved_axes(), [data, np.zeros((shape[2], *shape[:2]), np.float32)], env, compiled=compiled, parts=parts
            )


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=str)
def test_packets_of_one_program_follow_the_root_order(order):
    p = ProgramBuilder("norms")
    a, b, n = p.root("a", M), p.root("b", 3), p.axis("n", N)
    x, y = p.view("x", F32, (M, 3, N)), p.view("y", F32, (3, M, N), access="write")
    t = p.load(x, (a, b, n))
    p.store(y, (b, a, n), t - p.max(t, n))
    program = p.finish()
    compiled = Compiled(program, PlannerOptions(mapping="local", root_axis_order=order))
    data = np.random.default_rng(0).normal(size=(5, 3, 21)).astype(np.float32)
    check(program, [data, np.zeros((3, 5, 21), np.float32)], {"M": 5, "N": 21}, compiled=compiled, parts=4)


@pytest.mark.parametrize("kernel", [rows.softmax, pointwise.gelu], ids=lambda k: k.__name__)
@pytest.mark.parametrize("mapping", ["local", "whole"])
def test_the_grain_is_not_in_the_code(kernel, mapping):
    if kernel is pointwise.gelu and mapping == "local":
        pytest.skip("no tile axis")
    objects = set()
    for grain in (0, 1, 3, 2**32 - 1):
        chosen = plan(kernel(M, 65), host_target(), PlannerOptions(mapping=mapping, blocks_per_task=grain)).variants[0]
        for again in (chosen, replace(chosen, blocks_per_task=7)):
            emitted = emit(replace(again, block=32))
            objects.add((emitted.symbol, compile_object(emitted.text, emitted.target)))
    assert len(objects) == 1, "the same program and mapping give the same object bytes"
