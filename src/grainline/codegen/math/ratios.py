"""tanh and erf for f32: odd rational functions x * P(x*x) / Q(x*x) on the range where the result is not 1 yet.

A division of 16 lanes takes as long as twenty other operations. Where one of 32 numbers is looked up in registers, erf
is a polynomial in |x| instead, with coefficients of its own around each multiple of ERF_STEP. The two forms of erf
differ in bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from grainline.codegen.emit import FunctionText, Reg
from grainline.codegen.math.coefficients import (
    ERF_ABOVE,
    ERF_BELOW,
    ERF_PIECES,
    ERF_STEP,
    ERF_TOP,
    TANH_ABOVE,
    TANH_BELOW,
)
from grainline.codegen.math.parts import at_most, bits_of, horner, like, lookup, nearest

TANH_LIMIT = 9.02  # tanh rounds to 1
ERF_LIMIT = 3.925  # erf rounds to 1


def tanh(f: FunctionText, x: Reg) -> Reg:
    return _saturating(f, x, TANH_LIMIT, TANH_ABOVE, TANH_BELOW)


def erf(f: FunctionText, x: Reg) -> Reg:
    if not f.module.math.has_avx512:
        return _saturating(f, x, ERF_LIMIT, ERF_ABOVE, ERF_BELOW)
    size = at_most(f, f.intrinsic("fabs", x), ERF_TOP)
    _, shifted = nearest(f, size, 1 / ERF_STEP)
    piece = bits_of(f, shifted)
    value = lookup(f, ERF_PIECES[-1], piece)
    for coefficients in reversed(ERF_PIECES[:-1]):
        value = f.fma(value, size, lookup(f, coefficients, piece))
    return f.intrinsic("copysign", value, x)


def _saturating(f: FunctionText, x: Reg, limit: float, above: Sequence[float], below: Sequence[float]) -> Reg:
    """The rational function inside |x| < limit, copysign(1, x) outside; NaN and signed zero pass through."""
    square = f.binary("fmul", x, x)
    top = f.binary("fmul", x, horner(f, square, above))
    ratio = f.binary("fdiv", top, horner(f, square, below))
    far = f.compare("fcmp ogt", f.intrinsic("fabs", x), like(x, limit))
    return f.select(far, f.intrinsic("copysign", like(x, 1.0), x), ratio)
