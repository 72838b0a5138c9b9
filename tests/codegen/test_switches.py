"""Fusion switches and the streaming variant change the code and the workspace, never a bit of the result."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Compiled, check
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st
from programs import random_row_program
from test_random_programs import data
from test_rows import arguments

from grainline.base.dims import evaluate, symbol
from grainline.base.dtypes import F32
from grainline.kernels import rows
from grainline.plan import row_workspace
from grainline.plan.legal import refuse_local
from grainline.plan.planner import plan
from grainline.plan.row_schedule import schedule_rows
from grainline.plan.switches import Switches
from grainline.plan.target import host_target
from grainline.plan.types import PlanError, PlannerOptions
from grainline.tile.access import tile_axes
from grainline.tile.build import ProgramBuilder
from grainline.tile.passes import simplify

M, N = symbol("M"), symbol("N")
FUSED = PlannerOptions(mapping="local")
VARIANTS = (
    PlannerOptions(mapping="local", fuse_load_reduction=False),
    PlannerOptions(mapping="local", fuse_expression_reduction=False),
    PlannerOptions(mapping="local", fuse_load_reduction=False, fuse_expression_reduction=False),
    PlannerOptions(mapping="local", may_alias=True),
)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**9), n=st.sampled_from((1, 15, 66, 200)))
def test_every_variant_has_the_bits_of_the_fused_one(seed, n):
    note(f"seed {seed}")
    program = random_row_program(seed)
    assume(tile_axes(simplify(program)))
    env = {"M": 3, "N": n}
    arrays = data(program, env, seed)
    variants = [v for v in VARIANTS if refuse_local(simplify(program), v.may_alias) is None]
    assert len(variants) >= 3, "only memory that anything may share is a reason to refuse a row program"
    results = []
    for options in (FUSED, *variants):
        own = [array.copy() for array in arrays]
        assert Compiled(program, options).launch(own, env) == 0
        results.append([array.tobytes() for array in own])
    for options, result in zip(variants, results[1:], strict=True):
        assert result == results[0], options


def test_an_unfused_reduction_reads_a_private_row():
    program = simplify(rows.softmax(M, N))
    (axis,) = tile_axes(program)
    fused, apart = schedule_rows(program, axis), schedule_rows(program, axis, Switches(fuse_load_reduction=False))
    assert len(apart.passes) == len(fused.passes) + 1
    assert not apart.passes[0].reductions and [s.tile for s in apart.passes[0].spills] != []
    early = schedule_rows(program, axis, Switches(fuse_expression_reduction=False))
    assert len(early.passes) == len(fused.passes) + 1, "exp(x - max) is complete before it is summed"


def kept_row(n):
    """A dear row that two passes need and no output has room for: z[m] = sum((h - mean h)^2), h = tanh(x) erf(x)."""
    p = ProgramBuilder("spread")
    r, a = p.root("rows", M), p.axis("n", n)
    x, z = p.view("x", F32, (M, n)), p.view("z", F32, (M,), access="write")
    t = p.load(x, (r, a))
    h = p.tanh(t) * p.erf(t)
    c = h - p.mean(h, a)
    p.store(z, (r,), p.sum(c * c, a))
    return p.finish()


def test_the_launch_streams_rows_that_the_workspace_has_no_room_for(monkeypatch):
    arrays = [np.random.default_rng(1).normal(size=(3, 1000)).astype(np.float32), np.zeros(3, np.float32)]
    roomy = check(kept_row(N), arrays, {"M": 3, "N": 1000}, FUSED, rtol=1e-4)
    monkeypatch.setattr(row_workspace, "WORKSPACE_BUDGET_BYTES", 4096)
    compiled = Compiled(kept_row(N), FUSED)
    for n in (1, 64, 500, 512, 513, 700, 1000):
        assert evaluate(compiled.plan.scratch_bytes, {"N": n}) <= 4096
        part = [np.ascontiguousarray(arrays[0][:, :n]), arrays[1]]
        found = check(kept_row(N), part, {"M": 3, "N": n}, compiled=compiled, rtol=1e-4)
    assert found[1].tobytes() == roomy[1].tobytes(), "streaming changed the bits"
    static = Compiled(kept_row(1000), FUSED)
    assert static.plan.scratch_bytes == 0, "a static row that is too long is always streamed"
    assert check(kept_row(1000), arrays, {"M": 3}, compiled=static, rtol=1e-4)[1].tobytes() == roomy[1].tobytes()


def test_a_snapshot_that_has_no_room_is_refused_with_the_number(monkeypatch):
    p = ProgramBuilder("reversed")
    r, a = p.root("rows", M), p.axis("n", 1000)
    x, y = p.view("x", F32, (M, 1000)), p.view("y", F32, (M, 1000), access="write")
    p.store(y, (r, a), p.exp(p.load(x, (r, a))))
    program = p.finish()
    monkeypatch.setattr(row_workspace, "WORKSPACE_BUDGET_BYTES", 4096)
    with pytest.raises(PlanError, match="need 8192 bytes"):
        plan(program, host_target(), PlannerOptions(mapping="local", may_alias=True))
    assert plan(program, host_target(), PlannerOptions(mapping="local")).variants[0].scratch_bytes == 0


@pytest.mark.parametrize("options", VARIANTS, ids=lambda o: str(o.switches))
def test_switches_serve_static_and_symbolic_rows(options):
    for n in (7, 65):
        for program, env in ((rows.layer_norm(M, n), {"M": 5}), (rows.layer_norm(M, N), {"M": 5, "N": n})):
            check(program, arguments(program, env), env, options)
