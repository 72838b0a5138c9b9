"""Every compiled operator against another engine, one node at a time, with every dimension symbolic where it may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from grainline.graph import interp
from grainline.graph.passes import run_passes
from grainline.graph.verify import verify
from grainline.importer.model import import_model
from tests.fixtures.models import single
from tests.fixtures.peer import agrees_with_peer

RNG = np.random.default_rng(7)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*shape: int, high: int = 5) -> np.ndarray:
    return RNG.integers(-high, high, shape)


def index(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


UNARY = (
    "Abs Neg Sign Exp Sqrt Reciprocal Tanh Erf Sigmoid Sin Cos Floor Ceil Round Relu Softplus Softsign HardSigmoid "
    "HardSwish Elu Selu Celu LeakyRelu ThresholdedRelu Mish Shrink IsNaN IsInf"
).split()
BINARY = "Add Sub Mul Div Pow Min Max Less LessOrEqual Greater GreaterOrEqual Equal".split()
REDUCTIONS = (
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSumExp".split()
)


def compare(
    model: Any, feeds: dict[str, np.ndarray], compiled: bool = True, rtol: float = 2e-5, atol: float = 2e-6
) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    expected = session.run(None, feeds)
    graph = import_model(model)
    verify(graph)
    if compiled:
        reasons = [node.attributes["reason"] for node in graph.nodes if node.op == "host"]
        assert not reasons, f"host nodes: {reasons}"
    for version in (graph, run_passes(graph)):
        verify(version)
        for found, right in zip(interp.run(version, feeds), expected, strict=True):
            assert found.dtype == right.dtype and found.shape == right.shape
            np.testing.assert_allclose(found, right, rtol=rtol, atol=atol)


@pytest.mark.parametrize("op", UNARY)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 0, 3)])
def test_unary(op: str, shape: tuple[int, ...]) -> None:
    x = np.array(f32(*shape), np.float32)
    if op == "Sqrt":
        x = np.array(np.abs(x))
    compare(single(op, {"x": x}, opset=18 if op == "Mish" else 17), {"x": x})


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64])
def test_binary_broadcasts_a_constant(op: str, dtype: type) -> None:
    if op == "Pow" and dtype is not np.float32:
        return
    x, w = (np.abs(a) + 1 for a in (f32(2, 3, 4) * 9, f32(3, 1) * 9))
    x, w = x.astype(dtype), w.astype(dtype)
    compare(single(op, {"x": x}, weights={"w": w}, symbolic=False), {"x": x})


@pytest.mark.parametrize("op", ["Add", "Mul", "Max"])
def test_different_symbols_never_broadcast_silently(op: str) -> None:
    a, b = f32(2, 3), f32(1, 3)
    compare(single(op, {"a": a, "b": b}), {"a": a, "b": b}, compiled=False)
    compare(single(op, {"a": a, "b": a}), {"a": a, "b": a}, compiled=False)


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("axes", [None, (0,), (-1,), (0, 2), (1,)])
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("opset", [13, 18])
def test_reductions(op: str, axes: tuple[int, ...] | None, keep: int, opset: int) -> None:
    x = f32(2, 3, 4)
    is_input = opset >= 18 or op == "ReduceSum"
    weights = {"axes": index(*axes)} if axes is not None and is_input else {}
    attributes = {"axes": list(axes)} if axes is not None and not is_input else {}
    compare(single(op, {"x": x}, weights=weights, opset=opset, keepdims=keep, **attributes), {"x": x}, rtol=1e-4)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(("opset", "axis"), [(11, 0), (11, 1), (11, 2), (13, -1), (13, 0), (13, 1)])
def test_softmax_by_opset(op: str, opset: int, axis: int) -> None:
    x = f32(2, 3, 4)
    compare(single(op, {"x": x}, opset=opset, axis=axis), {"x": x})


@pytest.mark.parametrize(
    "shapes", [((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((3,), (3, 4)), ((2, 3), (3,)), ((3,), (3,))]
)
def test_matmul_ranks(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = f32(*shapes[0]), f32(*shapes[1])
    compare(single("MatMul", {"a": a, "b": b}), {"a": a, "b": b})
    compare(single("MatMul", {"a": a}, weights={"b": b}), {"a": a})


@pytest.mark.parametrize("flags", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_gemm(flags: tuple[int, int]) -> None:
    a, b = f32(3, 2) if flags[0] else f32(2, 3), f32(4, 3) if flags[1] else f32(3, 4)
    model = single(
        "Gemm", {"a": a}, weights={"b": b, "c": f32(4)}, transA=flags[0], transB=flags[1], alpha=0.5, beta=2.0
    )
    compare(model, {"a": a})


def test_normalisations() -> None:
    x = f32(2, 3, 4)
    for axis, shape in ((-1, (4,)), (1, (3, 4)), (2, (4,))):
        weights = {"scale": f32(*shape), "bias": f32(*shape)}
        compare(single("LayerNormalization", {"x": x}, weights=weights, axis=axis), {"x": x}, rtol=1e-4, atol=1e-5)
    weights = {"scale": f32(3), "bias": f32(3)}
    compare(single("InstanceNormalization", {"x": x}, weights=weights, symbolic=False), {"x": x}, rtol=1e-4, atol=1e-5)
    weights |= {"mean": f32(3), "var": np.abs(f32(3))}
    compare(single("BatchNormalization", {"x": x}, weights=weights, symbolic=False), {"x": x}, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("start", "end", "axes", "steps"),
    [
        ([1], [3], [0], [1]), ([-2], [2**62], [1], [1]), ([0], [-1], [2], [1]), ([5], [-(2**62)], [1], [-1]),
        ([1, 0], [9, 3], [2, 0], [2, 1]), ([3], [1], [0], [1]), ([-1], [-9], [2], [-2]),
        ([-9], [-9], [0], [-1]), ([-9], [-(2**62)], [1], [-2]), ([-9], [0], [2], [-1]), ([-6], [-9], [1], [-1]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("symbolic", [True, False])
def test_slice(start: list[int], end: list[int], axes: list[int], steps: list[int], symbolic: bool) -> None:
    x = f32(4, 5, 6)
    weights = {name: index(*values) for name, values in (("s", start), ("e", end), ("a", axes), ("t", steps))}
    compare(single("Slice", {"x": x}, weights=weights, symbolic=symbolic), {"x": x})


@pytest.mark.parametrize("target", [(0, -1), (-1,), (2, -1, 3), (0, 0, 2, 2), (24,)])
def test_reshape(target: tuple[int, ...]) -> None:
    x = f32(2, 3, 4)
    compare(single("Reshape", {"x": x}, weights={"t": index(*target)}, symbolic=False), {"x": x})


def test_data_movement() -> None:
    x = f32(2, 3, 4)
    compare(single("Transpose", {"x": x}, perm=[2, 0, 1]), {"x": x})
    compare(single("Flatten", {"x": x}, axis=2), {"x": x})
    compare(single("Unsqueeze", {"x": x}, weights={"a": index(0, -1)}), {"x": x})
    compare(single("Concat", {"x": x, "y": x}, axis=-1, symbolic=False), {"x": x, "y": x})
    compare(single("Tile", {"x": x}, weights={"r": index(2, 1, 3)}), {"x": x})
    compare(single("Expand", {"x": x[:1, :, :1]}, weights={"s": index(2, 3, 4)}, symbolic=False), {"x": x[:1, :, :1]})
    compare(single("Pad", {"x": x}, weights={"p": index(0, 1, 2, 1, 0, 0), "v": np.float32(7)}), {"x": x})
    compare(single("Split", {"x": x}, weights={"s": index(1, 3)}, outputs=2, axis=2, symbolic=False), {"x": x})
    compare(single("Trilu", {"x": x}, weights={"k": np.array(1, np.int64)}, upper=0), {"x": x})
    compare(single("Gather", {"x": x}, weights={"i": np.array([[0, -1], [1, 2]])}, axis=1), {"x": x})
    compare(single("GatherND", {"x": x}, weights={"i": np.array([[0, -1], [1, 2]])}), {"x": x})
    compare(single("Cast", {"x": x}, to=7), {"x": x})
    compare(single("EyeLike", {"x": f32(3, 4)}, k=1), {"x": f32(3, 4)})
    compare(single("DepthToSpace", {"x": f32(1, 8, 2, 3)}, blocksize=2, symbolic=False), {"x": f32(1, 8, 2, 3)})
    compare(single("SpaceToDepth", {"x": f32(1, 2, 4, 6)}, blocksize=2, symbolic=False), {"x": f32(1, 2, 4, 6)})


WHOLE_RESIZES = [
    {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}, {},
    {"nearest_mode": "round_prefer_ceil"}, {"coordinate_transformation_mode": "pytorch_half_pixel"},
]  # fmt: skip


@pytest.mark.parametrize("form", WHOLE_RESIZES)
@pytest.mark.parametrize("factors", [(1, 1, 2, 2), (1, 1, 3, 1), (1, 2, 4, 5)])
def test_resize_by_whole_factors(factors: tuple[int, ...], form: dict[str, str]) -> None:
    x = f32(2, 3, 4, 5)
    scales = {"s": np.array(factors, np.float32)}
    compare(single("Resize", {"x": x}, weights=scales, order=["x", "", "s"], **form), {"x": x})
    sizes = {"s": np.array(x.shape) * factors}
    built = single("Resize", {"x": x}, weights=sizes, order=["x", "", "", "s"], symbolic=False, **form)
    compare(built, {"x": x})
    compare(single("Upsample", {"x": x}, weights=scales, opset=9), {"x": x})


@pytest.mark.parametrize("way", ["half_pixel", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize("factors", [(1, 1, 2, 2), (1, 1, 3, 1), (1, 1, 1, 4)])
def test_linear_resize_by_whole_factors(factors: tuple[int, ...], way: str) -> None:
    x, scales = f32(2, 3, 4, 5), {"s": np.array(factors, np.float32)}
    form = {"mode": "linear", "coordinate_transformation_mode": way}
    compare(single("Resize", {"x": x}, weights=scales, order=["x", "", "s"], **form), {"x": x}, rtol=1e-5)
    agrees_with_peer(single("Resize", {"x": x}, weights=scales, order=["x", "", "s"], **form), {"x": x})


def test_other_ways_to_resize_are_the_hosts() -> None:
    x, scales = f32(1, 2, 4, 4), {"s": np.array([1, 1, 1.5, 2], np.float32)}
    forms = [{}, {"mode": "cubic"}, {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "ceil"}]
    for form in forms:
        built = single("Resize", {"x": x}, weights=scales, order=["x", "", "s"], symbolic=False, **form)
        assert [node.op for node in import_model(built).nodes] == ["host"]
        compare(built, {"x": x}, compiled=False)


def test_clip_and_where_and_integers() -> None:
    x = f32(3, 4)
    compare(single("Clip", {"x": x}, weights={"lo": np.float32(-0.5), "hi": np.float32(0.5)}), {"x": x})
    compare(single("Clip", {"x": x}, weights={"lo": np.float32(0.5), "hi": np.float32(-0.5)}), {"x": x})
    condition = x > 0
    compare(single("Where", {"c": condition}, weights={"a": x, "b": -x}, symbolic=False), {"c": condition})
    a = ints(4, 5, high=9)
    compare(single("Div", {"a": a}, weights={"b": index(3, -3, 4, -4, 1)}, symbolic=False), {"a": a})
    compare(single("Mod", {"a": a}, weights={"b": index(3, -3, 4, -4, 1)}, symbolic=False), {"a": a})
    compare(single("Mod", {"a": a}, weights={"b": index(3, -3, 4, -4, 1)}, symbolic=False, fmod=1), {"a": a})


@pytest.mark.parametrize("op", ["Gelu", "FastGelu", "QuickGelu"])
def test_extensions(op: str) -> None:
    x = f32(3, 4)
    compare(single(op, {"x": x}, domain="com.microsoft"), {"x": x}, rtol=1e-4, atol=1e-5)


def test_dequantize_linear() -> None:
    x = RNG.integers(-128, 128, (3, 4)).astype(np.int8)
    per_axis = {"s": np.abs(f32(4)), "z": RNG.integers(-9, 9, 4).astype(np.int8)}
    compare(single("DequantizeLinear", {"x": x}, weights=per_axis, axis=1, symbolic=False), {"x": x})
    compare(single("DequantizeLinear", {"x": x}, weights={"s": np.float32(0.1), "z": np.int8(3)}), {"x": x})


@pytest.mark.parametrize("rank", [8, 14])
def test_tensors_of_many_axes_compile(rank: int) -> None:
    """Axes that do not merge: each is another loop of the kernel."""
    x = f32(*[2] * rank)
    for symbolic in (True, False):
        turned = single("Transpose", {"x": x}, symbolic=symbolic, perm=list(range(rank))[::-1])
        agrees_with_peer(turned, {"x": x})
    a, b = (f32(*[1 if axis % 2 == side else 2 for axis in range(rank)]) for side in (0, 1))
    agrees_with_peer(single("Add", {"a": a, "b": b}, symbolic=False), {"a": a, "b": b})
