"""Pointwise operators, one row each in `TABLE`; what has no primitive is written out as the ONNX text says."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from grainline.base.dtypes import ALL, BF16, BOOL, F32, F64, I64, U64, DType
from grainline.base.errors import ModelError
from grainline.graph.ir import Value
from grainline.importer.builder import Builder, Decline
from grainline.importer.call import Call, axis_of, only
from grainline.importer.proto import attribute

Rule = Callable[[Builder, Call], list[Value | None]]

#: f16 and bf16 arrive as f32, see `half`
FLOATS = (F32, F64)
INTEGERS = tuple(dtype for dtype in ALL if dtype.is_integer)
NUMBERS = (*FLOATS, *INTEGERS)
#: the opset whose activations take their numbers as attributes
ACTIVATION_OPSET = 6
GREATEST_BF16 = (2.0 - 2.0**-7) * 2.0**127


def unary(op: str, *allowed: DType) -> Rule:
    def rule(b: Builder, call: Call) -> list[Value | None]:
        only(call.input(0), *allowed)
        return [b.unary(op, call.input(0))]

    return rule


def predicate(op: str) -> Rule:
    def rule(b: Builder, call: Call) -> list[Value | None]:
        only(call.input(0), *FLOATS)
        return [b.unary(op, call.input(0), BOOL)]

    return rule


def binary(op: str, *allowed: DType) -> Rule:
    def rule(b: Builder, call: Call) -> list[Value | None]:
        left, right = call.input(0), call.input(1)
        only(left, *allowed)
        return [b.binary(op, left, _aligned(b, call, left, right))]

    return rule


def _aligned(b: Builder, call: Call, left: Value, right: Value) -> Value:
    """Before opset 7 the second operand broadcasts only when asked to, its first axis lying at `axis`."""
    if call.version >= 7:
        return right
    if not call.integer("broadcast", 0):
        return right
    rank = b.rank(left)
    if not call.has("axis"):
        return right
    axis = axis_of(call, call.integer("axis"), rank)
    shape = b.shape(right)
    return b.reshape(right, (*shape, *[1] * (rank - axis - len(shape))))


def variadic(op: str, *allowed: DType) -> Rule:
    def rule(b: Builder, call: Call) -> list[Value | None]:
        first, *rest = call.tensors()
        only(first, *allowed)
        for value in rest:
            first = b.binary(op, first, value)
        return [first]

    return rule


def mean(b: Builder, call: Call) -> list[Value | None]:
    total = variadic("add", *FLOATS)(b, call)[0]
    assert total is not None
    return [b.with_scalar("div", total, len(call.inputs))]


def is_inf(b: Builder, call: Call) -> list[Value | None]:
    x = call.input(0)
    only(x, *FLOATS)
    positive, negative = call.integer("detect_positive", 1), call.integer("detect_negative", 1)
    if positive and negative:
        return [b.unary("isinf", x, BOOL)]
    if not positive and not negative:
        return [b.expand(b.literal(False, BOOL), b.shape(x))]
    return [b.with_scalar("eq", x, math.inf if positive else -math.inf)]


def modulo(b: Builder, call: Call) -> list[Value | None]:
    left, right = call.input(0), call.input(1)
    fmod = call.integer("fmod", 0)
    only(left, *NUMBERS)
    if left.dtype.is_float and not fmod:
        raise Decline("Mod of floats with the divisor's sign is not compiled")
    return [b.binary("fmod" if fmod else "mod", left, right)]


def power(b: Builder, call: Call) -> list[Value | None]:
    """pow(x, 2) = x*x and pow(x, 3) = x*x*x; the exponent is rounded to x's type."""
    x, exponent = call.input(0), _aligned(b, call, call.input(0), call.input(1))
    only(x, *FLOATS)
    constant = b.static(exponent, 1)
    if constant is not None and constant.dtype.kind in "fiu" and constant.size == 1:
        number = float(constant.reshape(()))
        if number in (1.0, 2.0, 3.0):
            wide = b.expand(x, b.broadcast(b.shape(x), b.shape(exponent)))
            return [_repeated(b, wide, int(number))]
    only(exponent, *NUMBERS)
    if exponent.dtype in (I64, U64) and constant is None:
        raise Decline("an int64 exponent may not fit in a float")
    return [b.binary("pow", x, b.cast(exponent, x.dtype))]


def _repeated(b: Builder, x: Value, times: int) -> Value:
    result = x
    for _ in range(times - 1):
        result = b.binary("mul", result, x)
    return result


def clip(b: Builder, call: Call) -> list[Value | None]:
    """A missing bound is the lowest or greatest finite value; min above max gives max."""
    x = call.input(0)
    only(x, *NUMBERS)
    low, high = call.optional(1), call.optional(2)
    if x.dtype.is_float:
        greatest = _greatest(call.narrow or x.dtype)
        if call.version < 11:
            low = b.literal(call.real("min", -greatest), x.dtype)
            high = b.literal(call.real("max", greatest), x.dtype)
        low = low or b.literal(-greatest, x.dtype)
        high = high or b.literal(greatest, x.dtype)
    for op, bound in (("max", low), ("min", high)):
        if bound is None:
            continue
        if b.rank(bound) > 0:
            bound = b.reshape(bound, ())
        x = b.binary(op, x, bound)
    return [x]


def _greatest(dtype: DType) -> float:
    """The greatest finite number of a float type."""
    return GREATEST_BF16 if dtype == BF16 else float(np.finfo(dtype.numpy).max)


def composite(write: Callable[[Builder, Call, Value], Value]) -> Rule:
    """A float operator of one tensor written out in primitives."""

    def rule(b: Builder, call: Call) -> list[Value | None]:
        only(call.input(0), *FLOATS)
        return [write(b, call, call.input(0))]

    return rule


def _negative(b: Builder, x: Value) -> Value:
    return b.with_scalar("lt", x, 0.0)


def softsign(b: Builder, call: Call, x: Value) -> Value:
    return b.binary("div", x, b.with_scalar("add", b.unary("abs", x), 1.0))


def hard_sigmoid(b: Builder, call: Call, x: Value) -> Value:
    return _hard_sigmoid(b, x, call.real("alpha", 0.2), call.real("beta", 0.5))


def _hard_sigmoid(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    line = b.with_scalar("add", b.with_scalar("mul", x, alpha), beta)
    return b.with_scalar("max", b.with_scalar("min", line, 1.0), 0.0)


def hard_swish(b: Builder, call: Call, x: Value) -> Value:
    return b.binary("mul", x, _hard_sigmoid(b, x, 1.0 / 6.0, 0.5))


def elu(b: Builder, call: Call, x: Value) -> Value:
    curve = b.with_scalar("mul", b.with_scalar("sub", b.unary("exp", x), 1.0), call.real("alpha", 1.0))
    return b.where(_negative(b, x), curve, x)


def selu(b: Builder, call: Call, x: Value) -> Value:
    alpha = call.real("alpha", 1.67326319217681884765625 if call.version >= 6 else 1.6732)
    gamma = call.real("gamma", 1.05070102214813232421875 if call.version >= 6 else 1.0507)
    curve = b.with_scalar("sub", b.with_scalar("mul", b.unary("exp", x), alpha), alpha)
    return b.with_scalar("mul", b.where(b.with_scalar("le", x, 0.0), curve, x), gamma)


def celu(b: Builder, call: Call, x: Value) -> Value:
    alpha = call.real("alpha", 1.0)
    rise = b.with_scalar("max", x, 0.0)
    curve = b.with_scalar("sub", b.unary("exp", b.with_scalar("div", x, alpha)), 1.0)
    return b.binary("add", rise, b.with_scalar("min", b.with_scalar("mul", curve, alpha), 0.0))


def leaky_relu(b: Builder, call: Call, x: Value) -> Value:
    return b.where(_negative(b, x), b.with_scalar("mul", x, call.real("alpha", 0.01)), x)


def thresholded_relu(b: Builder, call: Call, x: Value) -> Value:
    above = b.with_scalar("gt", x, call.real("alpha", 1.0))
    zero = b.where(b.unary("isnan", x, BOOL), x, b.literal(0.0, x.dtype))
    return b.where(above, x, zero)


def prelu(b: Builder, call: Call) -> list[Value | None]:
    x, slope = call.input(0), call.input(1)
    only(x, *NUMBERS)
    if call.version < 7 and b.rank(slope) == 1 and b.rank(x) > 2:
        slope = b.reshape(slope, (*b.shape(slope), *[1] * (b.rank(x) - 2)))
    b.fit(slope, b.shape(x))
    return [b.where(_negative(b, x), b.binary("mul", x, slope), x)]


def mish(b: Builder, call: Call, x: Value) -> Value:
    return b.binary("mul", x, b.unary("tanh", b.unary("softplus", x)))


def swish(b: Builder, call: Call, x: Value) -> Value:
    alpha = call.real("alpha", 1.0)
    return b.binary("mul", x, b.unary("sigmoid", x if alpha == 1.0 else b.with_scalar("mul", x, alpha)))


def gelu(b: Builder, call: Call, x: Value) -> Value:
    approximate = call.text("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise ModelError("Gelu knows no such approximation", node=call.label, found=approximate)
    return gelu_tanh(b, x) if approximate == "tanh" else gelu_erf(b, x)


def gelu_erf(b: Builder, x: Value) -> Value:
    """0.5 * x * (1 + erf(x / sqrt(2)))"""
    inner = b.unary("erf", b.with_scalar("div", x, math.sqrt(2.0)))
    return b.binary("mul", b.with_scalar("mul", x, 0.5), b.with_scalar("add", inner, 1.0))


def gelu_tanh(b: Builder, x: Value) -> Value:
    """0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))"""
    cubic = b.with_scalar("mul", _repeated(b, x, 3), 0.044715)
    inner = b.with_scalar("mul", b.binary("add", x, cubic), math.sqrt(2.0 / math.pi))
    return b.binary("mul", b.with_scalar("mul", x, 0.5), b.with_scalar("add", b.unary("tanh", inner), 1.0))


def fast_gelu(b: Builder, call: Call) -> list[Value | None]:
    return [gelu_tanh(b, _biased(b, call.input(0), call.optional(1)))]


def bias_gelu(b: Builder, call: Call) -> list[Value | None]:
    return [gelu_erf(b, _biased(b, call.input(0), call.input(1)))]


def _biased(b: Builder, x: Value, bias: Value | None) -> Value:
    """x plus a number for each of its columns."""
    only(x, *FLOATS)
    if bias is None:
        return x
    if b.rank(x) == 0:
        raise ModelError("a scalar has no columns", node=b.node_name or b.stem)
    b.vector(bias, b.shape(x)[-1])
    return b.binary("add", x, bias)


def quick_gelu(b: Builder, call: Call, x: Value) -> Value:
    return b.binary("mul", x, b.unary("sigmoid", b.with_scalar("mul", x, call.real("alpha", 1.702))))


def shrink(b: Builder, call: Call, x: Value) -> Value:
    """x + bias below -lambd, x - bias above lambd, else 0."""
    bias, lambd = call.real("bias", 0.0), call.real("lambd", 0.5)
    high = b.where(b.with_scalar("gt", x, lambd), b.with_scalar("sub", x, bias), b.literal(0.0, x.dtype))
    return b.where(b.with_scalar("lt", x, -lambd), b.with_scalar("add", x, bias), high)


def activated(b: Builder, call: Call, x: Value, parameters: dict[str, float]) -> Value:
    """The activation that a fused operator names in its attribute, as the operator of that name was in opset 6."""
    name = call.text("activation", "")
    rows = TABLE.get(("", name))
    if not name:
        return x
    if rows is None or rows[0][0] > ACTIVATION_OPSET:
        raise Decline(f"its activation {name!r} is not supported")
    attributes = {key: attribute(key, number) for key, number in parameters.items()}
    inner = replace(
        call, op_type=name, domain="", version=ACTIVATION_OPSET, inputs=(x,), attributes=attributes,
    )  # fmt: skip
    (result,) = rows[0][1](b, inner)
    assert result is not None, f"{name} gives a result"
    return result


#: (domain, operator) -> rows of (first opset, rule); a row holds until the next one begins
TABLE: dict[tuple[str, str], list[tuple[int, Rule]]] = {
    ("", "Abs"): [(1, unary("abs", *NUMBERS))],
    ("", "Neg"): [(1, unary("neg", *NUMBERS))],
    ("", "Sign"): [(9, unary("sign", *NUMBERS))],
    ("", "Exp"): [(1, unary("exp", *FLOATS))],
    ("", "Log"): [(1, unary("log", *FLOATS))],
    ("", "Sqrt"): [(1, unary("sqrt", *FLOATS))],
    ("", "Reciprocal"): [(1, unary("reciprocal", *FLOATS))],
    ("", "Tanh"): [(1, unary("tanh", *FLOATS))],
    ("", "Erf"): [(9, unary("erf", *FLOATS))],
    ("", "Sigmoid"): [(1, unary("sigmoid", *FLOATS))],
    ("", "Sin"): [(7, unary("sin", *FLOATS))],
    ("", "Cos"): [(7, unary("cos", *FLOATS))],
    ("", "Floor"): [(1, unary("floor", *FLOATS))],
    ("", "Ceil"): [(1, unary("ceil", *FLOATS))],
    ("", "Round"): [(11, unary("round", *FLOATS))],
    ("", "Relu"): [(1, unary("relu", *NUMBERS))],
    ("", "Softplus"): [(1, unary("softplus", *FLOATS))],
    ("", "Not"): [(1, unary("not", BOOL))],
    ("", "IsNaN"): [(9, predicate("isnan"))],
    ("", "IsInf"): [(10, is_inf)],
    ("", "Add"): [(1, binary("add", *NUMBERS))],
    ("", "Sub"): [(1, binary("sub", *NUMBERS))],
    ("", "Mul"): [(1, binary("mul", *NUMBERS))],
    ("", "Div"): [(1, binary("div", *NUMBERS))],
    ("", "Mod"): [(10, modulo)],
    ("", "Pow"): [(1, power)],
    ("", "And"): [(1, binary("and", BOOL))],
    ("", "Or"): [(1, binary("or", BOOL))],
    ("", "Xor"): [(1, binary("xor", BOOL))],
    ("", "BitwiseAnd"): [(18, binary("bitand", *INTEGERS))],
    ("", "BitwiseOr"): [(18, binary("bitor", *INTEGERS))],
    ("", "BitwiseXor"): [(18, binary("bitxor", *INTEGERS))],
    ("", "Equal"): [(1, binary("eq", *NUMBERS, BOOL))],
    ("", "Less"): [(1, binary("lt", *NUMBERS))],
    ("", "LessOrEqual"): [(12, binary("le", *NUMBERS))],
    ("", "Greater"): [(1, binary("gt", *NUMBERS))],
    ("", "GreaterOrEqual"): [(12, binary("ge", *NUMBERS))],
    ("", "Min"): [(1, variadic("min", *NUMBERS))],
    ("", "Max"): [(1, variadic("max", *NUMBERS))],
    ("", "Sum"): [(1, variadic("add", *FLOATS))],
    ("", "Mean"): [(1, mean)],
    ("", "Clip"): [(1, clip)],
    ("", "Softsign"): [(1, composite(softsign))],
    ("", "HardSigmoid"): [(1, composite(hard_sigmoid))],
    ("", "HardSwish"): [(14, composite(hard_swish))],
    ("", "Elu"): [(1, composite(elu))],
    ("", "Selu"): [(1, composite(selu))],
    ("", "Celu"): [(12, composite(celu))],
    ("", "LeakyRelu"): [(1, composite(leaky_relu))],
    ("", "ThresholdedRelu"): [(10, composite(thresholded_relu))],
    ("", "PRelu"): [(1, prelu)],
    ("", "Mish"): [(18, composite(mish))],
    ("", "Swish"): [(24, composite(swish))],
    ("", "Gelu"): [(20, composite(gelu))],
    ("", "Shrink"): [(9, composite(shrink))],
    ("com.microsoft", "Gelu"): [(1, composite(lambda b, call, x: gelu_erf(b, x)))],
    ("com.microsoft", "FastGelu"): [(1, fast_gelu)],
    ("com.microsoft", "BiasGelu"): [(1, bias_gelu)],
    ("com.microsoft", "QuickGelu"): [(1, composite(quick_gelu))],
}
