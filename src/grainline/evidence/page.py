"""Reports as one HTML page that opens without a network: plots first, then the complete tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from grainline.evidence import plots
from grainline.evidence.regret import Verdict, verdicts
from grainline.evidence.suites import FIXED_GRAIN, find
from grainline.evidence.summary import Report, summarise
from grainline.evidence.tables import (
    NOTE,
    REGRET_NOTE,
    case_rows,
    condition_rows,
    plan_rows,
    provenance_lines,
    verdict_rows,
)

STYLE = """
:root { color-scheme: light dark; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1200px; padding: 0 1em; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0.5em 0 2em; }
td, th { border-bottom: 1px solid #8884; padding: 2px 8px; text-align: right; }
td:first-child, th:first-child { text-align: left; }
section { display: flex; flex-wrap: wrap; gap: 1em; }
figure { margin: 0; width: 380px; } figcaption { font-weight: 600; } figure div { font-size: 12px; }
svg { width: 100%; font-size: 11px; fill: currentColor; }
"""


def html(reports: Sequence[Report]) -> str:
    """The page of the reports."""
    parts = [f"<h1>Measurements</h1><ul>{''.join(_item(line) for line in provenance_lines(reports[0]))}</ul>"]
    parts.append(f"<p>{escape(NOTE.replace('*', ''))}</p>")
    for report in reports:
        parts.append(f"<h2>{escape(report['suite'])}</h2>")
        suite = find(report["suite"])
        if suite.is_contest:
            found = list(verdicts(report))
            parts.append(f"<p>{escape(REGRET_NOTE.replace('*', ''))}</p>")
            parts.append(f"<section>{''.join(_contest_plots(report, found))}</section>")
            parts.append(_table(*condition_rows(found)) + _table(*verdict_rows(found)))
            continue
        parts.append(f"<section>{''.join(_plots(report))}</section>")
        for clock in ("parked", "hot", "native"):
            parts.append(f"<h3>{clock}</h3>{_table(*case_rows(report, suite, clock))}")
        parts.append(f"<h3>plans</h3>{_table(*plan_rows(summarise(report, suite, 'parked')))}")
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Grainline measurements</title>'
        f"<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _plots(report: Report) -> Iterable[str]:
    """Time by grain for every operator, where grains were fixed; time by variant elsewhere."""
    suite = find(report["suite"])
    names = [variant.name for variant in suite.variants]
    what = "grain" if suite is FIXED_GRAIN else "variant"
    labels = [name.removeprefix("grain_") for name in names] if suite is FIXED_GRAIN else names
    summaries = summarise(report, suite, "parked")
    for operator in dict.fromkeys(one.operator for one in summaries):
        series = {
            f"{'×'.join(map(str, one.dims))} {clock}": [one.times[name][clock] for name in names]
            for one in summaries
            if one.operator == operator and set(names) <= set(one.times)
            for clock in ("parked", "hot")
        }
        if series:
            yield plots.lines(f"{operator}: time by {what}", labels, series, "us")


def _contest_plots(report: Report, found: Sequence[Verdict]) -> Iterable[str]:
    """Predicted against measured time of every candidate, and the regrets of every condition."""
    points: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for record in report["visits"]:
        for condition in record["measurement"]["conditions"]:
            if condition["worker_slowdown"] == 1:
                groups = points.setdefault(f"H={condition['homes']} {condition['start']}", {})
                groups.setdefault(record["operator"], []).extend(
                    (arm["screening_ns"] / 1e3, arm["predicted_ns"] / 1e3)
                    for arm in condition["arms"]
                    if arm["predicted_ns"]
                )
    for name, groups in points.items():
        yield plots.scatter(name, groups, "measured us", "predicted us")
    for name in dict.fromkeys(one.condition for one in found):
        percents = [max(0.0, 100 * one.regret) for one in found if one.condition == name]
        yield plots.histogram(f"regret, {name}", percents, (0, 1, 2, 4, 8, 15, 30), "%")


def _table(head: list[str], rows: list[list[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table><tr>{top}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _item(line: str) -> str:
    return f"<li>{escape(line.removeprefix('- ').replace('`', ''))}</li>"
