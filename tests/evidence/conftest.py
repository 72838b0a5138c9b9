"""A small report, measured for real but briefly and in this process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grainline.evidence import contest, measure, visit
from grainline.evidence.suites import FIXED_GRAIN, Case, Suite

BRIEF_NS = 200_000


@pytest.fixture(scope="session")
def small_suite() -> Suite:
    return replace(FIXED_GRAIN, cases=(Case("rms_norm", (17, 66)), Case("rope", (5, 34))))


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Visits run in this process and take a moment each."""
    make_brief(monkeypatch)


def make_brief(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(visit, "WARM_UP_NS", BRIEF_NS)
    patch.setattr(visit, "SAMPLE_NS", BRIEF_NS)
    patch.setattr(visit, "NATIVE_SAMPLE_NS", BRIEF_NS)

    def run(command: list[str], input: str, **_: Any) -> SimpleNamespace:
        answer = contest.measure if command[-1].endswith("contest") else visit.measure
        return SimpleNamespace(stdout=json.dumps(answer(json.loads(input))), stderr="", returncode=0)

    patch.setattr(measure.subprocess, "run", run)


@pytest.fixture(scope="session")
def small_report(small_suite: Suite, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        make_brief(patch)
        folder: Path = tmp_path_factory.mktemp("evidence")
        report = measure.measure_suite(small_suite, folder, homes=1, say=lambda line: None)
    report_and_folder = {"report": report, "folder": folder / small_suite.name}
    return report_and_folder
