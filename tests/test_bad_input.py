"""Bad models, bad feeds, odd feeds that must work: each error is typed and names its place, and the next call works.

Nothing is ever printed: `capfd` watches the file descriptors, so native code is watched too.
"""

from __future__ import annotations

import os
import resource
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import grainline
from grainline import FeedError, GrainlineError, KernelError, ModelError, OutOfMemory, UnsupportedError

Maker = Callable[..., onnx.ModelProto]
F32, I64 = TensorProto.FLOAT, TensorProto.INT64


@pytest.fixture(autouse=True)
def _nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    yield
    printed = capfd.readouterr()
    assert not printed.err and not printed.out, f"printed: {printed.err or printed.out!r}"


def relu_model(model: Maker) -> onnx.ModelProto:
    return model([helper.make_node("Relu", ["x"], ["y"])], {"x": (F32, ["n", 4])}, {"y": (F32, ["n", 4])})


@pytest.fixture
def good(model: Maker) -> Iterator[bytes]:
    """A model that must load and run before and after the bad one."""
    data = relu_model(model).SerializeToString()
    yield data
    assert grainline.load(data)(x=-np.ones((1, 4), np.float32)).tolist() == [[0, 0, 0, 0]]


# --- models ---


@pytest.mark.parametrize(
    "data",
    [b"", b"not a protobuf", b"\x00" * 64, b"PK\x03\x04" + os.urandom(200), b"\xff" * 1000],
    ids=["empty", "text", "zeros", "archive", "ones"],
)
def test_what_is_not_a_protobuf(data: bytes, good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(data)
    for source in (data, path):
        with pytest.raises(ModelError):
            grainline.load(source)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_truncated_file(share: float, model: Maker, good: bytes) -> None:
    weight = np.arange(4096, dtype=np.float32).reshape(4, 1024)
    whole = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": (F32, ["n", 4])},
        {"y": (F32, ["n", 1024])},
        {"w": weight},
    ).SerializeToString()
    with pytest.raises(GrainlineError):
        grainline.load(whole[: int(len(whole) * share)])


def test_a_folder_and_a_missing_file(tmp_path: Path, good: bytes) -> None:
    with pytest.raises(GrainlineError, match=tmp_path.name):
        grainline.load(tmp_path)
    with pytest.raises(GrainlineError, match="nowhere"):
        grainline.load(tmp_path / "nowhere.onnx")


def test_a_cycle_is_named(model: Maker, good: bytes) -> None:
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="second"),
    ]
    proto = model(nodes, {"x": (F32, [2])}, {"b": (F32, [2])})
    with pytest.raises(ModelError, match=r"first|second|'a'|'b'"):
        grainline.load(proto.SerializeToString())


def test_a_dangling_input_is_named(model: Maker, good: bytes) -> None:
    proto = model([helper.make_node("Add", ["x", "ghost"], ["y"], name="adds")], {"x": (F32, [2])}, {"y": (F32, [2])})
    with pytest.raises(ModelError, match="ghost"):
        grainline.load(proto.SerializeToString())


def test_an_output_that_nothing_makes_is_named(model: Maker, good: bytes) -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])], {"x": (F32, [2])}, {"phantom": (F32, [2])})
    with pytest.raises(ModelError, match="phantom"):
        grainline.load(proto.SerializeToString())


def test_a_value_made_twice_is_named(model: Maker, good: bytes) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["twice"]), helper.make_node("Neg", ["x"], ["twice"])]
    with pytest.raises(ModelError, match="twice"):
        grainline.load(model(nodes, {"x": (F32, [2])}, {"twice": (F32, [2])}).SerializeToString())


@pytest.mark.parametrize("domain", ["", "com.example"])
def test_an_unknown_operator_or_domain_is_named(domain: str, model: Maker, good: bytes) -> None:
    node = helper.make_node("Frobnicate", ["x"], ["y"], name="odd_one", domain=domain)
    proto = model([node], {"x": (F32, [2])}, {"y": (F32, [2])})
    if domain:
        proto.opset_import.append(helper.make_opsetid(domain, 1))
    with pytest.raises((ModelError, UnsupportedError), match="Frobnicate"):
        grainline.load(proto.SerializeToString())


def test_an_operator_of_another_engine_is_unsupported_and_says_what_to_do(model: Maker, good: bytes) -> None:
    node = helper.make_node("PackedAttention", ["x"], ["y"], name="fused", domain="com.microsoft")
    proto = model([node], {"x": (F32, [2])}, {"y": (F32, [2])})
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(UnsupportedError, match=r"com\.microsoft::PackedAttention.*fused.*Export") as caught:
        grainline.load(proto.SerializeToString())
    assert caught.value.remedy


@pytest.mark.parametrize("opset", [0, 9999])
def test_an_opset_out_of_range(opset: int, model: Maker, good: bytes) -> None:
    proto = relu_model(model)
    proto.opset_import[0].version = opset
    with pytest.raises((ModelError, UnsupportedError), match=str(opset)):
        grainline.load(proto.SerializeToString())


@pytest.mark.parametrize("dims, raw", [([4], 8), ([-1], 4), ([2**40, 2**40], 16), ([2**62], 4)])
def test_initialisers_whose_extents_and_data_disagree(dims: list[int], raw: int, model: Maker, good: bytes) -> None:
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], {"x": (F32, ["n"])}, {"y": (F32, ["m"])})
    tensor = proto.graph.initializer.add(name="w", data_type=F32, raw_data=b"\0" * raw)
    tensor.dims.extend(dims)
    with pytest.raises(GrainlineError, match="w"):
        grainline.load(proto.SerializeToString())


# --- external data ---


def external_model(model: Maker, folder: Path, location: str, length: int = 16, offset: int | None = None) -> Path:
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], {"x": (F32, [4])}, {"y": (F32, [4])})
    tensor = proto.graph.initializer.add(name="w", data_type=F32, data_location=TensorProto.EXTERNAL)
    tensor.dims.append(4)
    entries = {"location": location, "length": str(length)} | ({} if offset is None else {"offset": str(offset)})
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data_is_read(model: Maker, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "w.bin").write_bytes(b"\0" * 4096 + struct.pack("<4f", 1, 2, 3, 4))
    path = external_model(model, tmp_path, "deep/w.bin", offset=4096)
    assert grainline.load(path)(x=np.zeros(4, np.float32)).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "location, length, offset",
    [
        ("absent.bin", 16, None),
        ("short.bin", 16, None),
        ("w.bin", 16, 8),
        ("w.bin", 16, -4),
        ("w.bin", 8, None),
        ("../outside.bin", 16, None),
        ("a/../../outside.bin", 16, None),
        ("/etc/hostname", 16, None),
        ("/dev/zero", 16, None),
        ("link.bin", 16, None),
        ("", 16, None),
    ],
)
def test_external_data_that_is_missing_short_or_outside(
    location: str, length: int, offset: int | None, model: Maker, good: bytes, tmp_path: Path
) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    (folder / "a").mkdir()
    (folder / "w.bin").write_bytes(b"\0" * 16)
    (folder / "short.bin").write_bytes(b"\0" * 8)
    (tmp_path / "outside.bin").write_bytes(b"\0" * 16)
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    with pytest.raises(GrainlineError, match="w"):
        grainline.load(external_model(model, folder, location, length, offset))


# --- feeds ---


@pytest.fixture
def pair(model: Maker) -> Iterator[grainline.Model]:
    """`y = left + right`, both f32[batch, 4]; must still work after each bad call."""
    tensor = (F32, ["batch", 4])
    proto = model([helper.make_node("Add", ["left", "right"], ["y"])], {"left": tensor, "right": tensor}, {"y": tensor})
    loaded = grainline.load(proto.SerializeToString())
    yield loaded
    assert loaded(**ok()).tolist() == [[1] * 4] * 2


def ok(**changes: Any) -> dict[str, Any]:
    return {"left": np.zeros((2, 4), np.float32), "right": np.ones((2, 4), np.float32)} | changes


BAD_FEEDS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("float64", ok(right=np.ones((2, 4))), ["right", "float", "double|float64"]),
    ("int32", ok(left=np.ones((2, 4), np.int32)), ["left", "float", "int32"]),
    ("strings", ok(left=np.array([["a"] * 4] * 2)), ["left", "float", "string|<U1"]),
    ("complex", ok(left=np.ones((2, 4), np.complex64)), ["left", "float", "complex"]),
    ("rank 1", ok(left=np.ones(4, np.float32)), ["left", "1", "2"]),
    ("rank 3", ok(left=np.ones((1, 2, 4), np.float32)), ["left", "3", "2"]),
    ("extent", ok(left=np.ones((2, 3), np.float32)), ["left", "3", "4"]),
    ("contradiction", ok(right=np.ones((3, 4), np.float32)), ["right|left|batch", "2", "3"]),
    ("missing", {"left": np.ones((2, 4), np.float32)}, ["right"]),
    ("empty", {}, ["left"]),
    ("extra", ok(gamma=np.ones(1, np.float32)), ["gamma", "left"]),
    ("misnamed", {"left": np.ones((2, 4), np.float32), "Right": np.ones((2, 4), np.float32)}, ["right|Right"]),
    ("None", ok(right=None), ["right"]),
    ("ragged", ok(right=[[1, 2], [3]]), ["right"]),
    ("object", ok(right=object()), ["right"]),
]


@pytest.mark.parametrize("feeds, words", [case[1:] for case in BAD_FEEDS], ids=[case[0] for case in BAD_FEEDS])
def test_bad_feeds_are_named(pair: grainline.Model, feeds: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(FeedError) as caught:
        pair.run(feeds)
    message = str(caught.value)
    for word in words:
        assert any(choice in message for choice in word.split("|")), f"{message!r} does not say {word}"


@pytest.mark.parametrize("feeds", [None, 5, "left", b"left", ["left"], [(1, 2, 3)], {"left"}, iter([1]), object()])
@pytest.mark.parametrize("how", ["run", "chosen", "session", "chosen of a session"])
def test_what_is_no_mapping_is_refused_as_the_peer_does(how: str, feeds: Any, model: Maker) -> None:
    data = relu_model(model).SerializeToString()
    run: Callable[[Any], Any] = {
        "run": grainline.load(data).run,
        "chosen": lambda given: grainline.load(data).run(given, ["y"]),
        "session": lambda given: grainline.InferenceSession(data).run(None, given),
        "chosen of a session": lambda given: grainline.InferenceSession(data).run(["y"], given),
    }[how]
    with pytest.raises(AttributeError, match="feeds map input names to arrays"):
        run(feeds)
    assert run({"x": -np.ones((1, 4), np.float32)})[0].tolist() == [[0, 0, 0, 0]]


def test_a_feed_that_has_no_room_for_a_dense_copy_is_named(pair: grainline.Model) -> None:
    """A view may show more elements than memory holds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    view = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (2**26, 4), (0, 0))
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 2**29, hard))
    try:
        with pytest.raises(OutOfMemory, match="left"):
            pair.run(ok(left=view))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_bytes_that_are_no_text_are_named(model: Maker) -> None:
    node = helper.make_node("Identity", ["s"], ["y"])
    proto = model([node], {"s": (TensorProto.STRING, ["n"])}, {"y": (TensorProto.STRING, None)})
    loaded = grainline.load(proto.SerializeToString())
    with pytest.raises(FeedError, match="'s'"):
        loaded(s=np.array([b"\xff\xfe"]))
    assert loaded(s=np.array([b"text"])).tolist() == ["text"]


def test_an_unknown_output_is_named(pair: grainline.Model) -> None:
    with pytest.raises(FeedError, match="nope"):
        pair.run(ok(), ["nope"])


def odd_layouts() -> dict[str, np.ndarray]:
    x = np.arange(24, dtype=np.float32).reshape(3, 8) - 11
    read_only = x[:, :4].copy()
    read_only.flags.writeable = False
    unaligned = np.frombuffer(b"\0" + x[:, :4].tobytes(), np.uint8)[1:].view(np.float32).reshape(3, 4)
    return {
        "every other column": x[:, ::2],
        "backwards": x[::-1, 3::-1],
        "transposed": np.asfortranarray(x[:, :4]),
        "big endian": x[:, :4].astype(">f4"),
        "read-only": read_only,
        "broadcast": np.broadcast_to(x[0, :4], (3, 4)),
        "unaligned": unaligned,
        "zero batch": x[:0, :4],
        "a matrix": np.asmatrix(x[:, :4]),
    }


@pytest.mark.parametrize("layout", odd_layouts())
def test_odd_layouts_work(layout: str, model: Maker) -> None:
    x = odd_layouts()[layout]
    got = grainline.load(relu_model(model).SerializeToString())(x=x)
    assert type(got) is np.ndarray and got.dtype == np.float32 and got.dtype.isnative
    np.testing.assert_array_equal(got, np.maximum(np.asarray(x, np.float32), 0))


def test_an_extent_beyond_64_bits_is_unsupported(model: Maker, good: bytes) -> None:
    node = helper.make_node("LpPool", ["x"], ["y"], kernel_shape=[1, 1], pads=[2**62, 0, 2**62, 0])
    proto = model([node], {"x": (F32, [1, 1, 4, 4])}, {"y": (F32, None)})
    with pytest.raises(UnsupportedError, match="64 bits"):
        grainline.load(proto.SerializeToString())


def test_the_result_belongs_to_the_caller(model: Maker) -> None:
    loaded, x = grainline.load(relu_model(model).SerializeToString()), np.ones((2, 4), np.float32)
    first = loaded(x=x)
    first[:] = 7
    assert loaded(x=x).tolist() == [[1] * 4] * 2 and (first == 7).all() and (x == 1).all()


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
def test_zero_batch_or_length_of_an_encoder_works(shape: tuple[int, int], encoder_int8: str) -> None:
    feeds = {name: np.zeros(shape, np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    assert grainline.load(encoder_int8).run(feeds)[0].shape == (*shape, 384)


@pytest.mark.parametrize("token", [30522, 10**9, -30523, 2**40])
def test_token_ids_out_of_range_are_an_error(token: int, encoder_int8: str) -> None:
    model, ids = grainline.load(encoder_int8), np.full((1, 8), 7, np.int64)
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    want = model.run(feeds)[0]
    bad = ids.copy()
    bad[0, 3] = token
    with pytest.raises((KernelError, FeedError), match=r"embedding|input_ids"):
        model.run(feeds | {"input_ids": bad})
    np.testing.assert_array_equal(model.run(feeds)[0], want)


def test_a_failing_node_is_named(model: Maker, good: bytes) -> None:
    node = helper.make_node("Gather", ["x", "i"], ["y"], name="picks", axis=0)
    proto = model([node], {"x": (F32, ["n"]), "i": (I64, ["k"])}, {"y": (F32, ["k"])})
    loaded, x = grainline.load(proto.SerializeToString()), np.arange(3, dtype=np.float32)
    for index in (3, -4, 2**31, 2**62):
        with pytest.raises(KernelError, match="picks"):
            loaded(x=x, i=np.array([index]))
    assert loaded(x=x, i=np.array([-1, 0])).tolist() == [2, 0]


def test_extents_that_do_not_meet_are_an_error(model: Maker, good: bytes) -> None:
    proto = model(
        [helper.make_node("Add", ["a", "b"], ["y"], name="joins")],
        {"a": (F32, ["n"]), "b": (F32, ["m"])},
        {"y": (F32, None)},
    )
    loaded = grainline.load(proto.SerializeToString())
    with pytest.raises((KernelError, FeedError), match=r"joins|'a'|'b'"):
        loaded(a=np.ones(3, np.float32), b=np.ones(4, np.float32))
    assert loaded(a=np.ones(3, np.float32), b=np.ones(1, np.float32)).tolist() == [2, 2, 2]


# --- the cache on disk ---


def folder_below_a_file(tmp_path: Path) -> Path:
    (tmp_path / "a_file").write_text("")
    return tmp_path / "a_file" / "cache"


@pytest.mark.parametrize("where", [folder_below_a_file, lambda _: Path("/proc/cannot/write")], ids=["file", "proc"])
def test_an_unwritable_cache_is_one_warning(where: Callable[[Path], Path], tmp_path: Path) -> None:
    code = """
import sys, warnings, numpy as np, onnx, grainline
from onnx import helper, TensorProto as T
info = lambda n: helper.make_tensor_value_info(n, T.FLOAT, ["n"])
nodes = [helper.make_node("Exp", ["x"], ["h"]), helper.make_node("Neg", ["h"], ["y"])]
graph = helper.make_graph(nodes, "g", [info("x")], [info("y")])
proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for _ in range(2):
        assert grainline.load(proto.SerializeToString())(x=np.zeros(3, np.float32)).tolist() == [-1, -1, -1]
ours = [str(w.message) for w in seen if "cache" in str(w.message)]
assert len(ours) == 1, ours
"""
    environ = dict(os.environ, GRAINLINE_CACHE_DIR=str(where(tmp_path)))
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not done.stderr


def test_damaged_cache_entries_are_rebuilt(model: Maker, tmp_path: Path) -> None:
    data, x = relu_model(model).SerializeToString(), -np.ones((2, 4), np.float32)
    want = grainline.load(data, cache_dir=tmp_path)(x=x)
    entries = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert entries, "nothing was cached"
    for damage in (b"", b"\x7fELF not really", os.urandom(5000)):
        for path in entries:
            path.chmod(0o600)
            path.write_bytes(damage)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            np.testing.assert_array_equal(grainline.load(data, cache_dir=tmp_path)(x=x), want)


def test_a_mutated_model_never_kills_the_process(model: Maker, tmp_path: Path) -> None:
    """Seeded mutations of a small model, all in one child: only exceptions are allowed, and only typed ones."""
    weight = numpy_helper.from_array(np.arange(16, dtype=np.float32).reshape(4, 4), "w")
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Softmax", ["h"], ["y"])],
        {"x": (F32, ["n", 4])},
        {"y": (F32, ["n", 4])},
    )
    proto.graph.initializer.append(weight)
    (tmp_path / "seed.onnx").write_bytes(proto.SerializeToString())
    code = """
import random, sys, warnings, numpy as np, grainline
warnings.simplefilter("ignore")
seed = open(sys.argv[1], "rb").read(); rng = random.Random(7)
for _ in range(300):
    data = bytearray(seed)
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    try:
        grainline.load(bytes(data), cache=False).run({"x": np.ones((2, 4), np.float32)})
    except (grainline.GrainlineError, TypeError) as error:
        pass
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "seed.onnx"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_memory_limit_ends_a_run_and_not_the_process(model):
    from grainline import _native

    node = helper.make_node("MatMul", ["x", "x"], ["y"])
    square = (TensorProto.FLOAT, ["n", "n"])
    data = model([node], {"x": square}, {"y": square}).SerializeToString()
    held = _native.memory_statistics()["live_bytes"]
    try:
        small = grainline.load(data, memory_limit_bytes=held + (8 << 20))
        with pytest.raises(grainline.OutOfMemory):
            small.run({"x": np.ones((4096, 4096), np.float32)})
        assert small.run({"x": np.ones((8, 8), np.float32)})[0][0, 0] == 8
    finally:
        _native.set_memory_limit(1 << 62)


def test_a_sequence_that_is_none_is_refused_at_the_entry() -> None:
    sequence = helper.make_tensor_sequence_value_info("s", F32, None)
    node = helper.make_node("SequenceLength", ["s"], ["n"], name="counted")
    count = helper.make_tensor_value_info("n", TensorProto.INT64, [])
    proto = helper.make_model(
        helper.make_graph([node], "sequences", [sequence], [count]), opset_imports=[helper.make_opsetid("", 17)]
    )
    loaded, item = grainline.load(proto.SerializeToString()), np.ones((2, 3), np.float32)
    for wrong, why in (
        (item, "no sequence"),
        ("abc", "no sequence"),
        ([item, item.astype(np.int64)], "int64 at 1"),
        ([1.0], "float at 0"),
    ):
        with pytest.raises(FeedError, match=why) as caught:
            loaded.run({"s": wrong})
        assert caught.value.value == "s" and caught.value.node is None
    assert loaded.run({"s": [item, item[:1]]})[0] == 2 and loaded.run({"s": []})[0] == 0
