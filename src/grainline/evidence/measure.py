"""Runs a suite: one fresh process per visit, each visit's record written when it ends, so that a stopped suite resumes.

    FOLDER/SUITE/suite.json      header: machine, source, homes; and the sessions that measured
    FOLDER/SUITE/visits/*.json   one sealed record per visit, failed ones included
    FOLDER/SUITE/kept/           code and tensors under their hashes
    FOLDER/SUITE/report.json     all of it but the kept files, assembled at the end of a session

A suite is continued only by the source and the binaries that began it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grainline.base import progress
from grainline.base.errors import OptionError
from grainline.evidence import provenance
from grainline.evidence.records import FORMAT, EvidenceError, is_sealed, make_folder, read_json, sealed, write_json
from grainline.evidence.suites import Suite, Visit

METRIC = (
    "host wall time per dispatch in microseconds, synchronised; without compilation, allocation and upload. "
    "native: the bare function on one thread; hot and parked: through the pool. No hardware cycles."
)
VISIT_LIMIT_S = 360
Report = dict[str, Any]


def measure_suite(
    suite: Suite,
    folder: Path,
    homes: int,
    seconds: float | None = None,
    keep: bool = True,
    say: Callable[[str], None] = print,
) -> Report:
    """Makes the visits that have no record yet, for at most about `seconds`; returns the report as it stands.

    `EvidenceError` when the folder was begun by another source; visits that fail are recorded and stay failed.
    """
    processors = len(os.sched_getaffinity(0))
    if not 1 <= homes <= processors:
        raise OptionError("threads cannot be timed", expected=f"1 to {processors}, the processors", found=homes)
    place = make_folder(folder / suite.name)
    make_folder(place / "visits")
    kept = make_folder(place / "kept") if keep else None
    header = _begin(place, suite, homes)
    visits = list(suite.visits())
    started = time.monotonic()
    for number, visit in enumerate(visits, 1):
        path = place / "visits" / f"{visit.name}.json"
        if path.exists():
            continue
        if seconds is not None and time.monotonic() - started > seconds:
            say(f"{suite.name}: stopped after {seconds:g} s; measure again to continue")
            break
        progress.report(visit.name, number, len(visits))
        record = sealed(make_visit(visit, homes, kept, header["source"]))
        write_json(path, record)
        say(f"{number}/{len(visits)} {visit.name}: {_outcome(record)}")
    _end(place, header)
    report = assemble(place, suite)
    write_json(place / "report.json", report)
    return report


def make_visit(visit: Visit, homes: int, kept: Path | None, source: dict[str, Any]) -> dict[str, Any]:
    """The record of one visit, unsealed. A process that fails or hangs gives a record that says so."""
    description = visit.description()
    request = {
        "operator": visit.case.operator,
        "dims": description["dims"],
        "settings": description["settings"],
        "homes": homes,
        "suite": visit.suite,
        "keep": str(kept) if kept else "",
    }
    environment = provenance.visit_environment()
    record: dict[str, Any] = {
        "format": FORMAT,
        "name": visit.name,
        **description,
        "homes": homes,
        "command": ["python", "-m", visit.module],
        "steering_variables": sorted(name for name in environment if name.startswith(provenance.STRIPPED)),
        "source": source,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", visit.module],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=VISIT_LIMIT_S,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return {**record, "return_code": -1, "valid": False, "log": "", "error": f"no end after {VISIT_LIMIT_S} s"}
    record |= {"return_code": done.returncode, "log": done.stderr}
    try:
        return {**record, "valid": done.returncode == 0, "measurement": json.loads(done.stdout)}
    except ValueError:
        return {**record, "valid": False, "error": (done.stderr.strip().splitlines() or ["no measurement"])[-1]}


def assemble(place: Path, suite: Suite) -> Report:
    """The report of a folder: header, and the visits' records in the suite's order, failed ones too."""
    header = read_json(place / "suite.json")
    paths = [place / "visits" / f"{visit.name}.json" for visit in suite.visits()]
    return sealed({**header, "visits": [read_json(path) for path in paths if path.exists()]})


def failures(report: Report) -> Iterator[str]:
    for record in report["visits"]:
        if not record.get("valid"):
            yield f"{record['name']}: {record.get('error', 'return code ' + str(record.get('return_code')))}"


def _begin(place: Path, suite: Suite, homes: int) -> dict[str, Any]:
    """The header, from the folder or new, with a session opened in it."""
    path = place / "suite.json"
    source = provenance.source()
    fresh: dict[str, Any] = {
        "format": FORMAT,
        "suite": suite.name,
        "metric": METRIC,
        "homes": homes,
        "machine": provenance.machine(),
        "source": source,
        "sessions": [],
    }
    if suite.draw is not None:
        fresh["draw"] = asdict(suite.draw)
    header = read_json(path) if path.exists() else fresh
    for field in ("format", "suite", "draw", "homes", "machine", "source"):
        if header.get(field) != fresh.get(field):
            raise EvidenceError(
                f"{place} was begun with another {field}", remedy="A record has one source; name a new folder with -o."
            )
    for visit in place.glob("visits/*.json"):
        if not is_sealed(read_json(visit)):
            raise EvidenceError(f"{visit} was changed after it was written", remedy="Measure into a new folder.")
    header["sessions"].append({"started": _now(), "binaries_before": source["binaries"]})
    write_json(path, header)
    return header


def _end(place: Path, header: dict[str, Any]) -> None:
    header["sessions"][-1] |= {"finished": _now(), "binaries_after": provenance.binary_closure()}
    write_json(place / "suite.json", header)


def _outcome(record: dict[str, Any]) -> str:
    if not record["valid"]:
        return f"FAILED: {record.get('error', '')}"
    medians = record["measurement"].get("median_us", {})
    return ", ".join(f"{name} {medians[name]:.3f} us" for name in sorted(medians))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
