"""Reports as Markdown: every case of every suite, losing rows included."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from grainline.evidence.regret import Verdict, percentile, verdicts
from grainline.evidence.sides import CLEAR_SPREADS, Sides, sides
from grainline.evidence.suites import CONTRADICTION, CONTROL, Suite, find
from grainline.evidence.summary import CaseSummary, Report, geometric_mean, summarise

NOTE = (
    "Times are microseconds per dispatch: host wall time, synchronised, without compilation, allocation and upload. "
    "*native* is the bare function on one thread; *hot* and *parked* are end to end through the pool, with awake "
    "threads inside one run, or one run per dispatch that finds the pool asleep. No hardware cycles. A time is the "
    "median over rounds of a visit's median; a ratio is the median of same-round ratios with its range, below 1 is "
    "faster. The A/A column is the ratio of two measurements of one thing: what lies in its range is noise. "
    "Differences between two or four orders are no statistical proof. Plans are (local lanes, block, blocks per task)."
)

REGRET_NOTE = (
    "Regret is time(automatic) / time(best) - 1. The best candidate is selected by the even rounds, both are judged by "
    "the odd ones; a negative regret is noise of that size. A/A is what two measurements of the automatic arm differ "
    "by. *Legacy* is the automatic mapping with the pool's own grain, *uncalibrated* the joint search of the prior."
)

SIDES_NOTE = (
    "The fastest arm of one task, which the caller does alone, against the fastest of several. *Clear* is a margin of "
    f"at least {CLEAR_SPREADS} A/A spreads; where it is clear the choice must be on the faster side."
)


def markdown(reports: Sequence[Report]) -> str:
    """The complete tables of the reports."""
    lines = ["# Measurements", "", *provenance_lines(reports[0]), "", NOTE, ""]
    for report in reports:
        suite = find(report["suite"])
        lines += [f"## {suite.name}", ""]
        if suite.is_contest:
            found = list(verdicts(report))
            if suite is CONTRADICTION:
                lines += [SIDES_NOTE, "", *_table(*side_rows(list(sides(report)))), ""]
            lines += [REGRET_NOTE, "", *_table(*condition_rows(found)), "", *_table(*verdict_rows(found)), ""]
            continue
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


def condition_rows(found: Sequence[Verdict]) -> tuple[list[str], list[list[str]]]:
    """(head, rows): for every condition the distribution of the regret, and the ratios to the other choosers. The last
    is a bound: what the best candidate, known afterwards, gains over the uncalibrated search, below 1 MB behind it."""
    head = ["condition", "cases", "regret median", "95 %", "worst", "A/A median", "A/A 95 %"]
    head += ["legacy / automatic", "uncalibrated / automatic", "the same below 1 MB", "uncalibrated / best"]
    rows = []
    for name in dict.fromkeys(one.condition for one in found):
        these = [one for one in found if one.condition == name]
        regrets, controls = [one.regret for one in these], [one.control for one in these]
        small = [one for one in these if 4 * one.elements < 1 << 20]
        rows.append(
            [
                name,
                str(len(these)),
                *(f"{percentile(regrets, p):.1%}" for p in (50, 95, 100)),
                *(f"{percentile(controls, p):.1%}" for p in (50, 95)),
                f"{geometric_mean(one.legacy_ns / one.automatic_ns for one in these):.3f}",
                f"{geometric_mean(one.uncalibrated_ns / one.automatic_ns for one in these):.3f}",
                " and ".join(
                    f"{geometric_mean(getattr(one, field) / one.automatic_ns for one in small):.3f}"
                    for field in ("legacy_ns", "uncalibrated_ns")
                ),
                " and ".join(
                    f"{geometric_mean(one.uncalibrated_ns / one.best_ns for one in chosen):.3f}"
                    for chosen in (these, small)
                ),
            ]
        )
    return head, rows


def verdict_rows(found: Sequence[Verdict]) -> tuple[list[str], list[list[str]]]:
    """(head, rows): every case under every condition, in microseconds."""
    head = ["case", "condition", "automatic", "best", "regret", "A/A", "legacy", "uncalibrated"]
    rows = []
    for one in found:
        times = [one.automatic_ns, one.best_ns, one.legacy_ns, one.uncalibrated_ns]
        shown = [f"{time / 1e3:.3f}" for time in times]
        rows.append([one.case, one.condition, *shown[:2], f"{one.regret:.1%}", f"{one.control:.1%}", *shown[2:]])
    return head, rows


def side_rows(found: Sequence[Sides]) -> tuple[list[str], list[list[str]]]:
    """(head, rows): for every case whether caller or pool wins, by how much, and on which side the choice is."""
    head = ["case", "start", "caller, us", "with the pool, us", "margin", "A/A spread", "clear", "chosen", "right"]
    rows = []
    for one in found:
        times = ["—" if time is None else f"{time / 1e3:.2f}" for time in (one.alone_ns, one.shared_ns)]
        margin = "—" if one.margin == float("inf") else f"{one.margin:.1%}"
        words = (
            "yes" if one.is_clear else "no",
            "pool" if one.is_shared else "caller",
            "yes" if one.is_right else "NO",
        )
        rows.append([one.case, one.start, *times, margin, f"{one.spread:.1%}", *words])
    return head, rows


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [_row(head), _row(["---", *["---:"] * (len(head) - 1)]), *(_row(row) for row in rows)]


def _row(cells: Iterable[Any]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"
