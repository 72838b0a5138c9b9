"""A saved model stands for the files it was made from as they are now, not as they were."""

from __future__ import annotations

import os
import pickle
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import grainline
from grainline import pipeline
from grainline.base.errors import OptionError
from grainline.plan.machine import REFERENCE, machine_text

X = np.arange(3, dtype=np.float32)[:, None]


def written(folder: Path, weight: np.ndarray, *, external: bool, folds: bool) -> Path:
    """`y = x + w`, or `x + (-w)` computed at load; the weight inside the model or in a file beside it."""
    nodes = [helper.make_node("Add", ["x", "v" if folds else "w"], ["y"])]
    if folds:
        nodes.insert(0, helper.make_node("Neg", ["w"], ["v"]))
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", shape]) for name, shape in (("x", 1), ("y", "m"))
    ]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:])
    if external:
        weight.tofile(folder / "w.bin")
        tensor = graph.initializer.add(name="w", data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
        tensor.dims.extend(weight.shape)
        tensor.external_data.add(key="location", value="w.bin")
    else:
        graph.initializer.append(numpy_helper.from_array(weight, "w"))
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "m.onnx"
    if not external or not path.exists():
        path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("size", [4, 3000])
@pytest.mark.parametrize("folds", [False, True], ids=["as it is", "folded"])
@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
@pytest.mark.parametrize("way", ["written over", "replaced"])
@pytest.mark.parametrize("is_held", [False, True], ids=["dropped", "held"])
def test_a_changed_file_of_the_same_size_and_time_is_read_again(
    size: int, folds: bool, external: bool, way: str, is_held: bool, tmp_path: Path
) -> None:
    """Whether or not a session over the old state still lives, and however old the new file says it is."""
    first, second = np.full(size, 1, np.float32), np.full(size, 5, np.float32)
    sign = -1 if folds else 1
    path = written(tmp_path, first, external=external, folds=folds)
    changed = tmp_path / "w.bin" if external else path
    before = changed.stat()
    model: Any = grainline.load(path, cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(model(x=X), X + sign * first)
    if not is_held:
        del model
    if way == "replaced":
        changed.rename(tmp_path / "old")
    written(tmp_path, second, external=external, folds=folds)
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert changed.stat().st_size == before.st_size
    np.testing.assert_array_equal(grainline.load(path, cache_dir=tmp_path / "cache")(x=X), X + sign * second)


def test_a_relative_path_stays_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, np.ones(4, np.float32), external=False, folds=False)
    monkeypatch.chdir(tmp_path)
    session = grainline.InferenceSession("m.onnx")
    monkeypatch.chdir("/")
    assert session.get_modelmeta().graph_name == "g"
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(session)).run(None, {"x": X})[0], X + np.ones(4))


def test_limits_are_those_of_the_process_that_runs(tmp_path: Path) -> None:
    """A model that was saved where little memory was allowed runs what fits where more is."""
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", ["n"]), ("y", None))
    ]
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axes"], ["u"]), helper.make_node("Add", ["u", "x"], ["sums"]),
        helper.make_node("ReduceMax", ["sums"], ["y"], axes=[1], keepdims=0),
    ]  # fmt: skip
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], [numpy_helper.from_array(np.array([1]), "axes")])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + 2**29
    resource.setrlimit(resource.RLIMIT_AS, (size, hard))
    try:
        grainline.load(data, cache_dir=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    count = int((size / 4) ** 0.5) + 100
    assert grainline.load(data, cache_dir=tmp_path)(x=np.ones(count, np.float32)).tolist() == [2] * count


def test_a_calibration_is_not_deaf_to_models_that_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other prices: planned anew. The same ones: found again. Broken ones: an error, saved or not."""
    path = written(tmp_path, np.ones(4, np.float32), external=False, folds=False)
    compiled: list[object] = []
    compile_model = pipeline.compile_model
    monkeypatch.setattr(pipeline, "compile_model", lambda *rest: compiled.append(rest) or compile_model(*rest))
    prices = {}
    for name, price in (("cheap", 1.0), ("dear", 1000.0)):
        prices[name] = tmp_path / f"{name}.json"
        prices[name].write_text(machine_text(REFERENCE.scaled(name, price), {}))
    for name, count in (("cheap", 1), ("cheap", 1), ("dear", 2), ("cheap", 2)):
        monkeypatch.setenv("GRAINLINE_MACHINE_FILE", str(prices[name]))
        grainline.load(path, cache_dir=tmp_path / "cache")
        assert len(compiled) == count, name
    monkeypatch.setenv("GRAINLINE_MACHINE_FILE", str(tmp_path / "nowhere.json"))
    with pytest.raises(OptionError, match=r"nowhere\.json"):
        grainline.load(path, cache_dir=tmp_path / "cache")


def test_a_start_from_the_cache_imports_nothing_that_only_a_compilation_needs(tmp_path: Path) -> None:
    path = written(tmp_path, np.ones(4, np.float32), external=False, folds=False)
    heavy = ("llvmlite", "onnx", "grainline.pipeline", "importlib.metadata")
    script = (
        "import sys; before = set(sys.modules); import grainline; grainline.load(sys.argv[1])\n"
        f"print(*sorted(set({heavy!r}) & (set(sys.modules) - before)))"
    )
    environment = {
        **os.environ,
        "GRAINLINE_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join(part for part in sys.path if part),
    }
    command = [sys.executable, "-c", script, str(path)]
    runs = [subprocess.run(command, env=environment, capture_output=True, text=True, check=True) for _ in range(2)]
    assert "grainline.pipeline" in runs[0].stdout.split(), "the first start compiled nothing"
    assert runs[1].stdout.split() == []
