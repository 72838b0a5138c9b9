"""Arms that take turns: each library in a process of its own, asked case by case and round by round.

A suite is a Python file with a function `arm(name) -> (case -> call)` and a `main` that calls `race`. A *call* takes a
number of repetitions and does the work that often. In every round each arm measures one slice of about SLICE_SECONDS,
in an order that turns from round to round; ratios are taken within a round. A process that is not measuring is stopped
(SIGSTOP): the threads of its library cannot go on spinning beside the one that is.

On one thread the time is the thread's CPU time, on several it is the wall's.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from grainline.tools.arms import exchange

SLICE_SECONDS = 0.02
LIBRARY_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")

Call = Callable[[int], Any]
Answers = dict[str, list[float]]


class Turns:
    """The processes of a suite's arms; `arguments` are passed to all of them."""

    def __init__(self, suite: str, arms: Sequence[str], threads: int, arguments: Sequence[str]) -> None:
        self.arms = list(arms)
        environ = {**os.environ, **dict.fromkeys(LIBRARY_THREADS, str(threads))}
        self._processes = {
            arm: subprocess.Popen(
                [sys.executable, suite, "--serve", arm, "--threads", str(threads), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environ,
            )
            for arm in arms
        }

    def race(self, case: str, rounds: int) -> tuple[Answers, dict[str, Any]]:
        """Seconds per call by arm and round, and what each arm says about the case (None: it has no such case)."""
        facts = {arm: self._ask(arm, case=case) for arm in self.arms}
        taking_part = [arm for arm in self.arms if facts[arm] is not None]
        answers: Answers = {arm: [] for arm in taking_part}
        for number in range(rounds):
            turn = number % len(taking_part)
            for arm in taking_part[turn:] + taking_part[:turn]:
                answers[arm].append(self._ask(arm, measure=True))
        return answers, facts

    def _ask(self, arm: str, **request: Any) -> Any:
        line = exchange(self._processes[arm], request)
        if not line:
            raise SystemExit(f"the process of {arm} ended while it was asked for {request}")
        return json.loads(line)

    def close(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)
            if process.stdin is not None:
                process.stdin.close()
            process.wait()


def options_of(title: str, arms: Sequence[str], cases: Iterable[str], rounds: int) -> argparse.Namespace:
    """The command line of a suite that runs its cases at several numbers of threads."""
    parser = argparse.ArgumentParser(description=title, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--cases", default=",".join(cases))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--serve", choices=arms, help=argparse.SUPPRESS)
    return parser.parse_args()


def aligned(array: Any, alignment: int = 64) -> Any:
    """The same elements where an engine has them: at the start of a cache line."""
    import numpy as np  # not before the environment of an arm is set

    room = np.empty(array.nbytes + alignment, np.uint8)
    start = -room.ctypes.data % alignment
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@contextmanager
def turns(suite: str, arms: Sequence[str], threads: int = 1, arguments: Sequence[str] = ()) -> Iterator[Turns]:
    running = Turns(suite, arms, threads, arguments)
    try:
        yield running
    finally:
        running.close()


def serve(arm: Callable[[str], tuple[Call, Any] | None], threads: int) -> None:
    """The process side. `arm(case)` gives the call of a case and facts about it (JSON), or None."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    call: Call = _nothing
    times = 1
    for line in sys.stdin:
        request = json.loads(line)
        if "case" in request:
            call = _nothing  # the arrays of the case before are free before the next ones are made
            made = arm(request["case"])
            answer = None
            if made is not None:
                call, answer = made
                times = repetitions(call, clock)
        else:
            call(max(1, times // 20))
            answer = seconds_of(call, times, clock)
        print(json.dumps(answer), flush=True)


def _nothing(times: int) -> None:
    return None


def seconds_of(call: Call, times: int, clock: Callable[[], float]) -> float:
    start = clock()
    call(times)
    return (clock() - start) / times


def repetitions(call: Call, clock: Callable[[], float]) -> int:
    """How many calls fill a slice."""
    times = 1
    call(1)
    while (each := seconds_of(call, times, clock)) * times < SLICE_SECONDS / 4:
        times *= 4
    return max(1, round(SLICE_SECONDS / each))


def repeated(once: Callable[[], Any]) -> Call:
    """A call that calls `once` again and again."""

    def call(times: int) -> None:
        for _ in range(times):
            once()

    return call


def ratio(answers: Answers, arm: str, to: str) -> float:
    """Median over the rounds of one arm's time by another's."""
    return statistics.median(a / b for a, b in zip(answers[arm], answers[to]))


def spread(answers: Answers, arm: str, to: str) -> tuple[float, float]:
    """The 10th and 90th percentile of that ratio."""
    ratios = sorted(a / b for a, b in zip(answers[arm], answers[to]))
    last = len(ratios) - 1
    return ratios[round(0.1 * last)], ratios[round(0.9 * last)]


def microseconds(answers: Answers, arm: str) -> float:
    return statistics.median(answers[arm]) * 1e6
