"""Every elementwise operation on every element type against the interpreter, special values included."""

import numpy as np
import pytest
from harness import Compiled, check

from grainline.base.dims import symbol
from grainline.base.dtypes import ALL, BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64
from grainline.plan.types import PlannerOptions
from grainline.tile.build import ProgramBuilder
from grainline.tile.ir import ARITHMETIC, COMPARISONS

M, N = symbol("M"), symbol("N")
INTEGERS = (U8, I8, U16, I16, I32, I64, U32, U64)
FLOATS = (F32, F64, F16, BF16)
BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "mod",
    "fmod",
    "pow",
    "min",
    "max",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "bitand",
    "bitor",
    "bitxor",
    "shl",
    "shr",
    "and",
    "or",
    "xor",
]
FLOAT_ONLY = [
    "exp",
    "log",
    "log1p",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "tanh",
    "erf",
    "sigmoid",
    "softplus",
    "sin",
    "cos",
    "isnan",
    "isinf",
]
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, 1.5, 2.5, -2.5, 3.7, 100.0, -100.0, 1e-40, 88.9]
TOLERANCE = {"f32": (1e-6, 1e-44), "f64": (1e-13, 0.0), "f16": (2e-3, 1e-7), "bf16": (1.6e-2, 1e-38)}


def sample(dtype, size, seed):
    random = np.random.default_rng(seed)
    if dtype == BOOL:
        return random.random(size) < 0.5
    if dtype.is_float:
        values = random.normal(size=size) * 3
        values[:256] = np.resize(SPECIAL, 256) if seed % 2 else np.repeat(SPECIAL, 16)
        with np.errstate(over="ignore"):
            return values.astype(dtype.numpy)
    low, high = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
    values = random.integers(low, high, size, dtype=dtype.numpy, endpoint=True)
    values[:8] = [low, high, 0, 1, 2, 3, low, high]
    small = random.integers(0 if dtype.kind == "u" else -9, 9, size).astype(dtype.numpy)
    return np.where(random.random(size) < 0.5, small, values)


def is_defined(op, dtype):
    if op in ("and", "or", "xor", "not"):
        return dtype == BOOL
    if op in ("bitand", "bitor", "bitxor", "shl", "shr"):
        return dtype.is_integer
    if dtype == BOOL:
        return op in ("eq", "ne")
    return dtype.is_float or op not in FLOAT_ONLY


CASES = [
    (op, dtype)
    for op in (*ARITHMETIC, *COMPARISONS, "and", "or", "xor", "not", "bitand", "shl", "shr")
    for dtype in (*INTEGERS, *FLOATS, BOOL)
    if is_defined(op, dtype)
]


@pytest.mark.parametrize(("op", "dtype"), CASES, ids=lambda v: str(v))
def test_operation(op, dtype):
    p = ProgramBuilder(f"{op}_{dtype}")
    i = p.root("i", N)
    arity = 2 if op in BINARY else 1
    views = [p.view(f"x{k}", dtype, (N,)) for k in range(arity)]
    result = BOOL if op in COMPARISONS else dtype
    y = p.view("y", result, (N,), access="write")
    p.store(y, (i,), p.elementwise(op, *(p.load(v, (i,)) for v in views)))
    program = p.finish()
    size = 256 + 16 + 5
    arrays = [sample(dtype, size, k) for k in range(arity)] + [np.zeros(size, result.numpy)]
    if op in ("div", "mod", "fmod") and dtype.is_integer:
        arrays[1] = np.where(arrays[1] == 0, 1, arrays[1]).astype(dtype.numpy)
    if op in ("mod", "fmod") and dtype in (F16, BF16):
        pytest.skip("remainders of half types are rounded differently by NumPy")
    rtol, atol = TOLERANCE.get(dtype.name, (0, 0))
    found = check(program, arrays, {"N": size}, rtol=rtol, atol=atol)[-1]
    if dtype == F32 and op in (
        "neg",
        "abs",
        "min",
        "max",
        "floor",
        "ceil",
        "round",
        "tanh",
        "erf",
        "sin",
        "log1p",
        "sqrt",
    ):
        from grainline.tile.interp_elementwise import ELEMENTWISE_MEANING

        with np.errstate(all="ignore"):
            want = ELEMENTWISE_MEANING[op](*arrays[:-1])
        zero = (want == 0) & (found == 0)
        np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(want[zero]), err_msg="sign of zero")


@pytest.mark.parametrize("to", [d for d in ALL if d.kind in "fiub"], ids=str)
@pytest.mark.parametrize("source", [d for d in ALL if d.kind in "fiub"], ids=str)
def test_cast(source, to):
    p = ProgramBuilder(f"cast_{source}_{to}")
    i = p.root("i", N)
    x, y = p.view("x", source, (N,)), p.view("y", to, (N,), access="write")
    p.store(y, (i,), p.cast(p.load(x, (i,)), to))
    size = 256 + 21
    data = sample(source, size, 1)
    if source.is_float:
        with np.errstate(over="ignore"):
            data[16:32] = np.array(
                [
                    3e9,
                    -3e9,
                    2e19,
                    -2e19,
                    127.5,
                    128,
                    255.9,
                    256,
                    -128.9,
                    -129,
                    65535,
                    65536,
                    2147483647,
                    -2147483648,
                    9.2e18,
                    -9.3e18,
                ]
            ).astype(source.numpy)
    check(p.finish(), [data, np.zeros(size, to.numpy)], {"N": size}, rtol=0, atol=0)


@pytest.mark.parametrize("op", ["div", "mod", "fmod"])
@pytest.mark.parametrize("dtype", [I32, I64, U8], ids=str)
@pytest.mark.parametrize("place", [0, 15, 16, 31, 40])
def test_integer_division_by_zero_is_a_fault(op, dtype, place):
    p = ProgramBuilder("division")
    i = p.root("i", N)
    x, d, y = p.view("x", dtype, (N,)), p.view("d", dtype, (N,)), p.view("y", dtype, (N,), access="write")
    p.store(y, (i,), p.elementwise(op, p.load(x, (i,)), p.load(d, (i,))))
    program = p.finish()
    divisor = np.ones(41, dtype.numpy)
    divisor[place] = 0
    arrays = [np.ones(41, dtype.numpy), divisor, np.zeros(41, dtype.numpy)]
    assert Compiled(program).launch(arrays, {"N": 41}) == 2


@pytest.mark.parametrize("kind", ["add", "mul", "min", "max"])
@pytest.mark.parametrize("dtype", [F32, F64, I32, I64, U8, F16, BOOL], ids=str)
@pytest.mark.parametrize("use_init", [False, True])
def test_reduction(kind, dtype, use_init):
    p = ProgramBuilder(f"reduce_{kind}_{dtype}")
    r, a = p.root("r", symbol("M")), p.axis("n", N)
    x, y = p.view("x", dtype, (symbol("M"), N)), p.view("y", dtype, (symbol("M"),), access="write")
    init = (True if dtype == BOOL else 3) if use_init else None
    p.store(y, (r,), p.reduce(kind, p.load(x, (r, a)), a, init))
    program = p.finish()
    for mapping in ("local", "whole"):
        from grainline.plan.types import PlannerOptions

        compiled = Compiled(program, PlannerOptions(mapping=mapping))
        for n in (0, 1, 5, 16, 40, 75):
            data = sample(dtype, 300 + 7 * n, 2)[300:].reshape(7, n)
            if dtype.is_float:
                data = (1 + data.astype(np.float64) * 0.05).astype(dtype.numpy)
            env = {"M": 7, "N": n}
            tolerance = 4e-3 if dtype == F16 else 1e-5
            check(program, [data, np.zeros(7, dtype.numpy)], env, compiled=compiled, rtol=tolerance)


@pytest.mark.parametrize("kind", ["min", "max"])
def test_reduction_passes_nan_from_every_position(kind):
    p = ProgramBuilder("nan")
    r, a = p.root("r", symbol("M")), p.axis("n", N)
    x, y = p.view("x", F32, (symbol("M"), N)), p.view("y", F32, (symbol("M"),), access="write")
    p.store(y, (r,), p.reduce(kind, p.load(x, (r, a)), a))
    data = np.random.default_rng(0).normal(size=(67, 67)).astype(np.float32)
    np.fill_diagonal(data, np.nan)
    found = check(p.finish(), [data, np.zeros(67, np.float32)], {"M": 67, "N": 67})[-1]
    assert np.isnan(found).all()


@pytest.mark.parametrize("mapping", ["local", "whole"])
@pytest.mark.parametrize("kind", COMPARISONS[:6])
def test_coordinates_are_compared_with_numbers_near_and_far(kind, mapping):
    """A coordinate against a number, from either side; numbers reach from the least of their type to the greatest."""
    p = ProgramBuilder("compared")
    r, a = p.root("rows", M), p.axis("n", N)
    k = p.view("k", I64, (M,))
    y, z = (p.view(name, I32, (M, N), access="write") for name in "yz")
    number = p.load(k, (r,))
    for view, sides in ((y, (p.coord(a), number)), (z, (number, p.coord(a)))):
        p.store(view, (r, a), p.cast(p.elementwise(kind, *sides), I32))
    program = p.finish()
    compiled = Compiled(program, PlannerOptions(mapping=mapping))
    for n in (1, 15, 16, 70, 200):
        near = [-1, 0, 1, 15, 16, 17, 63, 64, 65, n - 1, n, n + 1]
        far = [-(2**63), -(2**63) + 1, -(2**32), -(2**31) - 1, 2**31, 2**32 + 3, 2**63 - 1]
        numbers = np.array([*near, *far], np.int64)
        rows = (np.zeros((numbers.size, n), np.int32) for _ in range(2))
        check(program, [numbers, *rows], {"M": numbers.size, "N": n}, compiled=compiled)
