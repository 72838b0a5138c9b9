"""Random graphs under random schedules: nobody hangs, nothing is overwritten, the bits are the sequential ones."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.verification.protocol import END_OF_SEQUENCE, FAILED, OK, Hang, Pool, Run, Sequential
from tests.verification.tasks import MEMORY, Tasks, memory_order, ordered, peak_units, random_graph, without_free_edges

SEED = int(os.environ.get("GRAINLINE_TEST_SEED", "0"))
CHECKER = Path(__file__).resolve().parents[2] / "verification" / "check.py"


def check(seed: int, parks: bool) -> None:
    """One graph at one capacity: two runs on one pool, against the sequential oracle."""
    legacy = ordered(random_graph(seed))
    tasks, capacity = without_free_edges(legacy), capacity_of(legacy, seed)
    oracle, pool = Pool(capacity), Pool(capacity)
    for schedule in (seed, seed + 1):
        expected = Sequential(legacy, oracle, schedule).finish()
        run = Run(tasks, pool, schedule, parks).finish()
        where = f"seed {seed}, {len(tasks)} tasks, capacity {capacity}, parks {parks}"
        if expected.status == OK:
            assert run.status == OK, f"{where}: the sequential executor succeeds, this one ends with '{run.status}'"
            assert run.outputs == expected.outputs, f"{where}: other bits"


def capacity_of(tasks: Tasks, seed: int) -> int:
    """Around what the sequential executor needs."""
    return peak_units(tasks) + random.Random(seed).choice((-1, 0, 0, 1, 3))


@pytest.mark.parametrize("parks", [False, True])
def test_R67_random_graphs_run_as_in_sequence(parks: bool) -> None:
    for seed in range(SEED, SEED + 500):
        check(seed, parks)


@pytest.mark.slow
@pytest.mark.parametrize("parks", [False, True])
def test_R67_fifty_thousand_random_graphs_run_as_in_sequence(parks: bool) -> None:
    for seed in range(SEED, SEED + 50_000):
        check(seed, parks)


def outcome_of_early_frees(seed: int, is_proven: bool) -> str:
    """How a run ends whose Frees come as early as possible: "ok", "hang", "hazard", or a status."""
    legacy = ordered(random_graph(seed))
    tasks, capacity = without_free_edges(legacy), capacity_of(legacy, seed)
    try:
        run = Run(tasks, Pool(capacity), seed, memory_order=memory_order(tasks, is_proven)).finish()
    except Hang:
        return "hang"
    except AssertionError:
        return "hazard"
    expected = Sequential(legacy, Pool(capacity), seed).finish()
    return "hazard" if run.status == expected.status == OK and run.outputs != expected.outputs else run.status


def test_R66_R69_early_frees_are_safe_exactly_with_the_proof() -> None:
    """Without the gate the search finds both hazards; with it neither, on the same graphs."""
    seeds = range(SEED, SEED + 400)
    unproven = {outcome_of_early_frees(seed, is_proven=False) for seed in seeds}
    assert {"hang", "hazard"} <= unproven, f"the search is too weak to find the hazards: {unproven}"
    proven = {seed: outcome_of_early_frees(seed, is_proven=True) for seed in seeds}
    broken = {seed: outcome for seed, outcome in proven.items() if outcome in ("hang", "hazard")}
    assert not broken, f"not safe behind the gate: {broken}"


@pytest.mark.parametrize("parks", [False, True])
def test_R60_a_fault_at_any_task_keeps_its_status_and_the_next_run_succeeds(parks: bool) -> None:
    for seed in range(SEED, SEED + 60):
        legacy = ordered(random_graph(seed))
        tasks, capacity = without_free_edges(legacy), 2 * peak_units(legacy)
        pool, expected = Pool(capacity), Sequential(legacy, Pool(capacity), seed).finish().outputs
        for index in range(0, len(tasks), 3):
            status = (FAILED, END_OF_SEQUENCE)[index % 2]
            run = Run(tasks, pool, seed + index, parks, fault=(index, status)).finish()
            assert run.status == status, f"seed {seed}, task {index}: '{run.status}' instead of '{status}'"
            pool.recycle()
            assert not pool.chunks, f"seed {seed}, task {index}: the failed run leaks {pool.chunks}"
        again = Run(tasks, pool, seed, parks).finish()
        assert again.status == OK and again.outputs == expected, f"seed {seed}: the run after the failures"


def test_memory_orders_keep_the_edges() -> None:
    for seed in range(SEED, SEED + 100):
        tasks = without_free_edges(ordered(random_graph(seed)))
        for is_proven in (False, True):
            place = {index: at for at, index in enumerate(memory_order(tasks, is_proven))}
            assert set(place) == {i for i, task in enumerate(tasks) if task.worker == MEMORY}
            assert all(place[i] < place[index] for index in place for i in tasks[index].before if i in place)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("spin") is None, reason="the model checker spin is not installed")
@pytest.mark.parametrize("part", ["e2 ANY_ORDER", "reuse"])
def test_R66_the_model_checker_agrees(part: str) -> None:
    done = subprocess.run([sys.executable, str(CHECKER), part], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "holds" in done.stdout, f"no check matches '{part}'"
