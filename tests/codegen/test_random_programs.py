"""Random programs: both mappings, passes, text and canonical form agree with the interpreter. Seeds are printed."""

import numpy as np
import pytest
from harness import Compiled, check
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st
from programs import random_region_program, random_row_program

from grainline.base.dims import evaluate
from grainline.plan.legal import refuse_local
from grainline.plan.types import PlannerOptions
from grainline.tile.access import tile_axes
from grainline.tile.interp import interpret
from grainline.tile.passes import simplify
from grainline.tile.text import canonical, from_text, to_text

WIDTHS = (1, 2, 7, 15, 16, 17, 32, 33, 66)
seeds = st.integers(0, 10**9)


def data(program, env, seed):
    random = np.random.default_rng(seed)
    shapes = [tuple(evaluate(d, env) for d in view.shape) for view in program.views]
    return [random.normal(size=shape).astype(np.float32) for shape in shapes]


def comparable(program):
    """Floor turns a rounding difference into a whole unit; such programs are compared with a looser law."""
    return not any(o.op == "floor" for o in program.body)


@pytest.mark.parametrize("mapping", ["local", "whole"])
@settings(max_examples=25, deadline=None)
@given(seed=seeds, width=st.sampled_from(WIDTHS))
def test_random_program_matches_the_interpreter(mapping, seed, width):
    note(f"seed {seed}")
    program = random_row_program(seed)
    assume(comparable(program) and tile_axes(simplify(program)))
    compiled = Compiled(program, PlannerOptions(mapping=mapping))
    for m, n in ((3, width), (1, 65)):
        env = {"M": m, "N": n}
        check(program, data(program, env, seed), env, compiled=compiled, rtol=2e-4, atol=2e-4)


@settings(max_examples=15, deadline=None)
@given(seed=seeds, n=st.sampled_from((1, 2, 9, 33)), may_alias=st.booleans())
def test_random_loops_match_the_interpreter(seed, n, may_alias):
    note(f"seed {seed}")
    program = random_region_program(seed)
    assert to_text(from_text(to_text(program))) == to_text(program)
    compiled = Compiled(program, PlannerOptions(may_alias=may_alias))
    for m in (1, 18):
        env = {"M": m, "N": n}
        arrays = data(program, env, seed)
        check(program, arrays, env, compiled=compiled, rtol=1e-4, atol=1e-4)
        after = [a.copy() for a in arrays]
        assert interpret(simplify(program), after, env) == interpret(program, arrays, env)
        for one, two in zip(arrays, after, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_simplified_and_canonical_programs_give_the_same_bits(seed):
    note(f"seed {seed}")
    program = random_row_program(seed)
    smaller = simplify(program)
    assume(tile_axes(smaller))
    env = {"M": 3, "N": 37}
    arrays = data(program, env, seed)
    neutral, renamed = canonical(program)
    assert to_text(from_text(to_text(neutral))) == to_text(neutral)
    outputs = []
    for version, names in ((program, env), (neutral, {renamed[k]: v for k, v in env.items() if k in renamed})):
        copies = [a.copy() for a in arrays]
        assert Compiled(version, PlannerOptions(mapping="local")).launch(copies, names) == 0
        outputs.append([c.tobytes() for c in copies])
    assert outputs[0] == outputs[1]
    copies = [a.copy().reshape(-1) for a in arrays]
    assert Compiled(smaller, PlannerOptions(mapping="local")).launch(copies, env) == 0
    assert [c.tobytes() for c in copies] == outputs[0], "a pass changed the bits"


@settings(max_examples=20, deadline=None)
@given(seed=seeds, place=st.integers(0, 3))
def test_any_written_row_may_share_memory_with_any_read_row(seed, place):
    note(f"seed {seed}")
    program = random_row_program(seed)
    rows = [k for k, v in enumerate(program.views) if v.name.startswith("x")]
    written = [k for k, v in enumerate(program.views) if v.name.startswith("y")]
    assume(written)
    source, target = rows[place % len(rows)], written[place % len(written)]
    env = {"M": 2, "N": 50}
    arrays = data(program, env, seed)
    for mapping in ("local", "whole"):
        if mapping == "local" and refuse_local(simplify(program), may_alias=True) is not None:
            continue
        compiled = Compiled(program, PlannerOptions(mapping=mapping, may_alias=True))
        apart, shared = [a.copy() for a in arrays], [a.copy() for a in arrays]
        compiled.launch(apart, env)
        shared[target] = shared[source]
        compiled.launch(shared, env)
        assert shared[target].tobytes() == apart[target].tobytes(), f"{mapping}: in place of {source}"
