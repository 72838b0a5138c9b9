"""Elementwise operations on registers of any lane count: IEEE floats, wrapping integers, booleans as i1.

Operands arrive with equal lane counts. `Faults` says how an integer division by zero leaves the kernel and which lanes
count; lanes outside never trap.
"""

from __future__ import annotations

from dataclasses import dataclass

from grainline.base.dtypes import BF16, BOOL, F16, F32, F64, I32, I64, DType
from grainline.codegen.emit import FunctionText, Reg, constant
from grainline.codegen.math import double, emit_math, names

FAULT_INDEX = 1
FAULT_DIVISION = 2
FLOAT_OPCODES = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "fmod": "frem"}
INTEGER_OPCODES = {"add": "add", "sub": "sub", "mul": "mul", "bitand": "and", "bitor": "or", "bitxor": "xor"}
LOGIC_OPCODES = {
    "and": "and",
    "or": "or",
    "xor": "xor",
    "bitand": "and",
    "bitor": "or",
    "bitxor": "xor",
    "add": "or",
    "mul": "and",
    "max": "or",
    "min": "and",
}
FLOAT_COMPARE = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
SIGNED_COMPARE = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}
UNSIGNED_COMPARE = {"eq": "eq", "ne": "ne", "lt": "ult", "le": "ule", "gt": "ugt", "ge": "uge"}
MATH = frozenset((*names(), "div", "mod", "fmod", "sqrt", "rsqrt", "reciprocal"))
ROUNDINGS = {"floor": "floor", "ceil": "ceil", "round": "roundeven", "sqrt": "sqrt", "abs": "fabs"}


@dataclass(frozen=True, slots=True)
class Faults:
    """`mask` selects the lanes that may fault (None: all)."""

    mask: Reg | None = None


def exp_of_nonpositive(f: FunctionText, x: Reg) -> Reg:
    """exp of a value that is at most 0, or NaN."""
    f.module.math_calls["exp"] += 1
    return rounded(f, emit_math(f, "exp", x, is_nonpositive=True))


def apply(f: FunctionText, op: str, args: tuple[Reg, ...], faults: Faults = Faults()) -> Reg:
    """The elementwise operation `op` (not cast) of registers of one lane count."""
    if op == "select":
        return f.select(*args)
    if op in MATH:
        f.module.math_calls[op] += 1
    if op in FLOAT_COMPARE:
        return _compare(f, op, *args)
    dtype = args[0].dtype
    if op == "isnan":
        return f.compare("fcmp uno", args[0], args[0])
    if op == "isinf":
        infinity = constant(float("inf"), dtype, args[0].lanes)
        return f.compare("fcmp oeq", f.intrinsic("fabs", args[0]), infinity)
    if op == "not":
        return f.binary("xor", args[0], constant(True if dtype == BOOL else -1, dtype, args[0].lanes))
    if dtype == BOOL:
        return f.binary(LOGIC_OPCODES[op], *args)
    if dtype.is_float:
        return rounded(f, _float(f, op, args))
    return _integer(f, op, args, faults)


def rounded(f: FunctionText, a: Reg) -> Reg:
    """A bf16 register rounded to bf16 (nearest, ties to even); other types as they are."""
    if a.dtype != BF16:
        return a
    lanes = a.lanes
    bits = f.bitcast(Reg(a.text, F32, lanes), I32)
    odd = f.binary("and", f.binary("lshr", bits, constant(16, I32, lanes)), constant(1, I32, lanes))
    sum_ = f.binary("add", bits, f.binary("add", odd, constant(0x7FFF, I32, lanes)))
    kept = f.binary("and", sum_, constant(-65536, I32, lanes))
    quiet = f.binary("and", f.binary("or", bits, constant(0x400000, I32, lanes)), constant(-65536, I32, lanes))
    chosen = f.select(f.compare("fcmp uno", a, a), quiet, kept)
    return Reg(f.bitcast(chosen, F32).text, BF16, lanes)


def _compare(f: FunctionText, op: str, a: Reg, b: Reg) -> Reg:
    if a.dtype.is_float:
        return f.compare(f"fcmp {FLOAT_COMPARE[op]}", a, b)
    table = SIGNED_COMPARE if a.dtype.kind == "i" else UNSIGNED_COMPARE
    return f.compare(f"icmp {table[op]}", a, b)


def _float(f: FunctionText, op: str, args: tuple[Reg, ...]) -> Reg:
    a = args[0]
    one, zero = constant(1.0, a.dtype, a.lanes), constant(0.0, a.dtype, a.lanes)
    if op in FLOAT_OPCODES:
        return f.binary(FLOAT_OPCODES[op], *args)
    if op in ("min", "max"):
        return f.intrinsic(f"{op}imum", *args)
    if op in names():
        return emit_math(f, op, *args)
    if op in ROUNDINGS:
        return f.intrinsic(ROUNDINGS[op], a)
    if op == "neg":
        return f.reg(f"fneg {a.typed}", a.dtype, a.lanes)
    if op == "rsqrt" and f.module.math.is_accurate and a.dtype == F32:
        return double.rsqrt(f, a)
    if op == "rsqrt":
        return f.binary("fdiv", one, rounded(f, f.intrinsic("sqrt", a)))
    if op == "reciprocal":
        return f.binary("fdiv", one, a)
    if op == "relu":
        return f.select(f.compare("fcmp olt", a, zero), zero, a)
    if op == "sign":
        unit = f.intrinsic("copysign", one, a)
        flat = f.select(f.compare("fcmp oeq", a, zero), zero, unit)
        return f.select(f.compare("fcmp uno", a, a), a, flat)
    if op == "mod":
        return _float_mod(f, *args)
    raise TypeError(f"{op} is not defined for {a.dtype}")


def _float_mod(f: FunctionText, a: Reg, b: Reg) -> Reg:
    """The remainder with the sign of the divisor (Python, NumPy)."""
    zero = constant(0.0, a.dtype, a.lanes)
    rest = f.binary("frem", a, b)
    different = f.binary("xor", f.compare("fcmp olt", rest, zero), f.compare("fcmp olt", b, zero))
    moved = f.select(different, f.binary("fadd", rest, b), rest)
    return f.select(f.compare("fcmp oeq", rest, zero), f.intrinsic("copysign", zero, b), moved)


def _integer(f: FunctionText, op: str, args: tuple[Reg, ...], faults: Faults) -> Reg:
    a = args[0]
    signed = a.dtype.kind == "i"
    zero, one = constant(0, a.dtype, a.lanes), constant(1, a.dtype, a.lanes)
    if op in INTEGER_OPCODES:
        return f.binary(INTEGER_OPCODES[op], *args)
    if op in ("min", "max"):
        return f.intrinsic(("s" if signed else "u") + op, *args)
    if op in ("div", "mod", "fmod"):
        return _divide(f, op, args[0], args[1], faults)
    if op == "neg":
        return f.binary("sub", zero, a)
    if op == "relu":
        return f.intrinsic("smax", a, zero) if signed else a
    if op == "abs":
        return f.select(f.compare("icmp slt", a, zero), f.binary("sub", zero, a), a) if signed else a
    if op == "sign":
        positive = f.select(f.compare("icmp ne", a, zero), one, zero)
        minus = constant(-1, a.dtype, a.lanes)
        return f.select(f.compare("icmp slt", a, zero), minus, positive) if signed else positive
    if op in ("floor", "ceil", "round"):
        return a
    if op in ("shl", "shr"):
        return _shift(f, op, *args)
    if op == "pow":
        return _integer_power(f, *args)
    raise TypeError(f"{op} is not defined for {a.dtype}")


def _divide(f: FunctionText, op: str, a: Reg, b: Reg, faults: Faults) -> Reg:
    """div truncates, mod has the divisor's sign, fmod the dividend's; b == 0 faults, MIN / -1 wraps."""
    zero, one = constant(0, a.dtype, a.lanes), constant(1, a.dtype, a.lanes)
    if b.text.startswith("%") or b.text == zero.text:
        missing = f.compare("icmp eq", b, zero)
        counted = missing if faults.mask is None or not missing.lanes else f.binary("and", missing, faults.mask)
        f.fail_if(f.any(counted), FAULT_DIVISION)
        b = f.select(missing, one, b)
    if a.dtype.kind == "u":
        return f.binary("udiv" if op == "div" else "urem", a, b)
    minus = f.compare("icmp eq", b, constant(-1, a.dtype, a.lanes))
    safe = f.select(minus, one, b)
    if op == "div":
        return f.select(minus, f.binary("sub", zero, a), f.binary("sdiv", a, safe))
    rest = f.binary("srem", a, safe)
    if op == "fmod":
        return rest
    different = f.compare("icmp slt", f.binary("xor", rest, b), zero)
    wrong = f.binary("and", different, f.compare("icmp ne", rest, zero))
    return f.select(wrong, f.binary("add", rest, b), rest)


def _shift(f: FunctionText, op: str, a: Reg, b: Reg) -> Reg:
    """Shifts by the width or more give 0 (or the sign for shr of a signed type)."""
    bits = a.dtype.size_bytes * 8
    last = constant(bits - 1, a.dtype, a.lanes)
    small = f.compare("icmp ule", b, last)
    amount = f.select(small, b, last)
    if op == "shr" and a.dtype.kind == "i":
        return f.binary("ashr", a, amount)
    moved = f.binary("shl" if op == "shl" else "lshr", a, amount)
    return f.select(small, moved, constant(0, a.dtype, a.lanes))


def _integer_power(f: FunctionText, base: Reg, exponent: Reg) -> Reg:
    """Square and multiply, wrapping. A negative exponent gives 1/base truncated: 0, or +-1 for a base of +-1."""
    dtype, lanes = base.dtype, base.lanes
    one, zero = constant(1, dtype, lanes), constant(0, dtype, lanes)
    negative = f.compare("icmp slt", exponent, zero) if dtype.kind == "i" else None

    def step(_index: Reg, state: list[Reg]) -> list[Reg]:
        total, power, rest = state
        odd = f.compare("icmp ne", f.binary("and", rest, one), zero)
        total = f.select(odd, f.binary("mul", total, power), total)
        return [total, f.binary("mul", power, power), f.binary("lshr", rest, one)]

    bits = dtype.size_bytes * 8
    result = f.loop(Reg("0", I64), Reg(str(bits), I64), 1, [one, base, exponent], step)[0]
    if negative is None:
        return result
    units = f.binary("or", f.compare("icmp eq", base, one), f.compare("icmp eq", base, constant(-1, dtype, lanes)))
    vanishes = f.binary("and", negative, f.binary("xor", units, constant(True, BOOL, lanes)))
    return f.select(vanishes, zero, result)


def cast(f: FunctionText, a: Reg, to: DType) -> Reg:
    """Conversion: float to integer saturates and sends NaN to 0; to bool is `!= 0`; integers wrap."""
    source = a.dtype
    if source == to:
        return a
    if to == BOOL:
        if source.is_float:
            return f.compare("fcmp une", a, constant(0.0, source, a.lanes))
        return f.compare("icmp ne", a, constant(0, source, a.lanes))
    if source == BOOL:
        return rounded(f, f.convert("uitofp" if to.is_float else "zext", a, to))
    if source.is_float and to.is_float:
        return _between_floats(f, a, to)
    if source.is_float:
        return _saturating(f, a, to)
    if to.is_float:
        return rounded(f, f.convert("sitofp" if source.kind == "i" else "uitofp", a, to))
    if source.size_bytes == to.size_bytes:
        return Reg(a.text, to, a.lanes)
    if source.size_bytes > to.size_bytes:
        return f.convert("trunc", a, to)
    return f.convert("sext" if source.kind == "i" else "zext", a, to)


def _between_floats(f: FunctionText, a: Reg, to: DType) -> Reg:
    if a.dtype == F64 and to in (F16, BF16):
        a = _round_to_odd(f, a)
    have = F32.size_bytes if a.dtype == BF16 else a.dtype.size_bytes
    want = F32.size_bytes if to == BF16 else to.size_bytes
    if have == want:
        return rounded(f, Reg(a.text, to, a.lanes))
    return rounded(f, f.convert("fpext" if have < want else "fptrunc", a, to))


def _round_to_odd(f: FunctionText, a: Reg) -> Reg:
    """f64 -> f32 with an inexact result made odd, so that a second rounding to 11 bits or fewer is exact."""
    near = f.convert("fptrunc", a, F32)
    back = f.convert("fpext", near, F64)
    bits, one = f.bitcast(near, I32), constant(1, I32, a.lanes)
    past = f.compare("fcmp ogt", f.intrinsic("fabs", back), f.intrinsic("fabs", a))
    toward_zero = f.select(past, f.binary("sub", bits, one), bits)
    odd = f.bitcast(f.binary("or", toward_zero, one), F32)
    return f.select(f.compare("fcmp one", back, a), odd, near)


def _saturating(f: FunctionText, a: Reg, to: DType) -> Reg:
    """Truncation toward zero of the lanes inside the range; the ends of the type outside, 0 for NaN."""
    bits = to.size_bytes * 8 - (1 if to.kind == "i" else 0)
    least = -(1 << bits) if to.kind == "i" else 0
    wide = a if a.dtype != F16 else f.convert("fpext", a, F32)
    wide = Reg(wide.text, F32, a.lanes) if a.dtype == BF16 else wide
    low, high = constant(float(least), wide.dtype, a.lanes), constant(float(1 << bits), wide.dtype, a.lanes)
    above, below = f.compare("fcmp oge", wide, high), f.compare("fcmp olt", wide, low)
    inside = f.binary("and", f.compare("fcmp ord", wide, wide), f.binary("xor", above, constant(True, BOOL, a.lanes)))
    safe = f.select(inside, f.select(below, low, wide), constant(0.0, wide.dtype, a.lanes))
    whole = f.convert("fptosi" if to.kind == "i" else "fptoui", safe, to if to.size_bytes >= 4 else I32)
    narrow = whole if to.size_bytes >= 4 else f.convert("trunc", whole, to)
    return f.select(above, constant((1 << bits) - 1, to, a.lanes), narrow)
