"""NaN, signed zero, the ends of integer ranges: what IEEE 754, NumPy and the ONNX text say, in every lane and length.

Lengths straddle the vector width, so that a full packet, a tail and a single lane all meet each value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

LENGTHS = (1, 3, 8, 17, 67)
NAN = np.float32(np.nan)


def placed(length: int, at: int, value: float = np.nan) -> np.ndarray:
    x = np.linspace(-3, 3, length, dtype=np.float32)
    x[at % length] = value
    return x


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    "op", ["Abs", "Neg", "Relu", "Erf", "Sign", "Exp", "Tanh", "Sigmoid", "Sqrt", "Floor", "Round", "Softplus", "Elu",
           "LeakyRelu", "HardSigmoid", "Reciprocal", "Log"],
)  # fmt: skip
def test_nan_goes_through_elementwise_operators(run_node: Any, op: str, length: int) -> None:
    for at in {0, length // 2, length - 1}:
        y = run_node(op, {"x": np.abs(placed(length, at)) + 1})[0]
        assert np.isnan(y[at]) and np.isfinite(np.delete(y, at)).all(), f"{op}: NaN at {at} of {length} gave {y}"


@pytest.mark.parametrize("op, law", [("Min", np.minimum), ("Max", np.maximum)])
@pytest.mark.parametrize("length", LENGTHS)
def test_min_and_max_keep_nan_from_either_side(run_node: Any, op: str, law: Any, length: int) -> None:
    a, b = placed(length, 0), placed(length, -1)
    for left, right in ((a, b), (b, a), (np.array(NAN), b), (a, np.array([2], np.float32))):
        np.testing.assert_array_equal(run_node(op, {"a": left, "b": right})[0], law(left, right))
    np.testing.assert_array_equal(run_node(op, {"a": a, "b": -a, "c": b})[0], law(law(a, -a), b))


def test_clip_bounds(run_node: Any) -> None:
    x = np.array([-np.inf, -5, -0.0, 0.5, 9, np.inf, np.nan], np.float32)
    low, high = np.array(-1, np.float32), np.array(2, np.float32)
    np.testing.assert_array_equal(run_node("Clip", {"x": x, "low": low, "high": high})[0], np.clip(x, low, high))
    np.testing.assert_array_equal(
        run_node("Clip", {"x": x, "low": high, "high": low})[0][:-1], np.full(6, -1, np.float32)
    )
    greatest = np.finfo(np.float32).max
    only_low = run_node("Clip", {"x": x[:-1], "low": low})[0]
    np.testing.assert_array_equal(np.minimum(only_low, greatest), np.minimum(np.maximum(x[:-1], low), greatest))
    whole = np.array([-(2**40), 3, 2**40])
    got = run_node("Clip", {"x": whole, "low": np.array(-(2**33)), "high": np.array(2**33)})[0]
    assert got.tolist() == [-(2**33), 3, 2**33]


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin", "ReduceMean", "ReduceSum"])
@pytest.mark.parametrize("length", [2, 7, 8, 33, 100])
def test_reductions_see_a_nan_wherever_it_is(run_node: Any, op: str, length: int) -> None:
    for at in (0, 1, length // 2, length - 1):
        y = run_node(op, {"x": placed(length, at)[None]})[0]
        assert np.isnan(y).all(), f"{op} of {length} with NaN at {at} gave {y}"


def bits(x: np.ndarray) -> list[str]:
    return [f"{word:08x}" for word in np.ascontiguousarray(x, np.float32).view(np.uint32).ravel()]


def test_signed_zero_keeps_its_sign(run_node: Any) -> None:
    zeros = np.array([-0.0, 0.0, -0.4, 0.4] * 5, np.float32)
    for op, law in (("Neg", np.negative), ("Abs", np.abs), ("Round", np.rint), ("Ceil", np.ceil), ("Floor", np.floor)):
        assert bits(run_node(op, {"x": zeros})[0]) == bits(law(zeros)), op
    minus = np.full(3, -0.0, np.float32)
    for op, constant, law in (
        ("Add", 0.0, np.add),
        ("Sub", 0.0, np.subtract),
        ("Mul", 1.0, np.multiply),
        ("Div", 1.0, np.divide),
    ):
        k = np.array(constant, np.float32)
        assert bits(run_node(op, {"x": minus}, constants={"k": k})[0]) == bits(law(minus, k)), f"-0 {op} {constant}"


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_integer_division_truncates_towards_zero(run_node: Any, dtype: type) -> None:
    a = np.array([7, -7, 7, -7, 8, -8, 0, -1], dtype)
    b = np.array([2, 2, -2, -2, 4, 4, 3, 4], dtype)
    want = np.trunc(a.astype(np.float64) / b).astype(dtype)
    np.testing.assert_array_equal(run_node("Div", {"a": a, "b": b})[0], want)
    np.testing.assert_array_equal(
        run_node("Div", {"a": a}, constants={"k": np.array(4, dtype)})[0], np.trunc(a / 4.0).astype(dtype)
    )
    np.testing.assert_array_equal(run_node("Mod", {"a": a, "b": b})[0], np.mod(a, b))
    np.testing.assert_array_equal(run_node("Mod", {"a": a, "b": b}, fmod=1)[0], np.fmod(a, b))


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8, np.uint32])
def test_integer_division_by_zero_is_no_signal(run_node: Any, dtype: type) -> None:
    from grainline import GrainlineError

    a, zero = np.array([1, 0, 5], dtype), np.zeros(3, dtype)
    for op in ("Div", "Mod"):
        try:
            assert run_node(op, {"a": a, "b": zero})[0].shape == (3,)
        except GrainlineError as error:
            assert str(error)
    if np.dtype(dtype).kind == "i":
        low = np.iinfo(dtype).min
        feeds = {"a": np.array([low, low], dtype), "b": np.array([-1, 1], dtype)}
        assert run_node("Div", feeds)[0].tolist() == [low, low], "the least integer by -1 wraps"


def test_integer_sums_wrap_like_addition(run_node: Any) -> None:
    for length in (2, 4, 9, 40):
        x = np.full((1, length), 2**30, np.int32)
        want = x.sum(axis=1, dtype=np.int32)
        np.testing.assert_array_equal(
            run_node("ReduceSum", {"x": x}, constants={"a": np.array([1])}, keepdims=0)[0], want
        )


def test_64_bit_integers_stay_64_bit(run_node: Any) -> None:
    big = np.array([2**33 + 1, -(2**40), 2**62, 3, -5])
    for op, law in (("Abs", np.abs), ("Neg", np.negative), ("Sign", np.sign)):
        np.testing.assert_array_equal(run_node(op, {"x": big})[0], law(big))
    np.testing.assert_array_equal(run_node("Add", {"a": big, "b": big[::-1].copy()})[0], big + big[::-1])
    np.testing.assert_array_equal(run_node("Max", {"a": big, "b": np.zeros(5, np.int64)})[0], np.maximum(big, 0))
    np.testing.assert_array_equal(run_node("Less", {"a": big, "b": big[::-1].copy()})[0], big < big[::-1])
    np.testing.assert_array_equal(run_node("CumSum", {"x": big}, constants={"axis": np.array(0)})[0], np.cumsum(big))
    m = np.array([[2**32, 1], [3, -(2**35)]])
    np.testing.assert_array_equal(run_node("MatMul", {"a": m, "b": m})[0], m @ m)


@pytest.mark.parametrize("row", ["constant", "large mean", "one huge"])
def test_layer_normalisation_survives_hard_rows(run_node: Any, row: str) -> None:
    rng = np.random.default_rng(0)
    x = {
        "constant": np.full((4, 67), 1234.0),
        "large mean": 40000 + rng.standard_normal((4, 67)),
        "one huge": np.eye(4, 67) * 1e6,
    }[row]
    x = x.astype(np.float32)
    wide = x.astype(np.float64)
    want = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    got = run_node("LayerNormalization", {"x": x}, constants={"g": np.ones(67, np.float32)}, axis=-1, epsilon=1e-5)[0]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=8e-3 if row == "large mean" else 2e-3)


def test_softmax_of_extremes(run_node: Any) -> None:
    x = np.array([[1000, 1000, -1000], [-np.inf, 0, 0], [3e38, -3e38, 0], [-1e30, -1e30, -1e30]], np.float32)
    got = run_node("Softmax", {"x": x}, axis=-1)[0]
    np.testing.assert_allclose(got, [[0.5, 0.5, 0], [0, 0.5, 0.5], [1, 0, 0], [1 / 3] * 3], atol=1e-6)
    assert np.isnan(run_node("Softmax", {"x": np.full((1, 5), -np.inf, np.float32)}, axis=-1)[0]).all()
