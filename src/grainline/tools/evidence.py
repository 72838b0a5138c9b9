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

MOST_LINES = 20


def measure_suites(
    names: list[str], folder: Path, threads: int | None, seconds: float | None, keep: bool
) -> Iterator[str]:
    """Runs the suites one after the other; `EvidenceError` at the end when visits failed."""
    chosen = [suites.find(name) for name in names]
    homes = threads or min(2, len(os.sched_getaffinity(0)))
    failed: list[str] = []
    for suite in chosen:
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


def audit_folder(folder: Path, tables: bool) -> Iterator[str]:
    """Lines of the audit; `EvidenceError` when anything is wrong. With `tables` it writes tables.md and tables.html."""
    found = reports_of(folder)
    wrong = []
    for name, (report, place) in found.items():
        sentences = rules.audit(report)
        kept = place / "kept"
        checked = not sentences and kept.is_dir() and any(kept.glob("*.f32"))
        if checked:
            sentences = rules.audit_kept(report, kept)
        if not sentences and (place / "captures").is_dir():
            sentences = rules.audit_captures(report, place / "captures")
        wrong += [f"{name}: {sentence}" for sentence in sentences]
        held = "every kept output checked against the oracle" if checked else "no outputs kept"
        yield f"{name}: {len(report.get('visits', ()))} visits, {held}, {len(sentences)} findings"
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


def write_record(folder: Path, record: Path) -> Iterator[str]:
    """A measuring folder becomes a record: its audited reports compressed, and provenance.json."""
    found = reports_of(folder)
    yield from audit_folder(folder, tables=False)
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
    yield f"wrote {len(found)} reports and provenance.json to {record}"
