"""If, Loop and Scan of random models: every executor gives what onnxruntime and the interpreter give."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grainline._native", reason="the native core is not built")

import grainline
from grainline.graph import interp
from grainline.importer.model import import_model
from tests.flow.random_models import RandomModel
from tests.runtime.company import wrong_cases

SEED = int(os.environ.get("GRAINLINE_TEST_SEED", "0"))
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"executor": "sequential"},
    {"executor": "topological"},
    {"executor": "multi-worker", "workers": 3},
)


def check(seed: int, feeds_per_model: int = 4) -> None:
    import onnxruntime

    built = RandomModel(seed)
    data = built.model.SerializeToString()
    graph = import_model(data)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level, settings.intra_op_num_threads = 4, 1
    peer = onnxruntime.InferenceSession(data, settings, providers=["CPUExecutionProvider"])
    settled = [{**options, "device": grainline.Device("discrete", is_checked=True)} for options in KINDS[1:]]
    models = [grainline.load(data, cache=False, threads=1, **options) for options in (*KINDS, *settled)]
    for number in range(feeds_per_model):
        feeds = built.feeds(number)
        where = f"seed {seed}, feeds {number}"
        first = models[0].run(feeds)
        for ours, meaning, theirs in zip(first, interp.run(graph, feeds), peer.run(None, feeds), strict=True):
            np.testing.assert_allclose(ours, meaning, 2e-4, 2e-5, err_msg=f"{where}: the interpreter")
            np.testing.assert_allclose(ours, theirs, 2e-4, 2e-5, err_msg=f"{where}: onnxruntime")
        for options, model in zip((*KINDS[1:], *settled), models[1:], strict=True):
            for ours, other in zip(first, model.run(feeds), strict=True):
                assert ours.tobytes() == other.tobytes(), f"{where}: {options} gives other bits"
    check_rest(where, [(model, options["device"]) for model, options in zip(models[-len(settled) :], settled)], feeds)


def check_rest(where: str, models: list[tuple[Any, Any]], feeds: dict[str, Any]) -> None:
    """Between runs a device holds the weights and nothing else, whether the last run ended well or not."""
    for model, device in models:
        model.trim()
        at_rest = device.statistics()["live_bytes"]
        for moment, after in (("completion", 0), ("submission", 2), ("completion", 7), ("submission", 11)):
            device.inject(moment, after=after)
            with pytest.raises(grainline.KernelError, match="injected"):
                for _ in range(after + 1):  # a short run has fewer commands
                    model.run(feeds)
            model.run(feeds)
            model.trim()
            assert device.statistics()["live_bytes"] == at_rest, f"{where}: memory stays behind a {moment}"


@pytest.mark.parametrize("seed", [*range(SEED, SEED + 12), 183])
def test_random_models_run_as_in_onnxruntime(seed: int) -> None:
    check(seed)


@pytest.mark.slow
def test_three_hundred_random_models_run_as_in_onnxruntime() -> None:
    for seed in range(SEED + 100, SEED + 400):
        check(seed)


# ---- several workers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "discrete"])
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_several_threads_may_run_one_model_with_several_workers(workers: int, device: str) -> None:
    built = RandomModel(SEED + 20 + workers)
    data = built.model.SerializeToString()
    one = grainline.load(data, cache=False, threads=1)
    several = grainline.load(data, cache=False, threads=1, workers=workers, device=device)
    cases = [(built.feeds(number), one.run(built.feeds(number))) for number in range(12)]
    assert wrong_cases(several, cases) == [], f"seed {SEED + 20 + workers}"


@pytest.mark.parametrize("seed", range(SEED + 40, SEED + 44))
def test_wherever_one_worker_has_room_for_frames_several_have_it_too(seed: int) -> None:
    built = RandomModel(seed)
    data, feeds = built.model.SerializeToString(), [built.feeds(number) for number in range(3)]

    def outcome(capacity_kib: int, **options: Any) -> Any:
        device = grainline.Device("discrete", capacity_bytes=capacity_kib << 10)
        try:
            model = grainline.load(data, threads=1, device=device, **options)
            return [[array.tobytes() for array in model.run(each)] for each in feeds]
        except grainline.OutOfMemory:
            return None

    found = [(outcome(kib, executor="sequential"), outcome(kib, workers=3)) for kib in (1, 16, 32, 40, 48, 64, 96, 256)]
    assert found[0][0] is None and found[-1][0] is not None, "some have room and some have not"
    for one, several in found:
        assert one is None or one == several, f"seed {seed}"
