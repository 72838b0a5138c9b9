"""Private arrays of whole programs against the workspace budget: packets of one lane where W lanes have no room."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Compiled, check
from test_loops import attention, floats, swapped

from grainline.base.dims import evaluate, symbol
from grainline.base.dtypes import F32
from grainline.plan import row_workspace
from grainline.plan.planner import plan
from grainline.plan.target import host_target
from grainline.plan.types import PlanError, PlannerOptions
from grainline.plan.whole_workspace import whole_workspace
from grainline.tile.build import ProgramBuilder, affine

M, N, K = symbol("M"), symbol("N"), symbol("K")
BUDGET = 4096
WIDTHS = (2, 4, 8, 16)
WHOLE = PlannerOptions(mapping="whole")


@pytest.fixture
def small_budget(monkeypatch):
    monkeypatch.setattr(row_workspace, "WORKSPACE_BUDGET_BYTES", BUDGET)


def reversed_rows(n):
    """y[m, n] = exp(x)[m, N - 1 - n]: a tile that is indexed freely is a private array of 4 N bytes a lane."""
    p = ProgramBuilder("reversed")
    r, a = p.root("rows", M), p.axis("n", n)
    x, y = p.view("x", F32, (M, n)), p.view("y", F32, (M, n), access="write")
    p.store(y, (r, a), p.exp(p.load(x, (r, a))).at(affine((a, -1), offset=n - 1)))
    return p.finish()


def running_sums(n):
    """Running sums, and how far each is below the greatest."""
    p = ProgramBuilder("sums")
    r, a = p.root("rows", M), p.axis("n", n)
    x, y, z = (p.view(v, F32, (M, n), access="read" if v == "x" else "write") for v in "xyz")
    sums = p.scan(p.load(x, (r, a)), a)
    p.store(y, (r, a), sums)
    p.store(z, (r, a), p.max(sums, a) - sums)
    return p.finish()


def arrays_of(program, env):
    shapes = [tuple(evaluate(d, env) for d in view.shape) for view in program.views]
    return [floats(*shape, seed=seed) for seed, shape in enumerate(shapes)]


def programs():
    return {
        "reversed": (reversed_rows(N), {}),
        "sums": (running_sums(N), {}),
        "swapped": (swapped("serial"), {"K": 3}),
        "online softmax": (attention(), {"K": 2}),
    }


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", programs())
def test_the_launch_narrows_packets_that_the_workspace_has_no_room_for(name, width, small_budget, monkeypatch):
    program, extents = programs()[name]
    options = PlannerOptions(mapping="whole", packet_width=width)
    compiled = Compiled(program, options)
    with monkeypatch.context() as patch:
        patch.setattr(row_workspace, "WORKSPACE_BUDGET_BYTES", 1 << 24)
        roomy = Compiled(program, options)
    per_lane = whole_workspace(compiled.plan.program, width, may_alias=False).least_bytes
    one = evaluate(per_lane, {**extents, "N": 1})
    last = next(n for n in range(1, 10_000) if width * evaluate(per_lane, {**extents, "N": n + 1}) > BUDGET)
    assert one and last > 1
    for n in (1, last - 1, last, last + 1, 2 * last, BUDGET // 16):
        env = {**extents, "M": 19, "N": n}
        scratch = evaluate(compiled.plan.scratch_bytes, env)
        assert scratch <= max(BUDGET, evaluate(per_lane, env)) and scratch >= evaluate(per_lane, env)
        assert n > last or scratch == width * evaluate(per_lane, env), "the wide form fits"
        arrays = arrays_of(program, env)
        narrow = check(program, arrays, env, compiled=compiled, rtol=1e-4, atol=1e-5)
        wide = check(program, arrays, env, compiled=roomy, rtol=1e-4, atol=1e-5)
        for one_of, other in zip(narrow, wide, strict=True):
            assert one_of.tobytes() == other.tobytes(), f"{name} W={width} n={n}: a narrow packet changed the bits"


@pytest.mark.parametrize(("n", "widths"), [(64, (16,)), (65, (1,)), (1024, (1,))])
def test_a_known_length_has_the_one_form_that_fits(n, widths, small_budget):
    program = reversed_rows(n)
    compiled = Compiled(program, PlannerOptions(mapping="whole", packet_width=16))
    assert whole_workspace(compiled.plan.program, 16, may_alias=False).widths == widths
    assert compiled.plan.scratch_bytes == 4 * n * widths[0]
    check(program, arrays_of(program, {"M": 18}), {"M": 18}, compiled=compiled)


def test_a_row_that_one_lane_has_no_room_for_is_refused_with_the_number(small_budget):
    with pytest.raises(PlanError, match="its private arrays need 4100 bytes a packet, more than the 4096 allowed"):
        plan(reversed_rows(1025), host_target(), WHOLE)
    # an unknown length is not refused: the launch asks for what one lane needs
    found = plan(reversed_rows(N), host_target(), WHOLE).variants[0]
    assert evaluate(found.scratch_bytes, {"M": 1, "N": 1025}) == 4100


def test_a_program_without_roots_is_one_lane(small_budget):
    p = ProgramBuilder("alone")
    a = p.axis("n", 1000)
    x, y = p.view("x", F32, (1000,)), p.view("y", F32, (1000,), access="write")
    p.store(y, (a,), p.exp(p.load(x, (a,))).at(affine((a, -1), offset=999)))
    program = p.finish()
    compiled = Compiled(program, WHOLE)
    assert compiled.plan.scratch_bytes == 4000
    check(program, [floats(1000), np.zeros(1000, np.float32)], {}, compiled=compiled)


def test_each_form_computes_what_all_its_packets_share(small_budget):
    """What does not vary over the lanes is computed before the first packet, when no array of this form is filled."""
    p = ProgramBuilder("scaled")
    r, a = p.root("rows", M), p.axis("n", N)
    g, y = p.view("g", F32, (N,)), p.view("y", F32, (M, N), access="write")
    t = p.load(g, (a,))
    p.store(y, (r, a), p.relu(t) * p.max(p.relu(t), a))
    program = p.finish()
    options = PlannerOptions(mapping="whole", may_alias=True)
    assert len(whole_workspace(program, 16, True).widths) == 2
    compiled = Compiled(program, options)
    for n in (50, 700, 2000):
        check(program, arrays_of(program, {"M": 33, "N": n}), {"M": 33, "N": n}, compiled=compiled)
