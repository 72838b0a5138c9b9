"""Products with weights of few bits (com.microsoft::MatMulNBits) against another engine and against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import grainline
from grainline.base.errors import ModelError, UnsupportedError
from grainline.graph.passes import run_passes
from grainline.importer.model import import_model
from tests.fixtures.models import single
from tests.fixtures.peer import agrees_with_peer


def numbers(packed: np.ndarray, bits: int) -> np.ndarray:
    """The numbers in each byte of the last axis, lowest bits first."""
    parts = [(packed >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*packed.shape[:-1], -1).astype(np.float32)


def drawn(rng: np.random.Generator, bits: int, block: int, k: int, n: int, zero: str, has_bias: bool) -> dict[str, Any]:
    blocks = -(-k // block)
    weights: dict[str, Any] = {
        "packed": rng.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8),
        "scales": rng.standard_normal(n * blocks).astype(np.float32),
        "zero": None,
        "groups": None,
        "bias": rng.standard_normal(n).astype(np.float32) if has_bias else None,
    }
    if zero == "packed":
        weights["zero"] = rng.integers(0, 256, n * -(-blocks * bits // 8)).astype(np.uint8)
    if zero == "float":
        weights["zero"] = rng.uniform(0, 1 << bits, n * blocks).astype(np.float32)
    return weights


def meaning(x: np.ndarray, w: dict[str, Any], bits: int, block: int, k: int, n: int) -> np.ndarray:
    blocks = -(-k // block)
    zero = np.full((n, blocks), 1 << (bits - 1), np.float32) if w["zero"] is None else w["zero"]
    if zero.dtype == np.uint8:
        zero = numbers(zero.reshape(n, -1), bits)[:, :blocks]
    whole = numbers(w["packed"].reshape(n, -1), bits).reshape(n, blocks, block) - zero.reshape(n, blocks, 1)
    matrix = (whole * w["scales"].reshape(n, blocks, 1)).reshape(n, -1)[:, :k]
    return x.astype(np.float64) @ matrix.T.astype(np.float64) + (0 if w["bias"] is None else w["bias"])


def built(x: np.ndarray, w: dict[str, Any], bits: int, block: int, k: int, n: int, **more: Any) -> Any:
    order = ["x", *(name if array is not None else "" for name, array in w.items())]
    while not order[-1]:
        order.pop()
    given = {name: array for name, array in w.items() if array is not None}
    attributes = {"bits": bits, "block_size": block, "K": k, "N": n, **more}
    return single("MatMulNBits", {"x": x}, weights=given, order=order, domain="com.microsoft", **attributes)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_products_with_few_bits(bits: int, seed: int) -> None:
    rng = np.random.default_rng([bits, seed])
    block, k, n = int(rng.choice([16, 32, 64])), int(rng.integers(1, 150)), int(rng.integers(1, 40))
    # the peer knows float zero points for 4 bits only
    zero = str(rng.choice(["none", "packed", "float"] if bits == 4 else ["none", "packed"]))
    w = drawn(rng, bits, block, k, n, zero, has_bias=bool(rng.integers(2)))
    x = rng.standard_normal((*rng.integers(1, 5, int(rng.integers(1, 3))), k)).astype(np.float32)
    proto = built(x, w, bits, block, k, n)
    where = f"{bits=} {block=} {k=} {n=} {zero=} {x.shape=}"
    right = meaning(x, w, bits, block, k, n)
    scale = np.abs(right).max()
    agrees_with_peer(proto, {"x": x}, where, rtol=1e-5, atol=1e-5 * scale)
    found = grainline.load(proto.SerializeToString())(x=x)
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5 * scale, err_msg=where)
    assert [node.op for node in run_passes(import_model(proto)).nodes if node.op not in ("reshape", "add")] == [
        "matmul"
    ]


def test_weights_that_a_run_brings_are_unpacked_in_the_run() -> None:
    rng = np.random.default_rng(3)
    bits, block, k, n = 4, 16, 40, 7
    w = drawn(rng, bits, block, k, n, "packed", has_bias=False)
    x = rng.standard_normal((3, k)).astype(np.float32)
    feeds = {"x": x, **{name: array for name, array in w.items() if array is not None}}
    attributes = {"bits": bits, "block_size": block, "K": k, "N": n}
    proto = single("MatMulNBits", feeds, order=list(feeds), symbolic=False, domain="com.microsoft", **attributes)
    found = grainline.load(proto.SerializeToString()).run(feeds)[0]
    np.testing.assert_allclose(found, meaning(x, w, bits, block, k, n), rtol=1e-4, atol=1e-4)


def test_half_precision_goes_through() -> None:
    rng = np.random.default_rng(4)
    bits, block, k, n = 4, 32, 96, 17
    w = drawn(rng, bits, block, k, n, "packed", has_bias=True)
    x = rng.standard_normal((2, k)).astype(np.float16)
    halves = {
        name: None if a is None else a.astype(np.float16) if a.dtype == np.float32 else a for name, a in w.items()
    }
    found = grainline.load(built(x, halves, bits, block, k, n).SerializeToString())(x=x)
    assert found.dtype == np.float16
    right = meaning(x, halves, bits, block, k, n)
    np.testing.assert_allclose(found, right, rtol=2e-3, atol=2e-3 * np.abs(right).max())


@pytest.mark.parametrize("name", ["packed", "scales", "zero", "bias"])
def test_parameters_that_do_not_fit_are_errors(name: str) -> None:
    w = drawn(np.random.default_rng(5), 4, 32, 64, 8, "packed", has_bias=True)
    w[name] = w[name][:-1]
    with pytest.raises(ModelError, match="only"):
        grainline.load(built(np.ones((1, 64), np.float32), w, 4, 32, 64, 8).SerializeToString())


@pytest.mark.parametrize("attributes", [{"bits": 3}, {"block_size": 0}, {"N": -1}, {"K": 0}, {"block_size": 3}])
def test_attributes_that_mean_nothing_are_errors(attributes: dict[str, int]) -> None:
    w = drawn(np.random.default_rng(6), 4, 32, 64, 8, "none", has_bias=False)
    given = {"bits": 4, "block": 32, "k": 64, "n": 8}
    names = {"block_size": "block", "N": "n", "K": "k", "bits": "bits"}
    given.update({names[name]: value for name, value in attributes.items()})
    with pytest.raises(ModelError, match="only"):
        grainline.load(built(np.ones((1, 64), np.float32), w, **given).SerializeToString())


def test_permuted_groups_are_unsupported_by_name() -> None:
    w = drawn(np.random.default_rng(7), 4, 32, 64, 8, "none", has_bias=False)
    w["groups"] = np.zeros(64, np.int32)
    with pytest.raises(UnsupportedError, match=r"MatMulNBits.*permuted"):
        grainline.load(built(np.ones((1, 64), np.float32), w, 4, 32, 64, 8).SerializeToString())
