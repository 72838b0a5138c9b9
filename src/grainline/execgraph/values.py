"""The value table of a Program: every extent, compiled to straight-line integer code with shared subexpressions.

A value is a constant, an observed dimension (`dim`), or an operation of two earlier values. Values are numbered so
that constants come first and the rest is sorted by the InferShape group that makes it known; native code evaluates the
slice of one group in order, checked against overflow. Symbols are values too: the dimension that defines them, or the
exact solution of a dimension that is linear in one unknown symbol.

What a sub-graph computes and checks belongs to a group of its own frame (`enter`), never to an earlier one: it must not
happen unless the sub-graph runs, and happens again in every turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from grainline.base.dims import Expr, Extent, Op, Sym, symbols
from grainline.base.errors import UnsupportedError
from grainline.execgraph.ir import Shape

OPERATIONS = ("dim", "add", "sub", "mul", "floordiv", "mod", "min", "max")
CHECK_EQUAL, CHECK_NOT_NEGATIVE, CHECK_AT_MOST = 0, 1, 2
_TEXT_LIMIT = 160


@dataclass(frozen=True, slots=True)
class Check:
    """Equal: `observed == expected`; not negative: `observed >= 0` (`expected` unused); at most: `<= expected`.

    Texts are for the message.
    """

    kind: int
    observed: int
    expected: int
    place: str
    text: str
    note: str


@dataclass(slots=True)
class ValueTable:
    """Values under provisional numbers; `layout()` gives the final ones."""

    constants: dict[int, int] = field(default_factory=dict)
    operations: dict[tuple[str, int, int, int], int] = field(default_factory=dict)
    group_of: list[int] = field(default_factory=list)
    symbol: dict[str, int] = field(default_factory=dict)
    fixed_by: dict[str, str] = field(default_factory=dict)
    checks: list[list[Check]] = field(default_factory=list)
    _scopes: tuple[int, ...] = (0,)
    _memos: dict[int, dict[Expr, int]] = field(default_factory=dict)
    _checked: set[tuple[int, int]] = field(default_factory=set)

    def enter(self, groups: tuple[int, ...]) -> None:
        """From now on the table speaks of a frame: the first groups of it and of all around it, inside out."""
        self._scopes = groups

    def constant(self, value: int) -> int:
        if not -(1 << 63) <= value < 1 << 63:
            raise UnsupportedError("an extent does not fit 64 bits", found=value)
        if value not in self.constants:
            self.constants[value] = self._new(0)
        return self.constants[value]

    def dim(self, index: int, group: int) -> int:
        """The observed dimension `index` of the flat array of all observed dimensions."""
        key = ("dim", index, 0, 0)
        if key not in self.operations:
            self.operations[key] = self._new(group)
        return self.operations[key]

    def apply(self, op: str, left: int, right: int) -> int:
        if op in ("add", "mul", "min", "max") and right < left:
            left, right = right, left
        for scope in self._scopes:
            if (op, left, right, scope) in self.operations:
                return self.operations[op, left, right, scope]
        scope = self._scopes[0]
        number = self._new(max(self.group_of[left], self.group_of[right], scope))
        self.operations[op, left, right, scope] = number
        return number

    def extent(self, extent: Extent) -> int:
        """The value of an extent. KeyError names a symbol that nothing binds."""
        if not isinstance(extent, Expr):
            return self.constant(int(extent))
        memo = self._memos.setdefault(self._scopes[0], {})
        if extent not in memo:
            parts = [self._monomial(mono, coef) for mono, coef in extent.terms]
            total = parts[0]
            for part in parts[1:]:
                total = self.apply("add", total, part)
            memo[extent] = total
        return memo[extent]

    def _monomial(self, mono: tuple[Sym | Op, ...], coef: int) -> int:
        factors = [self._atom(atom) for atom in mono]
        if coef != 1 or not factors:
            factors.append(self.constant(coef))
        total = factors[0]
        for factor in factors[1:]:
            total = self.apply("mul", total, factor)
        return total

    def _atom(self, atom: Sym | Op) -> int:
        if isinstance(atom, Sym):
            return self.symbol[atom.name]
        return self.apply(atom.kind, self.extent(atom.left), self.extent(atom.right))

    def size(self, extent: Extent, place: str) -> int:
        """The value of an extent that must not be negative (a shape, size, offset or count)."""
        value = self.extent(extent)
        if not isinstance(extent, Expr):
            if extent < 0:
                raise ValueError(f"{place} is negative: {extent}")
            return value
        if self._checked.isdisjoint((value, scope) for scope in self._scopes):
            self._checked.add((value, self._scopes[0]))
            text = str(extent)[:_TEXT_LIMIT]
            self._check(Check(CHECK_NOT_NEGATIVE, value, value, place, text, ""))
        return value

    def _check(self, check: Check) -> None:
        group = max(self.group_of[check.observed], self.group_of[check.expected], self._scopes[0])
        while len(self.checks) <= group:
            self.checks.append([])
        self.checks[group].append(check)

    def at_most(self, extent: Extent, greatest: int, place: str) -> None:
        """Checks that an extent is not greater than a number."""
        text = str(extent)[:_TEXT_LIMIT]
        self._check(Check(CHECK_AT_MOST, self.extent(extent), self.constant(greatest), place, text, ""))

    def require(self, left: Extent, right: Extent, place: str) -> None:
        """Checks that two extents are equal as soon as both are known."""
        text = f"{left} = {right}"[:_TEXT_LIMIT]
        self._check(Check(CHECK_EQUAL, self.extent(left), self.extent(right), place, text, ""))

    # ---- binding symbols to observed dimensions ----------------------------------------------------------------

    def bind(self, group: int, sources: list[tuple[str, Shape, int]]) -> None:
        """Binds the new symbols of `sources` = (description, shape, index of its first dimension) and adds the checks.

        A symbol is defined by its first appearance as a whole dimension, else solved from a dimension linear in it.
        ValueError names a symbol that stays unknown.
        """
        axes = [
            (f"{what} axis {axis}", extent, self.dim(first + axis, group))
            for what, shape, first in sources
            for axis, extent in enumerate(shape)
        ]
        defining = {index for index, axis in enumerate(axes) if self._define(*axis)}
        while any(self._solve(*axis) for axis in axes):
            pass
        for index, (place, extent, dim) in enumerate(axes):
            if index not in defining:
                self._expect(place, extent, dim)

    def _define(self, place: str, extent: Extent, dim: int) -> bool:
        name = _lone_symbol(extent)
        if name is None or name in self.symbol:
            return False
        self.symbol[name], self.fixed_by[name] = dim, place
        return True

    def _solve(self, place: str, extent: Extent, dim: int) -> bool:
        unknown = [name for name in symbols(extent) if name not in self.symbol]
        if len(unknown) != 1 or not isinstance(extent, Expr):
            return False
        linear = [(mono, coef) for mono, coef in extent.terms if mono == (Sym(unknown[0]),)]
        rest = [term for term in extent.terms if term not in linear]
        if len(linear) != 1 or any(unknown[0] in symbols(Expr((term,))) for term in rest if term[0]):
            return False
        value = dim
        for mono, coef in rest:
            value = self.apply("sub", value, self._monomial(mono, coef))
        if linear[0][1] != 1:
            value = self.apply("floordiv", value, self.constant(linear[0][1]))
        self.symbol[unknown[0]], self.fixed_by[unknown[0]] = value, place
        self._check(Check(CHECK_NOT_NEGATIVE, value, value, f"{place}: the solution of {extent}", unknown[0], ""))
        return True

    def _expect(self, place: str, extent: Extent, dim: int) -> None:
        missing = [name for name in symbols(extent) if name not in self.symbol]
        if missing:
            raise ValueError(f"{place}: nothing binds the symbol {missing[0]!r} of the extent {extent}")
        text = "" if isinstance(extent, int) else str(extent)[:_TEXT_LIMIT]
        fixed = [f"{name} is fixed by {self.fixed_by[name]}" for name in symbols(extent) if name in self.fixed_by]
        note = f" ({', '.join(fixed)})" if fixed else ""
        self._check(Check(CHECK_EQUAL, dim, self.extent(extent), place, text, note))

    # ---- final numbers -----------------------------------------------------------------------------------------

    def _new(self, group: int) -> int:
        self.group_of.append(group)
        return len(self.group_of) - 1

    def layout(self, groups: int) -> tuple[list[int], list[tuple[int, int, int]], list[int], list[int]]:
        """constants, instructions (op, a, b), first instruction of each group (plus the end), new number of a value."""
        by_number = {number: key for key, number in self.operations.items()}
        order = sorted(by_number, key=lambda number: (self.group_of[number], number))
        final = [0] * len(self.group_of)
        for position, number in enumerate(self.constants.values()):
            final[number] = position
        for position, number in enumerate(order):
            final[number] = len(self.constants) + position
        code = []
        for number in order:
            op, left, right, _ = by_number[number]
            operands = (left, 0) if op == "dim" else (final[left], final[right])
            code.append((OPERATIONS.index(op), *operands))
        starts = [sum(self.group_of[number] < group for number in order) for group in range(groups + 1)]
        return list(self.constants), code, starts, final


def _lone_symbol(extent: Extent) -> str | None:
    if isinstance(extent, Expr) and len(extent.terms) == 1:
        mono, coef = extent.terms[0]
        if coef == 1 and len(mono) == 1 and isinstance(mono[0], Sym):
            return mono[0].name
    return None
