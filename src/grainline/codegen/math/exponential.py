"""exp, log and what follows from them, for f32.

exp: n = round(x / ln 2), r = x - n ln 2 in two pieces (Cody and Waite), exp(r) = 1 + r + r*r*q(r), times 2**n in two
steps, so denormal results are rounded once. log: x = m * 2**e with m in [sqrt(1/2), sqrt(2)), f = m - 1,
log = f - f*f/2 + f**3 p(f) + e ln 2, denormals scaled by 2**23 first.
"""

from __future__ import annotations

from grainline.base.dtypes import F32, I32
from grainline.codegen.emit import FunctionText, Reg, constant
from grainline.codegen.math.coefficients import EXP_TAIL, LOG_TAIL
from grainline.codegen.math.parts import (
    at_least,
    at_most,
    bits_of,
    horner,
    like,
    nearest,
    negate,
    times_power_of_two,
)

LOG2_E = 1.4426950408889634
LN2_HIGH = 0.693359375  # 12 bits: n * LN2_HIGH is exact
LN2_LOW = -2.12194440054690583e-4
EXP_HIGH = 89.0  # exp is infinite
EXP_LOW = -104.0  # exp is zero


def exp(f: FunctionText, x: Reg) -> Reg:
    return exp_of_nonpositive(f, at_most(f, x, EXP_HIGH))


def exp_of_nonpositive(f: FunctionText, x: Reg) -> Reg:
    """exp of values up to EXP_HIGH and of NaN: those that cannot overflow need one bound less."""
    return times_power_of_two(f, *_reduced_exp(f, at_least(f, x, EXP_LOW)))


def _reduced_exp(f: FunctionText, x: Reg) -> tuple[Reg, Reg]:
    """exp(r) and the whole float n with x = n ln 2 + r. A NaN is in both."""
    rounded, _ = nearest(f, x, LOG2_E)
    r = f.fma(rounded, like(x, -LN2_HIGH), x)
    r = f.fma(rounded, like(x, -LN2_LOW), r)
    tail = horner(f, r, EXP_TAIL)
    tail = f.fma(tail, r, like(x, 1.0))
    return f.fma(tail, r, like(x, 1.0)), rounded


def log(f: FunctionText, x: Reg) -> Reg:
    tiny = f.compare("fcmp olt", x, like(x, 2.0**-126))
    scaled = f.select(tiny, f.binary("fmul", x, like(x, 2.0**23)), x)
    offset = f.select(tiny, constant(-23, I32, x.lanes), constant(0, I32, x.lanes))
    value = _log_of_normal(f, scaled, offset)
    return _log_special(f, x, value)


def _log_of_normal(f: FunctionText, x: Reg, offset: Reg) -> Reg:
    bits = bits_of(f, x)
    shifted = f.binary("sub", bits, constant(0x3F3504F3, I32, x.lanes))  # sqrt(1/2)
    e = f.binary("ashr", shifted, constant(23, I32, x.lanes))
    mantissa = f.binary("sub", bits, f.binary("shl", e, constant(23, I32, x.lanes)))
    small = f.binary("fsub", f.bitcast(mantissa, F32), like(x, 1.0))
    exponent = f.convert("sitofp", f.binary("add", e, offset), F32)
    square = f.binary("fmul", small, small)
    cubic = f.binary("fmul", f.binary("fmul", small, square), horner(f, small, LOG_TAIL))
    low = f.fma(exponent, like(x, LN2_LOW), cubic)
    low = f.fma(square, like(x, -0.5), low)
    return f.fma(exponent, like(x, LN2_HIGH), f.binary("fadd", small, low))


def _log_special(f: FunctionText, x: Reg, value: Reg) -> Reg:
    """0 -> -inf, negative -> NaN, inf -> inf, NaN -> NaN."""
    infinity = like(x, float("inf"))
    usual = f.compare("fcmp olt", x, infinity)
    value = f.select(usual, value, x)
    value = f.select(f.compare("fcmp oeq", x, like(x, 0.0)), like(x, float("-inf")), value)
    return f.select(f.compare("fcmp olt", x, like(x, 0.0)), like(x, float("nan")), value)


def log1p(f: FunctionText, x: Reg) -> Reg:
    """log(u) + (x - (u - 1)) / u with u = fl(1 + x): the second term returns what the first rounding lost."""
    u = f.binary("fadd", like(x, 1.0), x)
    lost = f.binary("fsub", x, f.binary("fsub", u, like(x, 1.0)))
    finite = f.compare("fcmp olt", u, like(x, float("inf")))
    positive = f.compare("fcmp ogt", u, like(x, 0.0))
    usable = f.reg(f"and {finite.typed}, {positive.text}", finite.dtype, finite.lanes)
    correction = f.select(usable, f.binary("fdiv", lost, u), like(x, 0.0))
    total = f.binary("fadd", log(f, u), correction)
    return f.select(f.compare("fcmp oeq", x, like(x, 0.0)), x, total)


def sigmoid(f: FunctionText, x: Reg) -> Reg:
    """1 / (1 + e) or e / (1 + e) with e = exp(-|x|): no overflow, denormal results kept."""
    e = exp_of_nonpositive(f, negate(f, f.intrinsic("fabs", x)))
    top = f.select(f.compare("fcmp olt", x, like(x, 0.0)), e, like(x, 1.0))
    return f.binary("fdiv", top, f.binary("fadd", e, like(x, 1.0)))


def softplus(f: FunctionText, x: Reg) -> Reg:
    """max(x, 0) + log1p(exp(-|x|))."""
    e = exp_of_nonpositive(f, negate(f, f.intrinsic("fabs", x)))
    top = f.select(f.compare("fcmp olt", x, like(x, 0.0)), like(x, 0.0), x)
    return f.binary("fadd", top, log1p(f, e))
