"""Measuring: resuming, failures kept, one source per record, clear messages, and suites as the protocol prescribes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grainline.base import progress
from grainline.base.errors import OptionError
from grainline.evidence import measure, provenance, visit
from grainline.evidence.measure import failures, measure_suite
from grainline.evidence.records import EvidenceError, read_json, sealed, write_json
from grainline.evidence.suites import CONTROL, FIXED_GRAIN, SUITES, Case, Suite, orders


def quiet(line: str) -> None:
    pass


@pytest.fixture
def suite() -> Suite:
    return replace(FIXED_GRAIN, cases=(Case("rope", (3, 34)),), rounds=1)


def test_published_visits() -> None:
    published = {one.name: one.published() for one in SUITES.values() if not one.is_contest}
    assert published == {"pilot": 40, "validation": 408, "fixed-grain": 144}
    for one in SUITES.values():
        names = [v.name for v in one.visits()]
        assert len(names) == len(set(names))
        for case in one.cases if not one.is_contest else ():
            assert one.variants_of(case)[-1].name == CONTROL, "every case has its control"


def test_orders_are_the_prescribed_ones() -> None:
    assert orders(("a", "b", "c", "d")) == (
        ("a", "b", "c", "d"),
        ("d", "c", "b", "a"),
        ("c", "d", "a", "b"),
        ("b", "a", "d", "c"),
    )


def test_a_stopped_suite_resumes(suite: Suite, briefly: None, tmp_path: Path) -> None:
    measure_suite(suite, tmp_path, 1, seconds=-1, say=quiet)
    assert not list((tmp_path / suite.name / "visits").iterdir()), "no time, no visit"
    whole = measure_suite(suite, tmp_path, 1, say=quiet)
    path = tmp_path / suite.name / "visits" / f"{whole['visits'][2]['name']}.json"
    path.unlink()
    heard: list[tuple[str, int, int]] = []
    with progress.listening(lambda *step: heard.append(step)):
        again = measure_suite(suite, tmp_path, 1, say=quiet)
    assert heard == [(path.stem, 3, 5)], "who waits hears which visit is made"
    assert len(again["sessions"]) == 3 and len(again["visits"]) == 5
    for before, after in zip(whole["visits"], again["visits"], strict=True):
        assert (before == after) == (before["name"] != path.stem), "only the missing visit was made again"


def test_what_is_no_time_is_reproduced(suite: Suite, briefly: None, tmp_path: Path) -> None:
    def timeless(report: dict[str, Any]) -> Any:
        measured = [record["measurement"] for record in report["visits"]]
        times = ("phases_ms", "repetitions", "elapsed_ns", "latency_ns", "median_us")
        return [{k: v for k, v in m.items() if k not in times} for m in measured]

    first, second = (measure_suite(suite, tmp_path / name, 1, say=quiet) for name in "ab")
    assert timeless(first) == timeless(second)


def test_a_failing_visit_is_kept_and_stays(suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> SimpleNamespace:
        return SimpleNamespace(stdout="", stderr="OracleError: wrong\n", returncode=1)

    monkeypatch.setattr(measure.subprocess, "run", run)
    report = measure_suite(suite, tmp_path, 1, say=quiet)
    assert len(list(failures(report))) == 5
    assert all(not r["valid"] and r["error"] == "OracleError: wrong" for r in report["visits"])
    monkeypatch.undo()
    assert measure_suite(suite, tmp_path, 1, say=quiet)["visits"] == report["visits"], "a failure is not tried away"


def test_a_hanging_visit_is_a_failed_row(suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(measure.subprocess, "run", run)
    report = measure_suite(suite, tmp_path, 1, say=quiet)
    assert all("no end after" in line for line in failures(report))


def test_a_wrong_kernel_is_never_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = []
    monkeypatch.setattr(visit, "_warm_up", timed.append)
    oracle = visit.operators.OPERATORS["rope"]
    wrong = replace(oracle, oracle=lambda x, u, v: oracle.oracle(x, u, v) + 1)
    monkeypatch.setattr(visit.operators, "OPERATORS", {"rope": wrong})
    with pytest.raises(visit.GrainlineError, match="differ from the FP64 oracle"):
        visit.measure({"operator": "rope", "dims": [3, 34], "settings": {}, "homes": 1})
    assert not timed


def test_a_record_has_one_source(suite: Suite, briefly: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure_suite(suite, tmp_path, 1, say=quiet)
    monkeypatch.setattr(provenance, "source_sha256", lambda: "another")
    with pytest.raises(EvidenceError, match="begun with another source"):
        measure_suite(suite, tmp_path, 1, say=quiet)


def test_a_changed_visit_is_not_built_upon(suite: Suite, briefly: None, tmp_path: Path) -> None:
    report = measure_suite(suite, tmp_path, 1, say=quiet)
    path = tmp_path / suite.name / "visits" / f"{report['visits'][0]['name']}.json"
    record = read_json(path)
    record["round"] = 7
    write_json(path, record)
    with pytest.raises(EvidenceError, match="was changed after it was written"):
        measure_suite(suite, tmp_path, 1, say=quiet)


@pytest.mark.parametrize("homes", [0, -1, 10_000])
def test_impossible_threads_are_refused(homes: int, suite: Suite, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="threads cannot be timed"):
        measure_suite(suite, tmp_path, homes, say=quiet)


def test_an_unwritable_folder_is_said(suite: Suite, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="cannot write to"):
        measure_suite(suite, tmp_path / "file", 1, say=quiet)


def test_half_a_file_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    monkeypatch.setattr(os, "replace", lambda a, b: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        write_json(path, {"a": 2})
    assert read_json(path) == {"a": 1} and list(tmp_path.iterdir()) == [path]


def test_files_are_reproducible(tmp_path: Path) -> None:
    record = sealed({"b": [1, 2.5], "a": "x"})
    for name in ("one.json.gz", "two.json.gz"):
        write_json(tmp_path / name, record)
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "two.json.gz").read_bytes()
    assert read_json(tmp_path / "one.json.gz") == record
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(EvidenceError, match="is no JSON file"):
        read_json(tmp_path / "bad.json")


def test_a_visit_is_a_process_of_its_own() -> None:
    request = {"operator": "rms_norm", "dims": [3, 32], "settings": {"local_lanes": 1}, "homes": 1}
    done = subprocess.run(
        [sys.executable, "-m", "grainline.evidence.visit"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=True,
    )
    measured = json.loads(done.stdout)
    assert measured["correctness"]["passed"] and len(measured["elapsed_ns"]["hot"]) == visit.SAMPLES
    bad = subprocess.run(
        [sys.executable, "-m", "grainline.evidence.visit"],
        input=json.dumps(request | {"operator": "none"}),
        capture_output=True,
        text=True,
    )
    assert bad.returncode == 1 and "there is no such operator" in bad.stderr
