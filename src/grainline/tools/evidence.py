"""`grainline measure` and `grainline audit`: suites into a folder, and a folder or record out of the audit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from grainline.base.errors import OptionError
from grainline.evidence import audit as rules
from grainline.evidence import measure, suites
from grainline.evidence.page import html
from grainline.evidence.records import (
    EvidenceError,
    make_folder,
    read_json,
    write_atomically,
    write_compressed,
    write_json,
)
from grainline.evidence.summary import Report
from grainline.evidence.tables import markdown
from grainline.tools.waiting import progress_on_stderr

MOST_LINES = 20


def measure_suites(
    names: list[str], folder: Path, threads: int | None, seconds: float | None, keep: bool
) -> Iterator[str]:
    """Runs the suites one after the other; `EvidenceError` at the end when visits failed."""
    chosen = [suites.find(name) for name in names]
    homes = threads or min(2, len(os.sched_getaffinity(0)))
    failed: list[str] = []
    for suite in chosen:
        with progress_on_stderr(suite.name):
            report = measure.measure_suite(suite, folder, homes, seconds, keep)
        failed += measure.failures(report)
        missing = sum(1 for _ in suite.visits()) - len(report["visits"])
        yield f"{suite.name}: {len(report['visits'])} visits recorded, {missing} to go; {folder / suite.name}"
    if failed:
        raise EvidenceError(f"{len(failed)} visits failed and are kept: {'; '.join(failed[:3])}")


def reports_of(folder: Path) -> dict[str, tuple[Report, Path]]:
    """name -> (report, its folder) of a measuring folder (SUITE/report.json) or of a record (SUITE.json.gz)."""
    found = {path.parent.name: path for path in sorted(folder.glob("*/report.json"))}
    found |= {path.name.removesuffix(".json.gz"): path for path in sorted(folder.glob("*.json.gz"))}
    if not found:
        raise OptionError(f"{folder} holds no report", expected="SUITE/report.json or SUITE.json.gz")
    return {name: (read_json(path), path.parent) for name, path in found.items()}


def audit_folder(folder: Path, tables: bool, record: Path | None = None) -> Iterator[str]:
    """Lines of the audit; `EvidenceError` when anything is wrong, and nothing is written then.

    With `tables` it writes tables.md and tables.html, with `record` the reports compressed into that folder.
    """
    found = reports_of(folder)
    wrong = []
    for name, (report, place) in found.items():
        sentences, outputs = _findings(report, place)
        wrong += [f"{name}: {sentence}" for sentence in sentences]
        yield f"{name}: {len(report.get('visits', ()))} visits, {outputs}, {len(sentences)} findings"
    reports = [report for report, _ in found.values()]
    if not wrong:
        wrong += rules.audit_together(reports)
    if wrong:
        shown = "; ".join(wrong[:MOST_LINES])
        raise EvidenceError(f"the audit rejects {folder}: {len(wrong)} findings: {shown}")
    if tables:
        ordered = sorted(reports, key=lambda report: list(suites.SUITES).index(report["suite"]))
        make_folder(folder)
        write_atomically(folder / "tables.md", markdown(ordered).encode())
        write_atomically(folder / "tables.html", html(ordered).encode())
        yield f"wrote {folder / 'tables.md'} and {folder / 'tables.html'}"
    if record is not None:
        yield _write_record(found, record)


def _findings(report: Report, place: Path) -> tuple[list[str], str]:
    """What is wrong with one report, and what was done with the outputs kept beside it.

    Outputs and captured code are looked up through the report and are not looked at when it does not hold.
    """
    sentences, kept, captures = rules.audit(report), place / "kept", place / "captures"
    if not any(kept.glob("*.f32")):
        outputs = "no outputs kept"
    elif sentences:
        outputs = "kept outputs not checked"
    else:
        sentences, outputs = rules.audit_kept(report, kept), "every kept output checked against the oracle"
    if not sentences and captures.is_dir():
        sentences = rules.audit_captures(report, captures)
    return sentences, outputs


def _write_record(found: dict[str, tuple[Report, Path]], record: Path) -> str:
    """A measuring folder becomes a record: its audited reports compressed, and provenance.json."""
    make_folder(record)
    for name, (report, place) in found.items():
        write_json(record / f"{name}.json.gz", report)
        if suites.find(name).keeps_code and (place / "kept").is_dir():
            captures = make_folder(record / "captures")
            for code in rules.codes_of(report):
                write_compressed(captures / f"{code}.gz", (place / "kept" / code).read_bytes())
    first = next(iter(found.values()))[0]
    provenance: Report = {field: first[field] for field in ("source", "machine", "homes", "metric")}
    sessions = {name: report["sessions"] for name, (report, _) in found.items()}
    write_json(record / "provenance.json", {**provenance, "sessions": sessions})
    return f"wrote {len(found)} reports and provenance.json to {record}"
