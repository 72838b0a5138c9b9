"""Causal chains leave out what no row of a group sees: the bits stay, hidden keys are never read, other masks are not taken."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Compiled

from grainline.base.dims import symbol
from grainline.base.dtypes import F32
from grainline.kernels import numpy_meaning
from grainline.kernels.attention import attention
from grainline.plan import mma_chain
from grainline.plan.mma_chain import describe_chain
from grainline.tile.build import ProgramBuilder

B, H, Q, K = (symbol(name) for name in "BHQK")
GROUP, WIDTH, VALUE_WIDTH = 2, 16, 40
CASES = ((1, 1, 1, 1), (2, 2, 7, 7), (1, 2, 65, 65), (1, 1, 130, 200), (1, 1, 1, 90), (2, 1, 150, 150))


def program(padding: bool = False):
    return attention(B, H, GROUP, Q, K, WIDTH, VALUE_WIDTH, causal=True, padding=padding)


def arrays_of(case: tuple[int, ...], padding: bool) -> list[np.ndarray]:
    b, h, queries, keys = case
    random = np.random.default_rng(sum(case))
    shapes = ((b, h, GROUP * queries, WIDTH), (b, h, keys, WIDTH), (b, h, keys, VALUE_WIDTH))
    arrays = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    arrays.append(np.zeros((b, h, GROUP * queries, VALUE_WIDTH), np.float32))
    return [*arrays, random.random((b, keys)) < 0.6] if padding else arrays


@pytest.mark.parametrize("padding", [False, True], ids=["causal", "causal and padded"])
def test_leaving_out_what_nobody_sees_changes_no_bit(padding, monkeypatch):
    skipping = Compiled(program(padding))
    monkeypatch.setattr(mma_chain, "last_seen", lambda *_: None)
    complete = Compiled(program(padding))
    assert skipping.emitted.text != complete.emitted.text
    for case in CASES:
        arrays, env = arrays_of(case, padding), dict(zip("BHQK", case, strict=True))
        results = []
        for compiled, parts in ((complete, 1), (skipping, 1), (skipping, 3)):
            arrays[3][...] = 7
            assert compiled.launch(arrays, env, parts) == 0
            results.append(arrays[3].tobytes())
        assert results[0] == results[1], f"{case}: other bits"
        assert results[1] == results[2], f"{case}: the cut of the blocks shows"


def test_hidden_keys_and_values_count_for_nothing():
    """Keys past the first 64 that the early rows do not see are NaN; groups of early rows stay clean."""
    case = (1, 1, 192, 192)
    q, k, v, o = arrays_of(case, False)
    want = numpy_meaning.attention(q.reshape(1, GROUP, 192, WIDTH), k, v, True)
    v[:, :, 128:] = np.nan
    assert Compiled(program()).launch([q, k, v, o], dict(zip("BHQK", case, strict=True))) == 0
    first = o.reshape(1, GROUP, 192, VALUE_WIDTH)[:, :, :96]
    np.testing.assert_allclose(first, want[:, :, :96], 5e-5, 5e-5)


def chain_of(rows, skips_hidden: bool = True) -> mma_chain.Chain:
    """q k^T, `rows` of it, times v."""
    p = ProgramBuilder("chain")
    r, n, d, e = p.root("r", Q), p.axis("n", K), p.axis("d", WIDTH), p.axis("e", VALUE_WIDTH)
    q, k, v = p.view("q", F32, (Q, WIDTH)), p.view("k", F32, (K, WIDTH)), p.view("v", F32, (K, VALUE_WIDTH))
    o = p.view("o", F32, (Q, VALUE_WIDTH), access="write")
    score = p.mma(p.load(q, (r, d)), p.load(k, (n, d)), d)
    valid = p.coord(n) <= p.coord(r)
    p.store(o, (r, e), p.mma(rows(p, score, valid, n), p.load(v, (n, e)), n, skips_hidden))
    found = describe_chain(p.finish())
    assert isinstance(found, mma_chain.Chain)
    return found


@pytest.mark.parametrize(
    ("title", "rows", "is_skipped"),
    [
        ("selected zeros", lambda p, x, ok, n: p.select(ok, x, p.const(0.0)), True),
        ("selected ones", lambda p, x, ok, n: p.select(ok, x, p.const(1.0)), False),
        ("zeros where seen", lambda p, x, ok, n: p.select(ok, p.const(0.0), x), False),
        ("a sum of all columns", lambda p, x, ok, n: p.select(ok, x, p.const(0.0)) * p.sum(x, n), False),
        ("a maximum without init", lambda p, x, ok, n: p.select(ok, x - p.max(x, n), p.const(0.0)), False),
        (
            "a maximum of another constant",
            lambda p, x, ok, n: p.select(
                ok, x - p.reduce("max", p.select(ok, x, p.const(-9.0)), n, init=-8.0), p.const(0.0)
            ),
            False,
        ),
    ],
)
def test_only_what_is_proved_is_left_out(title, rows, is_skipped):
    assert (chain_of(rows).seen is not None) == is_skipped, title


def test_nothing_is_left_out_where_the_program_does_not_allow_it():
    """0 * NaN is NaN, and a model's product says nothing else."""
    assert chain_of(lambda p, x, ok, n: p.select(ok, x, p.const(0.0)), skips_hidden=False).seen is None
