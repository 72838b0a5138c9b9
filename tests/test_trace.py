"""Traces as files: whatever a viewer relies on holds for every event."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import grainline
from grainline.tools.main import call
from tests.conftest import make_model

Events = list[dict[str, Any]]


@pytest.fixture(scope="module", params=[1, 3], ids="{} workers".format)
def workers(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def trace(workers: int, tmp_path_factory: pytest.TempPathFactory) -> Events:
    """Two traced runs of a model with products, a row kernel, an intermediate and a host operator: the file."""
    folder = tmp_path_factory.mktemp("trace")
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((96, 96)).astype(np.float32) for name in ("v", "w")}
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"], name="first"),
        helper.make_node("Softmax", ["a"], ["b"], name="rows", axis=-1),
        helper.make_node("MatMul", ["b", "w"], ["c"], name="second"),
        helper.make_node("Unique", ["c"], ["u"], name="host"),
        helper.make_node("Exp", ["c"], ["y"], name="last"),
    ]
    outputs = {"y": (TensorProto.FLOAT, ["n", 96]), "u": (TensorProto.FLOAT, None)}
    model = make_model(nodes, {"x": (TensorProto.FLOAT, ["n", 96])}, outputs, weights)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    path = folder / "trace.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAX_RUNTIME_CORE_NUMBER", str(workers))
        assert call(["trace", str(folder / "model.onnx"), "-o", str(path), "--shape", "x=512,96", "--runs", "2"]) == 0
    return json.loads(path.read_text())


def spans(events: Events) -> Events:
    return [event for event in events if event["ph"] == "X"]


def test_every_span_lies_on_a_named_track(trace: Events, workers: int) -> None:
    named = {event["tid"]: event["args"]["name"] for event in trace if event["ph"] == "M"}
    assert {event["tid"] for event in spans(trace)} <= set(named)
    assert {"caller, worker 0", "stream 0"} <= set(named.values())
    tracks = {named[event["tid"]] for event in spans(trace) if event["cat"] == "Node"}
    assert tracks == {"caller, worker 0", *(f"worker {number}" for number in range(1, workers))}


def test_spans_of_a_track_nest(trace: Events) -> None:
    tracks: dict[int, Events] = defaultdict(list)
    for event in spans(trace):
        assert event["ts"] >= 0 and event["dur"] >= 0, f"{event['name']} has no time"
        tracks[event["tid"]].append(event)
    for events in tracks.values():
        open_until: list[float] = []
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            while open_until and open_until[-1] <= event["ts"]:
                open_until.pop()
            end = event["ts"] + event["dur"]
            assert not open_until or end <= open_until[-1] + 1e-3, f"{event['name']} overlaps its neighbour"
            open_until.append(end)


def test_every_arrow_has_both_ends_inside_spans_and_runs_forward(trace: Events) -> None:
    starts = {event["id"]: event for event in trace if event["ph"] == "s"}
    ends = {event["id"]: event for event in trace if event["ph"] == "f"}
    assert starts and starts.keys() == ends.keys()
    for number, start in starts.items():
        assert ends[number]["ts"] >= start["ts"], "work completes after it was submitted"
        for end in (start, ends[number]):
            inside = [
                span for span in spans(trace)
                if span["tid"] == end["tid"] and span["ts"] - 1e-3 <= end["ts"] <= span["ts"] + span["dur"] + 1e-3
            ]  # fmt: skip
            assert inside, "an arrow begins and ends in a span"


def test_memory_returns_to_its_start(trace: Events) -> None:
    values = [event["args"]["bytes"] for event in trace if event["ph"] == "C"]
    assert max(values) >= 512 * 96 * 4, "the intermediate is seen"
    assert min(values) == 0 and values[-1] == 0, "what a run takes it gives back"


def test_every_run_and_every_launch_is_there(trace: Events) -> None:
    runs = [event for event in spans(trace) if event["name"] == "model_run"]
    assert [event["args"]["run_id"] for event in runs] == [1, 2]
    for run in (1, 2):
        nodes = [event for event in spans(trace) if event["cat"] == "Node" and event["args"]["run_id"] == run]
        launches = [event for event in nodes if event["args"]["kernel"] == "Launch"]
        on_stream = [event for event in spans(trace) if event["cat"] == "Stream" and event["args"]["run_id"] == run]
        assert len(launches) == len(on_stream) >= 2
        assert any(event["args"]["kernel"] == "HostCall" for event in nodes)


def test_pool_threads_did_the_blocks_of_wide_launches(trace: Events) -> None:
    from grainline import _native

    wide = [event for event in spans(trace) if event["cat"] == "Node" and event["args"].get("homes", 1) > 1]
    tasks = [event for event in spans(trace) if event["cat"] == "Pool"]
    if _native.processors() > 1 and wide:
        assert tasks, "launches with several homes leave spans of the pool"
    assert all(event["args"]["tasks"] > 0 for event in tasks)


def test_a_traced_run_gives_the_same_result(add_model: bytes) -> None:
    model = grainline.load(add_model)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    trace = model.profile({"a": x, "b": x}, runs=2)
    assert len([event for event in trace.events if event["name"] == "model_run"]) == 2
    np.testing.assert_array_equal(model.run({"a": x, "b": x})[0], x + x)


def test_every_worker_has_a_track(add_model: bytes) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    trace = grainline.load(add_model, executor="multi-worker", workers=2).profile({"a": x, "b": x})
    named = {event["tid"]: event["args"]["name"] for event in trace.events if event["ph"] == "M"}
    tracks = {named[event["tid"]] for event in spans(trace.events) if event["cat"] == "Node"}
    assert tracks == {"caller, worker 0", "worker 1"}, "memory tasks lie on a track of their own"


@pytest.mark.parametrize("streams", [1, 2])
def test_what_an_asynchronous_stream_did_lies_on_its_track(streams: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two branches of two products each; the device completes what the host only submits."""
    monkeypatch.setenv("ENABLE_DYNAMIC_SHAPE_MULTI_STREAM", str(streams - 1))
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((96, 96)).astype(np.float32) for name in "pqrs"}
    products = [helper.make_node("MatMul", [a, b], [y]) for a, b, y in ("xpa", "aqb", "xrc", "csd")]
    nodes = [*products, helper.make_node("Add", ["b", "d"], ["y"])]
    shape = (TensorProto.FLOAT, ["n", 96])
    device = grainline.Device("discrete")
    model = grainline.load(make_model(nodes, {"x": shape}, {"y": shape}, weights).SerializeToString(), device=device)
    x = rng.standard_normal((8, 96)).astype(np.float32)
    device.set_delay(200e-6)
    model.run({"x": x})
    events = model.profile({"x": x}, runs=2).events
    named = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    on_streams = [event for event in spans(events) if event["cat"] == "Stream"]
    assert {named[event["tid"]] for event in on_streams} == {f"stream {i}" for i in range(streams)}
    launches = [event for event in spans(events) if event["args"].get("kernel") == "Launch"]
    kinds = [event["args"]["kind"] for event in on_streams]
    assert kinds.count("launch") == len(launches) >= 2 * 4 and "copy" in kinds, "and the copies to and from the device"
    assert all(event["dur"] >= 200 for event in on_streams), "a command takes as long as the device, not as its call"
    assert any(span["dur"] < 200 for span in launches), "which the host does not wait for"
    test_spans_of_a_track_nest(events)
    test_every_arrow_has_both_ends_inside_spans_and_runs_forward(events)
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert len(ends) == len(on_streams)
    for span in on_streams:
        assert any(
            end["tid"] == span["tid"] and abs(span["ts"] + span["dur"] - end["ts"]) < 2e-3 for end in ends.values()
        ), "an arrow ends where the command is complete"


FED = {
    "array": np.arange(6).reshape(2, 3),
    "narrow array": np.arange(6, dtype=np.int32).reshape(2, 3),
    "list": [[0, 1, 2], [3, 4, 5]],
    "list of fractions": [[1.7, 2.2]],
    "OrtValue": grainline.OrtValue.ortvalue_from_numpy(np.arange(6).reshape(2, 3)),
    "none": None,
    "wrong rank": np.arange(6),
    "index out of range": np.array([[9]]),
}


@pytest.mark.parametrize("fed", FED)
def test_an_observed_run_takes_and_refuses_what_a_run_does(fed: str) -> None:
    nodes = [helper.make_node("Gather", ["table", "i"], ["y"])]
    made = make_model(
        nodes,
        {"i": (TensorProto.INT64, ["a", "b"])},
        {"y": (TensorProto.FLOAT, ["a", "b"])},
        {"table": np.arange(7, dtype=np.float32)},
    )
    loaded, feeds = grainline.load(made.SerializeToString()), {"i": FED[fed]}
    expected = outcome(lambda: loaded.run(feeds)[0].tolist())
    assert outcome(lambda: loaded.run_watched(feeds)[0].tolist()) == expected
    traced = outcome(lambda: facts_of_run(loaded.profile(feeds))["output_shapes"])
    if isinstance(expected, list):
        assert traced == [list(np.shape(expected))]
    else:
        assert traced == expected


def facts_of_run(trace: Any) -> dict[str, Any]:
    return next(event["args"] for event in trace.events if event["name"] == "model_run")


def outcome(run: Callable[[], Any]) -> Any:
    """What `run` returns, or its error's class and parts."""
    try:
        return run()
    except grainline.GrainlineError as error:
        return type(error), str(error)


def test_a_profiled_run_of_a_session_can_be_ended() -> None:
    step = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Tanh", ["in"], ["out"])],
        "step",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("in", TensorProto.FLOAT, ["n"]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n"]),
        ],
    )
    made = make_model(
        [helper.make_node("Loop", ["times", "", "x"], ["y"], body=step)],
        {"x": (TensorProto.FLOAT, ["n"])},
        {"y": (TensorProto.FLOAT, ["n"])},
        {"times": np.array(1 << 40)},
    )
    settings, ending = grainline.SessionOptions(), grainline.RunOptions()
    settings.enable_profiling = True
    session = grainline.InferenceSession(made.SerializeToString(), settings)
    timer = threading.Timer(0.1, lambda: setattr(ending, "terminate", True))
    timer.start()
    with pytest.raises(grainline.Cancelled):
        session.run(None, {"x": np.ones(5, np.float32)}, ending)
    timer.join()
