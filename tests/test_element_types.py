"""Every element type through compiled kernels: same bits as the graph interpreter, and no host node.

Transcendental functions have their own accuracy; everything else, conversions and rounding included, is bit for bit.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import grainline
from grainline.base.dtypes import from_numpy
from grainline.graph import interp
from grainline.importer.model import import_model
from tests.fixtures.models import model, single

BF16 = ml_dtypes.bfloat16
FLOATS: list[Any] = [np.float16, BF16, np.float64, np.float32]
INTEGERS: list[Any] = [np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64]
ALL = [*FLOATS, *INTEGERS, np.bool_]
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float64": 1e-12, "float32": 1e-5}

#: ties, subnormals, overflow, infinities, NaN
NUMBERS = [
    *(0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 65504, 65519.996, 65520, 1e30, -1e30, 3e9),
    *(5.96e-8, 2.98e-8, 2.9802322e-8, 8.9e-8, 6.1e-5, 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8),
    *(1 + 2**-8 + 2**-30, 255.9, 256, 127.5, -128.9, 4.2949673e9, 1e19, 2e19, 9.1835e-41, 3.4e38, 1e-45, 1e308),
]


def name_of(dtype: Any) -> str:
    return np.dtype(dtype).name


def sample(dtype: Any, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(5)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random(shape) < 0.5
    if kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    return (rng.standard_normal(shape) * 3).astype(dtype)


def check(proto: Any, feeds: dict[str, np.ndarray], tolerance: float = 0.0) -> None:
    graph = import_model(proto)
    assert not [n.attributes["reason"] for n in graph.nodes if n.op == "host"]
    compiled = grainline.load(proto.SerializeToString())
    for got, want in zip(compiled.run(feeds), interp.run(graph, feeds), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        if tolerance:
            a, b = got.astype(np.float64), want.astype(np.float64)
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
        else:
            same = (got == want) | ((got != got) & (want != want))
            assert same.all(), f"first difference: {got[~same][0]} and {want[~same][0]}"
            if got.dtype.kind in "fV":
                np.testing.assert_array_equal(np.signbit(got)[got == got], np.signbit(want)[got == got])


@pytest.mark.parametrize("dtype", ALL, ids=name_of)
def test_movement_is_a_copy(dtype: Any) -> None:
    x, y, z = sample(dtype, 3, 4, 5), sample(dtype, 3, 2, 5), sample(dtype, 4, 5)
    one = np.array(1).astype(dtype)
    rows, condition = np.array([2, -1, 0, 1, 2]), sample(np.bool_, 3, 4, 5)
    check(single("Transpose", {"x": x}, perm=[2, 0, 1]), {"x": x})
    bounds = {"s": np.array([3]), "e": np.array([-9]), "a": np.array([1]), "t": np.array([-2])}
    check(single("Slice", {"x": x}, weights=bounds), {"x": x})
    check(single("Concat", {"x": x, "y": y}, axis=1, symbolic=False), {"x": x, "y": y})
    for axis in (0, 2):
        check(single("Gather", {"x": x, "i": rows}, axis=axis), {"x": x, "i": rows})
    check(single("Expand", {"x": x}, weights={"s": np.array([2, 3, 4, 5])}, symbolic=False), {"x": x})
    check(single("Pad", {"x": x}, weights={"p": np.array([1, 0, 2, 0, 3, 1]), "v": one}), {"x": x})
    check(single("Where", {"c": condition, "x": x, "z": z}, symbolic=False), {"c": condition, "x": x, "z": z})
    check(single("Tile", {"x": x}, weights={"r": np.array([2, 1, 3])}), {"x": x})
    check(single("Trilu", {"x": x}), {"x": x})


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
def test_integers_wrap_and_compare_by_their_sign(dtype: Any) -> None:
    x, y = sample(dtype, 37), sample(dtype, 37)[::-1].copy()
    y[y == 0] = 1
    x[0] = np.iinfo(dtype).min
    signed = np.dtype(dtype).kind == "i"
    if signed:
        y[0] = -1
    binary = "Add Sub Mul Div Mod Min Max Less LessOrEqual Greater GreaterOrEqual Equal BitwiseAnd BitwiseXor".split()
    for op in binary:
        check(single(op, {"x": x, "y": y}, symbolic=False, opset=18), {"x": x, "y": y})
    check(single("Mod", {"x": x, "y": y}, symbolic=False, fmod=1), {"x": x, "y": y})
    for op in ("Abs", "Sign", "Neg", "Relu") if signed else ("Abs", "Sign"):
        check(single(op, {"x": x}), {"x": x})
    table = sample(dtype, 5, 33)
    for op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"):
        for axis in (0, 1):
            check(single(op, {"x": table}, weights={"a": np.array([axis])}, opset=18), {"x": table})


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
def test_division_by_zero_is_an_error(dtype: Any) -> None:
    x, y = sample(dtype, 37), np.ones(37, dtype)
    y[36] = 0
    compiled = grainline.load(single("Div", {"x": x, "y": y}, symbolic=False).SerializeToString())
    with pytest.raises(grainline.GrainlineError, match="zero"):
        compiled.run({"x": x, "y": y})


UNARY = (
    "Abs Neg Sign Exp Sqrt Reciprocal Tanh Erf Sigmoid Sin Cos Floor Ceil Round Relu Softplus Softsign HardSigmoid "
    "HardSwish Elu Selu Celu LeakyRelu ThresholdedRelu Mish Shrink IsNaN IsInf Softmax LogSoftmax"
).split()


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_float_functions(dtype: Any) -> None:
    x, y = sample(dtype, 5, 37), sample(dtype, 5, 37)[::-1].copy()
    tolerance = TOLERANCE[name_of(dtype)]
    for op in UNARY:
        check(single(op, {"x": x}, opset=18), {"x": x}, tolerance)
    for op in "Add Sub Mul Div Min Max Less LessOrEqual Greater GreaterOrEqual Equal".split():
        check(single(op, {"x": x, "y": y}, symbolic=False), {"x": x, "y": y})
    for op in "ReduceSum ReduceMean ReduceMax ReduceL2 ReduceLogSumExp".split():
        for axis in (0, 1):
            check(single(op, {"x": x}, weights={"a": np.array([axis])}, opset=18), {"x": x}, 5 * tolerance)
    parameters = {"s": sample(dtype, 37), "b": sample(dtype, 37)}
    check(single("LayerNormalization", {"x": x}, weights=parameters), {"x": x}, 5 * tolerance)


@pytest.mark.parametrize("dtype", [np.float16, BF16], ids=name_of)
def test_products_of_halves(dtype: Any) -> None:
    x, w, c = sample(dtype, 5, 37), sample(dtype, 37, 21), sample(dtype, 21)
    tolerance = 3 * TOLERANCE[name_of(dtype)]
    check(single("MatMul", {"x": x}, weights={"w": w}), {"x": x}, tolerance)
    check(single("MatMul", {"x": x, "w": w}, symbolic=False), {"x": x, "w": w}, tolerance)
    check(single("Gemm", {"x": x}, weights={"w": w, "c": c}, beta=0.5), {"x": x}, tolerance)


@pytest.mark.parametrize("dtype", [np.float16, BF16], ids=name_of)
def test_clip_without_a_bound_uses_the_ends_of_the_type(dtype: Any) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 1]).astype(dtype)
    compiled = grainline.load(single("Clip", {"x": x}, weights={"low": np.array(-1).astype(dtype)}).SerializeToString())
    (found,) = compiled.run({"x": x})
    assert found[0] == ml_dtypes.finfo(dtype).max and found[1] == -1 and np.isnan(found[2]) and found[3] == 1


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("to", ALL, ids=name_of)
@pytest.mark.parametrize("source", ALL, ids=name_of)
def test_casts(source: Any, to: Any) -> None:
    x = sample(source, 33) if np.dtype(source).kind in "iub" else np.array(NUMBERS).astype(source)
    check(single("Cast", {"x": x}, to=from_numpy(np.dtype(to)).onnx), {"x": x})


@pytest.mark.parametrize("dtype", [np.float16, BF16], ids=name_of)
def test_every_operator_rounds_once(dtype: Any) -> None:
    """(x + y) * x rounds the sum: a cast to a half and back is never dropped."""
    from onnx import helper

    x, y = sample(dtype, 4, 33), sample(dtype, 4, 33)[::-1].copy()
    nodes = [helper.make_node("Add", ["x", "y"], ["a"]), helper.make_node("Mul", ["a", "x"], ["z"])]
    proto = model(nodes, {"x": x, "y": y}, ["z"], symbolic=False)
    (found,) = grainline.load(proto.SerializeToString()).run({"x": x, "y": y})
    total = (x.astype(np.float32) + y.astype(np.float32)).astype(dtype)
    assert found.tobytes() == (total.astype(np.float32) * x.astype(np.float32)).astype(dtype).tobytes()
