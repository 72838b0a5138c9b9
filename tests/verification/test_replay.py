"""Event logs of the native multi-worker executor, replayed; and logs that were tampered with, refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.verification.replay import Replay
from tests.verification.tasks import NORMAL, Task

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build" / "native" / "native" / "tests" / "stress_liveness"
COUNT = 300


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM.relative_to(ROOT)} is not built; `make test-native` builds it")
    log = tmp_path_factory.mktemp("log") / "runs.json"
    subprocess.run([PROGRAM, "0", str(COUNT), "log", str(log)], check=True, timeout=120)
    return [json.loads(line) for line in log.read_text().splitlines()]


def replay_of(run: dict[str, Any]) -> Replay:
    tasks = tuple(
        Task(section or NORMAL, frozenset(before) - set(related), units, related=frozenset(related))
        for section, before, related, units in run["tasks"]
    )
    return Replay(tasks, run["order"], run["workers"])


def test_every_event_is_legal(runs: list[dict[str, Any]]) -> None:
    assert len(runs) == COUNT
    for run in runs:
        replay = replay_of(run)
        try:
            replay.replay(run["events"])
            if run["ok"]:
                replay.end()
        except AssertionError as error:
            raise AssertionError(f"seed {run['seed']}, {run['workers']} workers: {error}") from None
    assert any(kind == "p" for run in runs for kind, _, _ in run["events"]), "the logs hold parked allocations"


@pytest.mark.parametrize("fault", ["end lost", "edge broken", "wrong worker", "ran twice"])
def test_tampered_logs_are_refused(runs: list[dict[str, Any]], fault: str) -> None:
    refused = 0
    for run in runs[:40]:
        replay, events = replay_of(run), [tuple(event) for event in run["events"]]
        if fault == "end lost":
            del events[next(i for i, event in enumerate(events) if event[0] == "e")]
        elif fault == "edge broken":
            last = next(
                i for i in reversed(range(len(events))) if events[i][0] == "s" and replay.tasks[events[i][1]].before
            )
            events.insert(0, events.pop(last))
        elif fault == "wrong worker":
            events = [(kind, task, worker + 1) for kind, task, worker in events]
        else:
            events += events[-2:]
        try:
            replay.replay(events)
            replay.end()
        except (AssertionError, StopIteration):
            refused += 1
    assert refused == 40, f"{fault}: {40 - refused} of 40 logs were accepted"
