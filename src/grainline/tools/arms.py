"""Measuring arms: one library, one model, one process; arms take turns and never run at the same time.

Thread pools of other libraries go on spinning after their last call. So every arm that is not measuring is stopped with
SIGSTOP; it cannot take time from the one that is. A turn begins with untimed calls that wake the arm's caches and pool.

The process side is `python -m grainline.tools.arms`: a JSON request a line on stdin, a JSON answer a line on stdout.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grainline.base import log
from grainline.base.errors import GrainlineError

SETTLE_S = 0.02
WARM_CALLS = 3


def exchange(process: subprocess.Popen[str], request: dict[str, Any]) -> str:
    """Wakes a stopped process, sends it a line of JSON, waits for its line and stops it again; "" when it has ended."""
    assert process.stdin and process.stdout
    process.send_signal(signal.SIGCONT)
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    process.send_signal(signal.SIGSTOP)
    return line


class ArmFailed(GrainlineError):
    """The process of an arm reported an error or ended."""


@dataclass
class Arm:
    """The parent's side of one process. `turns` holds the call times of each turn in nanoseconds."""

    name: str
    library: str
    process: subprocess.Popen[str]
    turns: list[list[int]] = field(default_factory=list)

    def ask(self, **request: Any) -> Any:
        line = exchange(self.process, request)
        if not line:
            raise ArmFailed("the process of an arm ended", node=self.name, found=f"exit code {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise ArmFailed("an arm failed", node=self.name, found=answer["error"])
        return answer["answer"]

    def take_turn(self, seconds: float, clock: str) -> None:
        self.turns.append(self.ask(do="time", seconds=seconds, clock=clock))

    def all_calls(self) -> np.ndarray:
        return np.concatenate([np.asarray(turn, np.float64) for turn in self.turns])

    def medians(self) -> np.ndarray:
        return np.array([np.median(turn) for turn in self.turns])


def start(name: str, library: str) -> Arm:
    """Starts the process of an arm; nothing is loaded in it yet."""
    process = subprocess.Popen(
        [sys.executable, "-m", "grainline.tools.arms"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    return Arm(name, library, process)


@contextlib.contextmanager
def arms(specifications: Sequence[tuple[str, str, str, int]]) -> Iterator[list[Arm]]:
    """Starts and loads (name, library, model, threads) for each; ends them all on the way out. threads 0: default."""
    running: list[Arm] = []
    try:
        for name, library, model, threads in specifications:
            running.append(start(name, library))
            running[-1].ask(do="load", library=library, model=model, threads=threads)
        yield running
    finally:
        for arm in running:
            arm.process.send_signal(signal.SIGCONT)
            arm.process.kill()
            arm.process.communicate()


def interleave(running: Sequence[Arm], rounds: int, seconds: float, report: Any = None, clock: str = "wall") -> None:
    """Every arm takes one turn per round; the order rotates and alternates its direction.

    clock "cpu" measures the processor time of the calling thread: right for arms of one thread, and blind to what else
    the machine does.
    """
    for round_index in range(rounds):
        shift = round_index % len(running)
        order = [*running[shift:], *running[:shift]]
        for arm in order if round_index % 2 == 0 else reversed(order):
            arm.take_turn(seconds, clock)
        if report is not None:
            report("measuring", round_index + 1, rounds)


@dataclass(frozen=True)
class Ratio:
    """Median, least and greatest of the ratios of two arms in the same round."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def ratio(arm: Arm, baseline: Arm) -> Ratio:
    """The ratio of turn medians, round by round; low and high are the 10th and 90th percentile."""
    ratios = arm.medians() / baseline.medians()
    return Ratio(float(np.median(ratios)), float(np.quantile(ratios, 0.1)), float(np.quantile(ratios, 0.9)))


# --- the process side ---


class _Served:
    """What the process holds: a loaded model and its feeds."""

    def __init__(self) -> None:
        self.session: Any = None
        self.feeds: dict[str, np.ndarray] = {}

    def load(self, library: str, model: str, threads: int) -> float:
        begin = time.perf_counter()
        if library == "grainline":
            import grainline as runtime
        else:
            import onnxruntime as runtime
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return time.perf_counter() - begin

    def feed(self, path: str) -> list[list[int]]:
        """Takes the feeds from an .npz file, runs once and answers with the shapes of the outputs."""
        with np.load(path, allow_pickle=False) as archive:
            self.feeds = {name: archive[name] for name in archive.files}
        return [list(np.shape(array)) for array in self.session.run(None, self.feeds)]

    def save(self, path: str) -> None:
        """Runs once and writes the outputs to an .npz file, in order."""
        np.savez(path, *self.session.run(None, self.feeds))

    def time(self, seconds: float, clock: str) -> list[int]:
        time.sleep(SETTLE_S)
        now_ns = time.thread_time_ns if clock == "cpu" else time.perf_counter_ns
        run, feeds = self.session.run, self.feeds
        for _ in range(WARM_CALLS):
            run(None, feeds)
        calls: list[int] = []
        end = now_ns() + int(seconds * 1e9)
        while (begin := now_ns()) < end or not calls:
            run(None, feeds)
            calls.append(now_ns() - begin)
        return calls


def serve() -> None:
    """Answers requests until stdin ends. Whatever the library prints goes to stderr, never between the answers."""
    log.warn_in_one_line()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    served = _Served()
    for line in sys.stdin:
        request = json.loads(line)
        do = request.pop("do")
        try:
            answer = {"answer": getattr(served, do)(**request)}
        except Exception as problem:  # reported to the parent, which decides
            answer = {"error": f"{type(problem).__name__}: {problem}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve()
