"""If, Loop and Scan of a model: what crosses their borders, how they end, what they keep, and what is refused."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

pytest.importorskip("grainline._native", reason="the native core is not built")

import grainline
from grainline import Cancelled, FeedError, KernelError, ModelError
from grainline.graph import interp
from grainline.importer.model import import_model
from tests.fixtures.models import model

F = np.float32
node = helper.make_node
FLOAT, INT64, BOOL, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"executor": "topological"},
    {"executor": "multi-worker", "workers": 2},
    {"device": "discrete"},
    {"device": "discrete", "executor": "multi-worker", "workers": 3},
)


def info(name: str, dtype: int = FLOAT, shape: Any = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def loop_body(nodes: Sequence[Any], carried: Sequence[Any], results: Sequence[Any]) -> onnx.GraphProto:
    """A body with the formals i and go, whose first result is `on`."""
    return helper.make_graph(
        list(nodes), "body", [info("i", INT64, []), info("go", BOOL, []), *carried], [info("on", BOOL, []), *results]
    )


GO_ON = node("Identity", ["go"], ["on"])


def run(built: onnx.ModelProto, feeds: dict[str, Any], **options: Any) -> list[Any]:
    """The outputs, which must be those of the interpreter."""
    results = grainline.load(built.SerializeToString(), cache=False, **options).run(feeds)
    for found, meaning in zip(results, interp.run(import_model(built.SerializeToString()), feeds), strict=True):
        np.testing.assert_array_equal(found, meaning)
        assert np.shape(found) == np.shape(meaning)
    return results


# ---- no host call where none is needed ---------------------------------------------------------------------------


def doubling() -> onnx.ModelProto:
    """Concatenates what it carries with itself; stops when `limit` rows are passed; collects the number of rows."""
    nodes = [
        node("Concat", ["a", "a"], ["b"], axis=0),
        node("Shape", ["b"], ["shape"]),
        node("Gather", ["shape", "zero"], ["rows"]),
        node("Less", ["rows", "limit"], ["on"]),
    ]
    body = loop_body(nodes, [info("a")], [info("b"), info("rows", INT64, [])])
    feeds = {"x": np.ones((1, 2), F), "limit": np.array(1), "t": np.array(1)}
    return model(
        [node("Loop", ["t", "", "x"], ["last", "all"], body=body, name="the loop")],
        feeds,
        ["last", "all"],
        {"zero": np.array(0)},
    )


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize(("trips", "limit", "turns"), [(9, 20, 5), (3, 100, 3), (0, 100, 0), (9, 0, 1), (-1, 5, 0)])
def test_carried_shapes_change_and_a_condition_stops_early(
    trips: int, limit: int, turns: int, options: dict[str, Any]
) -> None:
    x = np.arange(2, dtype=F).reshape(1, 2)
    last, rows = run(doubling(), {"x": x, "limit": np.array(limit), "t": np.array(trips)}, **options)
    np.testing.assert_array_equal(last, np.tile(x, (2**turns, 1)))
    assert rows.tolist() == [2 ** (turn + 1) for turn in range(turns)]


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_control_flow_calls_no_host(options: dict[str, Any]) -> None:
    compiled = grainline.load(doubling().SerializeToString(), cache=False, **options)
    kernels = {record["kernel"] for record in profile_of(compiled)}
    assert "HostCall" not in kernels and "SwitchTurn" in kernels
    assert "Loop (the loop): sub-graphs of" in compiled.explain()


def profile_of(compiled: Any) -> list[dict[str, Any]]:
    feeds = {"x": np.ones((1, 2), F), "limit": np.array(5), "t": np.array(4)}
    _, records = compiled._compiled.timed_run(feeds, None)
    return records


# ---- what crosses ------------------------------------------------------------------------------------------------


def test_values_change_places() -> None:
    """a, b = b, a, and one of them twice."""
    body = loop_body([GO_ON, node("Identity", ["b"], ["c"]), node("Identity", ["a"], ["d"]), node("Identity", ["a"], ["e"])],
                     [info("a"), info("b"), info("z")], [info("c"), info("d"), info("e")])  # fmt: skip
    x, y = np.arange(3, dtype=F), np.arange(5, dtype=F)
    built = model(
        [node("Loop", ["t", "", "x", "y", "x"], ["p", "q", "r"], body=body)],
        {"x": x, "y": y, "t": np.array(1)},
        ["p", "q", "r"],
    )
    for trips in range(4):
        p, q, r = run(built, {"x": x, "y": y, "t": np.array(trips)})
        assert (len(p), len(q)) == ((3, 5) if trips % 2 == 0 else (5, 3))
        assert len(r) == (3 if trips % 2 == 1 or trips == 0 else 5)


def test_strings_and_sequences_are_carried() -> None:
    body = loop_body(
        [GO_ON, node("StringConcat", ["s", "s"], ["s2"]), node("SequenceInsert", ["q", "i1"], ["q2"]),
         node("Cast", ["i"], ["i1"], to=FLOAT), node("Identity", ["s"], ["seen"])],
        [info("s", STRING), helper.make_tensor_sequence_value_info("q", FLOAT, None)],
        [info("s2", STRING), helper.make_tensor_sequence_value_info("q2", FLOAT, None), info("seen", STRING)],
    )  # fmt: skip
    body.node.sort(key=lambda one: one.op_type == "SequenceInsert")
    nodes = [node("SequenceEmpty", [], ["empty"], dtype=FLOAT), node("Loop", ["t", "", "text", "empty"], ["s", "q", "all"], body=body),
             node("SequenceLength", ["q"], ["count"])]  # fmt: skip
    feeds = {"text": np.array(["ab", "c"], object), "t": np.array(3)}
    infos = [info("text", STRING, ["n"]), info("t", INT64, [])]
    graph = helper.make_graph(
        nodes, "text", infos, [info("s", STRING, None), info("count", INT64, []), info("all", STRING, None)]
    )
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    compiled = grainline.load(built.SerializeToString(), cache=False)
    for trips in (3, 1, 2):
        s, count, every = compiled.run({**feeds, "t": np.array(trips)})
        assert s.tolist() == ["ab" * 2**trips, "c" * 2**trips] and count == trips
        assert every.tolist() == [["ab" * 2**turn, "c" * 2**turn] for turn in range(trips)]


def test_branches_of_different_rank_give_an_object() -> None:
    then = helper.make_graph([node("Exp", ["x"], ["a"])], "then", [], [info("a")])
    other = helper.make_graph([node("ReduceSum", ["x"], ["b"], keepdims=0)], "else", [], [info("b")])
    x = np.arange(6, dtype=F).reshape(2, 3)
    nodes = [node("If", ["c"], ["y"], then_branch=then, else_branch=other), node("Neg", ["y"], ["z"])]
    built = model(nodes, {"x": x, "c": np.array(True)}, ["z"])
    compiled = grainline.load(built.SerializeToString(), cache=False)
    np.testing.assert_allclose(compiled.run({"x": x, "c": np.array(True)})[0], -np.exp(x), 1e-6)
    assert compiled.run({"x": x, "c": np.array(False)})[0] == -15


def test_scan_takes_slices_in_both_directions_and_collects_along_any_axis() -> None:
    inner = [node("Add", ["s", "p"], ["s2"]), node("Mul", ["s2", "q"], ["o"])]
    body = helper.make_graph(inner, "body", [info("s"), info("p"), info("q")], [info("s2"), info("o")])
    x, y = np.arange(12, dtype=F).reshape(3, 4), np.arange(12, dtype=F).reshape(4, 3) + 1
    first = np.zeros(3, F)
    for back in ([0, 0], [1, 0], [0, 1], [1, 1]):
        for axis, out_back in ((0, 0), (1, 0), (-1, 1), (-2, 1)):
            scan = node("Scan", ["first", "x", "y"], ["last", "all"], body=body, num_scan_inputs=2, scan_input_axes=[1, 0],
                        scan_input_directions=back, scan_output_axes=[axis], scan_output_directions=[out_back])  # fmt: skip
            run(model([scan], {"first": first, "x": x, "y": y}, ["last", "all"]), {"first": first, "x": x, "y": y})


def test_scan_over_nothing_gives_its_first_state() -> None:
    body = helper.make_graph([node("Add", ["s", "p"], ["s2"]), node("Neg", ["s2"], ["o"])], "body",
                             [info("s"), info("p")], [info("s2"), info("o")])  # fmt: skip
    scan = node("Scan", ["first", "x"], ["last", "all"], body=body, num_scan_inputs=1)
    feeds = {"first": np.ones(3, F), "x": np.zeros((0, 3), F)}
    built = model([scan], feeds, ["last", "all"])
    for given, shape in zip(built.graph.input, ([3], ["n", 3]), strict=True):
        given.CopyFrom(info(given.name, FLOAT, shape))
    last, every = run(built, feeds)
    assert last.tolist() == [1, 1, 1] and every.shape == (0, 3)


def test_scan_over_inputs_of_unknown_rank() -> None:
    body = helper.make_graph([node("Add", ["s", "p"], ["s2"]), node("Mul", ["p", "q"], ["o"])], "body",
                             [info("s"), info("p"), info("q")], [info("s2"), info("o")])  # fmt: skip
    scan = node("Scan", ["first", "x", "y"], ["last", "all"], body=body, num_scan_inputs=2)
    feeds = {"first": np.zeros(3, F), "x": np.arange(6, dtype=F).reshape(2, 3), "y": np.ones((2, 3), F)}
    for open_ones in (["x"], ["x", "y"]):
        built = model([scan], feeds, ["last", "all"])
        for given in built.graph.input:
            if given.name in open_ones:
                given.CopyFrom(info(given.name, FLOAT, None))
        last, every = run(built, feeds)
        assert last.tolist() == [3, 5, 7] and every.tolist() == feeds["x"].tolist()
        compiled = grainline.load(built.SerializeToString(), cache=False)
        with pytest.raises(KernelError, match="lengths"):
            compiled.run({**feeds, "y": np.ones((3, 3), F)})


def test_results_that_nobody_uses_are_left_out() -> None:
    body = loop_body(
        [GO_ON, node("Add", ["a", "one"], ["b"])], [info("a"), info("z")], [info("b"), info("z"), info("b"), info("b")]
    )
    loop = node("Loop", ["t", "", "x", "x"], ["", "", "", "all"], body=body)
    feeds = {"x": np.zeros(2, F), "t": np.array(3)}
    (every,) = run(model([loop], feeds, ["all"], {"one": np.array(1, F)}), feeds)
    assert every.tolist() == [[1, 1], [2, 2], [3, 3]]


def test_a_body_sees_its_own_initialisers_and_functions() -> None:
    body = loop_body(
        [GO_ON, node("Twice", ["a"], ["c"], domain="own"), node("Add", ["c", "w"], ["b"])], [info("a")], [info("b")]
    )
    body.initializer.append(helper.make_tensor("w", FLOAT, [2], [1, 2]))
    feeds = {"x": np.ones(2, F), "t": np.array(3)}
    built = model([node("Loop", ["t", "", "x"], ["y"], body=body)], feeds, ["y"], symbolic=False)
    twice = helper.make_function(
        "own", "Twice", ["p"], ["q"], [node("Add", ["p", "p"], ["q"])], [helper.make_opsetid("", 17)]
    )
    built.functions.append(twice)
    built.opset_import.append(helper.make_opsetid("own", 1))
    (y,) = run(built, feeds)
    assert y.tolist() == [8 + 7, 8 + 14]


def test_loops_inside_of_loops_keep_their_own_numbers() -> None:
    """Sums i * 10 + j over both loops."""
    inner = helper.make_graph(
        [node("Identity", ["go2"], ["on2"]), node("Mul", ["i", "ten"], ["i10"]), node("Add", ["i10", "j"], ["k"]), node("Add", ["s", "k"], ["s2"])],
        "inner", [info("j", INT64, []), info("go2", BOOL, []), info("s", INT64, [])], [info("on2", BOOL, []), info("s2", INT64, []), info("k", INT64, [])],
    )  # fmt: skip
    body = loop_body(
        [GO_ON, node("Loop", ["i", "", "a"], ["b", "ks"], body=inner)], [info("a", INT64, [])], [info("b", INT64, [])]
    )
    feeds = {"t": np.array(5)}
    built = model(
        [node("Loop", ["t", "", "zero"], ["sum"], body=body)],
        feeds,
        ["sum"],
        {"zero": np.array(0), "ten": np.array(10)},
    )
    for trips in (5, 0, 1, 3):
        (found,) = run(built, {"t": np.array(trips)})
        assert found == sum(10 * i + j for i in range(trips) for j in range(i))


# ---- ends --------------------------------------------------------------------------------------------------------


def failing() -> onnx.ModelProto:
    """Looks `a[i]` up; the third turn is outside of a vector of two."""
    body = loop_body([GO_ON, node("Gather", ["x", "i"], ["v"], name="look up"), node("Add", ["s", "v"], ["s2"])],
                     [info("s", shape=[])], [info("s2", shape=[])])  # fmt: skip
    feeds = {"x": np.ones(2, F), "t": np.array(1)}
    return model([node("Loop", ["t", "", "zero"], ["sum"], body=body)], feeds, ["sum"], {"zero": np.array(0, F)})


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_failure_in_a_body_names_its_node_and_the_next_run_is_right(options: dict[str, Any]) -> None:
    compiled = grainline.load(failing().SerializeToString(), cache=False, **options)
    x = np.array([3, 4], F)
    # A device completes a launch long after its node ended.
    match = "an index outside its tensor" if "device" in options else "look up"
    for _ in range(5):
        with pytest.raises(KernelError, match=match):
            compiled.run({"x": x, "t": np.array(3)})
        assert compiled.run({"x": x, "t": np.array(2)})[0] == 7


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_an_endless_loop_ends_when_it_is_cancelled(options: dict[str, Any]) -> None:
    body = loop_body([GO_ON, node("Identity", ["a"], ["b"])], [info("a")], [info("b")])
    compiled = grainline.load(model([node("Loop", ["", "", "x"], ["y"], body=body)], {"x": np.ones(2, F)}, ["y"]).SerializeToString(), cache=False, **options)  # fmt: skip
    word = np.zeros(1, np.int32)
    threading.Timer(0.2, lambda: word.__setitem__(0, 1)).start()
    with pytest.raises(Cancelled):
        compiled._compiled.run({"x": np.ones(2, F)}, None, word)


def test_what_turns_collect_has_one_shape() -> None:
    body = loop_body([GO_ON, node("Concat", ["a", "a"], ["b"], axis=0)], [info("a")], [info("b"), info("b")])
    built = model(
        [node("Loop", ["t", "", "x"], ["last", "all"], body=body)], {"x": np.ones(2, F), "t": np.array(1)}, ["all"]
    )
    compiled = grainline.load(built.SerializeToString(), cache=False)
    assert compiled.run({"x": np.ones(2, F), "t": np.array(1)})[0].shape == (1, 4)
    with pytest.raises(KernelError, match="one shape"):
        compiled.run({"x": np.ones(2, F), "t": np.array(2)})


@pytest.mark.parametrize("options", KINDS[2:], ids=str)
def test_a_thousand_runs_keep_no_more_memory_than_one(options: dict[str, Any]) -> None:
    compiled = grainline.load(doubling().SerializeToString(), cache=False, **options)
    statistics = compiled._compiled.executor.statistics
    feeds = {"x": np.ones((1, 2), F), "limit": np.array(10**6), "t": np.array(6)}
    for _ in range(3):
        compiled.run(feeds)
    gc.collect()
    before = statistics()
    for turn in range(1000):
        compiled.run({**feeds, "t": np.array(turn % 7)})
    after = statistics()
    assert after["held_bytes"] == before["held_bytes"] and after["growths"] == before["growths"]
    compiled.trim()
    assert statistics()["held_bytes"] == 0, "a block is still in use"


# ---- what is refused ---------------------------------------------------------------------------------------------


def if_of(then: onnx.GraphProto, other: onnx.GraphProto, outputs: int = 1) -> onnx.ModelProto:
    names = [f"y{number}" for number in range(outputs)]
    return model(
        [node("If", ["c"], names, then_branch=then, else_branch=other, name="choose")],
        {"c": np.array(True), "x": np.ones(2, F)},
        names,
    )


def branch(name: str, op: str = "Exp", dtype: int = FLOAT, **attributes: Any) -> onnx.GraphProto:
    return helper.make_graph([node(op, ["x"], [name], **attributes)], name, [], [info(name, dtype)])


def test_branches_that_do_not_agree_are_refused() -> None:
    two = branch("b")
    two.output.append(info("b"))
    for built, word in (
        (if_of(branch("a"), branch("b", "Cast", INT64, to=INT64)), "types"),
        (if_of(branch("a"), two), "numbers of outputs"),
        (if_of(branch("a"), branch("b"), 2), "too many outputs"),
    ):
        with pytest.raises(ModelError, match=word):
            grainline.load(built.SerializeToString(), cache=False)


@pytest.mark.parametrize(
    ("carried", "results", "word"),
    [
        ([info("a")], [], "does not fit"),
        ([info("a"), info("b")], [info("a"), info("b")], "does not fit"),
        ([info("a")], [info("i", INT64)], "types"),
    ],
)
def test_bodies_that_do_not_fit_are_refused(carried: list[Any], results: list[Any], word: str) -> None:
    built = model(
        [node("Loop", ["t", "", "x"], ["y"], body=loop_body([GO_ON], carried, results))],
        {"x": np.ones(2, F), "t": np.array(1)},
        ["y"],
    )
    with pytest.raises(ModelError, match=word):
        grainline.load(built.SerializeToString(), cache=False)


def test_a_condition_has_one_element() -> None:
    built = if_of(branch("a"), branch("b"))
    built.graph.input[0].CopyFrom(info("c", BOOL, ["n"]))
    compiled = grainline.load(built.SerializeToString(), cache=False)
    assert compiled.run({"c": np.array([True]), "x": np.zeros(2, F)})[0].tolist() == [1, 1]
    with pytest.raises(FeedError):
        compiled.run({"c": np.array([True, False]), "x": np.zeros(2, F)})
