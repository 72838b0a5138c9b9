"""Element types: half precision, bfloat16, strings, and exact integers through quantised products."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

F = np.float32


def test_half_precision_computes_wide(run_node: Any) -> None:
    big = np.full((2, 300), 60000, np.float16)
    np.testing.assert_array_equal(
        run_node("ReduceMean", {"x": big}, constants={"a": np.array([1])}, keepdims=0)[0], [60000, 60000]
    )
    x = np.linspace(-4, 4, 33).astype(np.float16)
    for op, law in (("Exp", np.exp), ("Tanh", np.tanh), ("Sqrt", lambda v: np.sqrt(np.abs(v)))):
        fed = np.abs(x) if op == "Sqrt" else x
        got = run_node(op, {"x": fed})[0]
        assert got.dtype == np.float16
        np.testing.assert_allclose(got.astype(F), law(fed.astype(F)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("op, law", [("Add", np.add), ("Mul", np.multiply), ("Sub", np.subtract)])
def test_bfloat16_rounds_once(run_node: Any, op: str, law: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(67).astype(ml_dtypes.bfloat16) for _ in range(2))
    got = run_node(op, {"a": a, "b": b})[0]
    assert got.dtype == ml_dtypes.bfloat16
    want = law(a.astype(F), b.astype(F)).astype(ml_dtypes.bfloat16)
    assert got.view(np.uint16).tolist() == want.view(np.uint16).tolist()


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.int64, np.uint8, np.bool_])
def test_identity_keeps_the_type(run_node: Any, dtype: type) -> None:
    x = np.array([0, 1, 1, 0, 1]).astype(dtype)
    got = run_node("Identity", {"x": x})[0]
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, x)


def test_casts_truncate_and_wrap_like_numpy(run_node: Any) -> None:
    x = np.array([0.0, 1.9, -1.9, 100.5, -100.5], F)
    for to, dtype in ((7, np.int64), (6, np.int32), (3, np.int8), (11, np.float64), (10, np.float16)):
        np.testing.assert_array_equal(run_node("Cast", {"x": x}, to=to)[0], x.astype(dtype))
    assert run_node("Cast", {"x": np.array([0.0, -0.0, np.nan, 0.1], F)}, to=9)[0].tolist() == [
        False,
        False,
        True,
        True,
    ]


def test_strings_keep_their_characters(run_node: Any) -> None:
    words = np.array(["", "grain", "żółć", "日本語", "🙂", "x" * 3000], dtype=object)
    assert run_node("Identity", {"x": words})[0].tolist() == words.tolist()
    assert run_node("Gather", {"x": words, "i": np.array([-1, 0, 3])})[0].tolist() == words[[-1, 0, 3]].tolist()
    assert run_node("Concat", {"a": words, "b": words}, axis=0)[0].tolist() == [*words, *words]
    assert run_node("Identity", {"x": words[:0]})[0].shape == (0,)
    numbers = np.array(["3.5", "-1e-5", "100"], dtype=object)
    np.testing.assert_allclose(run_node("Cast", {"x": numbers}, to=1)[0], [3.5, -1e-5, 100])


@pytest.mark.parametrize("depth", [3, 4, 31, 64, 257])
@pytest.mark.parametrize("left, right", [(np.uint8, np.int8), (np.int8, np.int8), (np.uint8, np.uint8)])
def test_integer_products_are_exact(run_node: Any, depth: int, left: type, right: type) -> None:
    rng = np.random.default_rng(depth)
    a = rng.integers(np.iinfo(left).min, np.iinfo(left).max + 1, (3, depth)).astype(left)
    b = rng.integers(np.iinfo(right).min, np.iinfo(right).max + 1, (depth, 5)).astype(right)
    a[0], b[:, 0] = np.iinfo(left).max, np.iinfo(right).min
    got = run_node("MatMulInteger", {"a": a, "b": b})[0]
    np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32))
    za, zb = np.array(3, left), np.array(5, right)
    got = run_node("MatMulInteger", {"a": a, "b": b, "za": za, "zb": zb})[0]
    np.testing.assert_array_equal(got, (a.astype(np.int32) - 3) @ (b.astype(np.int32) - 5))


def test_quantising_rounds_half_to_even_and_saturates(run_node: Any) -> None:
    x = np.array([-0.5, 0.5, 1.5, 2.5, 1e9, -1e9, np.inf, -np.inf, 3.49], F)
    scale = np.array(1, F)
    for dtype, zero in ((np.uint8, 128), (np.int8, -3), (np.int8, 0)):
        info = np.iinfo(dtype)
        want = np.clip(np.rint(x) + zero, info.min, info.max).astype(dtype)
        got = run_node("QuantizeLinear", {"x": x, "s": scale, "z": np.array(zero, dtype)})[0]
        np.testing.assert_array_equal(got, want)
        back = run_node("DequantizeLinear", {"x": got, "s": scale, "z": np.array(zero, dtype)})[0]
        np.testing.assert_array_equal(back, want.astype(F) - zero)
