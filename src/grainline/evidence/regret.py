"""Regret from the raw turns of contests: time(automatic) / time(best) - 1, without choosing and judging by one sample.

Even rounds select the best arm by its median; odd rounds judge both arms. The automatic arm's second turns give the A/A
spread, judged by the same rounds. A condition that was raced twice counts with its second race.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Any

OUTLIER = 0.08
Race = dict[str, list[Any]]


@dataclass(frozen=True)
class Verdict:
    """One case under one condition. Times in ns per dispatch, from the judging rounds."""

    case: str
    homes: int
    start: str
    worker_slowdown: float
    automatic_ns: float
    best_ns: float
    again_ns: float
    legacy_ns: float
    uncalibrated_ns: float
    regret: float
    elements: int

    @property
    def control(self) -> float:
        """|A/A - 1|: what two measurements of the automatic arm differ by."""
        return abs(self.again_ns / self.automatic_ns - 1)

    @property
    def condition(self) -> str:
        slow = f", pool threads {self.worker_slowdown:g} times slower" if self.worker_slowdown > 1 else ""
        return f"H={self.homes} {self.start}{slow}"


def judged(times: Sequence[int]) -> float:
    """The median of the odd rounds."""
    return median(times[1::2])


def selected(times: Sequence[int]) -> float:
    """The median of the even rounds."""
    return median(times[0::2])


def regret_of(race: Race, automatic: int, repetitions: Sequence[int]) -> float:
    """The regret of a race; `automatic` is a position among the raced arms, `repetitions` those of each one's turn."""
    times = [judged(turns) / count for turns, count in zip(race["elapsed_ns"], repetitions, strict=True)]
    return times[automatic] / times[best_of(race, repetitions)] - 1


def best_of(race: Race, repetitions: Sequence[int]) -> int:
    """The position of the arm that the selecting rounds prefer."""
    times = [selected(turns) / count for turns, count in zip(race["elapsed_ns"], repetitions, strict=True)]
    return times.index(min(times))


def verdicts(report: dict[str, Any]) -> Iterator[Verdict]:
    """One verdict per case and condition of a held-out report that holds."""
    for record in report["visits"]:
        rows, n = record["dims"]
        for condition in record["measurement"]["conditions"]:
            yield _verdict(f"{record['operator']} {rows}×{n}", rows * n, condition)


def _verdict(case: str, elements: int, condition: dict[str, Any]) -> Verdict:
    race, raced, roles = condition["races"][-1], condition["raced"], condition["roles"]
    repetitions = condition["repetitions"]
    times = [judged(turns) / count for turns, count in zip(race["elapsed_ns"], repetitions, strict=True)]
    place = {role: raced.index(arm) for role, arm in roles.items()}
    return Verdict(
        case,
        condition["homes"],
        condition["start"],
        condition["worker_slowdown"],
        automatic_ns=times[place["automatic"]],
        best_ns=times[best_of(race, repetitions)],
        again_ns=judged(race["again_ns"]) / repetitions[place["automatic"]],
        legacy_ns=times[place["legacy"]],
        uncalibrated_ns=times[place["uncalibrated"]],
        regret=regret_of(race, place["automatic"], repetitions),
        elements=elements,
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(ceil(len(ordered) * percent / 100), 1) - 1]
