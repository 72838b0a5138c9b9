"""What can be proved about extents: bounds, order, and where two extents of a broadcast must be equal.

A symbol is a tensor extent, so it is at least 0. Nothing here assumes more. `None` as a bound means "not known".
"""

from __future__ import annotations

from collections.abc import Mapping

from grainline.base import dims
from grainline.base.dims import Atom, Expr, Extent, Op, Sym

Bounds = tuple[int | None, int | None]

#: a slice bound of at least this size means "to the end": no tensor has such an extent
FAR = 1 << 40


def bounds(extent: Extent) -> Bounds:
    """Provable (lowest, greatest) values of an extent."""
    if isinstance(extent, int):
        return extent, extent
    low: int | None = 0
    high: int | None = 0
    for monomial, coefficient in extent.terms:
        part = _term_bounds(monomial, coefficient)
        low = None if low is None or part[0] is None else low + part[0]
        high = None if high is None or part[1] is None else high + part[1]
    return low, high


def _term_bounds(monomial: tuple[Atom, ...], coefficient: int) -> Bounds:
    low: int | None = 1
    high: int | None = 1
    for atom in monomial:
        atom_low, atom_high = _atom_bounds(atom)
        if atom_low is None or atom_low < 0 or low is None:
            return (None, None) if len(monomial) > 1 else _scale((atom_low, atom_high), coefficient)
        low = low * atom_low
        high = None if high is None or atom_high is None else high * atom_high
    return _scale((low, high), coefficient)


def _scale(pair: Bounds, coefficient: int) -> Bounds:
    ends = tuple(None if end is None else end * coefficient for end in pair)
    return (ends[0], ends[1]) if coefficient >= 0 else (ends[1], ends[0])


def _atom_bounds(atom: Atom) -> Bounds:
    if isinstance(atom, Sym):
        return 0, None
    left, right = bounds(atom.left), bounds(atom.right)
    if atom.kind == "min":
        return _both(left[0], right[0], min), _either(left[1], right[1], min)
    if atom.kind == "max":
        return _either(left[0], right[0], max), _both(left[1], right[1], max)
    divisor = atom.right
    if not isinstance(divisor, int) or divisor <= 0:
        return (0 if _is_positive_division(left, right) else None), None
    if atom.kind == "mod":
        return 0, divisor - 1
    return (
        None if left[0] is None else left[0] // divisor,
        None if left[1] is None else left[1] // divisor,
    )


def _is_positive_division(left: Bounds, right: Bounds) -> bool:
    return left[0] is not None and left[0] >= 0 and right[0] is not None and right[0] >= 0


def _both(a: int | None, b: int | None, pick: type) -> int | None:
    return None if a is None or b is None else pick(a, b)


def _either(a: int | None, b: int | None, pick: type) -> int | None:
    known = [end for end in (a, b) if end is not None]
    return pick(known) if known else None


def is_nonnegative(extent: Extent, depth: int = 4) -> bool:
    """Whether the extent is provably at least 0."""
    low = bounds(extent)[0]
    if low is not None and low >= 0:
        return True
    if isinstance(extent, int) or depth == 0:
        return False
    return any(is_nonnegative(bound, depth - 1) for bound in _lower_variants(extent))


def _lower_variants(extent: Expr) -> list[Extent]:
    """Extents that are never greater: `-min(a, b)` replaced by `-a` or `-b`, `+max(a, b)` by `a` or `b`."""
    variants = []
    for monomial, coefficient in extent.terms:
        if len(monomial) != 1 or not isinstance(monomial[0], Op):
            continue
        atom = monomial[0]
        if (atom.kind == "min" and coefficient < 0) or (atom.kind == "max" and coefficient > 0):
            variants += [replace_atom(extent, atom, atom.left), replace_atom(extent, atom, atom.right)]
    return variants


def is_at_most(a: Extent, b: Extent) -> bool:
    """Whether a <= b is proved."""
    return is_nonnegative(b - a)


def minimum(a: Extent, b: Extent) -> Extent:
    if is_at_most(a, b):
        return a
    return b if is_at_most(b, a) else dims.minimum(a, b)


def maximum(a: Extent, b: Extent) -> Extent:
    if is_at_most(a, b):
        return b
    return a if is_at_most(b, a) else dims.maximum(a, b)


def lone_atom(extent: Extent) -> Atom | None:
    """The atom that the extent consists of, or None."""
    if isinstance(extent, Expr) and len(extent.terms) == 1:
        monomial, coefficient = extent.terms[0]
        if coefficient == 1 and len(monomial) == 1:
            return monomial[0]
    return None


def must_be_equal(a: Extent, b: Extent) -> bool:
    """Whether two extents that meet in a broadcast can only meet when they are equal (neither is 1 alone)."""
    return _is_never_one(a, b) and _is_never_one(b, a)


def _is_never_one(a: Extent, b: Extent) -> bool:
    """Whether `a == 1` implies `b == 1`."""
    low = bounds(a)[0]
    if low is not None and low >= 2:
        return True
    if isinstance(a, int):
        return a == 0 or a > 1
    if isinstance(b, int):
        return False
    return _follows_from_min(a, b) or _follows_from_min(b, a)


def _follows_from_min(a: Extent, b: Extent) -> bool:
    """min(c, x) against x with c >= 2: one of them is 1 exactly when the other is."""
    atom = lone_atom(a)
    if not isinstance(atom, Op) or atom.kind != "min":
        return False
    for limit, other in ((atom.left, atom.right), (atom.right, atom.left)):
        low = bounds(limit)[0]
        if other == b and low is not None and low >= 2:
            return True
    return False


def replace_atom(extent: Extent, target: Atom, by: Extent) -> Extent:
    """The extent with every occurrence of the atom `target`, also inside other atoms, replaced."""
    if isinstance(extent, int) or not _mentions(extent, target):
        return extent
    total: Extent = 0
    for monomial, coefficient in extent.terms:
        part: Extent = coefficient
        for atom in monomial:
            part = part * _replaced(atom, target, by)
        total = total + part
    return total


def _mentions(extent: Extent, target: Atom) -> bool:
    if isinstance(extent, int):
        return False
    atoms = (atom for monomial, _ in extent.terms for atom in monomial)
    return any(
        atom == target or (isinstance(atom, Op) and (_mentions(atom.left, target) or _mentions(atom.right, target)))
        for atom in atoms
    )


def _replaced(atom: Atom, target: Atom, by: Extent) -> Extent:
    if atom == target:
        return by
    if isinstance(atom, Sym):
        return Expr((((atom,), 1),))
    left, right = replace_atom(atom.left, target, by), replace_atom(atom.right, target, by)
    return OPERATIONS[atom.kind](left, right)


def apply_all(extent: Extent, replacements: Mapping[Atom, Extent]) -> Extent:
    """Applies every replacement, in order of insertion."""
    if isinstance(extent, int):
        return extent
    for target, by in replacements.items():
        extent = replace_atom(extent, target, by)
    return extent


OPERATIONS = {"floordiv": dims.floordiv, "mod": dims.mod, "min": minimum, "max": maximum}
