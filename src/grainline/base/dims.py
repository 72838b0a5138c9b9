"""Symbolic extents: integer polynomials over named symbols.

A dimension is a plain `int` or an `Expr`. An `Expr` is a canonical sum of monomials with integer coefficients over
atoms; an atom is a symbol (`Sym`) or an opaque integer operation (`Op`: floordiv, mod, min, max, of two extents).
Two extents that are equal as polynomials compare and hash equal. Every function here returns an `int` as soon as the
value is constant, so callers test `isinstance(d, int)` for "static".

Symbols stand for tensor extents and are never negative; `floordiv` and `mod` round toward minus infinity (Python).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Sym:
    """A named non-negative integer."""

    name: str

    def sort_key(self) -> tuple[object, ...]:
        return (0, self.name)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Op:
    """An opaque operation of two extents; `kind` is one of floordiv, mod, min, max."""

    kind: str
    left: int | Expr
    right: int | Expr

    def sort_key(self) -> tuple[object, ...]:
        return (1, self.kind, str(self.left), str(self.right))

    def __str__(self) -> str:
        return f"{self.kind}({self.left}, {self.right})"


Atom = Sym | Op
Monomial = tuple[Atom, ...]


class Expr:
    """A canonical, immutable, non-constant polynomial. Build it with `symbol` and the operators below."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and self.terms == other.terms

    def __add__(self, other: int | Expr) -> int | Expr:
        merged = dict(self.terms)
        for mono, coef in _terms(other):
            merged[mono] = merged.get(mono, 0) + coef
        return _from(merged)

    __radd__ = __add__

    def __neg__(self) -> int | Expr:
        return self * -1

    def __sub__(self, other: int | Expr) -> int | Expr:
        return self + (other * -1)

    def __rsub__(self, other: int | Expr) -> int | Expr:
        return (self * -1) + other

    def __mul__(self, other: int | Expr) -> int | Expr:
        if isinstance(other, int):
            if other == 1:
                return self
            return Expr(tuple((mono, coef * other) for mono, coef in self.terms)) if other else 0
        product: dict[Monomial, int] = {}
        for mono_a, coef_a in self.terms:
            for mono_b, coef_b in _terms(other):
                mono = tuple(sorted(mono_a + mono_b, key=lambda a: a.sort_key()))
                product[mono] = product.get(mono, 0) + coef_a * coef_b
        return _from(product)

    __rmul__ = __mul__

    def __floordiv__(self, other: int | Expr) -> int | Expr:
        return floordiv(self, other)

    def __rfloordiv__(self, other: int | Expr) -> int | Expr:
        return floordiv(other, self)

    def __mod__(self, other: int | Expr) -> int | Expr:
        return mod(self, other)

    def __rmod__(self, other: int | Expr) -> int | Expr:
        return mod(other, self)

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of the symbolic extent {self} is not known at compile time")

    def __str__(self) -> str:
        parts = []
        for mono, coef in self.terms:
            body = "*".join(str(a) for a in mono)
            if not body:
                parts.append(str(coef))
            else:
                parts.append(body if coef == 1 else f"{coef}*{body}")
        return " + ".join(parts)

    __repr__ = __str__


#: of a dimension: a number, or what a run evaluates
Extent = int | Expr


def _terms(value: int | Expr) -> tuple[tuple[Monomial, int], ...]:
    return value.terms if isinstance(value, Expr) else (((), int(value)),)


def _from(merged: Mapping[Monomial, int]) -> int | Expr:
    kept = [(m, c) for m, c in merged.items() if c != 0]
    if not kept:
        return 0
    if len(kept) == 1 and kept[0][0] == ():
        return kept[0][1]
    if len(kept) > 1:
        kept.sort(key=lambda t: (len(t[0]), tuple(a.sort_key() for a in t[0])))
    return Expr(tuple(kept))


@lru_cache(maxsize=4096)
def symbol(name: str) -> Expr:
    """The extent that stands for the symbol `name`."""
    return Expr((((Sym(name),), 1),))


def _atom(kind: str, left: int | Expr, right: int | Expr) -> Expr:
    return Expr((((Op(kind, left, right),), 1),))


def exact_div(left: int | Expr, right: int | Expr) -> int | Expr | None:
    """`q` with `q * right == left` as polynomials, or None when no such polynomial is found."""
    if left == right:
        return 1
    if isinstance(left, int) and left == 0:
        return 0
    divisor = _terms(right)
    if len(divisor) != 1 or divisor[0][1] == 0:
        return _divide_sum(left, right)
    (mono_d, coef_d) = divisor[0]
    quotient: dict[Monomial, int] = {}
    for mono, coef in _terms(left):
        rest = list(mono)
        for atom in mono_d:
            if atom not in rest:
                return None
            rest.remove(atom)
        if coef % coef_d != 0:
            return None
        quotient[tuple(rest)] = quotient.get(tuple(rest), 0) + coef // coef_d
    return _from(quotient)


def _divide_sum(left: int | Expr, right: int | Expr) -> int | Expr | None:
    """Divides by a sum: `left == q * right` for a monomial or constant `q` read off the leading terms."""
    if not isinstance(left, Expr) or not isinstance(right, Expr):
        return None
    lead_l, lead_r = left.terms[-1], right.terms[-1]
    rest = list(lead_l[0])
    for atom in lead_r[0]:
        if atom not in rest:
            return None
        rest.remove(atom)
    if lead_l[1] % lead_r[1] != 0:
        return None
    quotient = _from({tuple(rest): lead_l[1] // lead_r[1]})
    return quotient if quotient * right == left else None


def floordiv(left: int | Expr, right: int | Expr) -> int | Expr:
    if isinstance(right, int):
        if right == 0:
            raise ZeroDivisionError(f"division of {left} by zero")
        if isinstance(left, int):
            return left // right
        if right == 1:
            return left
        whole: dict[Monomial, int] = {m: c // right for m, c in left.terms if c % right == 0}
        rest = _from({m: c for m, c in left.terms if c % right != 0})
        if not isinstance(rest, int):
            return _atom("floordiv", rest, right) + _from(whole)
        return _from(whole) + rest // right
    quotient = exact_div(left, right)
    return _atom("floordiv", left, right) if quotient is None else quotient


def mod(left: int | Expr, right: int | Expr) -> int | Expr:
    if isinstance(left, int) and isinstance(right, int):
        return left % right
    if exact_div(left, right) is not None:
        return 0
    return _atom("mod", left, right)


def ceil_div(left: int | Expr, right: int | Expr) -> int | Expr:
    """The smallest integer at least left / right (right > 0)."""
    exact = exact_div(left, right) if not (isinstance(left, int) and isinstance(right, int)) else None
    return exact if exact is not None else floordiv(left + right - 1, right)


def minimum(left: int | Expr, right: int | Expr) -> int | Expr:
    return _extremum("min", left, right)


def maximum(left: int | Expr, right: int | Expr) -> int | Expr:
    return _extremum("max", left, right)


def _extremum(kind: str, left: int | Expr, right: int | Expr) -> int | Expr:
    difference = left - right
    if isinstance(difference, int):
        return left if (difference <= 0) == (kind == "min") else right
    a, b = sorted((left, right), key=str)
    return _atom(kind, a, b)


def product(extents: Iterable[int | Expr]) -> int | Expr:
    total: int | Expr = 1
    for extent in extents:
        total = total * extent
    return total


def row_major_strides(shape: tuple[int | Expr, ...]) -> tuple[int | Expr, ...]:
    """Strides in elements of a dense row-major array of this shape. None is 0, whatever is empty: axes stay apart."""
    strides: list[int | Expr] = []
    step: int | Expr = 1
    for extent in reversed(shape):
        strides.append(step)
        step = step if extent == 0 else step * extent
    return tuple(reversed(strides))


def symbols(value: int | Expr) -> tuple[str, ...]:
    """Names of the symbols in `value`, in order of first appearance."""
    if isinstance(value, int):
        return ()
    found: dict[str, None] = {}
    for mono, _ in _terms(value):
        for atom in mono:
            names = (atom.name,) if isinstance(atom, Sym) else symbols(atom.left) + symbols(atom.right)
            found.update(dict.fromkeys(names))
    return tuple(found)


def substitute(value: int | Expr, mapping: Mapping[str, int | Expr]) -> int | Expr:
    """Replaces symbols by extents and normalises again. Unmapped symbols stay."""
    if isinstance(value, int):
        return value
    total: int | Expr = 0
    for mono, coef in value.terms:
        part: int | Expr = coef
        for atom in mono:
            part = part * _substitute_atom(atom, mapping)
        total = total + part
    return total


def _substitute_atom(atom: Atom, mapping: Mapping[str, int | Expr]) -> int | Expr:
    if isinstance(atom, Sym):
        return mapping.get(atom.name, Expr((((atom,), 1),)))
    left, right = substitute(atom.left, mapping), substitute(atom.right, mapping)
    return _OPERATIONS[atom.kind](left, right)


_OPERATIONS: dict[str, Callable[[int | Expr, int | Expr], int | Expr]] = {
    "floordiv": floordiv,
    "mod": mod,
    "min": minimum,
    "max": maximum,
}


def evaluate(value: int | Expr, env: Mapping[str, int]) -> int:
    """The integer that `value` is under `env`; KeyError names a missing symbol."""
    if isinstance(value, int):
        return value
    total = 0
    for mono, coef in value.terms:
        for atom in mono:
            coef *= env[atom.name] if isinstance(atom, Sym) else _value_of(atom, env)
        total += coef
    return total


def _value_of(operation: Op, env: Mapping[str, int]) -> int:
    found = _OPERATIONS[operation.kind](evaluate(operation.left, env), evaluate(operation.right, env))
    assert isinstance(found, int)
    return found


def coefficients(value: int | Expr) -> tuple[int, ...]:
    """The coefficients of the monomials of `value`; a positive extent has none below 0 unless it subtracts."""
    return tuple(coefficient for _, coefficient in _terms(value))


def divides(divisor: int, value: int | Expr) -> bool:
    """Whether every value of `value` is provably a multiple of `divisor`."""
    return all(coef % divisor == 0 for _, coef in _terms(value))


def parse(text: str) -> int | Expr:
    """The inverse of `str`: sums of products of integers, symbols and kind(left, right)."""
    value, rest = _parse_sum(text.replace(" ", ""))
    if rest:
        raise ValueError(f"unexpected {rest!r} in extent {text!r}")
    return value


def _parse_sum(text: str) -> tuple[int | Expr, str]:
    total, text = _parse_product(text)
    while text.startswith("+"):
        part, text = _parse_product(text[1:])
        total = total + part
    return total, text


def _parse_product(text: str) -> tuple[int | Expr, str]:
    total, text = _parse_atom(text)
    while text.startswith("*"):
        part, text = _parse_atom(text[1:])
        total = total * part
    return total, text


def _parse_atom(text: str) -> tuple[int | Expr, str]:
    end = 0
    while end < len(text) and text[end] not in "+*(),":
        end += 1
    word, rest = text[:end], text[end:]
    if word.lstrip("-").isdigit():
        return int(word), rest
    if word in _OPERATIONS and rest.startswith("("):
        left, rest = _parse_sum(rest[1:])
        right, rest = _parse_sum(rest[1:])
        return _OPERATIONS[word](left, right), rest[1:]
    if not word:
        raise ValueError(f"expected an extent at {text!r}")
    return symbol(word), rest
