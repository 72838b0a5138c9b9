"""The committed record holds, and what the page says about it is what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from grainline.evidence.audit import audit, audit_captures
from grainline.evidence.records import read_json
from grainline.evidence.regret import verdicts
from grainline.evidence.sides import sides
from grainline.evidence.suites import find
from grainline.evidence.summary import summarise
from grainline.evidence.tables import condition_rows, markdown

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "evidence" / "records" / "zen4-2"


def test_fixed_grain_holds_and_its_code_is_there() -> None:
    report = read_json(RECORD / "fixed-grain.json.gz")
    assert audit(report) == [] and audit_captures(report, RECORD / "captures") == []
    assert len(report["visits"]) == 144 + 36
    cohorts = {(r["operator"], *r["dims"]): r["measurement"] for r in report["visits"]}
    assert len(cohorts) == 18


@pytest.mark.slow
def test_the_whole_record_holds() -> None:
    reports = [read_json(RECORD / f"{name}.json.gz") for name in ("pilot", "validation", "fixed-grain")]
    for report in reports:
        assert audit(report) == []
    assert (RECORD / "tables.md").read_text() == markdown(reports)


def test_provenance_is_the_reports() -> None:
    provenance = json.loads((RECORD / "provenance.json").read_text())
    for name in provenance["sessions"]:
        report = read_json(RECORD / f"{name}.json.gz")
        assert {key: report[key] for key in ("source", "machine", "homes")} == {
            key: provenance[key] for key in ("source", "machine", "homes")
        }


def test_the_page_quotes_the_record() -> None:
    """Every ratio with a range in the claims is one of the tables', so that the page cannot drift from the record."""
    known = set()
    for name in ("pilot", "validation", "fixed-grain"):
        report = read_json(RECORD / f"{name}.json.gz")
        for clock in ("parked", "hot"):
            for one in summarise(report, find(name), clock):
                known |= {str(ratio) for ratio in (*one.ratios, one.control)}
    quoted = re.findall(r"\d\.\d{3} \(\d\.\d{3}–\d+\.\d{3}\)", (ROOT / "docs" / "evidence.md").read_text())
    assert len(quoted) >= 12
    assert set(quoted) <= known, f"not in the record: {set(quoted) - known}"


@pytest.mark.parametrize("record", ["zen4-2-held-out", "emerald-2-held-out"])
def test_held_out_records_of_every_policy_hold_and_the_page_quotes_them(record: str) -> None:
    report = read_json(ROOT / "evidence" / "records" / record / "held-out.json.gz")
    assert audit(report) == []
    assert len(report["visits"]) == 61
    page = (ROOT / "docs" / "evidence.md").read_text()
    for row in condition_rows(list(verdicts(report)))[1]:
        assert f"| {' | '.join(row[2:7])} |" in page, f"{row[0]} is not what the page says"


def test_every_clear_side_of_the_contradiction_was_chosen_and_the_page_says_so() -> None:
    report = read_json(ROOT / "evidence" / "records" / "emerald-2-contradiction" / "contradiction.json.gz")
    assert audit(report) == []
    page = (ROOT / "docs" / "evidence.md").read_text()
    regrets = {row[0]: row for row in condition_rows(list(verdicts(report)))[1]}
    for start in ("parked", "condvar"):
        found = [one for one in sides(report) if one.start == start]
        clear = [one for one in found if one.is_clear]
        counts = [len(found), sum(not one.shared_wins for one in clear), sum(one.shared_wins for one in clear)]
        counts += [len(found) - len(clear), sum(not one.is_right for one in found)]
        assert counts[-1] == 0
        cells = [start, *map(str, counts), *regrets[f"H=2 {start}"][2:7]]
        assert f"| {' | '.join(cells)} |" in page, f"{start} is not what the page says: {cells}"
