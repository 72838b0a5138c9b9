"""`grainline bench`: latency of one model at one shape, beside a peer and the noise of the machine."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from grainline.base import progress
from grainline.base.errors import OptionError
from grainline.base.knobs import thread_budget
from grainline.tools import arms
from grainline.tools.feeding import make_feeds
from grainline.tools.running import load_with_progress
from grainline.tools.waiting import progress_on_stderr

PEERS = ("onnxruntime",)


def bench_model(
    path: Path,
    input_options: Sequence[str],
    shape_options: Sequence[str],
    peer: str | None,
    threads: int | None,
    rounds: int,
    seconds: float,
    seed: int,
) -> Iterator[str]:
    check_peer(peer)
    model = load_with_progress(path, threads)
    feeds = make_feeds(model.inputs, input_options, shape_options, seed)
    del model
    libraries = ["grainline", "grainline", *([peer] if peer else [])]
    names = ["grainline", "grainline (again)", *([peer] if peer else [])]
    budget = thread_budget(threads)
    with (
        progress_on_stderr("bench"),
        arms.arms([(n, lib, str(path), budget) for n, lib in zip(names, libraries)]) as running,
    ):
        feed_all(running, feeds)
        arms.interleave(running, rounds, seconds, progress.report)
        yield from table(running)
    yield f"threads {budget or 'all allowed'}, {rounds} rounds of {seconds} s an arm, each library in its own process"
    yield "ratio: this arm over the first, by round; median (10th-90th percentile). The second arm shows the noise."


def check_peer(peer: str | None) -> None:
    if peer is None:
        return
    if peer not in PEERS:
        raise OptionError("--peer is not known", expected=f"one of {PEERS}", found=repr(peer))
    if importlib.util.find_spec(peer) is None:
        raise OptionError("--peer is not installed", found=repr(peer), remedy=f"pip install {peer}")


def feed_all(running: Sequence[arms.Arm], feeds: dict[str, np.ndarray]) -> None:
    """Hands the same arrays to every arm, through a file that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "feeds.npz"
        with path.open("wb") as file:
            np.savez(file, **feeds)  # type: ignore[arg-type]
        for arm in running:
            arm.ask(do="feed", path=str(path))


def table(running: Sequence[arms.Arm]) -> Iterator[str]:
    yield f"{'arm':<20} {'p50 us':>10} {'p90 us':>10} {'calls':>7}  ratio"
    for arm in running:
        calls = arm.all_calls() / 1e3
        shown = "1" if arm is running[0] else str(arms.ratio(arm, running[0]))
        yield f"{arm.name:<20} {np.median(calls):>10.1f} {np.quantile(calls, 0.9):>10.1f} {calls.size:>7}  {shown}"
