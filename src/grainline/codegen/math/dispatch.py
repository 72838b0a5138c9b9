"""Chooses the realisation of a mathematical function by element type."""

from __future__ import annotations

from collections.abc import Callable

from grainline.base.dtypes import BF16, F16, F32, F64, DType
from grainline.codegen.emit import FunctionText, Reg, constant
from grainline.codegen.math import double, exponential, powers, ratios, trigonometry

SINGLE: dict[str, Callable[..., Reg]] = {
    "exp": exponential.exp,
    "log": exponential.log,
    "log1p": exponential.log1p,
    "sigmoid": exponential.sigmoid,
    "softplus": exponential.softplus,
    "tanh": ratios.tanh,
    "erf": ratios.erf,
    "sin": trigonometry.sin,
    "cos": trigonometry.cos,
    "pow": powers.pow,
}


#: what is realised otherwise where the argument is known to be at most 0, or NaN; with the same bits
NONPOSITIVE = {"exp": exponential.exp_of_nonpositive}
ACCURATE = SINGLE | {"sigmoid": double.sigmoid, "tanh": double.tanh, "erf": double.erf}


def names() -> tuple[str, ...]:
    return tuple(SINGLE)


def emit_math(f: FunctionText, name: str, *args: Reg, is_nonpositive: bool = False) -> Reg:
    """The function `name` of the arguments, in their element type; f16 goes through f32. The module says which tier."""
    dtype = args[0].dtype
    single = (ACCURATE if f.module.math.is_accurate else SINGLE)[name]
    single = NONPOSITIVE.get(name, single) if is_nonpositive else single
    if dtype == F64:
        return _double(f, name, args)
    if dtype == F16:
        wide = [f.convert("fpext", a, F32) for a in args]
        return f.convert("fptrunc", single(f, *wide), F16)
    if dtype in (F32, BF16):
        result = single(f, *(_as(a, F32) for a in args))
        return _as(result, dtype)
    raise TypeError(f"{name} is not defined for {dtype}")


def _as(a: Reg, dtype: DType) -> Reg:
    """Renames the element type of a float register (bf16 lives in float registers)."""
    return Reg(a.text, dtype, a.lanes)


def _double(f: FunctionText, name: str, args: tuple[Reg, ...]) -> Reg:
    x, one = args[0], constant(1.0, F64, args[0].lanes)
    if name == "sigmoid":
        bottom = f.binary("fadd", one, _library(f, "exp", (f.reg(f"fneg {x.typed}", F64, x.lanes),)))
        return f.binary("fdiv", one, bottom)
    if name == "softplus":
        small = f.reg(f"fneg {f.intrinsic('fabs', x).typed}", F64, x.lanes)
        zero = constant(0.0, F64, x.lanes)
        top = f.select(f.compare("fcmp olt", x, zero), zero, x)
        return f.binary("fadd", top, _library(f, "log1p", (_library(f, "exp", (small,)),)))
    return _library(f, name, args)


def _library(f: FunctionText, name: str, args: tuple[Reg, ...]) -> Reg:
    """Calls the C library's double function for every lane."""
    f.module.declare(f"double @{name}({', '.join('double' for _ in args)})")
    lanes = args[0].lanes
    if not lanes:
        return f.reg(f"call double @{name}({', '.join(a.typed for a in args)})", F64)
    kind, result = args[0].type, "poison"
    for lane in range(lanes):
        parts = ", ".join(f.extract(a, lane).typed for a in args)
        value = f.reg(f"call double @{name}({parts})", F64)
        result = f.raw(f"insertelement {kind} {result}, {value.typed}, i64 {lane}")
    return Reg(result, F64, lanes)
