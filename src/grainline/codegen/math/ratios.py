"""tanh and erf for f32: odd rational functions x * P(x*x) / Q(x*x) on the range where the result is not 1 yet."""

from __future__ import annotations

from collections.abc import Sequence

from grainline.codegen.emit import FunctionText, Reg
from grainline.codegen.math.coefficients import ERF_ABOVE, ERF_BELOW, TANH_ABOVE, TANH_BELOW
from grainline.codegen.math.parts import horner, like

TANH_LIMIT = 9.02  # tanh rounds to 1
ERF_LIMIT = 3.925  # erf rounds to 1


def tanh(f: FunctionText, x: Reg) -> Reg:
    return _saturating(f, x, TANH_LIMIT, TANH_ABOVE, TANH_BELOW)


def erf(f: FunctionText, x: Reg) -> Reg:
    return _saturating(f, x, ERF_LIMIT, ERF_ABOVE, ERF_BELOW)


def _saturating(f: FunctionText, x: Reg, limit: float, above: Sequence[float], below: Sequence[float]) -> Reg:
    """The rational function inside |x| < limit, copysign(1, x) outside; NaN and signed zero pass through."""
    square = f.binary("fmul", x, x)
    top = f.binary("fmul", x, horner(f, square, above))
    ratio = f.binary("fdiv", top, horner(f, square, below))
    far = f.compare("fcmp ogt", f.intrinsic("fabs", x), like(x, limit))
    return f.select(far, f.intrinsic("copysign", like(x, 1.0), x), ratio)
