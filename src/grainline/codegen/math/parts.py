"""Pieces that several functions share: constants, polynomials, powers of two. All registers are float or double."""

from __future__ import annotations

from collections.abc import Sequence

from grainline.base.dtypes import F32, F64, I32, I64
from grainline.codegen.emit import FunctionText, Reg, constant, literal, vector_type

REGISTER_LANES = 16  # of one 512-bit register
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


def nearest(f: FunctionText, x: Reg, factor: float) -> tuple[Reg, Reg]:
    """n = round(x * factor) as a float, |n| < 2**22, and a float whose lowest bits are n's. A NaN is in both."""
    rounder = like(x, 1.5 * 2.0**23)  # a float of this size has no fraction bits: the addition rounds
    shifted = f.fma(x, like(x, factor), rounder)
    return f.binary("fsub", shifted, rounder), shifted


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
    if f.module.math.has_avx512 and x.lanes % REGISTER_LANES == 0 and x.lanes:
        return _scalef(f, x, n)
    whole = truncated(f, n)
    half = f.binary("ashr", whole, constant(1, I32, x.lanes))
    rest = f.binary("sub", whole, half)
    return f.binary("fmul", f.binary("fmul", x, power_of_two(f, half)), power_of_two(f, rest))


def _scalef(f: FunctionText, x: Reg, n: Reg) -> Reg:
    """The instruction, register by register: the intrinsic knows no wider vectors."""
    kind = vector_type("float", REGISTER_LANES)
    f.module.declare(f"{kind} @llvm.x86.avx512.mask.scalef.ps.512({kind}, {kind}, {kind}, i16, i32 immarg)")
    parts = []
    for first in range(0, x.lanes, REGISTER_LANES):
        part, power = (f.part(a, first, REGISTER_LANES) for a in (x, n))
        operands = f"{part.typed}, {power.typed}, {kind} zeroinitializer, i16 -1, i32 {CURRENT_ROUNDING}"
        call = f"call {kind} @llvm.x86.avx512.mask.scalef.ps.512({operands})"
        parts.append(f.reg(call, F32, REGISTER_LANES))
    return f.concatenated(parts)


def lookup(f: FunctionText, table: Sequence[float], index: Reg) -> Reg:
    """table[index mod 32] for f32 tables of 32 entries: one instruction of AVX-512 for 16 lanes, which it must have."""
    kind, lanes = vector_type("float", REGISTER_LANES), index.lanes
    numbers = vector_type("i32", REGISTER_LANES)
    f.module.declare(f"{kind} @llvm.x86.avx512.vpermi2var.ps.512({kind}, {numbers}, {kind})")
    low, high = (
        f"{kind} <{', '.join(f'float {literal(entry, F32)}' for entry in half)}>"
        for half in (table[:REGISTER_LANES], table[REGISTER_LANES:])
    )
    wide = index if lanes else f.reg(f"insertelement <1 x i32> poison, {index.typed}, i64 0", I32, 1)
    parts = []
    for first in range(0, wide.lanes, REGISTER_LANES):
        part = _register_of(f, wide, first)
        call = f"call {kind} @llvm.x86.avx512.vpermi2var.ps.512({low}, {part.typed}, {high})"
        parts.append(f.reg(call, F32, REGISTER_LANES))
    found = f.concatenated(parts)
    if not lanes:
        return f.extract(found, 0)
    return found if found.lanes == lanes else f.shuffle(found, range(lanes))


def _register_of(f: FunctionText, a: Reg, first: int) -> Reg:
    """One register of `a` from lane `first` on; lanes past its end repeat the last."""
    if a.lanes % REGISTER_LANES == 0:
        return f.part(a, first, REGISTER_LANES)
    return f.shuffle(a, [min(first + k, a.lanes - 1) for k in range(REGISTER_LANES)])


def bits_of(f: FunctionText, x: Reg) -> Reg:
    return f.bitcast(x, I64 if x.dtype == F64 else I32)


def negate(f: FunctionText, x: Reg) -> Reg:
    return f.reg(f"fneg {x.typed}", x.dtype, x.lanes)
