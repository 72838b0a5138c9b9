"""sin and cos for f32.

The argument is reduced in double precision: k = round(x * 2/pi), r = x - k * pi/2 in two pieces. That is exact enough
up to |x| = 2**20; beyond it the result is computed by the C library, lane by lane, in a branch that is taken only
when a lane needs it.
"""

from __future__ import annotations

from grainline.base.dtypes import F32, F64, I32
from grainline.codegen.emit import FunctionText, Reg, constant
from grainline.codegen.math.coefficients import COS_TAIL, SIN_TAIL
from grainline.codegen.math.parts import horner, like, truncated

TWO_OVER_PI = 0.6366197723675814
HALF_PI_HIGH = 1.5707963267341256  # 33 bits
HALF_PI_LOW = 6.077100506506192e-11
FAR = 2.0**20


def sin(f: FunctionText, x: Reg) -> Reg:
    return _with_far_lanes(f, x, _circular(f, x, 0), "sin")


def cos(f: FunctionText, x: Reg) -> Reg:
    return _with_far_lanes(f, x, _circular(f, x, 1), "cos")


def _circular(f: FunctionText, x: Reg, quarter: int) -> Reg:
    """sin(x + quarter * pi/2)."""
    wide = f.convert("fpext", x, F64)
    turns = f.intrinsic("rint", f.binary("fmul", wide, like(wide, TWO_OVER_PI)))
    rest = f.fma(turns, like(wide, -HALF_PI_HIGH), wide)
    rest = f.fma(turns, like(wide, -HALF_PI_LOW), rest)
    r = f.convert("fptrunc", rest, F32)
    k = f.binary("add", truncated(f, turns), constant(quarter, I32, x.lanes))
    square = f.binary("fmul", r, r)
    sine = f.fma(f.binary("fmul", r, square), horner(f, square, SIN_TAIL), r)
    cosine = f.fma(f.binary("fmul", square, square), horner(f, square, COS_TAIL), _one_less_half(f, square))
    odd = f.compare("icmp ne", f.binary("and", k, constant(1, I32, x.lanes)), constant(0, I32, x.lanes))
    value = f.select(odd, cosine, sine)
    sign = f.binary("shl", f.binary("and", k, constant(2, I32, x.lanes)), constant(30, I32, x.lanes))
    flipped = f.bitcast(f.binary("xor", f.bitcast(value, I32), sign), F32)
    return f.select(f.compare("fcmp oeq", x, like(x, 0.0)), x, flipped) if quarter == 0 else flipped


def _one_less_half(f: FunctionText, square: Reg) -> Reg:
    return f.fma(square, like(square, -0.5), like(square, 1.0))


def _with_far_lanes(f: FunctionText, x: Reg, near: Reg, name: str) -> Reg:
    far = f.compare("fcmp oge", f.intrinsic("fabs", x), like(x, FAR))
    return f.when(f.any(far), [near], lambda: [_library(f, x, near, far, name)])[0]


def _library(f: FunctionText, x: Reg, near: Reg, far: Reg, name: str) -> Reg:
    f.module.declare(f"float @{name}f(float)")
    if not x.lanes:
        return f.reg(f"call float @{name}f({x.typed})", F32)
    result = near.text
    for lane in range(x.lanes):
        value = f.reg(f"call float @{name}f({f.extract(x, lane).typed})", F32)
        result = f.raw(f"insertelement {x.type} {result}, {value.typed}, i64 {lane}")
    return f.select(far, Reg(result, F32, x.lanes), near)
