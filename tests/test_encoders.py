"""The two sentence encoders and the decoder block: against onnxruntime, and bit for bit against themselves."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import grainline

SHAPES_IN_CI = 40
SEED = 20261129


def _feeds(names, batch, length, rng):
    feeds = {
        "input_ids": rng.integers(0, 30522, (batch, length)),
        "attention_mask": (rng.random((batch, length)) < 0.8).astype(np.int64),
        "token_type_ids": np.zeros((batch, length), np.int64),
    }
    feeds["attention_mask"][:, 0] = 1
    return {name: feeds[name] for name in names}


@pytest.fixture(params=["encoder_int8", "encoder_fp32"])
def encoder(request):
    return request.getfixturevalue(request.param)


def _random_shapes(count):
    rng = np.random.default_rng(SEED)
    return [(int(rng.integers(1, 9)), int(rng.integers(1, 257))) for _ in range(count)]


def _peer(path):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _worst_difference(path, shapes):
    ours, peer = grainline.InferenceSession(path), _peer(path)
    names = [info.name for info in ours.get_inputs()]
    rng = np.random.default_rng(SEED)
    worst = 0.0
    for batch, length in shapes:
        feeds = _feeds(names, batch, length, rng)
        for got, want in zip(ours.run(None, feeds), peer.run(None, feeds), strict=True):
            assert got.dtype == want.dtype and got.shape == want.shape
            worst = max(worst, float(np.abs(got.astype(np.float64) - want.astype(np.float64)).max()))
    return worst


def test_results_equal_onnxruntime(encoder):
    worst = _worst_difference(encoder, _random_shapes(SHAPES_IN_CI))
    assert worst <= 2e-5, f"seed {SEED}: the largest difference is {worst}"


@pytest.mark.slow
def test_results_equal_onnxruntime_on_300_shapes(encoder):
    worst = _worst_difference(encoder, _random_shapes(300))
    print(f"largest difference over 300 shapes: {worst:.3g}")
    assert worst <= 2e-5, f"seed {SEED}: the largest difference is {worst}"


def test_every_node_compiles(encoder):
    assert "host " not in grainline.load(encoder).explain()


def test_bits_do_not_depend_on_threads(encoder):
    one, two = grainline.load(encoder, threads=1), grainline.load(encoder, threads=2)
    names = [info.name for info in one.inputs]
    rng = np.random.default_rng(SEED)
    for batch, length in [(1, 1), (1, 8), (1, 129), (3, 17), (8, 64)]:
        feeds = _feeds(names, batch, length, rng)
        first = one.run(feeds)
        for _ in range(3):
            for got, want in zip(two.run(feeds), first, strict=True):
                assert got.tobytes() == want.tobytes(), f"({batch}, {length})"


def test_bits_do_not_depend_on_company(encoder):
    """A sentence alone and the same sentence in a batch of equal length."""
    model = grainline.load(encoder)
    names = [info.name for info in model.inputs]
    rng = np.random.default_rng(SEED)
    for batch, length in [(2, 1), (8, 5), (7, 33), (4, 128)]:
        feeds = _feeds(names, batch, length, rng)
        together = model.run(feeds)
        for row in range(batch):
            alone = model.run({name: array[row : row + 1] for name, array in feeds.items()})
            for got, want in zip(alone, together, strict=True):
                assert got[0].tobytes() == want[row].tobytes(), f"row {row} of ({batch}, {length})"


def test_a_new_shape_compiles_nothing(encoder, monkeypatch):
    from grainline.codegen import llvm

    model = grainline.load(encoder)
    names = [info.name for info in model.inputs]
    monkeypatch.setattr(llvm, "compile_object", lambda *_: pytest.fail("a run compiled a kernel"))
    monkeypatch.setattr(llvm, "link_object", lambda *_: pytest.fail("a run linked a kernel"))
    rng = np.random.default_rng(SEED)
    for batch, length in _random_shapes(20):
        model.run(_feeds(names, batch, length, rng))


def test_warm_pools_ask_the_system_for_nothing(encoder):
    model = grainline.load(encoder, threads=1)
    names = [info.name for info in model.inputs]
    feeds = _feeds(names, 4, 64, np.random.default_rng(SEED))
    for _ in range(3):
        model.run(feeds)
    before = model._compiled.executor.statistics()["growths"]
    for _ in range(20):
        model.run(feeds)
    assert model._compiled.executor.statistics()["growths"] == before


def test_out_of_range_tokens_are_an_error_and_the_next_call_works(encoder):
    model = grainline.load(encoder)
    names = [info.name for info in model.inputs]
    feeds = _feeds(names, 2, 9, np.random.default_rng(SEED))
    good = model.run(feeds)
    for bad in (30522, -30523, 1 << 40):
        ids = feeds["input_ids"].copy()
        ids[1, 3] = bad
        with pytest.raises(grainline.KernelError) as caught:
            model.run({**feeds, "input_ids": ids})
        assert caught.value.value == "input_ids" and caught.value.found == f"{bad} at [1, 3]"
        assert caught.value.expected == "-30522 to 30521" and caught.value.node
        for got, want in zip(model.run(feeds), good, strict=True):
            assert got.tobytes() == want.tobytes()


def test_empty_batches_and_lengths_work(encoder):
    model = grainline.load(encoder)
    names = [info.name for info in model.inputs]
    for batch, length in [(0, 8), (2, 0), (0, 0)]:
        results = model.run({name: np.zeros((batch, length), np.int64) for name in names})
        assert all(array.shape[0] == batch for array in results)


def _decoder_block():
    path = Path(__file__).parent.parent / "examples" / "decoder_block.py"
    spec = importlib.util.spec_from_file_location("decoder_block", path)
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["decoder_block"] = module
    spec.loader.exec_module(module)
    return module.build(module.Config(hidden=128, heads=4, kv_heads=2, inner=172, layers=1)).SerializeToString()


def test_the_decoder_block_compiles_and_equals_onnxruntime():
    data = _decoder_block()
    model, peer = grainline.load(data), _peer(data)
    assert "host " not in model.explain()
    rng = np.random.default_rng(SEED)
    for batch, length in [(1, 1), (2, 7), (3, 64)]:
        feeds = {"hidden": rng.standard_normal((batch, length, 128)).astype(np.float32)}
        for got, want in zip(model.run(feeds), peer.run(None, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("optimiser", ["session", "transformers"])
def test_a_model_that_onnxruntime_optimised_compiles_as_well_as_before(encoder_fp32, optimiser, tmp_path):
    """What its optimisers fuse into operators of com.microsoft is no more launches here, and nothing for the host."""
    import onnxruntime

    if optimiser == "transformers":
        for needed in ("sympy", "packaging"):  # by the optimiser, which is no part of the tests' environment
            pytest.importorskip(needed)
    path = str(tmp_path / "optimised.onnx")
    if optimiser == "session":
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = path
        options.log_severity_level = 4
        onnxruntime.InferenceSession(encoder_fp32, options, providers=["CPUExecutionProvider"])
    else:
        from onnxruntime.transformers.optimizer import optimize_model

        optimize_model(encoder_fp32, "bert", num_heads=12, hidden_size=384, opt_level=0).save_model_to_file(path)
    explanation = grainline.load(path).explain()
    assert "host " not in explanation
    assert explanation.count("<-") <= grainline.load(encoder_fp32).explain().count("<-")
    ours, peer = grainline.InferenceSession(path), _peer(path)
    types = {info.name: info.type for info in ours.get_inputs()}
    feeds = _feeds(types, 3, 40, np.random.default_rng(SEED))
    feeds = {name: array.astype(np.int32 if "int32" in types[name] else np.int64) for name, array in feeds.items()}
    for got, want in zip(ours.run(None, feeds), peer.run(None, feeds), strict=True):
        np.testing.assert_allclose(got, want, 1e-4, 2e-5)
