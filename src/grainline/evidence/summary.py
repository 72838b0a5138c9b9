"""What a report says: per case the median time of every variant, the paired ratios, the control, and the plans chosen.

A shown time is the median over the rounds of a visit's median. A paired ratio is the median of same-round ratios; the
two need not divide. The control's ratio is that of two measurements of one thing: what lies within its range is noise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, log
from statistics import median
from typing import Any

from grainline.evidence.suites import CONTROL, Suite

Report = dict[str, Any]


@dataclass(frozen=True)
class Ratio:
    """candidate / baseline of the same round; below 1 the candidate is faster."""

    candidate: str
    baseline: str
    values: tuple[float, ...]

    @property
    def middle(self) -> float:
        return median(self.values)

    @property
    def spread(self) -> float:
        """The factor by which the values lie away from 1, at most."""
        return max(max(value, 1 / value) for value in self.values)

    def __str__(self) -> str:
        return f"{self.middle:.3f} ({min(self.values):.3f}–{max(self.values):.3f})"


@dataclass(frozen=True)
class CaseSummary:
    """`times[variant][clock]` in microseconds; `plans[variant]` in words."""

    operator: str
    dims: tuple[int, ...]
    times: dict[str, dict[str, float]]
    ratios: tuple[Ratio, ...]
    control: Ratio
    plans: dict[str, str]

    @property
    def name(self) -> str:
        return f"{self.operator} {'×'.join(map(str, self.dims))}"


def summarise(report: Report, suite: Suite, clock: str) -> list[CaseSummary]:
    """One summary per case of the suite, with ratios by `clock`; only for reports that hold."""
    rounds: dict[tuple[str, tuple[int, ...]], dict[str, dict[int, Any]]] = defaultdict(lambda: defaultdict(dict))
    for record in report["visits"]:
        key = record["operator"], tuple(record["dims"])
        rounds[key][record["variant"]][record["round"]] = record["measurement"]
    return [_case(*key, variants, suite, clock) for key, variants in rounds.items()]


def _case(
    operator: str, dims: tuple[int, ...], variants: dict[str, dict[int, Any]], suite: Suite, clock: str
) -> CaseSummary:
    times = {
        name: {c: median(m["median_us"][c] for m in visits.values()) for c in next(iter(visits.values()))["median_us"]}
        for name, visits in variants.items()
    }

    def ratio(candidate: str, baseline: str) -> Ratio:
        over, under = variants[candidate], variants[baseline]
        values = [over[n]["median_us"][clock] / under[n]["median_us"][clock] for n in sorted(over)]
        return Ratio(candidate, baseline, tuple(values))

    return CaseSummary(
        operator,
        dims,
        times,
        tuple(ratio(*pair) for pair in suite.ratios if set(pair) <= set(variants)),
        ratio(CONTROL, suite.baseline),
        {name: ", ".join(sorted({_plan(m) for m in visits.values()})) for name, visits in variants.items()},
    )


def _plan(measurement: dict[str, Any]) -> str:
    """(local, block, G), G as asked for."""
    choice = measurement["choice"]
    return f"({choice['local_lanes']}, {choice['block_size']}, {choice['blocks_per_task']})"


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of positive numbers, at least one."""
    logs = [log(value) for value in values]
    return exp(sum(logs) / len(logs))
