"""Models on the discrete device: the same bits as on the host, whoever runs the graph and whatever the device does."""

from __future__ import annotations

import pickle
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

pytest.importorskip("grainline._native", reason="the native core is not built")

import grainline
from grainline.base.dtypes import I64
from grainline.base.errors import EndOfSequence, KernelError, OptionError, OutOfMemory
from grainline.base.knobs import Options
from grainline.execgraph.argument_block import ArgumentBlock
from grainline.execgraph.builder import GraphBuilder
from grainline.execgraph.interp import interpret
from grainline.execgraph.ir import ExecuteGraph, Variant, View
from grainline.execgraph.passes import PassOptions, optimise, passes_of
from grainline.execgraph.placement import place_on_discrete
from grainline.execgraph.registry import KERNELS, LAUNCH
from grainline.runtime.device import Device
from grainline.runtime.executor import ModelExecutor
from tests.conftest import make_model
from tests.execgraph.toy import CALLABLES, feeds_of, machine_code, random_graph, variant
from tests.fixtures.models import decoder_block
from tests.runtime.company import check_fork, wrong_cases

KINDS: tuple[dict[str, Any], ...] = (
    {"executor": "sequential"},
    {"executor": "topological"},
    {"executor": "priority-topological"},
    {"executor": "multi-worker", "workers": 2},
    {"executor": "multi-worker", "workers": 3},
    {"executor": "multi-worker", "workers": 4},
)
SEQUENTIAL, SEVERAL = KINDS[0], KINDS[4]
SHAPES = (37, 1, 0, 200, 37)
BLOCK_BYTES = 8000


def placed(graph: ExecuteGraph, options: dict[str, Any]) -> ExecuteGraph:
    return optimise(place_on_discrete(graph), PassOptions(is_multi_worker=options["executor"] == "multi-worker"))


def loaded(graph: ExecuteGraph, device: Device | None = None, **options: Any) -> ModelExecutor:
    """`graph` placed and loaded on a device that tells of every mistake in the order of work."""
    addresses, image = machine_code()
    device = Device("discrete", is_checked=True) if device is None else device
    return ModelExecutor(placed(graph, options), addresses, keep_alive=image, device=device, **options).load()


def agree(expected: list[Any], found: list[Any], note: str) -> None:
    for left, right in zip(expected, found, strict=True):
        np.testing.assert_array_equal(left, right, err_msg=note)


def sum_of_inputs(count: int, elements: int = 4) -> ExecuteGraph:
    """`count` inputs that one launch after the other adds up."""
    builder = GraphBuilder("sum")
    inputs = [builder.input(f"x{i}", I64, (elements,)) for i in range(count)]
    total = inputs[0]
    for i, one in enumerate(inputs[1:]):
        is_last = i == count - 2
        target = (
            builder.model_output("sum", I64, (elements,))
            if is_last
            else builder.memory(I64, (elements,), 8 * elements, f"t{i}")
        )
        views = [View(total), View(one), View(target, 0, "write")]
        builder.launch("mix", [variant("mix", elements)], views, [elements], f"add{i}")
        total = target
    return builder.finish()


# ---- same bits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_give_what_the_interpreter_gives(seed: int, options: dict[str, Any]) -> None:
    graph = random_graph(seed, size=20)
    executor = loaded(graph, **options)
    for count in SHAPES:
        expected = interpret(graph, feeds_of(count, seed), CALLABLES)
        agree(expected, executor.run(feeds_of(count, seed)), f"seed {seed}, {options}, N {count}")


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_slow_device_changes_nothing(options: dict[str, Any]) -> None:
    graph, device = random_graph(3, size=20), Device("discrete", is_checked=True)
    executor = loaded(graph, device, **options)
    device.set_delay(0.0003)
    for count in SHAPES:
        agree(interpret(graph, feeds_of(count), CALLABLES), executor.run(feeds_of(count)), f"{options}, N {count}")


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_an_encoder_gives_the_bits_of_the_host(options: dict[str, Any], encoder_int8: str) -> None:
    host = grainline.load(encoder_int8)
    other = grainline.load(encoder_int8, device=Device("discrete", is_checked=True), **options)
    random = np.random.default_rng(5)
    for batch, length in ((1, 8), (3, 17), (2, 64), (0, 3), (1, 8)):
        feeds = {
            info.name: random.integers(0, 1000 if info.name == "input_ids" else 2, (batch, length)).astype(np.int64)
            for info in host.inputs
        }
        for a, b in zip(host.run(feeds), other.run(feeds), strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("options", [SEQUENTIAL, *KINDS[3:]], ids=str)
def test_a_decoder_block_gives_the_bits_of_the_host(options: dict[str, Any]) -> None:
    data = decoder_block(hidden=128, heads=4, kv_heads=2, inner=172, layers=1).SerializeToString()
    host, other = grainline.load(data), grainline.load(data, device="discrete", **options)
    random = np.random.default_rng(5)
    for batch, length in ((1, 1), (2, 7), (3, 64)):
        feeds = {"hidden": random.standard_normal((batch, length, 128)).astype(np.float32)}
        for a, b in zip(host.run(feeds), other.run(feeds), strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("options", [SEQUENTIAL, SEVERAL], ids=str)
def test_several_threads_may_run_one_model(options: dict[str, Any]) -> None:
    graph = random_graph(7, size=20)
    executor = loaded(graph, **options)
    cases = [(feeds_of(n, n), interpret(graph, feeds_of(n, n), CALLABLES)) for n in range(1, 30)]
    assert wrong_cases(executor, cases) == []


@pytest.mark.parametrize("options", [SEQUENTIAL, SEVERAL], ids=str)
def test_a_forked_child_has_streams_of_its_own(options: dict[str, Any]) -> None:
    graph = random_graph(5, size=20)
    check_fork(loaded(graph, **options), feeds_of(9))


# ---- copies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [SEQUENTIAL, SEVERAL], ids=str)
def test_R20_the_words_of_a_launch_are_the_argument_block(options: dict[str, Any]) -> None:
    """Views, words, the words of the variant, then two embedded tensors whose addresses are the first two words."""
    builder, words = GraphBuilder("peek"), 17
    x, y = builder.input("x", I64, (3,)), builder.input("y", I64, (3,))
    out = builder.model_output("out", I64, (words,))
    views = [View(x), View(y), View(out, 0, "write")]
    builder.launch("peek", [Variant("peek", 2, words=(77,))], views, [words], "peek")
    feeds = {"x": np.array([1, 2, 3]), "y": np.array([4, 5, 6])}
    executor = loaded(builder.finish(), **options)
    for _ in range(3):
        (found,) = executor.run(feeds)
        block = ArgumentBlock(arguments=4)
        block.reset(tiling_bytes=8)
        offsets = [block.embed(feeds[name].tobytes(), [at]) for at, name in enumerate("xy")]
        block.align()
        address = int(found[0]) - offsets[0]
        arguments = [0, 0, int(found[2]), words]
        assert found.tobytes() == block.bytes(arguments, (77).to_bytes(8, "little"), address)


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_the_live_bytes_of_split_copies(workers: int) -> None:
    """The block of a copy belongs to its result: it goes with the result's Free, which may run ahead of the copy."""
    count, block, sum_block = 6, 256, 128  # 64 + 64 bytes and a header; 64 bytes: slots of the page pool
    options = {"executor": "multi-worker", "workers": workers}
    addresses, image = machine_code()
    graph = place_on_discrete(sum_of_inputs(count, elements=16))
    for one in passes_of(PassOptions(is_multi_worker=True))[1]:
        graph = one.run(graph)
    copies = {node.id for node in graph.main if node.kernel == "LaunchH2DCopy"}
    assert len(copies) == count and copies <= set(graph.relations.launch_ids.tolist())
    executor = ModelExecutor(graph, addresses, keep_alive=image, device=Device("discrete"), **options).load()
    feeds = {f"x{i}": np.arange(16) + i for i in range(count)}
    expected = interpret(sum_of_inputs(count, elements=16), feeds, CALLABLES)
    for _ in range(20):
        results, records = executor.run_profiled(feeds)
        agree(expected, results, f"workers {workers}")
        of_memory = [r for r in records if r.get("memory_bytes")]
        curve = list(accumulate(r["memory_bytes"] for r in of_memory))
        taken = {r["kernel"] for r in of_memory if r["memory_bytes"] > 0}
        given = {r["kernel"] for r in of_memory if r["memory_bytes"] < 0}
        assert taken == {"AllocMemHbm", "AllocMemory"} and given == {"FreeMemoryHoldAddr"}
        assert curve[-1] == 0, "nothing is kept until the next run"
        assert max(curve) <= 3 * block + 2 * sum_block, "two operands and a result, and the next operand on its way"


def test_weights_are_copied_once_and_the_originals_dropped(encoder_int8: str) -> None:
    device = Device("discrete", capacity_bytes=128 << 20)
    model = grainline.load(encoder_int8, device=device)
    graph = model.compiled.executor.graph
    copied = [node for node in graph.init if node.kernel == "CopyH2D"]
    assert len(copied) > 50 and not any(node.inputs[0] in model._compiled.executor._weights for node in copied)
    at_load = device.statistics()["live_bytes"]
    feeds = {info.name: np.ones((1, 8), np.int64) for info in model.inputs}
    for _ in range(3):
        model.run(feeds)
    model.trim()
    assert device.statistics()["live_bytes"] == at_load, "a run adds no weights"


# ---- memory ----------------------------------------------------------------------------------------------------


def test_allocations_park_on_a_full_device_and_go_on() -> None:
    parked = 0
    for seed in range(8):
        graph, feeds = random_graph(seed, size=14), feeds_of(BLOCK_BYTES // 8, seed)
        expected = interpret(graph, feeds, CALLABLES)
        for capacity in range(16 << 10, 160 << 10, 8 << 10):
            executor = loaded(graph, Device("discrete", capacity_bytes=capacity), **SEVERAL)
            try:
                results, events = executor.run_logged(feeds)
            except OutOfMemory:
                continue
            agree(expected, results, f"seed {seed}, {capacity} bytes")
            parked += sum(kind == "node_parked" for *_, kind in events)
    assert parked, "no capacity made an allocation wait for launches"


@pytest.mark.parametrize("seed", range(8))
def test_R67_wherever_one_worker_has_room_several_have_it_too(seed: int) -> None:
    graph = random_graph(seed, size=14)
    feeds = feeds_of(BLOCK_BYTES // 8, seed)
    expected = interpret(graph, feeds, CALLABLES)
    fitted = 0
    for capacity in range(16 << 10, 160 << 10, 8 << 10):
        if not fits(graph, feeds, expected, capacity, SEQUENTIAL):
            continue
        fitted += 1
        for options in KINDS[3:]:
            assert fits(graph, feeds, expected, capacity, options), f"seed {seed}, {capacity} bytes, {options}"
    assert fitted, f"seed {seed}: no capacity was enough"


def fits(graph: ExecuteGraph, feeds: Any, expected: list[Any], capacity: int, options: dict[str, Any]) -> bool:
    try:
        executor = loaded(graph, Device("discrete", capacity_bytes=capacity), **options)
        for _ in range(2):
            agree(expected, executor.run(feeds), f"{capacity} bytes, {options}")
    except OutOfMemory:
        return False
    return True


def test_a_device_without_room_for_the_weights_is_out_of_memory(encoder_int8: str) -> None:
    with pytest.raises(OutOfMemory):
        grainline.load(encoder_int8, device=Device("discrete", capacity_bytes=1 << 20))


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_tensor_rides_with_a_launch_whose_place_a_call_of_the_host_decides(options: dict[str, Any]) -> None:
    nodes = [
        helper.make_node("Compress", ["y", "kept"], ["some"], axis=0),
        helper.make_node("Concat", ["some", "x"], ["both"], axis=0),
        helper.make_node("Tanh", ["both"], ["z"]),
    ]
    inputs = {"x": (1, ["n", 3]), "y": (1, ["m", 3]), "kept": (9, ["m"])}
    data = make_model(nodes, inputs, {"z": (1, ["k", 3])}).SerializeToString()
    host, other = grainline.load(data), grainline.load(data, device=Device("discrete", is_checked=True), **options)
    kernels = {node.kernel for node in other.compiled.executor.graph.main}
    assert any("CopyFlow" in kernel for kernel in kernels), f"no tensor rides with a launch: {kernels}"
    random = np.random.default_rng(3)
    for n, kept in ((4, [True, False]), (4, [True, True, True]), (7, [False]), (1, [True] * 9)):
        x, y = (random.standard_normal((rows, 3)).astype(np.float32) for rows in (n, len(kept)))
        feeds = {"x": x, "y": y, "kept": np.array(kept)}
        agree(host.run(feeds), other.run(feeds), f"{options}, {n} rows behind {sum(kept)}")


# ---- failures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["submission", "completion"])
@pytest.mark.parametrize("options", KINDS, ids=str)
def test_R60_a_fault_of_any_command_fails_the_run_and_only_that(options: dict[str, Any], moment: str) -> None:
    graph, device, feeds = random_graph(11, size=10), Device("discrete", is_checked=True), feeds_of(40)
    executor, expected = loaded(graph, device, **options), interpret(graph, feeds, CALLABLES)
    commands = sum(KERNELS[node.kernel].section == LAUNCH for node in executor.graph.main)
    executor.run(feeds)
    executor.trim()
    at_rest = device.statistics()["live_bytes"]
    assert commands > 5
    for after in range(commands):
        device.inject(moment, after=after)
        with pytest.raises(KernelError, match="injected"):
            executor.run(feeds)
        executor.trim()
        assert device.statistics()["live_bytes"] == at_rest, f"command {after} leaks"
        agree(expected, executor.run(feeds), f"{options}, behind a fault of command {after}")


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_the_end_of_a_sequence_on_the_device_ends_the_run(options: dict[str, Any]) -> None:
    graph, device, feeds = random_graph(11, size=10), Device("discrete"), feeds_of(40)
    executor = loaded(graph, device, **options)
    device.inject("completion", after=3, end_of_sequence=True)
    with pytest.raises(EndOfSequence):
        executor.run(feeds)
    agree(interpret(graph, feeds, CALLABLES), executor.run(feeds), str(options))


# ---- looking on ------------------------------------------------------------------------------------------------


def test_a_dump_sees_finished_memory(add_model: bytes, tmp_path: Path) -> None:
    device = Device("discrete")
    model = grainline.load(add_model, device=device)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    device.set_delay(0.005)
    model.run_watched({"a": x, "b": x}, grainline.DataDump(tmp_path))
    (written,) = tmp_path.glob("run_0/*_write_*.npy")
    assert np.array_equal(np.load(written), x + x)


# ---- options ---------------------------------------------------------------------------------------------------


def test_options_and_the_environment_name_the_device(monkeypatch: pytest.MonkeyPatch, add_model: bytes) -> None:
    monkeypatch.setenv("GRAINLINE_DEVICE", "discrete")
    assert Options().resolved().device == "discrete" and Options(device="cpu").resolved().device == "cpu"
    assert grainline.load(add_model)._compiled.executor._device.name == "discrete"
    monkeypatch.setenv("GRAINLINE_DEVICE", "tpu")
    with pytest.raises(OptionError, match="GRAINLINE_DEVICE"):
        grainline.load(add_model)
    for wrong in ("tpu", 3, object()):
        with pytest.raises(OptionError, match="device"):
            Options(device=wrong)


def test_branches_run_on_the_device() -> None:
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op, ["x", "x"], ["z"])], name, [], [helper.make_tensor_value_info("z", 1, ["n"])]
        )
        for name, op in (("then", "Add"), ("else", "Mul"))
    }
    node = helper.make_node("If", ["c"], ["y"], name="the_if", **branches)
    model = make_model([node], {"c": (9, []), "x": (1, ["n"])}, {"y": (1, ["n"])}).SerializeToString()
    host, other = grainline.load(model), grainline.load(model, device="discrete")
    for chosen in (True, False):
        feeds = {"c": np.array(chosen), "x": np.arange(5, dtype=np.float32)}
        assert other.run(feeds)[0].tobytes() == host.run(feeds)[0].tobytes()
    kernels = {node.kernel for node in other.compiled.executor.graph.main}
    assert "SwitchNotify" in kernels and "HostCall" not in kernels


def test_saved_models_of_two_devices_are_two(add_model: bytes) -> None:
    x = np.ones((2, 4), np.float32)
    for _ in range(2):
        for device in ("cpu", "discrete"):
            model = grainline.load(add_model, device=device)
            kernels = {kernel for _, kernel, _ in model._compiled.executor._native.nodes()}
            assert ("EnsureTensorAtOutMemory" in kernels) == (device == "discrete")
            assert model(a=x, b=x).tolist() == (x + x).tolist()


def test_a_pickled_model_has_a_device_of_its_own(add_model: bytes) -> None:
    device = Device("discrete", capacity_bytes=1 << 20)
    copy = pickle.loads(pickle.dumps(grainline.load(add_model, device=device)))
    other = copy._options.device
    assert other is not device and other.statistics()["capacity_bytes"] == 1 << 20
    x = np.ones((2, 4), np.float32)
    assert copy(a=x, b=x).tolist() == (x + x).tolist()
