"""Zero extents, rank zero, negative and wild indices, shapes that come from data: NumPy and the ONNX text decide."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import grainline
from grainline import GrainlineError
from tests.cases.conftest import run_graph

F = np.float32


@pytest.mark.parametrize(
    "shape, target, allowzero, want",
    [
        ((0, 3), [0, 6], 0, (0, 6)),
        ((0, 3), [3, 0], 1, (3, 0)),
        ((2, 0, 4), [0, 4, 0], 0, (2, 4, 4)),
        ((2, 3, 4), [0, -1], 0, (2, 12)),
        ((2, 3, 4), [-1], 0, (24,)),
        ((1,), [], 0, ()),
        ((), [1, 1], 0, (1, 1)),
    ],
)
@pytest.mark.parametrize("constant", [True, False], ids=["constant", "from data"])
def test_reshape(run_node: Any, shape: Any, target: Any, allowzero: int, want: Any, constant: bool) -> None:
    x, to = np.arange(np.prod(shape, dtype=int), dtype=F).reshape(shape), np.array(target, np.int64)
    feeds, constants = ({"x": x}, {"to": to}) if constant else ({"x": x, "to": to}, {})
    if np.prod(want) != x.size:
        with pytest.raises(GrainlineError):
            run_node("Reshape", feeds, constants=constants, allowzero=allowzero)
        return
    y = run_node("Reshape", feeds, constants=constants, allowzero=allowzero)[0]
    assert y.shape == want
    np.testing.assert_array_equal(y.ravel(), x.ravel())


EMPTY = {
    "ReduceSum": 0,
    "ReduceProd": 1,
    "ReduceMax": -np.inf,
    "ReduceMin": np.inf,
    "ReduceSumSquare": 0,
    "ReduceL1": 0,
}


@pytest.mark.parametrize("op", EMPTY)
@pytest.mark.parametrize("shape, axis, want", [((2, 0), 1, (2,)), ((0, 3), 0, (3,)), ((0, 3), 1, (0,))])
def test_reducing_nothing_gives_the_identity(run_node: Any, op: str, shape: Any, axis: int, want: Any) -> None:
    y = run_node(op, {"x": np.zeros(shape, F)}, constants={"axes": np.array([axis])}, keepdims=0, opset=20)[0]
    np.testing.assert_array_equal(y, np.full(want, EMPTY[op], F))


@pytest.mark.parametrize(
    "op, feeds, want",
    [
        ("Add", [(0, 4), (1, 4)], (0, 4)),
        ("MatMul", [(2, 0), (0, 3)], (2, 3)),
        ("MatMul", [(0, 5), (5, 3)], (0, 3)),
        ("MatMul", [(0, 2, 5), (5, 3)], (0, 2, 3)),
        ("Concat", [(0, 3), (2, 3)], (2, 3)),
        ("Softmax", [(0, 4)], (0, 4)),
        ("Softmax", [(4, 0)], (4, 0)),
        ("Transpose", [(0, 3, 2)], (2, 3, 0)),
        ("Exp", [()], ()),
        ("Relu", [(0,)], (0,)),
    ],
)
def test_zero_extents_and_rank_zero(run_node: Any, op: str, feeds: list[Any], want: Any) -> None:
    arrays = {f"x{i}": np.ones(shape, F) for i, shape in enumerate(feeds)}
    attributes = {"axis": 0} if op == "Concat" else {}
    y = run_node(op, arrays, **attributes)[0]
    assert y.shape == want and y.dtype == F
    if op == "MatMul":
        np.testing.assert_array_equal(y, np.zeros(want, F))


@pytest.mark.parametrize("index_type", [np.int32, np.int64])
def test_negative_indices_count_from_the_end(run_node: Any, index_type: type) -> None:
    x, i = np.arange(12, dtype=F).reshape(3, 4), np.array([-1, 0, -3, 2], index_type)
    np.testing.assert_array_equal(run_node("Gather", {"x": x, "i": i}, axis=0)[0], x[i])
    np.testing.assert_array_equal(run_node("Gather", {"x": x}, constants={"i": i}, axis=-1)[0], x[:, i])
    each = np.array([[-1, 0, 1, -2]], index_type)
    np.testing.assert_array_equal(
        run_node("GatherElements", {"x": x, "i": each}, axis=0)[0], np.take_along_axis(x, each.astype(int), 0)
    )


@pytest.mark.parametrize("index", [3, -4, 2**31, -(2**31) - 1, 2**62])
@pytest.mark.parametrize("op", ["Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"])
def test_wild_indices_are_an_error(run_node: Any, op: str, index: int) -> None:
    x = np.arange(3, dtype=F)
    i = np.array([[index]] if op.endswith("ND") else [index])
    feeds = {"x": x, "i": i} | ({"u": np.ones(1, F)} if op.startswith("Scatter") else {})
    with pytest.raises(GrainlineError):
        run_node(op, feeds)


def test_scatter_with_addition_repeats_itself(run_node: Any) -> None:
    rng = np.random.default_rng(0)
    x, i, u = np.zeros(8, F), rng.integers(0, 8, (3000, 1)), rng.standard_normal(3000).astype(F)
    first = run_node("ScatterND", {"x": x, "i": i, "u": u}, reduction="add")[0]
    for _ in range(3):
        assert run_node("ScatterND", {"x": x, "i": i, "u": u}, reduction="add")[0].tobytes() == first.tobytes()


@pytest.mark.parametrize("start, limit, step", [(0, 4, 1), (3, -1, -1), (-2, 2, 1), (1, 1, 1), (0, 9, 2)])
def test_gathering_a_range_is_not_a_slice(start: int, limit: int, step: int) -> None:
    nodes = [helper.make_node("Range", ["a", "b", "c"], ["r"]), helper.make_node("Gather", ["x", "r"], ["y"], axis=0)]
    x = np.arange(10, dtype=F)
    feeds = {"x": x, "a": np.array(start), "b": np.array(limit), "c": np.array(step)}
    np.testing.assert_array_equal(run_graph(nodes, feeds, ["y"])[0], x[np.arange(start, limit, step)])


def test_shapes_from_data() -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["where"]),
        helper.make_node("Transpose", ["where"], ["rows"]),
        helper.make_node("GatherND", ["x", "rows"], ["kept"]),
        helper.make_node("Shape", ["kept"], ["size"]),
        helper.make_node("Expand", ["one", "size"], ["ones"]),
        helper.make_node("Add", ["kept", "ones"], ["y"]),
    ]
    for x in (np.array([0, 3, 0, 4], F), np.zeros(5, F), np.ones((2, 3), F)):
        got = run_graph(nodes, {"x": x}, ["y"], {"one": np.ones(1, F)})[0]
        np.testing.assert_array_equal(got, x[x != 0] + 1)


@pytest.mark.parametrize("perm", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_reducing_a_view_walks_the_right_axis(perm: Any, axis: int) -> None:
    x = np.random.default_rng(1).integers(0, 3, (3, 4, 5)).astype(F)
    view = x.transpose(perm)
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=perm),
        helper.make_node("ArgMax", ["t"], ["first"], axis=axis, keepdims=0),
        helper.make_node("ArgMax", ["t"], ["last"], axis=axis, keepdims=0, select_last_index=1),
        helper.make_node("ReduceSum", ["t", "axes"], ["sum"], keepdims=0),
    ]
    first, last, total = run_graph(nodes, {"x": x}, ["first", "last", "sum"], {"axes": np.array([axis])})
    np.testing.assert_array_equal(first, view.argmax(axis))
    np.testing.assert_array_equal(last, view.shape[axis] - 1 - np.flip(view, axis).argmax(axis))
    np.testing.assert_array_equal(total, view.sum(axis))


@pytest.mark.parametrize("exclusive, reverse", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("shape", [(1,), (5,), (2, 1, 3)])
def test_cumulative_sum(run_node: Any, exclusive: int, reverse: int, shape: Any) -> None:
    x = np.arange(1, np.prod(shape) + 1, dtype=F).reshape(shape)
    for axis in range(len(shape)):
        along = np.flip(x, axis) if reverse else x
        want = np.cumsum(along, axis) - (along if exclusive else 0)
        want = np.flip(want, axis) if reverse else want
        got = run_node("CumSum", {"x": x}, constants={"a": np.array(axis)}, exclusive=exclusive, reverse=reverse)[0]
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_a_loop_carries_and_collects(trips: int) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Add", ["carried", "step"], ["next"]),
            helper.make_node("Identity", ["next"], ["seen"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried", TensorProto.FLOAT, [2]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("seen", TensorProto.FLOAT, [2]),
        ],
    )
    nodes = [helper.make_node("Loop", ["trips", "", "x"], ["last", "all"], body=body)]
    x, step = np.array([1, 2], F), np.array([10, 20], F)
    last, every = run_graph(nodes, {"x": x, "step": step, "trips": np.array(trips)}, ["last", "all"])
    np.testing.assert_array_equal(last, x + trips * step)
    np.testing.assert_array_equal(every, np.array([x + (k + 1) * step for k in range(trips)], F).reshape(trips, 2))


@pytest.mark.parametrize("condition", [True, False])
def test_if_takes_the_branch(condition: bool) -> None:
    def branch(name: str, op: str) -> Any:
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["k"])
        return helper.make_graph([helper.make_node(op, ["x", "x"], [name])], name, [], [out])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("t", "Add"), else_branch=branch("e", "Mul"))
    x = np.array([3, 5], F)
    got = run_graph([node], {"c": np.array(condition), "x": x}, ["y"])[0]
    np.testing.assert_array_equal(got, x + x if condition else x * x)


def test_inputs_left_out(run_node: Any) -> None:
    x = np.arange(12, dtype=F).reshape(3, 4)
    constants = {"starts": np.array([1]), "ends": np.array([3])}
    np.testing.assert_array_equal(run_node("Slice", {"x": x}, constants=constants)[0], x[1:3])
    got = run_node("Slice", {"x": x, "s": np.array([1]), "e": np.array([4]), "axes": None, "steps": np.array([2])})[0]
    np.testing.assert_array_equal(got, x[1:4:2])
    clipped = run_node("Clip", {"x": x, "low": None, "high": np.array(5, F)})[0]
    np.testing.assert_array_equal(clipped, np.minimum(x, 5))


@pytest.mark.parametrize("opset", [11, 13])
def test_softmax_means_what_its_opset_says(run_node: Any, opset: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(F)
    got = run_node("Softmax", {"x": x}, axis=1, opset=opset)[0]
    axes = (1, 2) if opset < 13 else (1,)
    e = np.exp(x - x.max(axes, keepdims=True))
    np.testing.assert_allclose(got, e / e.sum(axes, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("rows", [0, 1, 2, 5])
def test_views_of_nothing_are_results_like_others(rows: int) -> None:
    """Parts without elements of reversed, summed and padded values, whether a model or only a run knows it."""
    x = np.arange(rows * 3, dtype=F).reshape(rows, 3)
    nodes = [
        helper.make_node("Slice", ["x", "last", "first", "axes", "back"], ["r"]),
        helper.make_node("Slice", ["r", "far", "end", "axes"], ["past"]),
        helper.make_node("CumSum", ["x", "zero"], ["sums"], reverse=1, exclusive=1),
        helper.make_node("Split", ["sums", "parts"], ["whole", "none"], axis=1),
        helper.make_node("CumSum", ["none", "zero"], ["c"]),
        helper.make_node("Pad", ["x", "pads"], ["p"]),
        helper.make_node("Unsqueeze", ["p", "axes"], ["u"]),
        helper.make_node("Tile", ["p", "twice"], ["t"]),
    ]
    constants = {
        "last": np.array([-1]), "first": np.array([-(2**62)]), "axes": np.array([0]), "back": np.array([-1]),
        "far": np.array([5]), "end": np.array([9]), "zero": np.array(0), "parts": np.array([3, 0]),
        "pads": np.array([2, 0, 0, 1]), "twice": np.array([2, 1]),
    }  # fmt: skip
    got = run_graph(nodes, {"x": x}, ["past", "none", "c", "u", "t"], constants)
    padded = np.pad(x, ((2, 0), (0, 1)))
    for found, want in zip(got, (x[::-1][5:9], x[:, 3:], x[:, 3:], padded[None], np.tile(padded, (2, 1))), strict=True):
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("start, end, step", [(-9, -(2**62), -1), (-9, 0, -1), (-9, -(2**62), -2), (9, -9, -3)])
@pytest.mark.parametrize("extent", [0, 1, 4])
def test_backward_slices_clamp_as_the_standard_says(
    run_node: Any, start: int, end: int, step: int, extent: int
) -> None:
    """Backward, a start before the first element is the first element: by constants, and where only a run knows."""
    x = np.arange(extent, dtype=F)
    begin = min(max(start + extent if start < 0 else start, 0), extent - 1)
    stop = min(max(end + extent if end < 0 else end, -1), extent - 1)
    bounds = {"s": np.array([start]), "e": np.array([end]), "a": np.array([0]), "t": np.array([step])}
    want = x[[*range(begin, stop, step)]]
    np.testing.assert_array_equal(run_node("Slice", {"x": x}, constants=bounds)[0], want)
    np.testing.assert_array_equal(run_node("Slice", {"x": x} | bounds)[0], want)


@pytest.mark.parametrize("use", ["a result", "a shape", "a guard"])
def test_a_value_that_is_made_for_its_extents_alone(use: str) -> None:
    """Nobody reads what a host operator makes, but how many elements it has is asked for, or must be checked."""
    x = np.array([0, 3, 0, 5, 7, 9], F)
    nodes = [helper.make_node("NonZero", ["x"], ["places"]), helper.make_node("Shape", ["places"], ["extents"])]
    nodes += {
        "a result": [helper.make_node("Identity", ["extents"], ["y"])],
        "a shape": [helper.make_node("ConstantOfShape", ["extents"], ["y"])],
        "a guard": [helper.make_node("Reshape", ["places", "pairs"], ["p"]), helper.make_node("Relu", ["x"], ["y"])],
    }[use]
    want = {"a result": np.array([1, 4]), "a shape": np.zeros((1, 4), F), "a guard": x}[use]
    np.testing.assert_array_equal(run_graph(nodes, {"x": x}, ["y"], {"pairs": np.array([-1, 2])})[0], want)


@pytest.mark.parametrize("op", ["Add", "MatMul", "Where", "Concat"])
def test_extents_that_only_a_run_shows_to_be_equal(op: str) -> None:
    """[n + 3] meets [7]: one name for the extent on each side, and no rule makes them one."""
    x = np.arange(4, dtype=F)
    seven, square = np.arange(7, dtype=F), np.arange(49, dtype=F).reshape(7, 7)
    nodes = [helper.make_node("Concat", ["x", "three"], ["wide"], axis=0)]
    wide = np.concatenate([x, seven[:3]])
    nodes += {
        "Add": [helper.make_node("Add", ["wide", "square"], ["y"])],
        "MatMul": [helper.make_node("MatMul", ["square", "wide"], ["y"])],
        "Where": [helper.make_node("Greater", ["wide", "seven"], ["c"]), helper.make_node("Where", ["c", "square", "wide"], ["y"])],
        "Concat": [helper.make_node("Add", ["wide", "wide"], ["d"]), helper.make_node("Unsqueeze", ["d", "zero"], ["row"]), helper.make_node("Concat", ["square", "row"], ["y"], axis=0)],
    }[op]  # fmt: skip
    want = {
        "Add": wide + square, "MatMul": square @ wide, "Where": np.where(wide > seven, square, wide),
        "Concat": np.concatenate([square, 2 * wide[None]]),
    }[op]  # fmt: skip
    constants = {"three": seven[:3], "seven": seven, "square": square, "zero": np.array([0])}
    np.testing.assert_array_equal(run_graph(nodes, {"x": x}, ["y"], constants)[0], want)
    with pytest.raises(GrainlineError):
        run_graph(nodes, {"x": x[:3]}, ["y"], constants)


@pytest.mark.parametrize("rank", [5, 6, 8])
def test_many_free_extents_are_planned_for(rank: int) -> None:
    names = [f"d{axis}" for axis in range(rank)]
    data = np.random.default_rng(rank).standard_normal([1 + axis % 3 for axis in range(rank)]).astype(F)
    turned = list(range(rank))[::-1]
    graph = helper.make_graph(
        [helper.make_node("Transpose", ["x"], ["t"], perm=turned), helper.make_node("Exp", ["t"], ["y"])],
        "free",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, names)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, names[::-1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    found = grainline.load(model.SerializeToString()).run({"x": data})[0]
    np.testing.assert_allclose(found, np.exp(data.transpose(turned)), rtol=1e-6)


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (0, 0)])
@pytest.mark.parametrize("op", ["LayerNormalization", "ReduceMean"])
def test_means_of_nothing_say_nothing(run_node: Any, op: str, shape: tuple[int, int]) -> None:
    scale = {"scale": np.ones(shape[1], F)} if op == "LayerNormalization" else {}
    attributes = {} if op == "LayerNormalization" else {"keepdims": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = run_node(op, {"x": np.zeros(shape, F), **scale}, **attributes)[0]
    assert found.shape == (shape if op == "LayerNormalization" else (1, 1))


def test_more_programs_than_a_launch_counts_is_a_typed_error() -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.INT8, [1 << 16, (1 << 16) + 1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"], name="turn")], "vast", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with pytest.raises(
        (grainline.UnsupportedError, grainline.OutOfMemory)
    ) as caught:  # the latter where memory is less
        grainline.load(model.SerializeToString())
    assert caught.value.node == "turn"
