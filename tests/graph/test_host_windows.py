"""Convolutions and pools, compiled or on the host: random geometry against another engine, one to three spatial axes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import grainline
from tests.fixtures.models import single
from tests.fixtures.peer import agrees_with_peer

SEED = 20261130
POOLS = ("MaxPool", "AveragePool", "LpPool")


def geometry(rng: random.Random, rank: int, window: list[int]) -> dict[str, Any]:
    """Attributes of a window; padding stays below the window, as every engine demands."""
    form: dict[str, Any] = {}
    if rng.random() < 0.6:
        form["strides"] = [rng.randint(1, 3) for _ in range(rank)]
    padding = rng.choice(["none", "pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID"])
    if padding == "pads":
        form["pads"] = [rng.randrange(extent) for extent in window * 2]
    elif padding != "none":
        form["auto_pad"] = padding
    if not padding.startswith("SAME") and rng.random() < 0.3:
        form["dilations"] = [rng.randint(1, 2) for _ in range(rank)]
    return form


def image(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("seed", range(SEED, SEED + 24))
def test_convolutions(seed: int) -> None:
    rng = random.Random(seed)
    rank, groups = rng.randint(1, 3), rng.choice([1, 1, 2, 3])
    window = [rng.randint(1, 3) for _ in range(rank)]
    x = image(seed, 2, groups * rng.randint(1, 2), *[rng.randint(6, 9) for _ in range(rank)])
    w = image(seed + 1, groups * rng.randint(1, 2), x.shape[1] // groups, *window)
    form = geometry(rng, rank, window) | {"group": groups}
    weights = {"w": w, "b": image(seed + 2, w.shape[0])}
    agrees_with_peer(single("Conv", {"x": x}, weights=weights, **form), {"x": x}, f"seed {seed}: {form}")


@pytest.mark.parametrize("seed", range(SEED, SEED + 24))
def test_transposed_convolutions(seed: int) -> None:
    rng = random.Random(seed)
    rank, groups = rng.randint(1, 2), rng.choice([1, 2])
    window = [rng.randint(1, 4) for _ in range(rank)]
    x = image(seed, 2, 2 * groups, *[rng.randint(2, 6) for _ in range(rank)])
    w = image(seed + 1, x.shape[1], rng.randint(1, 3), *window)
    form = geometry(rng, rank, window) | {"group": groups}
    if form.get("strides") and min(form["strides"]) > 1 and not form.get("auto_pad"):
        form["output_padding"] = [rng.randint(0, 1) for _ in range(rank)]
    if "SAME" in form.get("auto_pad", ""):  # the standard's input * stride; the peer stops at the last window
        form["strides"] = [min(stride, extent) for stride, extent in zip(form.get("strides", window), window)]
    agrees_with_peer(single("ConvTranspose", {"x": x}, weights={"w": w}, **form), {"x": x}, f"seed {seed}: {form}")


@pytest.mark.parametrize("op", POOLS)
@pytest.mark.parametrize("seed", range(SEED, SEED + 16))
def test_pools(op: str, seed: int) -> None:
    rng = random.Random(seed)
    rank = rng.randint(1, 3)
    window = [rng.randint(2, 3) for _ in range(rank)]
    x = image(seed, 2, 3, *[rng.randint(6, 9) for _ in range(rank)])
    form = geometry(rng, rank, window) | {"kernel_shape": window}
    if "auto_pad" not in form and rng.random() < 0.5:
        form["ceil_mode"] = 1
    if op == "AveragePool" and not form.get("ceil_mode"):  # with both, the peer counts what lies beyond the padding
        form["count_include_pad"] = rng.randint(0, 1)
    is_small = rank == 2 and op == "MaxPool"
    for symbolic in (True, False):
        model = single(op, {"x": x}, opset=22, symbolic=symbolic, **form)
        agrees_with_peer(model, {"x": x}, f"seed {seed}: {form}")
    if is_small and "dilations" not in form:
        model = single(op, {"x": x}, outputs=2, storage_order=rng.randint(0, 1), **form)
        agrees_with_peer(model, {"x": x}, f"positions, seed {seed}: {form}")


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float32])
def test_padding_never_wins_a_maximum(dtype: type) -> None:
    lowest = -np.inf if dtype is np.float32 else np.iinfo(dtype).min
    x = np.full((1, 2, 4, 4), lowest, dtype)
    model = single("MaxPool", {"x": x}, outputs=2, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    found, at = grainline.load(model.SerializeToString()).run({"x": x})
    np.testing.assert_array_equal(found, x)
    assert at.min() >= 0 and at.max() < x.size and at[0, 0, 0, 0] == 0, "the first element inside is the largest"


def test_a_nan_is_the_maximum_and_where_it_lies() -> None:
    x = image(SEED, 1, 1, 4, 4)
    x[0, 0, 1, 2] = np.nan
    model = single("MaxPool", {"x": x}, outputs=2, kernel_shape=[4, 4])
    found, at = grainline.load(model.SerializeToString()).run({"x": x})
    assert np.isnan(found).all() and at.item() == 6


@pytest.mark.parametrize("zeros", [1, 4])
def test_integer_convolutions_are_exact(zeros: int) -> None:
    rng = np.random.default_rng(SEED)
    x = rng.integers(0, 256, (2, 3, 7, 6)).astype(np.uint8)
    w = rng.integers(0, 256, (4, 3, 3, 3)).astype(np.uint8)
    x_zero, w_zero = np.uint8(7), rng.integers(0, 256, zeros).astype(np.uint8)
    weights = {"w": w, "xz": x_zero, "wz": w_zero}
    model = single("ConvInteger", {"x": x}, weights=weights, pads=[1, 1, 1, 1])
    (found,) = grainline.load(model.SerializeToString()).run({"x": x})
    padded = np.pad(x.astype(np.int64) - 7, [(0, 0), (0, 0), (1, 1), (1, 1)])
    centred = w.astype(np.int64) - w_zero.astype(np.int64).reshape(-1, 1, 1, 1)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    np.testing.assert_array_equal(found, np.einsum("nchwij,mcij->nmhw", windows, centred))


def test_a_quantised_convolution_rounds_once() -> None:
    rng = np.random.default_rng(SEED)
    x = rng.integers(0, 256, (2, 3, 7, 6)).astype(np.uint8)
    weights = {
        "xs": np.float32(0.125), "xz": np.uint8(3), "w": rng.integers(-128, 128, (4, 3, 3, 3)).astype(np.int8),
        "ws": np.float32([0.5, 0.25, 1, 2]), "wz": np.zeros(4, np.int8), "ys": np.float32(64), "yz": np.uint8(100),
        "b": rng.integers(-1000, 1000, 4).astype(np.int32),
    }  # fmt: skip
    agrees_with_peer(single("QLinearConv", {"x": x}, weights=weights, pads=[1, 0, 1, 0]), {"x": x})


def test_windows_are_gathered_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    from grainline.graph.host_ops import convolution

    numbers = np.random.default_rng(SEED)
    x = numbers.integers(0, 256, (2, 4, 17, 5)).astype(np.uint8)
    model = single(
        "ConvInteger", {"x": x}, weights={"w": numbers.integers(0, 256, (4, 2, 3, 2)).astype(np.uint8)}, group=2
    )
    (whole,) = grainline.load(model.SerializeToString()).run({"x": x})
    monkeypatch.setattr(convolution, "BUFFER_BYTES", 1000)
    (pieces,) = grainline.load(model.SerializeToString()).run({"x": x})
    np.testing.assert_array_equal(pieces, whole)


def test_the_sum_over_no_channels_is_zero() -> None:
    x, weights = image(SEED, 2, 0, 5, 6), {"w": np.zeros((4, 0, 3, 3), np.float32), "b": image(SEED, 4)}
    agrees_with_peer(single("Conv", {"x": x}, weights=weights, pads=[1, 1, 0, 0]), {"x": x})


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_channels_that_do_not_meet_are_named(op: str) -> None:
    x = image(SEED, 1, 4, 5, 5)
    model = single(op, {"x": x}, weights={"w": image(SEED, 3, 3, 2, 2)})
    with pytest.raises(grainline.GrainlineError, match=r"channels|'x' axis 1"):
        grainline.load(model.SerializeToString()).run({"x": x})


@pytest.mark.parametrize("op", ["LRN", "LpNormalization", "GlobalLpPool"])
def test_normalisation_over_channels_and_norms(op: str) -> None:
    x = image(SEED, 2, 8, 3, 4)
    forms = {
        "LRN": [{"size": 3}, {"size": 5, "alpha": 1.0, "beta": 0.5, "bias": 2.0}],
        "LpNormalization": [{}, {"p": 1}, {"p": 1, "axis": 1}],
        "GlobalLpPool": [{}, {"p": 1}, {"p": 3}],
    }
    for form in forms[op]:
        agrees_with_peer(single(op, {"x": x}, **form), {"x": x}, f"{op} {form}")
    if op == "LpNormalization":
        agrees_with_peer(single(op, {"x": x * 0}), {"x": x * 0}, "rows without a norm")
