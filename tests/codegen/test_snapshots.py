"""A load is a snapshot and effects keep their order, in every mapping and packet width.

The oracle is the interpreter, which runs the operations of one instance in order on the very memory that the kernel
gets: views that share memory, in place or shifted against each other, are one array there too.
"""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from harness import Compiled
from hypothesis import given, note, settings
from hypothesis import strategies as st

from grainline.base.dims import evaluate, symbol
from grainline.base.dtypes import F32
from grainline.plan.types import PlanError, PlannerOptions
from grainline.tile.build import ProgramBuilder, affine
from grainline.tile.interp import interpret
from grainline.tile.ir import TileProgram

WIDTHS = (1, 2, 4, 8, 16)
MAPPINGS = ("local", "whole")


def run_on_shared_memory(program, memory, starts, env, options):
    """What `both` gives; None when the mapping is refused."""
    try:
        compiled = Compiled(program, options)
    except PlanError:
        return None
    return both(program, compiled, memory, starts, env)


def both(program, compiled, memory, starts, env):
    """Memory after the interpreter and after the kernel, from copies of `memory`; view k begins at element starts[k]."""
    results = []
    for run in (lambda views: interpret(program, views, env), lambda views: compiled.launch(views, env)):
        own = memory.copy()
        assert run(bound_views(program, own, starts, env)) == 0
        results.append(own)
    return results


def bound_views(program, memory, starts, env):
    shapes = [tuple(evaluate(d, env) for d in view.shape) for view in program.views]
    return [memory[at : at + prod(shape)].reshape(shape) for at, shape in zip(starts, shapes, strict=True)]


def shifted(n: int | None) -> TileProgram:
    """y[n] = 2 x[n] + x[n - 1] (cyclic), with the row loaded before it is stored."""
    extent = symbol("N") if n is None else n
    p = ProgramBuilder("shifted")
    p.root("one", 1)
    a = p.axis("n", extent)
    x, y = p.view("x", F32, (extent,)), p.view("y", F32, (extent,), access="write")
    t = p.load(x, (a,))
    p.store(y, (a,), t * 2.0 + p.exp(p.min(t, 0.0)))
    return p.finish()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_shifted_views_of_one_buffer(mapping, width):
    program = shifted(None)
    compiled = Compiled(program, PlannerOptions(mapping=mapping, may_alias=True, packet_width=width))
    for n in (1, 2, 3, 15, 16, 17, 40, 100):
        for shift in (-1, 0, 1, 5):
            memory = np.random.default_rng(n).normal(size=n + 16).astype(np.float32)
            want, found = both(program, compiled, memory, (8, 8 + shift), {"N": n})
            np.testing.assert_allclose(found, want, rtol=1e-6, err_msg=f"{n} elements, shifted by {shift}")


def test_no_alias_code_reads_rows_where_they_are():
    safe = Compiled(shifted(None), PlannerOptions(mapping="local", may_alias=True))
    fast = Compiled(shifted(None), PlannerOptions(mapping="local"))
    assert fast.plan.scratch_bytes == 0 and evaluate(safe.plan.scratch_bytes, {"N": 100}) >= 400


@pytest.mark.parametrize("width", WIDTHS)
def test_stores_and_loads_of_one_view_keep_their_order(width):
    p = ProgramBuilder("again")
    r, a = p.root("rows", symbol("M")), p.axis("n", symbol("N"))
    x = p.view("x", F32, (symbol("M"), symbol("N")), access="readwrite")
    y = p.view("y", F32, (symbol("M"), symbol("N")), access="write")
    before = p.load(x, (r, a))
    p.store(x, (r, a), before + 1.0)
    between = p.load(x, (r, affine((a, -1), offset=symbol("N") - 1)))
    p.store(x, (r, a), between * 3.0)
    p.store(y, (r, a), before + between + p.load(x, (r, 0)))
    program = p.finish()
    for m, n in ((1, 1), (3, 4), (20, 9)):
        memory = np.random.default_rng(n).normal(size=2 * m * n).astype(np.float32)
        options = PlannerOptions(packet_width=width)
        found = run_on_shared_memory(program, memory, (0, m * n), {"M": m, "N": n}, options)
        assert found is not None
        np.testing.assert_array_equal(found[1], found[0], err_msg=f"{m} x {n}")


@pytest.mark.parametrize("width", WIDTHS)
def test_stores_inside_a_loop_do_not_change_what_was_loaded_before_it(width):
    p = ProgramBuilder("loop")
    r, k, a = p.root("rows", symbol("M")), p.axis("k", 3), p.axis("n", symbol("N"))
    x = p.view("x", F32, (symbol("M"), symbol("N")), access="readwrite")
    before = p.load(x, (r, a))

    def step(total):
        now = p.load(x, (r, a))
        p.store(x, (r, a), now * 0.5 + before)
        return total + p.sum(now, a)

    (total,) = p.serial(k, (p.const(0.0),), step)
    y = p.view("y", F32, (symbol("M"),), access="write")
    p.store(y, (r,), total)
    program = p.finish()
    for m, n in ((1, 1), (5, 3), (18, 7)):
        memory = np.random.default_rng(n).normal(size=m * n + m).astype(np.float32)
        found = run_on_shared_memory(program, memory, (0, m * n), {"M": m, "N": n}, PlannerOptions(packet_width=width))
        assert found is not None
        np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6)


def random_effects(seed: int) -> TileProgram:
    """One instance on views x, y, z of equal length: loads and stores, forwards and backwards, in random order."""
    random = np.random.default_rng(seed)
    n = symbol("N")
    p = ProgramBuilder(f"effects_{seed}")
    p.root("one", 1)
    a = p.axis("n", n)
    views = [p.view(name, F32, (n,), access="readwrite") for name in "xyz"]
    tiles = [p.load(views[0], (a,))]
    places = (a, affine((a, -1), offset=n - 1))
    for _ in range(random.integers(3, 8)):
        view, place = views[random.integers(3)], places[random.integers(2)]
        kind = random.random()
        if kind < 0.45:
            tiles.append(p.load(view, (place,)))
        elif kind < 0.7:
            tiles.append(tiles[random.integers(len(tiles))] - tiles[-1] * 0.5)
        else:
            p.store(view, (place,), tiles[random.integers(len(tiles))])
    p.store(views[random.integers(3)], (a,), tiles[-1])
    return p.finish()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    starts=st.tuples(*[st.integers(0, 12)] * 3),
    n=st.sampled_from((1, 5, 16, 37)),
    mapping=st.sampled_from(MAPPINGS),
    width=st.sampled_from(WIDTHS),
)
def test_random_effects_on_overlapping_views(seed, starts, n, mapping, width):
    note(f"seed {seed}")
    memory = np.random.default_rng(seed).normal(size=n + 12).astype(np.float32)
    options = PlannerOptions(mapping=mapping, may_alias=True, packet_width=width)
    found = run_on_shared_memory(random_effects(seed), memory, starts, {"N": n}, options)
    if found is not None:
        np.testing.assert_array_equal(found[1], found[0])


def product(m, n, k):
    """c[i, j] = sum a[i, k] b[k, j]."""
    p = ProgramBuilder("product")
    i, j, depth = p.root("i", m), p.axis("j", n), p.axis("k", k)
    a, b, c = p.view("a", F32, (m, k)), p.view("b", F32, (k, n)), p.view("c", F32, (m, n), access="write")
    p.store(c, (i, j), p.mma(p.load(a, (i, depth)), p.load(b, (depth, j)), depth))
    return p.finish()


@pytest.mark.parametrize("starts", [(0, 100, 0), (0, 100, 3), (3, 100, 0), (0, 100, 100), (0, 100, 660)])
def test_a_product_whose_result_shares_memory_reads_before_it_writes(starts):
    """One instance: what it stores shows in none of its operands. A form of products refuses such memory."""
    program = product(1, 24, 24)
    assert Compiled(program).plan.mapping.kind == "mma"
    compiled = Compiled(program, PlannerOptions(may_alias=True))
    assert compiled.plan.mapping.kind == "whole"
    memory = np.random.default_rng(3).normal(size=700).astype(np.float32)
    want, found = both(program, compiled, memory, starts, {})
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_instances_may_run_in_any_order(seed):
    """`parallel` is a promise of independence: the interpreter's order of instances does not show in the result."""
    from programs import random_row_program

    program, env = random_row_program(seed), {"M": 7, "N": 9}
    random = np.random.default_rng(seed)
    shapes = [tuple(evaluate(d, env) for d in view.shape) for view in program.views]
    arrays = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    results = []
    for order in (None, random, random):
        own = [array.copy() for array in arrays]
        assert interpret(program, own, env, order) == 0
        results.append([array.tobytes() for array in own])
    assert results[0] == results[1] == results[2]
