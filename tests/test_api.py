"""`InferenceSession` and companions behave like onnxruntime's: each law is checked on both libraries."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import grainline
from grainline.plan.machine import machine_of
from grainline.plan.target import host_target
from tests.conftest import STRICT_NAMES

ort = pytest.importorskip("onnxruntime", reason="the peer whose calls are compared; `make test` installs it")
ort.set_default_logger_severity(4)
PUBLIC = """
    Allocator BuildError Cancelled DataDump Device EndOfSequence Event ExceptionDump ExecutionMode
    ExecutionOrder FeedError GrainlineError GraphOptimizationLevel IOBinding InferenceSession KernelError
    KernelTrace Model ModelError ModelMetadata NodeArg NodeEvent OptionError OrtValue OutOfMemory RunOptions
    SessionOptions StateError Stream Subscriber SynchronizationError TimedOut UnsupportedError __version__
    compile disable_telemetry_events enable_telemetry_events get_all_providers get_available_providers
    get_device load set_default_logger_severity set_default_logger_verbosity
""".split()
LIBRARIES = pytest.mark.parametrize("library", [grainline, ort], ids=["grainline", "onnxruntime"])


def test_R34_a_public_name_comes_and_goes_with_a_review() -> None:
    """Whoever adds, renames or drops one changes this list too."""
    assert grainline.__all__ == PUBLIC
    assert not [name for name in PUBLIC if not hasattr(grainline, name)]


@pytest.fixture
def two_outputs(model: Callable[..., onnx.ModelProto]) -> bytes:
    """`y = x + 2`, `s = shape(x)`; x is f32[n, 3, ?]."""
    proto = model(
        [helper.make_node("Add", ["x", "k"], ["y"]), helper.make_node("Shape", ["x"], ["s"])],
        {"x": (TensorProto.FLOAT, ["n", 3, None])},
        {"y": (TensorProto.FLOAT, ["n", 3, None]), "s": (TensorProto.INT64, [3])},
        {"k": np.array([2.0], np.float32)},
    )
    proto.producer_name, proto.domain, proto.doc_string, proto.model_version = "maker", "there", "what it is", 7
    proto.graph.doc_string = "the graph"
    proto.metadata_props.add(key="licence", value="free")
    return proto.SerializeToString()


X = np.arange(12, dtype=np.float32).reshape(2, 3, 2)


@LIBRARIES
def test_inputs_and_outputs_describe_themselves(library: ModuleType, two_outputs: bytes) -> None:
    session = library.InferenceSession(two_outputs, providers=["CPUExecutionProvider"])
    assert [(v.name, v.type, v.shape) for v in session.get_inputs()] == [("x", "tensor(float)", ["n", 3, None])]
    described = [(v.name, v.type, v.shape) for v in session.get_outputs()]
    assert described == [("y", "tensor(float)", ["n", 3, None]), ("s", "tensor(int64)", [3])]
    assert str(session.get_inputs()[0]) == "NodeArg(name='x', type='tensor(float)', shape=['n', 3, None])"


@LIBRARIES
def test_outputs_without_a_declared_shape_or_type_show_what_follows(library: ModuleType) -> None:
    """Named dimensions stay names, sums of them are open, and any text may be a name."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("Concat", ["x", "x"], ["c"], axis=0),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Conv", ["i", "w"], ["k"], strides=[2, 2]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch size", 3]),
        helper.make_tensor_value_info("i", TensorProto.FLOAT, [1, 2, 9, 8]),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "tck"]
    outputs.append(onnx.ValueInfoProto(name="s"))
    weights = [onnx.numpy_helper.from_array(np.ones((4, 2, 3, 3), np.float32), "w")]
    graph = helper.make_graph(nodes, "open", inputs, outputs, weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = library.InferenceSession(proto.SerializeToString())
    assert session.get_inputs()[0].shape == ["batch size", 3]
    shown = {v.name: (v.type, v.shape) for v in session.get_outputs()}
    assert shown["t"] == ("tensor(float)", [3, "batch size"])
    assert shown["c"] == ("tensor(float)", [None, 3])
    assert shown["k"] == ("tensor(float)", [1, 4, 4, 3])
    assert shown["s"] == ("tensor(int64)", [2])


@LIBRARIES
def test_what_is_no_tensor_is_spelled_out(library: ModuleType) -> None:
    sequence = helper.make_tensor_sequence_value_info("q", TensorProto.INT64, None)
    table = onnx.ValueInfoProto(name="z")
    entry = table.type.sequence_type.elem_type.map_type
    entry.key_type, entry.value_type.tensor_type.elem_type = TensorProto.STRING, TensorProto.FLOAT
    nodes = [
        helper.make_node("ZipMap", ["x"], ["z"], domain="ai.onnx.ml", classlabels_strings=["a", "b"]),
        helper.make_node("SequenceAt", ["q", "zero"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 2]), sequence]
    weights = [onnx.numpy_helper.from_array(np.array(0), "zero")]
    outputs = [table, helper.make_tensor_value_info("y", TensorProto.INT64, None)]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    graph = helper.make_graph(nodes, "containers", inputs, outputs, weights)
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = library.InferenceSession(proto.SerializeToString())
    assert [v.type for v in session.get_inputs()] == ["tensor(float)", "seq(tensor(int64))"]
    assert [v.type for v in session.get_outputs()] == ["seq(map(string,tensor(float)))", "tensor(int64)"]
    rows, y = session.run(None, {"x": np.array([[0.25, 0.75]], np.float32), "q": [np.array([4, 5])]})
    assert rows == [{"a": 0.25, "b": 0.75}] and y.tolist() == [4, 5]


@LIBRARIES
def test_an_output_of_another_type_than_declared_is_an_error(library: ModuleType, model: Any) -> None:
    proto = model(
        [helper.make_node("Relu", ["x"], ["y"])],
        {"x": (TensorProto.FLOAT, ["n"])},
        {"y": (TensorProto.INT64, ["n"])},
    )
    with pytest.raises(Exception, match=r"[^a-z]y[^a-z]"):
        library.InferenceSession(proto.SerializeToString())


@LIBRARIES
def test_metadata_comes_from_the_file(library: ModuleType, two_outputs: bytes) -> None:
    meta = library.InferenceSession(two_outputs).get_modelmeta()
    assert (meta.producer_name, meta.domain, meta.description, meta.version) == ("maker", "there", "what it is", 7)
    assert (meta.graph_name, meta.graph_description) == ("small", "the graph")
    assert meta.custom_metadata_map == {"licence": "free"}


REQUESTS: list[tuple[Any, list[str]]] = [
    (None, ["y", "s"]), ([], ["y", "s"]), (["s"], ["s"]), (("s", "y"), ["s", "y"]), (["y", "y"], ["y", "y"]),
]  # fmt: skip


@LIBRARIES
@pytest.mark.parametrize("names, delivered", REQUESTS)
def test_run_returns_a_list_in_the_order_asked(
    library: ModuleType, two_outputs: bytes, names: Any, delivered: list[str]
) -> None:
    results = library.InferenceSession(two_outputs).run(names, {"x": X})
    expected = {"y": X + 2, "s": np.array(X.shape)}
    assert isinstance(results, list)
    for name, array in zip(delivered, results, strict=True):
        np.testing.assert_array_equal(array, expected[name])
    assert all(type(array) is np.ndarray for array in results)


@LIBRARIES
@pytest.mark.parametrize(
    "feed",
    [X, X.tolist(), X[::-1], np.asfortranarray(X), np.zeros((0, 3, 2), np.float32)],
    ids=["array", "list", "negative stride", "column major", "zero extent"],
)
def test_feeds_that_work(library: ModuleType, two_outputs: bytes, feed: Any) -> None:
    result = library.InferenceSession(two_outputs).run(["y"], {"x": feed})[0]
    np.testing.assert_array_equal(result, np.asarray(feed, np.float32) + 2)
    assert result.dtype == np.float32 and result.dtype.isnative


@LIBRARIES
def test_keyword_arguments_have_their_names(library: ModuleType, two_outputs: bytes) -> None:
    session = library.InferenceSession(path_or_bytes=two_outputs, sess_options=None, providers=None)
    results = session.run(output_names=["s"], input_feed={"x": X}, run_options=library.RunOptions())
    assert results[0].tolist() == [2, 3, 2]


BAD_RUNS: list[tuple[str, Any, Any]] = [
    ("wrong dtype", None, {"x": X.astype(np.float64)}),
    ("missing", None, {}),
    ("extra", None, {"x": X, "q": X}),
    ("rank", None, {"x": X[0]}),
    ("extent", None, {"x": np.ones((2, 4, 1), np.float32)}),
    ("no such output", ["zz"], {"x": X}),
    ("a string for a list", "y", {"x": X}),
    ("feeds not a dict", None, [X]),
    ("None", None, {"x": None}),
]


@LIBRARIES
@pytest.mark.parametrize("names, feeds", [case[1:] for case in BAD_RUNS], ids=[case[0] for case in BAD_RUNS])
def test_bad_runs_raise_and_the_next_run_works(library: ModuleType, two_outputs: bytes, names: Any, feeds: Any) -> None:
    session = library.InferenceSession(two_outputs)
    with pytest.raises(Exception):  # noqa: B017 - onnxruntime has its own classes
        session.run(names, feeds)
    np.testing.assert_array_equal(session.run(["y"], {"x": X})[0], X + 2)


@LIBRARIES
@pytest.mark.parametrize(
    "kind, call",
    [
        (ValueError, lambda s: s.run(None, {})),
        (TypeError, lambda s: s.run("y", {"x": X})),
        (AttributeError, lambda s: s.run(None, [X])),
    ],
)
def test_shared_error_classes(library: ModuleType, two_outputs: bytes, kind: type[Exception], call: Any) -> None:
    with pytest.raises(kind):
        call(library.InferenceSession(two_outputs))


@LIBRARIES
@pytest.mark.parametrize("source", [3, None, helper.make_graph([], "g", [], [])])
def test_what_is_not_a_model_source_is_a_type_error(library: ModuleType, source: Any) -> None:
    with pytest.raises(TypeError, match="Unable to load from type"):
        library.InferenceSession(source)


@LIBRARIES
def test_a_path_may_be_a_string_or_a_path(library: ModuleType, two_outputs: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(two_outputs)
    for source in (path, str(path)):
        assert library.InferenceSession(source).run(["s"], {"x": X})[0].tolist() == [2, 3, 2]
    with pytest.raises(Exception, match=r"nowhere\.onnx"):
        library.InferenceSession(tmp_path / "nowhere.onnx")


@LIBRARIES
def test_session_options_keep_what_they_are_given(library: ModuleType, two_outputs: bytes) -> None:
    options = library.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.graph_optimization_level = library.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.execution_mode = library.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    assert options.intra_op_num_threads == 1 and options.enable_mem_pattern is False
    assert options.graph_optimization_level == library.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    session = library.InferenceSession(two_outputs, options)
    assert session.get_session_options().intra_op_num_threads == 1
    assert session.run(None, {"x": X})[1].tolist() == [2, 3, 2]


@LIBRARIES
def test_options_refuse_what_they_do_not_know(library: ModuleType) -> None:
    options = library.SessionOptions()
    with pytest.raises(AttributeError):
        options.no_such_setting = 1
    with pytest.raises(TypeError):
        options.intra_op_num_threads = "many"
    with pytest.raises(TypeError):
        options.add_session_config_entry("key", 1)
    with pytest.raises(RuntimeError, match="absent"):
        options.get_session_config_entry("absent")
    with pytest.raises(RuntimeError, match="absent"):
        library.RunOptions().get_run_config_entry("absent")


def test_enumerations_have_the_same_numbers() -> None:
    for kind in ("GraphOptimizationLevel", "ExecutionMode", "ExecutionOrder"):
        for member in getattr(grainline, kind):
            assert int(member) == int(getattr(getattr(ort, kind), member.name)), f"{kind}.{member.name}"


def test_settings_have_the_same_names_and_defaults() -> None:
    ours, theirs = grainline.SessionOptions(), ort.SessionOptions()
    for name in ("intra_op_num_threads", "inter_op_num_threads", "enable_profiling", "log_severity_level", "logid"):
        assert getattr(ours, name) == getattr(theirs, name), name
    missing = [
        n for n in dir(theirs) if not n.startswith("_") and not callable(getattr(theirs, n)) and n not in dir(ours)
    ]
    assert not missing, f"settings that code for onnxruntime may write: {missing}"


@LIBRARIES
def test_a_number_stands_for_a_flag(library: ModuleType, two_outputs: bytes) -> None:
    options = library.SessionOptions()
    options.enable_mem_pattern = 0
    options.enable_cpu_mem_arena = 1
    assert options.enable_mem_pattern is False and options.enable_cpu_mem_arena is True


@LIBRARIES
def test_options_of_another_kind_are_a_type_error(library: ModuleType, two_outputs: bytes) -> None:
    other = ort if library is grainline else grainline
    for options in ({"intra_op_num_threads": 1}, other.SessionOptions()):
        with pytest.raises(TypeError):
            library.InferenceSession(two_outputs, options)


@LIBRARIES
def test_calls_on_the_whole_library(library: ModuleType) -> None:
    assert "CPUExecutionProvider" in library.get_all_providers()
    library.set_default_logger_verbosity(0)
    library.disable_telemetry_events()


@LIBRARIES
def test_a_run_with_no_output_bound_is_an_error(library: ModuleType, two_outputs: bytes) -> None:
    session = library.InferenceSession(two_outputs)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    with pytest.raises(RuntimeError, match="output"):
        session.run_with_iobinding(binding)


@LIBRARIES
def test_free_dimension_overrides_show_in_the_shape(library: ModuleType, two_outputs: bytes) -> None:
    options = library.SessionOptions()
    options.add_free_dimension_override_by_name("n", 5)
    assert library.InferenceSession(two_outputs, options).get_inputs()[0].shape[0] == 5


@LIBRARIES
def test_providers_and_device(library: ModuleType, two_outputs: bytes) -> None:
    assert "CPUExecutionProvider" in library.get_available_providers()
    assert library.get_device() == "CPU"
    session = library.InferenceSession(two_outputs, providers=[("CPUExecutionProvider", {})])
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert session.get_provider_options() == {"CPUExecutionProvider": {}}
    session.set_providers(["CPUExecutionProvider"])
    session.disable_fallback()
    assert session.run(["s"], {"x": X})[0].tolist() == [2, 3, 2]


@LIBRARIES
def test_an_unknown_provider_is_a_warning(library: ModuleType, two_outputs: bytes, capfd: Any) -> None:
    with pytest.warns(UserWarning, match="'Nowhere' is not in available provider names"):
        session = library.InferenceSession(two_outputs, providers=["Nowhere", "CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.parametrize("providers", [[1], "CPUExecutionProvider", [("CPUExecutionProvider", 1)], 5])
def test_providers_that_are_no_names_are_an_error(providers: Any, two_outputs: bytes) -> None:
    with pytest.raises(ValueError, match="providers"):
        grainline.InferenceSession(two_outputs, providers=providers)


@LIBRARIES
def test_overridable_initializers(library: ModuleType, model: Callable[..., onnx.ModelProto]) -> None:
    tensor = (TensorProto.FLOAT, [2])
    proto = model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        {"x": tensor, "w": tensor},
        {"y": tensor},
        {"w": np.array([10, 20], np.float32)},
    )
    session = library.InferenceSession(proto.SerializeToString())
    assert [v.name for v in session.get_overridable_initializers()] == ["w"]
    assert [v.name for v in session.get_inputs()] == ["x"]
    x = np.ones(2, np.float32)
    assert session.run(None, {"x": x})[0].tolist() == [11, 21], "the initializer is the default"
    assert session.run(None, {"x": x, "w": x})[0].tolist() == [2, 2], "a feed replaces it"


@LIBRARIES
def test_strings_go_in_and_out(library: ModuleType, model: Callable[..., onnx.ModelProto]) -> None:
    strings = (TensorProto.STRING, ["n"])
    proto = model([helper.make_node("Identity", ["x"], ["y"])], {"x": strings}, {"y": strings})
    session = library.InferenceSession(proto.SerializeToString())
    words = ["", "grain", "żółć", "日本語"]
    for feed in (np.array(words, dtype=object), np.array(words), words):
        result = session.run(None, {"x": feed})[0]
        assert result.dtype == object and result.tolist() == words
        assert all(type(word) is str for word in result)


@LIBRARIES
def test_ort_values(library: ModuleType, two_outputs: bytes) -> None:
    x = X.copy()
    value = library.OrtValue.ortvalue_from_numpy(x)
    facts = (value.data_type(), value.element_type(), list(value.shape()), value.device_name(), value.has_value())
    assert facts == ("tensor(float)", 1, [2, 3, 2], "cpu", True)
    assert value.is_tensor() and not value.is_tensor_sequence() and not value.is_sparse_tensor()
    assert value.tensor_size_in_bytes() == 48 and value.data_ptr() == x.ctypes.data, "no copy on a CPU"
    assert value.__dlpack_device__() == (1, 0)
    np.testing.assert_array_equal(np.from_dlpack(value), x)
    np.testing.assert_array_equal(np.asarray(value), x)
    np.testing.assert_array_equal(library.OrtValue.from_dlpack(x).numpy(), x)
    value.update_inplace(x * 3)
    np.testing.assert_array_equal(value.numpy(), X * 3)
    with pytest.raises(RuntimeError):
        value.update_inplace(np.zeros(5, np.float32))
    for kind in (np.float32, 1):
        assert library.OrtValue.ortvalue_from_shape_and_type([2, 2], kind).data_type() == "tensor(float)"
    outputs = library.InferenceSession(two_outputs).run_with_ort_values(["y"], {"x": value})
    np.testing.assert_array_equal(outputs[0].numpy(), X * 3 + 2)


@LIBRARIES
def test_io_binding_writes_into_the_callers_buffer(library: ModuleType, two_outputs: bytes) -> None:
    session = library.InferenceSession(two_outputs)
    binding, y = session.io_binding(), np.full((2, 3, 2), -1, np.float32)
    binding.bind_cpu_input("x", X)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    binding.bind_output("s")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(y, X + 2)
    assert [value.shape() for value in binding.get_outputs()] == [[2, 3, 2], [3]]
    assert binding.copy_outputs_to_cpu()[1].tolist() == [2, 3, 2]


@LIBRARIES
def test_a_bound_buffer_that_does_not_fit_stays_untouched(library: ModuleType, two_outputs: bytes) -> None:
    session = library.InferenceSession(two_outputs)
    binding, y = session.io_binding(), np.full(12, -1, np.float32)
    binding.bind_input("x", "cpu", 0, np.float32, X.shape, X.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, (2, 3, 1), y.ctypes.data)
    with pytest.raises(Exception):  # noqa: B017
        session.run_with_iobinding(binding)
    assert (y == -1).all()


@LIBRARIES
def test_a_set_terminate_flag_ends_the_run(library: ModuleType, two_outputs: bytes) -> None:
    session, options = library.InferenceSession(two_outputs), library.RunOptions()
    options.terminate = True
    with pytest.raises(Exception):  # noqa: B017
        session.run(None, {"x": X}, options)
    options.terminate = False
    assert session.run(["s"], {"x": X}, options)[0].tolist() == [2, 3, 2]


@LIBRARIES
def test_run_async_calls_back(library: ModuleType, two_outputs: bytes) -> None:
    session, done, seen = library.InferenceSession(two_outputs), threading.Event(), []

    def callback(results: Any, user_data: Any, error: str) -> None:
        seen.extend([results, user_data, error])
        done.set()

    session.run_async(["s"], {"x": X}, callback, "mine")
    assert done.wait(20)
    assert seen[0][0].tolist() == [2, 3, 2] and seen[1:] == ["mine", ""]


@LIBRARIES
def test_profile_names_a_file(library: ModuleType, two_outputs: bytes, tmp_path: Path) -> None:
    options = library.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "trace_")
    session = library.InferenceSession(two_outputs, options)
    session.run(None, {"x": X})
    events = json.loads(Path(session.end_profiling()).read_text())
    assert [e for e in events if e["name"] == "model_run"]


def test_profiled_runs_can_be_told_apart(two_outputs: bytes) -> None:
    trace = grainline.load(two_outputs).profile({"x": X}, runs=3)
    runs = [event for event in trace.events if event["name"] == "model_run"]
    assert {event["args"]["run_id"] for event in runs} == {1, 2, 3}
    assert runs[0]["args"]["input_shapes"] == {"x": [2, 3, 2]}


def test_sessions_and_models_survive_pickling(two_outputs: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(two_outputs)
    options = grainline.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("a", "b")
    for source in (two_outputs, str(path)):
        session = pickle.loads(pickle.dumps(grainline.InferenceSession(source, options)))
        assert session.get_session_options().intra_op_num_threads == 1
        assert session.get_session_options().get_session_config_entry("a") == "b"
        np.testing.assert_array_equal(session.run(["y"], {"x": X})[0], X + 2)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(grainline.load(source))).run({"x": X})[0], X + 2)


def test_load_gives_a_callable_model(two_outputs: bytes, add_model: bytes) -> None:
    model = grainline.load(two_outputs, threads=1)
    np.testing.assert_array_equal(model.run({"x": X}, ["y"])[0], X + 2)
    named = model(x=X)
    assert list(named) == ["y", "s"] and named["s"].tolist() == [2, 3, 2]
    ones = np.ones((1, 4), np.float32)
    assert grainline.compile(add_model)(a=ones, b=ones).tolist() == [[2, 2, 2, 2]], "one output: the array itself"
    assert f"prices: {machine_of(host_target()).origin}" in model.explain()
    model.trim()
    np.testing.assert_array_equal(model.run({"x": X}, ["y"])[0], X + 2)
    assert "x: tensor(float)" in repr(model)


def test_one_session_serves_many_threads(two_outputs: bytes) -> None:
    session, wrong = grainline.InferenceSession(two_outputs), []
    feeds = [np.random.default_rng(n).standard_normal((n, 3, n + 1)).astype(np.float32) for n in (1, 2, 5, 17, 64)]

    def work(start: int) -> None:
        for step in range(40):
            x = feeds[(start + step) % len(feeds)]
            if not np.array_equal(session.run(["y"], {"x": x})[0], x + 2):
                wrong.append((start, step))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_can_run_drop_and_make_sessions(two_outputs: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(two_outputs)
    code = """
import gc, os, sys, numpy as np, grainline
x = np.ones((400, 3, 100), np.float32)
s = [grainline.InferenceSession(sys.argv[1])]
s[0].run(None, {"x": x})
def use(): assert s[0].run(None, {"x": x})[0].mean() == 3
def drop(): s.clear(); gc.collect()
def make(): assert grainline.InferenceSession(sys.argv[1]).run(None, {"x": x})[0].mean() == 3
for step in (use, drop, make):
    pid = os.fork()
    if pid == 0:
        step(); os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, step.__name__
use()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "m.onnx"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", STRICT_NAMES)
def test_a_malformed_variable_is_named(name: str, two_outputs: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "~nobody-has-this-name")
    with pytest.raises(grainline.OptionError, match=name):
        grainline.load(two_outputs).run({"x": X})


def test_a_home_of_nobody_is_named(two_outputs: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = "~no-such-user-here/cache"
    with pytest.raises(grainline.OptionError, match=r"cache_dir.*no-such-user"):
        grainline.load(two_outputs, cache_dir=nobody)
    with pytest.raises(grainline.OptionError, match="cache_dir"):
        grainline.load(two_outputs, cache_dir=3)  # type: ignore[arg-type]
    monkeypatch.setenv("GRAINLINE_CACHE_DIR", nobody)
    with pytest.raises(grainline.OptionError, match=r"GRAINLINE_CACHE_DIR.*no-such-user"):
        grainline.load(two_outputs)


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "ORT_INTRA_OP_NUM_THREADS"])
@pytest.mark.parametrize("text", ["lots", "-4", "1.5", ""])
def test_a_malformed_variable_of_another_library_is_no_bound(
    name: str, text: str, two_outputs: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, text)
    assert grainline.load(two_outputs).run({"x": X})[1].tolist() == [2, 3, 2]


def test_no_warning_in_ordinary_use(two_outputs: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grainline.InferenceSession(two_outputs, providers=["CPUExecutionProvider"]).run(None, {"x": X})
