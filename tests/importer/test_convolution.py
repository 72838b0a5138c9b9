"""Convolutions and pools that compile: nothing on the host, results as another engine's, and how many launches they are.

Random geometry is in tests/graph/test_host_windows.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import grainline
from grainline.base.errors import FeedError, ModelError
from tests.fixtures.models import model, single
from tests.fixtures.peer import agrees_with_peer

RNG = np.random.default_rng(5)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def launches(built: Any) -> list[str]:
    """What each launch computes, in order."""
    lines = grainline.load(built.SerializeToString()).explain().splitlines()
    assert not [line for line in lines if line.startswith("host ")]
    return [line.split("<- ")[1] for line in lines if "<- " in line]


def passes(built: Any) -> int:
    """Launches that are no copy: an operand or result of the model is turned by one."""
    return sum(line != "cast" for line in launches(built))


CONVOLUTIONS = {
    "one by one": ((1, 1), 5, 7, {}),
    "one by one in steps": ((1, 1), 5, 7, {"strides": [2, 3]}),
    "narrow": ((3, 3), 2, 4, {"pads": [1, 1, 1, 1]}),
    "wide": ((3, 3), 32, 8, {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
    "wide and dilated": ((3, 3), 32, 8, {"dilations": [2, 2]}),
    "many results": ((3, 1), 4, 40, {"auto_pad": "SAME_UPPER"}),
    "a line": ((5,), 20, 6, {"pads": [2, 2]}),
    "a box of gaps": ((2, 2, 2), 2, 4, {"dilations": [2, 2, 2]}),
    "a box": ((2, 2, 3), 6, 4, {"strides": [1, 2, 1]}),
}


@pytest.mark.parametrize("symbolic", [True, False])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str, symbolic: bool) -> None:
    window, channels, results, form = CONVOLUTIONS[name]
    weights = {"w": f32(results, channels, *window), "b": f32(results)}
    for sizes in (7, 11):
        x = f32(2, channels, *[sizes + axis for axis in range(len(window))])
        if symbolic and "auto_pad" in form:
            continue
        built = single("Conv", {"x": x}, weights=weights, symbolic=symbolic, **form)
        assert launches(built)
        agrees_with_peer(built, {"x": x})


@pytest.mark.parametrize("window", [(3, 3), (5, 5), (2, 4), (7,)])
def test_convolution_of_each_channel_by_itself(window: tuple[int, ...]) -> None:
    x, weights = f32(2, 6, *[9 + axis for axis in range(len(window))]), {"w": f32(6, 1, *window), "b": f32(6)}
    built = single("Conv", {"x": x}, weights=weights, group=6)
    assert passes(built) == 1, "one pass multiplies and adds all taps"
    agrees_with_peer(built, {"x": x})
    agrees_with_peer(single("Conv", {"x": x}, weights=weights, group=6, strides=[2] * len(window)), {"x": x})


@pytest.mark.parametrize("window", [(1, 1), (3, 2), (5,), (7, 7)])
@pytest.mark.parametrize(("groups", "channels", "results"), [(2, 3, 4), (4, 1, 2), (3, 1, 1)])
def test_convolution_in_groups(window: tuple[int, ...], groups: int, channels: int, results: int) -> None:
    """Windows too large to be one pass are products too."""
    x = f32(2, groups * channels, *[9 + axis for axis in range(len(window))])
    weights = {"w": f32(groups * results, channels, *window), "b": f32(groups * results)}
    for form in ({}, {"strides": [2] * len(window), "pads": [1] * 2 * len(window)}):
        built = single("Conv", {"x": x}, weights=weights, group=groups, **form)
        assert launches(built)
        agrees_with_peer(built, {"x": x})


TRANSPOSED = {
    "windows that do not meet": ((2, 2), {"strides": [2, 2]}),
    "windows that meet": ((3, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "uneven": ((3, 3), {"strides": [2, 3], "output_padding": [1, 2]}),
    "gaps": ((1, 2), {"strides": [3, 3], "pads": [0, 1, 0, 0]}),
    "a line": ((5,), {"strides": [2], "pads": [2, 1]}),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolution(name: str) -> None:
    window, form = TRANSPOSED[name]
    weights = {"w": f32(6, 4, *window), "b": f32(4)}
    built = single("ConvTranspose", {"x": f32(2, 6, *[5] * len(window))}, weights=weights, **form)
    products = [line for line in launches(built) if line.startswith("matmul")]
    assert len(products) == np.prod([-(-k // s) for k, s in zip(window, form["strides"], strict=True)])
    for size in (1, 5, 8):
        agrees_with_peer(built, {"x": f32(2, 6, *[size] * len(window))})


@pytest.mark.parametrize("form", [{}, {"strides": [2, 2], "pads": [1, 1, 1, 1]}, {"dilations": [2, 1]}])
def test_pools_are_one_pass(form: dict[str, Any]) -> None:
    x = f32(2, 5, 9, 8)
    for op in ("MaxPool", "AveragePool"):
        built = single(op, {"x": x}, symbolic=False, opset=19, kernel_shape=[3, 2], **form)
        assert passes(built) == (2 if "pads" in form else 1)
        agrees_with_peer(built, {"x": x})


def test_weights_that_are_fed() -> None:
    feeds = {"x": f32(1, 3, 6, 6), "w": f32(4, 3, 3, 3)}
    built = single("Conv", feeds, symbolic=False)
    assert launches(built)
    agrees_with_peer(built, feeds)


ACTIVATIONS = {
    "Relu": {}, "Sigmoid": {}, "Tanh": {}, "LeakyRelu": {"activation_params": [0.2]},
    "Clip": {"activation_params": [0.0, 0.5]}, "HardSigmoid": {"activation_params": [0.3, 0.4]},
}  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_fused_convolution(activation: str) -> None:
    x, weights = f32(2, 4, 6, 7), {"w": f32(5, 4, 3, 3), "b": f32(5)}
    form = {"activation": activation, "pads": [1, 1, 1, 1], **ACTIVATIONS[activation]}
    agrees_with_peer(
        single("FusedConv", {"x": x}, weights=weights, symbolic=False, domain="com.microsoft", **form), {"x": x}
    )


def test_what_a_fused_convolution_adds_comes_before_its_activation() -> None:
    feeds, weights = {"x": f32(2, 4, 6, 7), "z": f32(2, 5, 4, 5)}, {"w": f32(5, 4, 3, 3), "b": f32(5)}
    built = single(
        "FusedConv", feeds, weights=weights, order=["x", "w", "b", "z"], domain="com.microsoft", activation="Relu"
    )
    agrees_with_peer(built, feeds)


def residual_block(channels: int) -> tuple[Any, dict[str, np.ndarray]]:
    """relu(x1 + bn(conv(relu(bn(conv(x1)))))) with x1 = relu(conv(x)), and the mean of each channel"""
    c = channels
    weights = {name: f32(c, c, 3, 3) / c for name in ("w1", "w2")} | {"w0": f32(c, 3, 1, 1)}
    for name in ("s1", "b1", "m1", "s2", "b2", "m2"):
        weights[name] = f32(c)
    weights["v"] = np.abs(f32(c)) + 0.5
    node, pads = helper.make_node, [1, 1, 1, 1]
    nodes = [
        node("Conv", ["x", "w0"], ["c0"]), node("Relu", ["c0"], ["x1"]),
        node("Conv", ["x1", "w1"], ["c1"], pads=pads), node("BatchNormalization", ["c1", "s1", "b1", "m1", "v"], ["n1"]),
        node("Relu", ["n1"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"], pads=pads), node("BatchNormalization", ["c2", "s2", "b2", "m2", "v"], ["n2"]),
        node("Add", ["n2", "x1"], ["sum"]), node("Relu", ["sum"], ["r2"]), node("GlobalAveragePool", ["r2"], ["y"]),
    ]  # fmt: skip
    feeds = {"x": f32(2, 3, 9, 10)}
    return model(nodes, feeds, ["y"], weights), feeds


def test_between_convolutions_channels_stay_last() -> None:
    """All that stands between two products is their epilogue, and nothing is copied but the padded and the fed."""
    built, feeds = residual_block(24)
    found = launches(built)
    products = [line for line in found if line.startswith("matmul")]
    assert len(products) == 1 + 3 + 3 and products[0] == "matmul relu"
    assert products[3] == "matmul add add sub div mul add relu" and products[6].endswith("mul add add relu")
    others = sorted(line.split()[0] for line in found if line not in products)
    assert others == ["cast", "extents", "pad", "pad", "reduce"], "the copy is that of the fed image"
    agrees_with_peer(built, feeds)


@pytest.mark.parametrize(
    "options", [{"threads": 2}, {"executor": "multi-worker", "workers": 3}, {"device": "discrete"}]
)
def test_bits_do_not_depend_on_who_runs_it(options: dict[str, Any]) -> None:
    built, feeds = residual_block(24)
    data, upsampled = (
        built.SerializeToString(),
        single("ConvTranspose", {"x": f32(2, 6, 5, 5)}, weights={"w": f32(6, 4, 3, 3)}, strides=[2, 2]),
    )
    for model_bytes, given in ((data, feeds), (upsampled.SerializeToString(), {"x": f32(2, 6, 9, 7)})):
        (right,) = grainline.load(model_bytes, threads=1).run(given)
        (found,) = grainline.load(model_bytes, **options).run(given)
        assert found.tobytes() == right.tobytes()


@pytest.mark.parametrize("window", [(2, 3, 2), (1, 3, 2), (3, 1, 1)])
def test_a_box_of_few_channels_has_windows_along_all_its_axes(window: tuple[int, ...]) -> None:
    x, weights = f32(2, 2, 5, 6, 7), {"w": f32(3, 2, *window)}
    built = single("Conv", {"x": x}, weights=weights, pads=[0, 1, 1, 1, 1, 0])
    assert launches(built)
    agrees_with_peer(built, {"x": x})


WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "the window is another": ("Conv", {"kernel_shape": [2, 2]}),
    "the window has another rank": ("Conv", {"kernel_shape": [3]}),
    "unknown padding": ("Conv", {"auto_pad": "SAME"}),
    "negative padding": ("Conv", {"pads": [-1, 0, 0, 0]}),
    "negative padding of a transposed one": ("ConvTranspose", {"pads": [-1, 0, 0, 0]}),
    "more padding, negative": ("ConvTranspose", {"output_padding": [0, -1]}),
    "the window of a transposed one is another": ("ConvTranspose", {"kernel_shape": [2, 2]}),
    "unknown padding of a pool": ("MaxPool", {"kernel_shape": [2, 2], "auto_pad": "SAME"}),
    "negative padding of a pool": ("AveragePool", {"kernel_shape": [2, 2], "pads": [0, -1, 0, 0]}),
}


@pytest.mark.parametrize("name", WRONG)
def test_attributes_that_mean_nothing_are_refused(name: str) -> None:
    op, form = WRONG[name]
    weights = {"Conv": {"w": f32(5, 4, 3, 3)}, "ConvTranspose": {"w": f32(4, 5, 3, 3)}}.get(op, {})
    with pytest.raises(ModelError, match=r"only"):
        grainline.load(single(op, {"x": f32(2, 4, 6, 7)}, weights=weights, **form).SerializeToString())


@pytest.mark.parametrize("shape", [(), (1,), (4,), (1, 5), (5, 1)])
@pytest.mark.parametrize("group", [1, 5])
def test_a_bias_is_one_number_per_result(shape: tuple[int, ...], group: int) -> None:
    x, w, bias = f32(2, 5, 6, 7), f32(5, 5 // group, 3, 3), f32(*shape)
    for feeds, weights in (({"x": x}, {"w": w, "b": bias}), ({"x": x, "b": bias}, {"w": w})):
        built = single("Conv", feeds, weights=weights, order=["x", "w", "b"], group=group)
        with pytest.raises(grainline.GrainlineError):
            grainline.load(built.SerializeToString()).run(feeds)


@pytest.mark.parametrize("op", ["Conv", "Conv by channel", "Conv in groups", "MaxPool", "AveragePool"])
def test_an_image_smaller_than_the_window_is_an_error(op: str) -> None:
    """Also where two extents are negative, whose product is not."""
    groups = {"Conv": 1, "Conv by channel": 8, "Conv in groups": 2}.get(op)
    node = helper.make_node(op.split()[0], ["x", "w"], ["c"], **({"group": groups} if groups else {}))
    if groups is None:
        node = helper.make_node(op, ["x"], ["c"], kernel_shape=[5, 5])
    weights = {"w": f32(8, 8 // (groups or 1), 5, 5)} | {"v": f32(4, 8, 3, 3)}
    again = helper.make_node("Conv", ["c", "v"], ["y"], pads=[4, 4, 4, 4])
    built = model([node, again], {"x": f32(2, 8, 9, 9)}, ["y"], weights)
    loaded = grainline.load(built.SerializeToString())
    for sizes in ((2, 2), (9, 3), (0, 9)):
        with pytest.raises(FeedError, match="smaller than its window"):
            loaded.run({"x": f32(2, 8, *sizes)})
    agrees_with_peer(built, {"x": f32(2, 8, 5, 9)})


def test_a_convolution_has_one_kernel_for_all_shapes() -> None:
    built, _ = residual_block(8)
    loaded = grainline.load(built.SerializeToString())
    for shape in ((1, 3, 4, 4), (3, 3, 20, 5)):
        agrees_with_peer(built, {"x": f32(*shape)})
    assert "host" not in loaded.explain()
