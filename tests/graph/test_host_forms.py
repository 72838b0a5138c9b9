"""Forms of operators that run on the host and that real files hold: old operator sets, inputs left out, tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import grainline
from tests.fixtures.models import single
from tests.fixtures.peer import agrees_with_peer

SEED = 20261130
RNG = np.random.default_rng(SEED)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def run(model: onnx.ModelProto, **feeds: np.ndarray) -> list[Any]:
    return grainline.load(model.SerializeToString()).run(feeds)


def table_operator(
    op: str, x: np.ndarray, output: onnx.ValueInfoProto | None = None, **attributes: Any
) -> onnx.ModelProto:
    """One node of ai.onnx.ml, in the version that the newest tools write it in unless the first is asked for."""
    kind = 8 if x.dtype == object else helper.np_dtype_to_tensor_dtype(x.dtype)
    info = helper.make_tensor_value_info("x", kind, ["n", *x.shape[1:]])
    node = helper.make_node(op, ["x"], ["y"], domain="ai.onnx.ml", **attributes)
    graph = helper.make_graph([node], "table", [info], [output or onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(1, 1, 2, 3), (1, 1, 1.5, 2), (1, 1, 0.5, 0.6)])
def test_the_first_forms_of_resizing(mode: str, scales: tuple[float, ...]) -> None:
    x, given = f32(1, 2, 5, 6), {"s": np.array(scales, np.float32)}
    if min(scales) >= 1:
        agrees_with_peer(single("Upsample", {"x": x}, opset=7, mode=mode, scales=[float(s) for s in scales]), {"x": x})
        agrees_with_peer(single("Upsample", {"x": x}, weights=given, opset=9, mode=mode), {"x": x})
    agrees_with_peer(single("Resize", {"x": x}, weights=given, opset=10, mode=mode), {"x": x})


@pytest.mark.parametrize(("opset", "modes"), [(16, ("nearest", "bilinear", "bicubic")), (20, ("linear", "cubic"))])
@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grids_are_sampled(opset: int, modes: tuple[str, ...], align: int, padding: str) -> None:
    feeds = {"x": f32(2, 3, 6, 5), "g": RNG.uniform(-1.6, 1.6, (2, 4, 3, 2)).astype(np.float32)}
    for mode in modes:
        form = {"mode": mode, "padding_mode": padding, "align_corners": align}
        agrees_with_peer(single("GridSample", feeds, opset=opset, **form), feeds, f"seed {SEED}: {form}", rtol=1e-3)


def test_a_volume_is_sampled() -> None:
    feeds = {"x": f32(1, 2, 4, 3, 5), "g": RNG.uniform(-1.1, 1.1, (1, 2, 3, 4, 3)).astype(np.float32)}
    agrees_with_peer(single("GridSample", feeds, opset=20), feeds)


@pytest.mark.parametrize("opset", [10, 16])
def test_regions_are_rounded_as_their_operator_set_says(opset: int) -> None:
    feeds = {"x": f32(1, 2, 12, 12), "r": np.array([[0, 0, 8, 8], [2.3, 2.1, 11.5, 10]], np.float32)}
    feeds["b"] = np.zeros(2, np.int64)
    form = {"output_height": 3, "output_width": 2, "sampling_ratio": 2, "spatial_scale": 0.8}
    agrees_with_peer(single("RoiAlign", feeds, opset=opset, **form), feeds)


@pytest.mark.parametrize("centred", [0, 1])
@pytest.mark.parametrize("given", range(4))
def test_boxes_are_suppressed_with_any_number_of_inputs(centred: int, given: int) -> None:
    feeds = {"b": RNG.random((2, 40, 4)).astype(np.float32), "s": RNG.random((2, 3, 40)).astype(np.float32)}
    bounds = [("m", np.array([5])), ("i", np.array([0.4], np.float32)), ("t", np.array([0.3], np.float32))]
    weights = dict(bounds[:given])
    agrees_with_peer(single("NonMaxSuppression", feeds, weights=weights, center_point_box=centred), feeds, f"{SEED}")


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_one_hot_takes_a_depth_with_and_without_axis(axis: int, shape: tuple[int, ...]) -> None:
    feeds = {"i": np.array([[1, -1], [0, 9]]), "d": np.full(shape, 4)}
    agrees_with_peer(single("OneHot", feeds, weights={"v": np.array([2, 5], np.float32)}, axis=axis), feeds)


@pytest.mark.parametrize("mode", ["constant", "edge"])
def test_negative_padding_cuts_off(mode: str) -> None:
    x = f32(3, 4)
    for pads in ([1, -1, 0, 2], [-1, -2, -1, 1]):
        feeds = {"x": x, "p": np.array(pads)}
        agrees_with_peer(single("Pad", feeds, opset=13, mode=mode), feeds, f"{pads}")
    with pytest.raises(grainline.KernelError, match="cuts off"):
        run(single("Pad", {"x": x, "p": np.array(pads)}), x=x, p=np.array([-2, 0, -2, 0]))


@pytest.mark.parametrize("parts", [[2, 3], [1, 2], [-1, 5], [2**62, 2**62], [1, 1, 2]])
def test_parts_that_do_not_fill_the_axis_are_named(parts: list[int]) -> None:
    feeds = {"x": f32(4, 2), "s": np.array(parts)}
    with pytest.raises(grainline.KernelError, match="Split"):
        run(single("Split", feeds, outputs=2), **feeds)


@pytest.mark.parametrize(("opset", "extent"), [(13, 6), (18, 7), (18, 2)])
def test_parts_of_a_run_time_extent(opset: int, extent: int) -> None:
    feeds, form = {"x": f32(2, extent)}, {"num_outputs": 3} if opset == 18 else {}
    agrees_with_peer(single("Split", feeds, outputs=3, opset=opset, axis=-1, **form), feeds, f"seed {SEED}")
    feeds["s"] = np.array([1, 0, extent - 1])
    agrees_with_peer(single("Split", feeds, outputs=3, opset=opset, axis=1), feeds, f"seed {SEED}")


@pytest.mark.parametrize("k", [-4, 4])
def test_more_or_less_than_there_is_cannot_be_the_top(k: int) -> None:
    feeds = {"x": f32(3), "k": np.array([k])}
    with pytest.raises(grainline.KernelError, match="TopK"):
        run(single("TopK", feeds, outputs=2), **feeds)


@pytest.mark.parametrize(
    ("op", "name", "target"),
    [
        ("Expand", "s", [2**20, 2**20]),
        ("Tile", "s", [2**40]),
        ("ConstantOfShape", "", [2**40]),
        ("Pad", "s", [2**45, 0]),
    ],
)
def test_what_has_no_room_is_out_of_memory(op: str, name: str, target: list[int]) -> None:
    feeds = {"x": f32(1)} if name else {}
    feeds["s"] = np.array(target)
    model = single(op, feeds)
    with pytest.raises(grainline.OutOfMemory) as caught:
        run(model, **feeds)
    assert caught.value.node == "only"


def test_a_failing_node_is_named_once() -> None:
    feeds = {"x": f32(4), "s": np.array([3])}
    with pytest.raises(grainline.KernelError) as caught:
        run(single("Reshape", feeds), **feeds)
    assert str(caught.value).count("'only'") == 1, str(caught.value)


def test_text_comes_back_as_objects() -> None:
    x = np.array([[0.3, -2], [1.5, 0.1], [-1, -1]], np.float32)
    form = {"coefficients": [1.0, 2, -1, -2, 0.5, 0.5], "intercepts": [0, 0.1, 0.2], "classlabels_strings": list("abc")}
    node = helper.make_node("LinearClassifier", ["x"], ["y", "s"], domain="ai.onnx.ml", **form)
    model = table_operator("LinearClassifier", x)
    model.graph.node[0].CopyFrom(node)
    model.graph.output.append(onnx.ValueInfoProto(name="s"))
    agrees_with_peer(model, {"x": x})


@pytest.mark.parametrize("classes", [{"classlabels_strings": ["a", "b"]}, {"classlabels_int64s": [4, 7]}])
def test_scores_become_a_dict_per_row(classes: dict[str, Any]) -> None:
    x, output = f32(3, 2), onnx.ValueInfoProto(name="y")
    entry = output.type.sequence_type.elem_type.map_type
    entry.key_type = 8 if "classlabels_strings" in classes else 7
    entry.value_type.tensor_type.elem_type = 1
    agrees_with_peer(table_operator("ZipMap", x, output, **classes), {"x": x})


def test_categories_and_labels() -> None:
    words, numbers = np.array(["b", "z", "a"], object), np.array([1, 5, 2])
    table = {"cats_strings": ["a", "b"], "cats_int64s": [1, 2], "default_int64": -7, "default_string": "?"}
    for x in (words, numbers):
        agrees_with_peer(table_operator("CategoryMapper", x, **table), {"x": x})
    labels = {"classes_strings": ["a", "b"], "default_int64": -7, "default_string": "?"}
    for x in (words, np.array([1, 5, 0])):
        agrees_with_peer(table_operator("LabelEncoder", x, **labels), {"x": x})


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_rows_are_normalised(norm: str) -> None:
    x = f32(4, 3)
    agrees_with_peer(table_operator("Normalizer", x, norm=norm), {"x": x})
