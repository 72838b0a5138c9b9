"""Reports as Markdown: every case of every suite, losing rows included."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from grainline.evidence.suites import CONTROL, Suite, find
from grainline.evidence.summary import CaseSummary, Report, summarise

NOTE = (
    "Times are microseconds per dispatch: host wall time, synchronised, without compilation, allocation and upload. "
    "*native* is the bare function on one thread; *hot* and *parked* are end to end through the pool, with awake "
    "threads inside one run, or one run per dispatch that finds the pool asleep. No hardware cycles. A time is the "
    "median over rounds of a visit's median; a ratio is the median of same-round ratios with its range, below 1 is "
    "faster. The A/A column is the ratio of two measurements of one thing: what lies in its range is noise. "
    "Differences between two or four orders are no statistical proof. Plans are (local lanes, block, blocks per task)."
)


def markdown(reports: Sequence[Report]) -> str:
    """The complete tables of the reports."""
    lines = ["# Measurements", "", *provenance_lines(reports[0]), "", NOTE, ""]
    for report in reports:
        suite = find(report["suite"])
        lines += [f"## {suite.name}", ""]
        for clock in ("parked", "hot", "native"):
            lines += [f"### {clock}", "", *_table(*case_rows(report, suite, clock)), ""]
        lines += ["### plans", "", *_table(*plan_rows(summarise(report, suite, "parked"))), ""]
    return "\n".join(lines)


def provenance_lines(report: Report) -> list[str]:
    """Where a report comes from, for people."""
    machine, source = report["machine"], report["source"]
    versions = ", ".join(f"{name} {number}" for name, number in sorted(source["versions"].items()))
    return [
        f"- machine: {machine['processor']} ({machine['cpu']}), {machine['processors']} processors",
        f"- system: {machine['system']}",
        f"- threads: {report['homes']}, packet width {machine['packet_width']}",
        f"- versions: {versions}",
        f"- source: `{source['source_sha256'][:16]}`",
    ]


def case_rows(report: Report, suite: Suite, clock: str) -> tuple[list[str], list[list[str]]]:
    """(head, rows): the variants' times by one clock, the ratios and the control."""
    summaries = summarise(report, suite, clock)
    names = [variant.name for variant in suite.variants]
    head = ["case", *names, *(f"{a} / {b}" for a, b in suite.ratios), "A/A"]
    rows = []
    for one in summaries:
        times = [f"{one.times[name][clock]:.3f}" if name in one.times else "—" for name in names]
        found = {(ratio.candidate, ratio.baseline): str(ratio) for ratio in one.ratios}
        rows.append([one.name, *times, *(found.get(pair, "—") for pair in suite.ratios), str(one.control)])
    return head, rows


def plan_rows(summaries: Iterable[CaseSummary]) -> tuple[list[str], list[list[str]]]:
    """(head, rows): what every variant chose."""
    summaries = list(summaries)
    names = list(dict.fromkeys(name for one in summaries for name in one.plans if name != CONTROL))
    return ["case", *names], [[one.name, *(one.plans.get(name, "—") for name in names)] for one in summaries]


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [_row(head), _row(["---", *["---:"] * (len(head) - 1)]), *(_row(row) for row in rows)]


def _row(cells: Iterable[Any]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"
