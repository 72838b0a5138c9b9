"""What people see of a report: tables with every row, a page that needs no network, and the two commands."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grainline.evidence import plots, suites
from grainline.evidence.page import html
from grainline.evidence.records import read_json, sealed, write_compressed, write_json
from grainline.evidence.suites import Suite
from grainline.evidence.summary import Ratio, geometric_mean, summarise
from grainline.evidence.tables import markdown
from grainline.tools.main import call


@pytest.fixture(autouse=True)
def only_the_small_suite(small_suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites, "SUITES", {small_suite.name: small_suite})


def test_medians_of_ratios_are_not_ratios_of_medians(small_report: dict[str, Any], small_suite: Suite) -> None:
    """Rounds (2, 1) and (9, 3) against each other: the shown times need not divide to the shown ratio."""
    report = small_report["report"]
    for record in report["visits"]:
        number = {"grain_whole": (2.0, 9.0), "grain_0": (1.0, 3.0)}.get(record["variant"], (1.0, 1.0))[record["round"]]
        report = _with_median(report, record["name"], number)
    first = summarise(report, small_suite, "hot")[0]
    ratio = first.ratios[0]
    assert (ratio.candidate, ratio.baseline, ratio.values) == ("grain_whole", "grain_0", (2.0, 3.0))
    assert ratio.middle == 2.5 and ratio.spread == 3.0
    assert first.times["grain_whole"]["hot"] / first.times["grain_0"]["hot"] == pytest.approx(5.5 / 2)


def _with_median(report: dict[str, Any], name: str, value: float) -> dict[str, Any]:
    def changed(record: dict[str, Any]) -> dict[str, Any]:
        if record["name"] != name:
            return record
        measurement = record["measurement"]
        return {**record, "measurement": {**measurement, "median_us": {**measurement["median_us"], "hot": value}}}

    return {**report, "visits": [changed(record) for record in report["visits"]]}


def test_every_case_has_its_rows(small_report: dict[str, Any], small_suite: Suite) -> None:
    text = markdown([small_report["report"]])
    for case in small_suite.cases:
        name = f"{case.operator} {'×'.join(map(str, case.dims))}"
        assert text.count(f"| {name} |") == 4, "one row by each clock, and one of plans"
    assert "A/A" in text and "noise" in text and "no statistical proof" in text


def test_page_needs_no_network(small_report: dict[str, Any]) -> None:
    page = html([small_report["report"]])
    assert page.count("<svg") == page.count("</svg>") == 2
    assert not re.search(r"(src|href)\s*=|url\(|@import|<script", page)
    assert page.count("<tr>") == page.count("</tr>") > 8


def test_middle_and_spread_of_a_ratio() -> None:
    ratio = Ratio("a", "b", (0.5, 1.25, 0.8))
    assert ratio.middle == 0.8 and ratio.spread == 2.0
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


PLOTS: dict[str, Callable[[], str]] = {
    "lines": lambda: plots.lines("t", ["a", "b"], {"x": [1.0, 100.0], "<y>": [3.0, 0.5]}, "us"),
    "scatter": lambda: plots.scatter("t", {"x": [(1.0, 2.0)], "y": [(5.0, 50.0)]}, "measured", "predicted"),
    "histogram": lambda: plots.histogram("t", [0.0, 0.5, 7.0], [0, 1, 2, 5], "%"),
}


@pytest.mark.parametrize("draw", PLOTS.values(), ids=PLOTS)
def test_plots_are_well_formed(draw: Callable[[], str]) -> None:
    from xml.etree import ElementTree

    figure = ElementTree.fromstring(draw())
    for mark in figure.iter():
        for name in ("x", "y", "cx", "cy", "x1", "x2", "y1", "y2"):
            value = float(mark.get(name, 0))
            assert 0 <= value <= plots.WIDTH, f"{mark.tag} {name}={value} lies outside the drawing"


def test_histogram_puts_the_rest_into_the_last_bin() -> None:
    drawn = plots.histogram("t", [0.0, 0.5, 7.0, 99.0], [0, 1, 2, 5], "%")
    assert re.findall(r"<title>(.*?)</title>", drawn) == ["0 %: 2", "1 %: 0", "2 %: 0", "5+ %: 2"]


def test_measure_audit_and_record(briefly: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, record = tmp_path / "out", tmp_path / "record"
    assert call(["measure", "-o", str(folder), "--suite", "fixed-grain", "--threads", "1"]) == 0
    assert "20 visits recorded, 0 to go" in capsys.readouterr().out
    assert call(["audit", str(folder), "--tables", "--record", str(record)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("20 visits, every kept output checked against the oracle, 0 findings") == 1
    assert {path.name for path in record.iterdir()} == {"fixed-grain.json.gz", "provenance.json", "captures"}
    assert len(list((record / "captures").iterdir())) == 4, "one IR and one object for each of two cases"
    assert call(["audit", str(record), "--tables"]) == 0
    assert "no outputs kept" in capsys.readouterr().out
    assert (record / "tables.md").read_bytes() == (folder / "tables.md").read_bytes()
    capture = next((record / "captures").iterdir())
    write_compressed(capture, b"something else")
    assert call(["audit", str(record)]) == 1
    assert "not the content of its name" in capsys.readouterr().err


def test_audit_rejects_a_change(
    small_report: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = small_report["report"]
    write_json(tmp_path / "fixed-grain.json.gz", sealed({**report, "visits": report["visits"][:-1]}))
    assert call(["audit", str(tmp_path)]) == 1
    assert "the visit is missing" in capsys.readouterr().err
    write_json(tmp_path / "fixed-grain.json.gz", sealed({**report, "homes": 2}))
    assert call(["audit", str(tmp_path)]) == 1
    assert "its homes is not the report's" in capsys.readouterr().err
    assert read_json(tmp_path / "fixed-grain.json.gz")["homes"] == 2


def test_audit_says_that_outputs_of_a_wrong_report_are_not_checked(
    small_report: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "fixed-grain"
    shutil.copytree(small_report["folder"], place)
    write_json(place / "report.json", sealed({**small_report["report"], "homes": 2}))
    assert call(["audit", str(tmp_path), "--record", str(tmp_path / "record")]) == 1
    assert "kept outputs not checked" in capsys.readouterr().out
    assert not (tmp_path / "record").exists(), "a rejected folder becomes no record"


@pytest.mark.parametrize(
    "arguments, code, sentence",
    [
        (["measure", "-o", "{folder}", "--suite", "none"], 2, "no such suite"),
        (["measure", "-o", "{folder}", "--threads", "999", "--suite", "fixed-grain"], 2, "threads cannot be timed"),
        (["measure", "-o", "/dev/null/x", "--suite", "fixed-grain"], 2, "cannot write to"),
        (["measure"], 2, ""),
        (["audit", "{folder}"], 2, "holds no report"),
    ],
)
def test_bad_calls(
    arguments: list[str], code: int, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call([argument.format(folder=tmp_path) for argument in arguments]) == code
    assert sentence in capsys.readouterr().err
