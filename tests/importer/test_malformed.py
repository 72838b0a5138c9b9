"""A model that is not valid is a ModelError that names what is wrong; nothing else comes out, and quickly."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from grainline.base.errors import GrainlineError, ModelError
from grainline.graph import interp
from grainline.importer.model import import_model
from tests.fixtures.models import decoder_block, model, single

X = np.ones((2, 3), np.float32)


def node(op: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), name=f"the_{op}", **attributes)


def made(*nodes: onnx.NodeProto, outputs: str = "y", opset: int = 17) -> onnx.ModelProto:
    return model(nodes, {"x": X}, outputs.split(), opset=opset)


def edited(change: object) -> onnx.ModelProto:
    built = made(node("Relu", "x", "y"))
    change(built)  # type: ignore[operator]
    return built


BROKEN = {
    "a cycle": (made(node("Add", "x b", "a"), node("Relu", "a", "b"), node("Relu", "b", "y")), "later"),
    "a dangling input": (made(node("Add", "x nowhere", "y")), "nowhere"),
    "a dangling output": (made(node("Relu", "x", "z")), "'y'"),
    "a name made twice": (made(node("Relu", "x", "y"), node("Abs", "x", "y")), "twice"),
    "an unknown operator": (made(node("Frobnicate", "x", "y")), "Frobnicate"),
    "an unknown domain": (made(helper.make_node("Relu", ["x"], ["y"], domain="nowhere")), "nowhere"),
    "an opset from the future": (made(node("Relu", "x", "y"), opset=999), "opset"),
    "no IR version": (edited(lambda m: m.ClearField("ir_version")), "IR version"),
    "no operator set": (edited(lambda m: m.ClearField("opset_import")), "operator set"),
    "too few inputs": (made(helper.make_node("Add", ["x"], ["y"], name="n")), "input 1"),
    "a wrong attribute type": (made(node("Flatten", "x", "y", axis="one")), "attribute"),
    "an axis out of range": (made(node("Softmax", "x", "y", axis=5)), "axis"),
    "extents that do not multiply": (
        model([node("MatMul", "x x", "y")], {"x": X}, ["y"], symbolic=False), "inner extents",
    ),
    "types that differ": (
        model([node("Add", "x k", "y")], {"x": X, "k": np.ones(1, np.int64)}, ["y"]), "types",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_broken_structure(what: str) -> None:
    broken, word = BROKEN[what]
    with pytest.raises(ModelError, match=word):
        import_model(broken.SerializeToString())


@pytest.mark.parametrize("data", [b"", b"not a model", b"\x08\x08", bytes(1000)])
def test_bytes_that_are_no_model(data: bytes) -> None:
    with pytest.raises(ModelError):
        import_model(data)


def test_a_truncated_model() -> None:
    data = decoder_block().SerializeToString()
    for length in range(1, len(data), len(data) // 40):
        with pytest.raises(ModelError):
            import_model(data[:length])


@pytest.mark.parametrize(
    ("dims", "raw"),
    [
        ([4], b""),
        ([1], bytes(64)),
        ([-1, 4], bytes(16)),
        ([2**32, 2**32], bytes(16)),
        ([2**62, 4, 4], bytes(16)),
        ([2**40], b""),
    ],
)
def test_initialisers_whose_data_do_not_fit(dims: list[int], raw: bytes) -> None:
    broken = made(node("Add", "x w", "y"))
    broken.graph.initializer.append(TensorProto(name="w", data_type=1, dims=dims, raw_data=raw))
    with pytest.raises(ModelError, match="'w'"):
        import_model(broken)


def external(folder: Path, location: str, **entries: int) -> str:
    built = made(node("Add", "x w", "y"))
    tensor = TensorProto(name="w", data_type=1, dims=[3], data_location=TensorProto.EXTERNAL)
    for key, item in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(item))
    built.graph.initializer.append(tensor)
    path = folder / "model.onnx"
    path.write_bytes(built.SerializeToString())
    return str(path)


def test_external_data_is_mapped(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    graph = import_model(external(tmp_path, "sub/w.bin", offset=4, length=12))
    feeds = {"x": np.zeros((1, 3), np.float32)}
    assert interp.run(graph, feeds)[0].tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    "location", ["../secret", "sub/../../secret", "/dev/zero", "link", "nothing", "", "folder", "C:\\x"]
)
def test_external_data_stays_inside(tmp_path: Path, location: str) -> None:
    inside = tmp_path / "model"
    (inside / "folder").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(bytes(12))
    os.symlink(tmp_path / "secret", inside / "link")
    with pytest.raises(ModelError, match="external"):
        import_model(external(inside, location))


@pytest.mark.parametrize("entries", [{"offset": 4096}, {"offset": -4}, {"offset": 8, "length": 12}, {"length": 8}])
def test_external_data_of_wrong_extent(tmp_path: Path, entries: dict[str, int]) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(12))
    with pytest.raises(ModelError):
        import_model(external(tmp_path, "w.bin", **entries))


def test_mutated_models_raise_only_our_errors() -> None:
    rng = random.Random(5)
    originals = [
        made(node("Relu", "x", "y")).SerializeToString(),
        single("Slice", {"x": X}, weights={k: np.array([1], np.int64) for k in "seat"}).SerializeToString(),
        decoder_block(hidden=16, heads=2, kv_heads=1, inner=8).SerializeToString(),
    ]
    refused = 0
    for round_number in range(300):
        data = bytearray(originals[round_number % len(originals)])
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            import_model(bytes(data))
        except GrainlineError:
            refused += 1
    assert 100 < refused < 300, "most changes break the model, some hit a name or a number"


def test_initialisers_that_are_inputs_are_defaults() -> None:
    built = made(node("Add", "x w", "y"))
    built.graph.input.append(helper.make_tensor_value_info("w", 1, [3]))
    built.graph.initializer.append(helper.make_tensor("w", 1, [3], [1.0, 2.0, 3.0]))
    graph = import_model(built)
    zero = np.zeros((1, 3), np.float32)
    assert interp.run(graph, {"x": zero})[0].tolist() == [[1, 2, 3]]
    assert interp.run(graph, {"x": zero, "w": np.ones(3, np.float32)})[0].tolist() == [[1, 1, 1]]


def test_a_function_is_inlined_and_recursion_is_an_error() -> None:
    body = [helper.make_node("Mul", ["a", "a"], ["s"]), helper.make_node("Add", ["s", "a"], ["r"])]
    function = helper.make_function("own", "Poly", ["a"], ["r"], body, [helper.make_opsetid("", 17)])
    built = made(helper.make_node("Poly", ["x"], ["y"], domain="own", name="p"))
    built.opset_import.append(helper.make_opsetid("own", 1))
    built.functions.append(function)
    graph = import_model(built)
    assert [n.op for n in graph.nodes] == ["mul", "add"]
    assert interp.run(graph, {"x": X * 3})[0].tolist() == (X * 12).tolist()
    function.node[0].CopyFrom(helper.make_node("Poly", ["a"], ["s"], domain="own"))
    built.functions[0].CopyFrom(function)
    with pytest.raises(ModelError, match="without end"):
        import_model(built)
