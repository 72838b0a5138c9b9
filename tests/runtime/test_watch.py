"""Subscribers, kernel traces and dumps: what they are told, in which order, and that they change nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import grainline
from grainline import DataDump, ExceptionDump, KernelTrace, Model, NodeEvent, Subscriber
from grainline.base.errors import KernelError, OptionError
from grainline.execgraph.registry import is_launch_node
from tests.conftest import make_model

FEEDS = {"x": np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)}


@pytest.fixture(scope="module")
def model() -> Model:
    """Three launches in a row: product, row kernel, product; then a host operator."""
    rng = np.random.default_rng(1)
    weights = {name: rng.standard_normal((4, 4)).astype(np.float32) for name in ("v", "w")}
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"], name="first"),
        helper.make_node("CumSum", ["a", "axis"], ["b"], name="middle"),
        helper.make_node("MatMul", ["b", "w"], ["y"], name="last"),
        helper.make_node("Unique", ["y"], ["u"], name="host"),
    ]
    weights["axis"] = np.array(0)
    outputs = {"y": (TensorProto.FLOAT, ["n", 4]), "u": (TensorProto.FLOAT, None)}
    made = make_model(nodes, {"x": (TensorProto.FLOAT, ["n", 4])}, outputs, weights)
    return grainline.load(made.SerializeToString())


class Recorder(Subscriber):
    def __init__(self) -> None:
        self.told: list[Any] = []

    def run_started(self, graph: Any, feeds: Mapping[str, Any]) -> None:
        self.told.append("run_started")

    def on_node(self, event: NodeEvent) -> None:
        self.told.append((event.kind, event.node.id))

    def run_ended(self, graph: Any, error: BaseException | None) -> None:
        self.told.append(("run_ended", error))


def launches_of(model: Model) -> list[str]:
    graph = model.compiled.executor.graph
    return [node.compute_node for node in graph.main if is_launch_node(node.kernel)]


def test_every_node_starts_and_ends_once_between_the_ends_of_the_run(model: Model) -> None:
    recorder = Recorder()
    results = model.run_watched(FEEDS, recorder)
    np.testing.assert_array_equal(results[0], model.run(FEEDS)[0])
    assert recorder.told[0] == "run_started" and recorder.told[-1] == ("run_ended", None)
    nodes = recorder.told[1:-1]
    assert nodes[::2] == [("node_started", id) for _, id in nodes[1::2]], "a node ends before the next one starts"
    assert [id for _, id in nodes[::2]] == [id for id, _, _ in model.compiled.executor._native.nodes()]


def test_subscribers_are_told_in_their_order(model: Model) -> None:
    told: list[str] = []

    class Named(Subscriber):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_node(self, event: NodeEvent) -> None:
            told.append(self.name)

    model.run_watched(FEEDS, Named("a"), Named("b"))
    assert told and told == ["a", "b"] * (len(told) // 2)


def test_an_exception_of_a_subscriber_comes_out_when_the_run_is_over(model: Model) -> None:
    class Broken(Recorder):
        def on_node(self, event: NodeEvent) -> None:
            raise ArithmeticError("mine")

    broken = Broken()
    with pytest.raises(ArithmeticError, match="mine"):
        model.run_watched(FEEDS, broken)
    assert isinstance(broken.told[-1][1], ArithmeticError)
    assert len(model.run(FEEDS)) == 2


def test_R70_a_kernel_trace_has_a_line_per_node(model: Model) -> None:
    lines: list[str] = []
    model.run_watched(FEEDS, KernelTrace(lines.append))
    assert len(lines) == len(model.compiled.executor._native.nodes())
    assert all(line.startswith("[KernelTrace][") for line in lines)
    allocations = [line for line in lines if "[AllocMemory]" in line]
    assert allocations and all("size_bytes=" in line for line in allocations)


def test_R65_the_range_of_a_dump_advances_once_per_operator(model: Model, tmp_path: Path) -> None:
    names = launches_of(model)
    assert len(names) >= 2, "the model has several launches"
    for begin in range(len(names)):
        for end in range(begin, len(names)):
            folder = tmp_path / f"{begin}_{end}"
            dump = DataDump(folder, names[begin], names[end])
            for run in range(2):
                model.run_watched(FEEDS, dump)
                rows = json.loads((folder / f"run_{run}" / "index.json").read_text())
                assert list(dict.fromkeys(row["operator"] for row in rows)) == names[begin : end + 1]
                assert {row["place"] for row in rows} == set(range(begin, end + 1))


def test_dumped_tensors_are_what_the_operators_saw(model: Model, tmp_path: Path) -> None:
    dump = DataDump(tmp_path)
    expected = model.run_watched(FEEDS, dump)
    rows = json.loads((tmp_path / "run_0" / "index.json").read_text())
    arrays = [(row["access"], np.load(tmp_path / "run_0" / row["file"])) for row in rows]
    assert any(access == "read" and np.array_equal(array, FEEDS["x"]) for access, array in arrays), "the feed is seen"
    assert any(access == "write" and np.array_equal(array, expected[0]) for access, array in arrays), "and the output"


def test_a_range_that_names_no_launch_is_refused(model: Model, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no launch"):
        model.run_watched(FEEDS, DataDump(tmp_path, first="nobody"))


def test_a_failing_node_leaves_its_operands_and_attributes(model: Model, tmp_path: Path) -> None:
    native = model.compiled.executor._native
    number = next(i for i, (_, kernel, _) in enumerate(native.nodes()) if kernel == "Launch")
    dump = ExceptionDump(tmp_path)
    native.override_node_for_test(number, "kernel_failed")
    try:
        with pytest.raises(KernelError, match="injected"):
            model.run_watched(FEEDS, dump)
    finally:
        native.override_node_for_test(number, "")
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert failure["kernel"] == "Launch" and "injected" in failure["error"]
    rows = json.loads((tmp_path / "index.json").read_text())
    assert any(np.array_equal(np.load(tmp_path / row["file"]), FEEDS["x"]) for row in rows), "the input is kept"
    (tmp_path / "failure.json").unlink()
    model.run_watched(FEEDS, dump)
    assert not (tmp_path / "failure.json").exists(), "a run that succeeds leaves nothing"


def test_a_saved_model_is_watched_like_a_compiled_one(add_model: bytes, tmp_path: Path) -> None:
    path = tmp_path / "add.onnx"
    path.write_bytes(add_model)
    x = np.ones((2, 4), np.float32)
    for _ in range(2):  # the second one comes from the cache
        recorder = Recorder()
        results = grainline.load(path).run_watched({"a": x, "b": x}, recorder)
        np.testing.assert_array_equal(results[0], x + x)
        assert ("node_ended", 0) in recorder.told
