"""The accurate tier of sigmoid, tanh, erf and 1/sqrt for f32: computed in double precision, rounded once.

The errors of the double forms are below 1e-9 of the value, so the results are wrong by hardly more than half a unit.
(exp and log are within one unit in the default tier already.)
"""

from __future__ import annotations

from collections.abc import Callable

from grainline.base.dtypes import F32, F64
from grainline.codegen.emit import FunctionText, Reg
from grainline.codegen.math.coefficients import ERF_DOUBLE_ABOVE, ERF_DOUBLE_BELOW
from grainline.codegen.math.exponential import LOG2_E
from grainline.codegen.math.parts import horner, like
from grainline.codegen.math.powers import exp2
from grainline.codegen.math.ratios import ERF_LIMIT

TANH_SMALL = 2.0**-8  # below, 1 - exp(-2 x) would cancel; three terms of the series are exact enough


def _in_double(function: Callable[[FunctionText, Reg], Reg]) -> Callable[[FunctionText, Reg], Reg]:
    def single(f: FunctionText, x: Reg) -> Reg:
        return f.convert("fptrunc", function(f, f.convert("fpext", x, F64)), F32)

    return single


def _sigmoid(f: FunctionText, x: Reg) -> Reg:
    """1 / (1 + exp(-x)); the power is far inside the range of double wherever the result is not 0."""
    e = exp2(f, f.binary("fmul", x, like(x, -LOG2_E)))
    return f.binary("fdiv", like(x, 1.0), f.binary("fadd", like(x, 1.0), e))


def _tanh(f: FunctionText, x: Reg) -> Reg:
    """(1 - e) / (1 + e) with e = exp(-2 |x|), and a series for small x."""
    size = f.intrinsic("fabs", x)
    e = exp2(f, f.binary("fmul", size, like(x, -2.0 * LOG2_E)))
    one = like(x, 1.0)
    far = f.binary("fdiv", f.binary("fsub", one, e), f.binary("fadd", one, e))
    near = f.binary("fmul", x, horner(f, f.binary("fmul", x, x), (1.0, -1.0 / 3.0, 2.0 / 15.0)))
    is_near = f.compare("fcmp olt", size, like(x, TANH_SMALL))
    return f.select(is_near, near, f.intrinsic("copysign", far, x))


def _erf(f: FunctionText, x: Reg) -> Reg:
    square = f.binary("fmul", x, x)
    top = f.binary("fmul", x, horner(f, square, ERF_DOUBLE_ABOVE))
    ratio = f.binary("fdiv", top, horner(f, square, ERF_DOUBLE_BELOW))
    far = f.compare("fcmp ogt", f.intrinsic("fabs", x), like(x, ERF_LIMIT))
    return f.select(far, f.intrinsic("copysign", like(x, 1.0), x), ratio)


def _rsqrt(f: FunctionText, x: Reg) -> Reg:
    return f.binary("fdiv", like(x, 1.0), f.intrinsic("sqrt", x))


sigmoid, tanh, erf, rsqrt = (_in_double(function) for function in (_sigmoid, _tanh, _erf, _rsqrt))
