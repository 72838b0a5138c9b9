"""Every pass keeps the meaning (interpreter before and after) and the validity; each has its law shown once."""

import numpy as np
import pytest

from grainline.base.dims import evaluate, symbol
from grainline.base.dtypes import F32, I64
from grainline.kernels import pointwise, rows
from grainline.tile.access import tile_axes
from grainline.tile.build import ProgramBuilder
from grainline.tile.interp import interpret
from grainline.tile.passes import PASSES, simplify
from grainline.tile.verify import verify

M, N = symbol("M"), symbol("N")


def unit_rows(use_init=False):
    """Tiles (1, n, 1): y = x / sum over all three, + the coordinates of the two short ones, + sum over one of them."""
    p = ProgramBuilder("unit_rows")
    r, u, n, v = p.root("r", M), p.axis("u", 1), p.axis("n", N), p.axis("v", 1)
    x, y = p.view("x", F32, (M, 1, N, 1)), p.view("y", F32, (M, 1, N, 1), access="write")
    t = p.load(x, (r, u, n, v))
    total = t
    for axis in (v, n, u):
        total = p.reduce("add", total, axis, 2.0 if use_init else None)
    one = p.splat(p.const(1.0, F32), (u, v))
    p.store(y, (r, u, n, v), t / total + p.cast(p.coord(u) + p.coord(v), F32) + p.max(t, u) * one)
    return p.finish()


PROGRAMS = [
    unit_rows(),
    unit_rows(use_init=True),
    rows.softmax(M, N),
    rows.layer_norm(M, 6),
    rows.mean_pool(M, N, 4),
    pointwise.gelu(M, N),
    pointwise.swiglu(M, N),
    pointwise.gather_rows(M, N, 3),
]


def run(program, env, seed=1):
    random = np.random.default_rng(seed)
    arrays = []
    for view in program.views:
        size = 1 + sum((evaluate(d, env) - 1) * evaluate(s, env) for d, s in zip(view.shape, view.strides, strict=True))
        if view.dtype.name == "i64":
            arrays.append(random.integers(-evaluate(env["N"], {}), env["N"], size))
        else:
            arrays.append(random.normal(size=size).astype(view.dtype.numpy))
    assert interpret(program, arrays, env, random) == 0
    return arrays


@pytest.mark.parametrize("rewrite", [*(p for _, p in PASSES), simplify], ids=[*(n for n, _ in PASSES), "simplify"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_pass_keeps_the_meaning(rewrite, program):
    env = {"M": 3, "N": 5}
    after = rewrite(program)
    verify(after)
    for a, b in zip(run(program, env), run(after, env), strict=True):
        np.testing.assert_array_equal(a, b)


def test_pointwise_roots_collapse_to_one():
    after = simplify(pointwise.gelu(M, N))
    assert [str(axis.extent) for axis in after.roots] == ["M*N"]


def test_a_transpose_does_not_collapse():
    p = ProgramBuilder("transpose")
    i, j = p.root("i", M), p.root("j", N)
    x, y = p.view("x", F32, (N, M)), p.view("y", F32, (M, N), access="write")
    p.store(y, (i, j), p.load(x, (j, i)))
    assert len(simplify(p.finish()).roots) == 2


def test_strided_rows_do_not_collapse():
    p = ProgramBuilder("padded")
    i, j = p.root("i", M), p.root("j", 7)
    x = p.view("x", F32, (M, 7), strides=(8, 1))
    y = p.view("y", F32, (M, 7), access="write")
    p.store(y, (i, j), p.load(x, (i, j)))
    assert len(simplify(p.finish()).roots) == 2


def test_equal_loads_merge_and_dead_code_goes():
    p = ProgramBuilder("twice")
    i = p.root("i", M)
    x, y = p.view("x", F32, (M,)), p.view("y", F32, (M,), access="write")
    p.exp(p.load(x, (i,)))
    p.store(y, (i,), p.load(x, (i,)) * 1.0 + p.load(x, (i,)) / 4.0)
    after = simplify(p.finish())
    assert [o.op for o in after.body] == ["load", "const", "mul", "add", "store"]


def test_a_load_after_a_store_is_not_merged():
    p = ProgramBuilder("changed")
    i = p.root("i", M)
    x = p.view("x", F32, (M,), access="readwrite")
    y = p.view("y", F32, (M,), access="write")
    first = p.load(x, (i,))
    p.store(x, (i,), first + 1.0)
    p.store(y, (i,), first + p.load(x, (i,)))
    assert sum(o.op == "load" for o in simplify(p.finish()).body) == 2


def test_tile_axes_of_one_element_disappear():
    after = simplify(unit_rows())
    assert [axis.label for axis in tile_axes(after)] == ["n"]
    assert [o.axis.label for o in after.body if o.op == "reduce"] == ["n"]
    assert [axis.label for axis in tile_axes(simplify(unit_rows(use_init=True)))] != ["n"], "the initial value counts"


def test_an_axis_of_one_element_that_is_indexed_freely_stays():
    p = ProgramBuilder("gathered")
    r, u = p.root("r", M), p.axis("u", 1)
    x, y = p.view("x", F32, (M, 1)), p.view("y", F32, (M, 1), access="write")
    t = p.load(x, (r, u))
    p.store(y, (r, u), p.gather(t, u, p.cast(t, I64), 7.0))
    assert len(tile_axes(simplify(p.finish()))) == 1
