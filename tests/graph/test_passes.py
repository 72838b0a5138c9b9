"""Every pass keeps validity and every bit of the results; each rule of `simplify` does what its law says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grainline.base.dims import symbol
from grainline.base.dtypes import F32, I8, I64
from grainline.graph import interp
from grainline.graph.ir import Constant, Graph, Node, Value
from grainline.graph.passes import ORDER, run_passes
from grainline.graph.passes.common_subexpressions import CommonSubexpressions
from grainline.graph.passes.eliminate_dead import EliminateDead
from grainline.graph.passes.fold_constants import FoldConstants
from grainline.graph.passes.simplify import Simplify
from grainline.graph.passes.sink_transposes import SinkTransposes
from grainline.graph.verify import verify
from tests.graph.random_graphs import feeds, graphs

PASSES = {step.name: step for step in ORDER}


def bits(arrays: list[np.ndarray]) -> list[tuple[object, ...]]:
    """Equal for equal values; any NaN equals any NaN, and the zeros differ."""
    shown = []
    for array in arrays:
        plain = np.where(np.isnan(array), np.float32(np.nan), array) if array.dtype.kind == "f" else array
        shown.append((plain.dtype, plain.shape, np.ascontiguousarray(plain).tobytes()))
    return shown


@pytest.mark.parametrize("name", PASSES)
@given(graph=graphs(), batch=st.integers(1, 3), length=st.integers(1, 3))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_pass_keeps_the_results(name: str, graph: Graph, batch: int, length: int) -> None:
    verify(graph)
    given_feeds = feeds(batch, length)
    after = PASSES[name].run(graph)
    verify(after)
    if name in ("split_reduce", "hoist_pointwise"):
        close(interp.run(graph, given_feeds), interp.run(after, given_feeds))
        return
    assert bits(interp.run(graph, given_feeds)) == bits(interp.run(after, given_feeds))


@given(graph=graphs())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_all_passes_keep_the_results(graph: Graph) -> None:
    after = run_passes(graph)
    verify(after)
    close(interp.run(graph, feeds(2, 3)), interp.run(after, feeds(2, 3)))


def channels_last(*names: str) -> tuple[list[Node], list[Value]]:
    """Values [2, 3, 4, 5] that a kernel stored as [2, 4, 5, 3]"""
    nodes, turned = [], []
    for name in names:
        stored = Value(f"{name}_stored", F32, (2, 4, 5, 3))
        turned.append(Value(f"{name}_turned", F32, (2, 3, 4, 5)))
        nodes.append(Node("neg", (Value(name, F32, (2, 4, 5, 3)),), (stored,)))
        nodes.append(Node("transpose", (stored,), (turned[-1],), {"perm": (0, 3, 1, 2)}))
    return nodes, turned


SUNK = {
    "two operands": ("add", {}, (2, 3, 4, 5), (2, 4, 5, 3)),
    "a smaller operand": ("mul", {}, (2, 3, 4, 5), (2, 4, 5, 3)),
    "reduce": ("reduce", {"kind": "sum", "axes": (2, 3)}, (2, 3, 1, 1), (2, 1, 1, 3)),
    "concat": ("concat", {"axis": 1}, (2, 6, 4, 5), (2, 4, 5, 6)),
    "pad": ("pad", {"before": (0, 0, 1, 2), "value": 7.0}, (2, 3, 6, 9), (2, 6, 9, 3)),
}


@pytest.mark.parametrize("name", SUNK)
def test_transposes_sink_below_work_that_can_be_done_in_the_order_of_their_source(name: str) -> None:
    op, attributes, shape, stored = SUNK[name]
    nodes, (x, y) = channels_last("x", "y")
    scale = Value("scale", F32, (3, 1, 1))
    operands = {"two operands": (x, y), "a smaller operand": (x, scale), "concat": (x, y)}.get(name, (x,))
    result = Value("result", F32, shape)
    inputs = (Value("x", F32, (2, 4, 5, 3)), Value("y", F32, (2, 4, 5, 3)), scale)
    graph = Graph("g", inputs, (("out", result),), (*nodes, Node(op, operands, (result,), attributes)), {})
    verify(graph)
    after = EliminateDead().run(SinkTransposes().run(graph))
    verify(after)
    worked = next(node for node in after.nodes if node.op == op)
    assert worked.output.shape == stored and after.nodes[-1].op == "transpose"
    rng = np.random.default_rng(1)
    given_feeds = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in inputs}
    assert bits(interp.run(graph, given_feeds)) == bits(interp.run(after, given_feeds))


def test_transposes_that_keep_the_last_axis_or_turn_an_input_stay() -> None:
    x, t, y = Value("x", F32, (2, 3, 4)), Value("t", F32, (2, 4, 3)), Value("y", F32, (2, 4, 3))
    of_input = (Node("transpose", (x,), (t,), {"perm": (0, 2, 1)}), Node("mul", (t, t), (y,)))
    graph = Graph("g", (x,), (("out", y),), of_input, {})
    assert [node.op for node in SinkTransposes().run(graph).nodes] == ["transpose", "mul"]
    s, u, z = Value("s", F32, (2, 3, 4)), Value("u", F32, (3, 2, 4)), Value("z", F32, (3, 2, 4))
    heads = (Node("neg", (x,), (s,)), Node("transpose", (s,), (u,), {"perm": (1, 0, 2)}), Node("mul", (u, u), (z,)))
    assert [node.op for node in SinkTransposes().run(Graph("g", (x,), (("out", z),), heads, {})).nodes][-1] == "mul"


def close(before: list[np.ndarray], after: list[np.ndarray]) -> None:
    for a, b in zip(before, after, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


N = symbol("n")
X = Value("x", F32, (N, 4))


def chain(*nodes: Node, constants: dict[str, np.ndarray] | None = None, inputs: tuple[Value, ...] = (X,)) -> Graph:
    held = {name: Constant(lambda array=array: array) for name, array in (constants or {}).items()}
    return Graph("chain", inputs, (("y", nodes[-1].output),), nodes, held)


def value(name: str, *shape: object) -> Value:
    return Value(name, F32, shape)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("op", "number", "is_identity"),
    [
        ("mul", 1.0, True), ("div", 1.0, True), ("sub", 0.0, True), ("add", -0.0, True),
        ("add", 0.0, False), ("sub", -0.0, False), ("mul", 0.0, False), ("mul", -1.0, False),
    ],
)  # fmt: skip
def test_neutral_operands_follow_ieee(op: str, number: float, is_identity: bool) -> None:
    graph = chain(Node(op, (X, value("k")), (value("t", N, 4),)), constants={"k": np.array(number, np.float32)})
    after = Simplify().run(graph)
    assert (after.outputs[0][1] == X) is is_identity
    special = np.array([[0.0, -0.0, np.inf, np.nan]], np.float32)
    assert bits(interp.run(graph, {"x": special})) == bits(interp.run(after, {"x": special}))


def test_a_constant_that_widens_is_not_neutral() -> None:
    graph = chain(
        Node("mul", (X, value("k", 3, 1, 1)), (value("t", 3, N, 4),)), constants={"k": np.ones((3, 1, 1), np.float32)}
    )
    assert len(Simplify().run(graph).nodes) == 1


def test_merging_and_splitting_around_a_transpose_is_a_transpose() -> None:
    source = Value("x", F32, (N, 2, 3, 4))
    graph = chain(
        Node("reshape", (source,), (value("a", N * 2, 3, 4),)),
        Node("transpose", (value("a", N * 2, 3, 4),), (value("t", N * 2, 4, 3),), {"perm": (0, 2, 1)}),
        Node("reshape", (value("t", N * 2, 4, 3),), (value("y", N, 2, 4, 3),)),
        inputs=(source,),
    )
    after = EliminateDead().run(Simplify().run(graph))
    assert [(n.op, n.attributes.get("perm")) for n in after.nodes] == [("transpose", (0, 1, 3, 2))]
    x = np.arange(48, dtype=np.float32).reshape(2, 2, 3, 4)
    assert bits(interp.run(graph, {"x": x})) == bits(interp.run(after, {"x": x}))


def test_a_slice_that_is_a_part_of_a_concat_is_that_part() -> None:
    a, b = Value("a", F32, (N, 1)), Value("b", F32, (N, 1))
    graph = chain(
        Node("concat", (a, b), (value("c", N, 2),), {"axis": 1}),
        Node("slice", (value("c", N, 2),), (value("y", N, 1),), {"starts": (0, 1), "steps": (1, 1)}),
        inputs=(a, b),
    )
    assert EliminateDead().run(Simplify().run(graph)).outputs[0][1] == b


def test_folding_reads_no_large_weight_until_it_is_loaded() -> None:
    reads: list[str] = []

    def load() -> np.ndarray:
        reads.append("weight")
        return np.arange(5000, dtype=np.int8)

    weight, wide = Value("w", I8, (5000,)), value("f", 5000)
    nodes = (Node("cast", (weight,), (wide,), {"to": "f32"}), Node("mul", (wide, value("s")), (value("y", 5000),)))
    constants = {"w": Constant(load, "file:1"), "s": Constant(lambda: np.array(0.5, np.float32), "literal")}
    folded = FoldConstants().run(Graph("g", (), (("y", nodes[1].output),), nodes, constants))
    assert not folded.nodes and not reads
    assert folded.constants["y"].load().tolist() == (np.arange(5000, dtype=np.int8) * np.float32(0.5)).tolist()
    assert folded.constants["y"].identity.startswith("fold:"), "equal weights of two sessions are found to be equal"


def test_folding_never_allocates_what_the_inputs_do_not_justify() -> None:
    huge = Value("y", F32, (1 << 40,))
    graph = Graph(
        "g",
        (),
        (("y", huge),),
        (Node("expand", (value("one"),), (huge,)),),
        {"one": Constant(lambda: np.ones((), np.float32))},
    )
    assert len(FoldConstants().run(graph).nodes) == 1


def test_a_fold_that_fails_is_left_to_the_run() -> None:
    a, b, y = (Value(name, I64, (1,)) for name in "aby")
    held = {"a": Constant(lambda: np.array([1])), "b": Constant(lambda: np.array([0]))}
    graph = Graph("g", (), (("y", y),), (Node("div", (a, b), (y,)),), held)
    assert FoldConstants().run(graph).nodes == graph.nodes


def test_equal_applications_become_one() -> None:
    t, u = value("t", N, 4), value("u", N, 4)
    graph = chain(Node("exp", (X,), (t,)), Node("exp", (X,), (u,)), Node("add", (t, u), (value("y", N, 4),)))
    after = CommonSubexpressions().run(graph)
    assert [n.op for n in after.nodes] == ["exp", "add"] and after.nodes[1].inputs == (t, t)
