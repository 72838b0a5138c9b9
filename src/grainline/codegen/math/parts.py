"""Pieces that several functions share: constants, polynomials, powers of two. All registers are float or double."""

from __future__ import annotations

from collections.abc import Sequence

from grainline.base.dtypes import F32, F64, I32, I64
from grainline.codegen.emit import FunctionText, Reg, constant, vector_type

SCALEF_LANES = 16  # of one 512-bit register
CURRENT_ROUNDING = 4  # the rounding of the environment, to nearest


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


def truncated(f: FunctionText, x: Reg) -> Reg:
    """Float to i32; a NaN or a value out of range gives some integer, never poison."""
    frozen = f.convert("fptosi", x, I32)
    return f.reg(f"freeze {frozen.typed}", I32, x.lanes)


def times_power_of_two(f: FunctionText, x: Reg, n: Reg) -> Reg:
    """x * 2**n for whole floats n in [-252, 254], rounded once; both forms give the same bits."""
    if f.module.math.has_scalef and x.lanes % SCALEF_LANES == 0 and x.lanes:
        return _scalef(f, x, n)
    whole = truncated(f, n)
    half = f.binary("ashr", whole, constant(1, I32, x.lanes))
    rest = f.binary("sub", whole, half)
    return f.binary("fmul", f.binary("fmul", x, power_of_two(f, half)), power_of_two(f, rest))


def _scalef(f: FunctionText, x: Reg, n: Reg) -> Reg:
    """The instruction, register by register: the intrinsic knows no wider vectors."""
    kind = vector_type("float", SCALEF_LANES)
    f.module.declare(f"{kind} @llvm.x86.avx512.mask.scalef.ps.512({kind}, {kind}, {kind}, i16, i32 immarg)")
    parts = []
    for first in range(0, x.lanes, SCALEF_LANES):
        part, power = (f.shuffle(a, range(first, first + SCALEF_LANES)) for a in (x, n))
        operands = f"{part.typed}, {power.typed}, {kind} zeroinitializer, i16 -1, i32 {CURRENT_ROUNDING}"
        call = f"call {kind} @llvm.x86.avx512.mask.scalef.ps.512({operands})"
        parts.append(f.reg(call, F32, SCALEF_LANES))
    return f.concatenated(parts)


def bits_of(f: FunctionText, x: Reg) -> Reg:
    return f.bitcast(x, I64 if x.dtype == F64 else I32)


def negate(f: FunctionText, x: Reg) -> Reg:
    return f.reg(f"fneg {x.typed}", x.dtype, x.lanes)
