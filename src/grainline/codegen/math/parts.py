"""Pieces that several functions share: constants, polynomials, powers of two. All registers are float or double."""

from __future__ import annotations

from collections.abc import Sequence

from grainline.base.dtypes import F32, F64, I32, I64
from grainline.codegen.emit import FunctionText, Reg, constant


def like(x: Reg, value: float) -> Reg:
    """A constant of the shape and type of `x`."""
    return constant(value, x.dtype, x.lanes)


def horner(f: FunctionText, x: Reg, coefficients: Sequence[float]) -> Reg:
    """c0 + x*(c1 + x*(c2 + ...)), one FMA a step."""
    total = like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = f.fma(total, x, like(x, coefficient))
    return total


def at_most(f: FunctionText, x: Reg, limit: float) -> Reg:
    """min(x, limit) that passes NaN through."""
    bound = like(x, limit)
    return f.select(f.compare("fcmp olt", bound, x), bound, x)


def at_least(f: FunctionText, x: Reg, limit: float) -> Reg:
    """max(x, limit) that passes NaN through."""
    bound = like(x, limit)
    return f.select(f.compare("fcmp ogt", bound, x), bound, x)


def power_of_two(f: FunctionText, exponent: Reg) -> Reg:
    """2**e as float from i32 e in [-126, 127], or as double from i64 e in [-1022, 1023]."""
    wide = exponent.dtype == I64
    bias, mantissa, to = (1023, 52, F64) if wide else (127, 23, F32)
    biased = f.binary("add", exponent, constant(bias, exponent.dtype, exponent.lanes))
    bits = f.binary("shl", biased, constant(mantissa, exponent.dtype, exponent.lanes))
    return f.bitcast(bits, to)


def bits_of(f: FunctionText, x: Reg) -> Reg:
    return f.bitcast(x, I64 if x.dtype == F64 else I32)


def negate(f: FunctionText, x: Reg) -> Reg:
    return f.reg(f"fneg {x.typed}", x.dtype, x.lanes)
