"""What is proved about extents holds for every value of their symbols."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from grainline.base import dims
from grainline.base.dims import Op, evaluate, symbol
from grainline.importer import extents
from grainline.importer.shape import _span

NAMES = ("a", "b")
ENV = st.fixed_dictionaries({name: st.integers(0, 9) for name in NAMES})


def grow(inner: st.SearchStrategy) -> st.SearchStrategy:
    positive = st.integers(1, 5)
    return st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
        st.tuples(inner, st.integers(-3, 3)).map(lambda p: p[0] * p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
        st.tuples(inner, positive).map(lambda p: dims.floordiv(*p)),
        st.tuples(inner, positive).map(lambda p: dims.mod(*p)),
        st.tuples(inner, inner).map(lambda p: dims.minimum(*p)),
        st.tuples(inner, inner).map(lambda p: dims.maximum(*p)),
    )


EXTENT = st.recursive(st.one_of(st.integers(-4, 9), st.sampled_from([symbol(n) for n in NAMES])), grow, max_leaves=5)


@given(EXTENT, ENV)
def test_bounds_enclose_every_value(extent: int | dims.Expr, env: dict[str, int]) -> None:
    low, high = extents.bounds(extent)
    value = evaluate(extent, env)
    assert (low is None or low <= value) and (high is None or value <= high)


@given(EXTENT, ENV)
def test_nonnegative_is_never_negative(extent: int | dims.Expr, env: dict[str, int]) -> None:
    if extents.is_nonnegative(extent):
        assert evaluate(extent, env) >= 0


@given(EXTENT, EXTENT, ENV)
def test_minimum_and_maximum_are_those_of_the_values(
    a: int | dims.Expr, b: int | dims.Expr, env: dict[str, int]
) -> None:
    pair = evaluate(a, env), evaluate(b, env)
    assert evaluate(extents.minimum(a, b), env) == min(pair)
    assert evaluate(extents.maximum(a, b), env) == max(pair)


@given(EXTENT, EXTENT, ENV)
def test_extents_that_must_be_equal_never_broadcast(
    a: int | dims.Expr, b: int | dims.Expr, env: dict[str, int]
) -> None:
    first, second = evaluate(a, env), evaluate(b, env)
    if extents.must_be_equal(a, b) and min(first, second) >= 0:
        assert first == second or 1 not in (first, second), "one of them is 1 and the other is not"


@given(st.integers(0, 7), st.integers(-9, 9), st.integers(-9, 9), st.sampled_from([-3, -2, -1, 1, 2, 3]))
def test_a_span_picks_what_the_standard_says(extent: int, start: int, end: int, step: int) -> None:
    """ONNX: negative bounds count from the end; then a start is clamped to [0, n] forward and [0, n-1] backward, an
    end to [0, n] forward and [-1, n-1] backward."""
    begin, length = _span(extent, start, end, step)
    first, last = (bound + extent if bound < 0 else bound for bound in (start, end))
    if step > 0:
        first, last = (min(max(bound, 0), extent) for bound in (first, last))
    else:
        first, last = min(max(first, 0), extent - 1), min(max(last, -1), extent - 1)
    assert [begin + step * index for index in range(length)] == list(range(first, last, step))


@given(st.integers(0, 7), st.integers(-9, 9), st.integers(-9, 9), st.sampled_from([-2, -1, 1, 2]))
def test_a_symbolic_span_is_the_span_of_the_value(extent: int, start: int, end: int, step: int) -> None:
    begin, length = _span(symbol("n"), start, end, step)
    right = _span(extent, start, end, step)
    assert evaluate(length, {"n": extent}) == right[1]
    if right[1]:
        assert evaluate(begin, {"n": extent}) == right[0]


def test_an_atom_is_replaced_everywhere() -> None:
    n = symbol("n")
    atom = extents.lone_atom(dims.minimum(512, n))
    assert isinstance(atom, Op)
    assert extents.replace_atom(dims.minimum(512, n) * 3 + 1, atom, n) == n * 3 + 1
