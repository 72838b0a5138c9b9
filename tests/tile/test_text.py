"""Text round trip and the canonical form."""

import pytest

from grainline.base.dims import ceil_div, symbol
from grainline.base.dtypes import BOOL, F32, I64
from grainline.kernels import pointwise, rows
from grainline.tile.build import ProgramBuilder, affine
from grainline.tile.text import canonical, from_text, program_symbols, to_text
from grainline.tile.verify import TileError, verify

M, N = symbol("M"), symbol("N")


def odd_program(m="M", n="N", name="odd"):
    m, n = symbol(m), symbol(n)
    p = ProgramBuilder(name)
    r, a = p.root("r", m), p.axis("n", ceil_div(n, 2))
    x = p.view("x", F32, (m, n), strides=(n * 2, 1))
    k = p.view("k", I64, (m,))
    y = p.view("y", F32, (m, n), access="write")
    row = p.load(k, (r,), bounds="error")
    t = p.load(x, (row, affine((a, 2), offset=-1)), bounds="zero")
    s = p.reduce("max", t, a, init=float("-inf"))
    p.store(y, (r, affine((a, 1), offset=n - ceil_div(n, 2))), p.select(t < 0, s, t * 0.1))
    return p.finish()


PROGRAMS = [
    odd_program(),
    rows.softmax(M, N),
    rows.layer_norm(M, 768),
    rows.masked_softmax(3, N),
    rows.mean_pool(M, N, 8),
    pointwise.gather_rows(M, N, 16),
    pointwise.gelu(M, N),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_text_parses_back(program):
    text = to_text(program)
    again = from_text(text)
    verify(again)
    assert to_text(again) == text


def test_names_do_not_matter_in_the_canonical_form():
    one, map_one = canonical(odd_program())
    two, map_two = canonical(odd_program("rows", "cols", "other"))
    verify(one)
    assert to_text(one) == to_text(two)
    assert (map_one, map_two) == ({"M": "s0", "N": "s1"}, {"rows": "s0", "cols": "s1"})


def test_canonical_is_idempotent():
    for program in PROGRAMS:
        once = to_text(canonical(program)[0])
        assert to_text(canonical(canonical(program)[0])[0]) == once


def test_symbols_come_in_order_of_appearance():
    assert program_symbols(odd_program()) == ("M", "N")


def test_equal_sizes_do_not_make_equal_kernels():
    assert to_text(canonical(rows.softmax(M, M))[0]) != to_text(canonical(rows.softmax(M, N))[0])


def _broken(change):
    p = ProgramBuilder("broken")
    r = p.root("r", 4)
    x, y = p.view("x", F32, (4,)), p.view("y", F32, (4,), access="write")
    change(p, r, x, y)
    return p


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p, r, x, y: p.load(x, (r,)), "nothing is stored"),
        (lambda p, r, x, y: p.store(x, (r,), 1.0), "read-only"),
        (lambda p, r, x, y: p.store(y, (r,), p.load(y, (r,))), "write-only"),
        (lambda p, r, x, y: p.store(y, (r, r), 1.0), "1-dimensional"),
        (lambda p, r, x, y: p.store(y, (r,), p.const(1, I64)), "through the view"),
        (lambda p, r, x, y: p.store(y, (r,), p.load(x, (r,)) + p.const(True, BOOL)), "different types"),
        (lambda p, r, x, y: p.store(y, (r,), p.load(x, (p.axis("n", 4),))), "does not"),
        (lambda p, r, x, y: p.store(y, (r,), p.sum(p.load(x, (r,)), r)), "tile axis"),
        (lambda p, r, x, y: p.store(y, (r,), p.load(x, (r,), bounds="maybe")), "bounds policy"),
    ],
)
def test_every_rule_names_what_is_wrong(change, words):
    with pytest.raises(TileError, match=words):
        _broken(change).finish()
