"""pow for f32, in double precision inside: x**y = 2**(y * log2|x|), then the special cases of IEEE 754 pow."""

from __future__ import annotations

from grainline.base.dtypes import BOOL, F32, F64, I64
from grainline.codegen.emit import FunctionText, Reg, constant
from grainline.codegen.math.coefficients import EXP2_DOUBLE, LOG2_DOUBLE
from grainline.codegen.math.parts import at_least, at_most, horner, like, power_of_two

SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
EXPONENT_LIMIT = 1000.0  # far outside the range of float, inside the range of double


def pow(f: FunctionText, x: Reg, y: Reg) -> Reg:
    size = f.convert("fpext", f.intrinsic("fabs", x), F64)
    exponent = f.convert("fpext", y, F64)
    product = f.binary("fmul", exponent, _log2(f, size))
    value = f.convert("fptrunc", exp2(f, product), F32)
    return _special(f, x, y, value)


def _log2(f: FunctionText, x: Reg) -> Reg:
    """log2 of a double that is 0, inf, NaN or in the range of float (so never denormal)."""
    bits = f.bitcast(x, I64)
    shifted = f.binary("sub", bits, constant(SQRT_HALF_BITS, I64, x.lanes))
    e = f.binary("ashr", shifted, constant(52, I64, x.lanes))
    mantissa = f.bitcast(f.binary("sub", bits, f.binary("shl", e, constant(52, I64, x.lanes))), F64)
    one = like(x, 1.0)
    s = f.binary("fdiv", f.binary("fsub", mantissa, one), f.binary("fadd", mantissa, one))
    tail = horner(f, f.binary("fmul", s, s), LOG2_DOUBLE)
    value = f.fma(s, tail, f.convert("sitofp", e, F64))
    value = f.select(f.compare("fcmp oeq", x, like(x, 0.0)), like(x, float("-inf")), value)
    return f.select(f.compare("fcmp olt", x, like(x, float("inf"))), value, x)


def exp2(f: FunctionText, x: Reg) -> Reg:
    clamped = at_most(f, at_least(f, x, -EXPONENT_LIMIT), EXPONENT_LIMIT)
    n = f.intrinsic("rint", clamped)
    part = horner(f, f.binary("fsub", clamped, n), EXP2_DOUBLE)
    whole = f.convert("fptosi", n, I64)
    whole = f.reg(f"freeze {whole.typed}", I64, x.lanes)
    return f.binary("fmul", part, power_of_two(f, whole))


def _special(f: FunctionText, x: Reg, y: Reg, value: Reg) -> Reg:
    """Signs and NaN for negative x; pow(x, 0) = pow(1, y) = 1; pow(-1, inf) = 1."""
    whole = f.compare("fcmp oeq", f.intrinsic("trunc", y), y)
    half = f.binary("fmul", y, like(y, 0.5))
    even = f.compare("fcmp oeq", f.intrinsic("trunc", half), half)
    odd = _and(f, whole, f.reg(f"xor {even.typed}, {_true(even)}", BOOL, even.lanes))
    signed = f.select(odd, f.intrinsic("copysign", value, x), value)
    zero, one = like(x, 0.0), like(x, 1.0)
    finite = f.compare("fcmp ogt", x, like(x, float("-inf")))
    negative = _and(f, f.compare("fcmp olt", x, zero), finite)
    fractional = _and(f, negative, f.compare("fcmp one", f.intrinsic("trunc", y), y))
    result = f.select(fractional, like(x, float("nan")), signed)
    infinite = f.compare("fcmp oeq", f.intrinsic("fabs", y), like(x, float("inf")))
    unit = _and(f, f.compare("fcmp oeq", f.intrinsic("fabs", x), one), infinite)
    unit = f.reg(f"or {unit.typed}, {f.compare('fcmp oeq', x, one).text}", BOOL, x.lanes)
    unit = f.reg(f"or {unit.typed}, {f.compare('fcmp oeq', y, zero).text}", BOOL, x.lanes)
    return f.select(unit, one, result)


def _and(f: FunctionText, a: Reg, b: Reg) -> Reg:
    return f.reg(f"and {a.typed}, {b.text}", BOOL, a.lanes)


def _true(mask: Reg) -> str:
    return constant(True, BOOL, mask.lanes).text
