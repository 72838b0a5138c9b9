"""Which side wins: the caller alone, or caller and pool; and whether the automatic choice is on that side.

The published contradiction is six operators of one shape, some of which are best done by the caller and some by the
pool. Per case and condition the fastest arm of one task stands against the fastest arm of several, selected by the even
rounds of the race and judged by the odd ones, beside the spread of an A/A pair. Where the better side wins by
CLEAR_SPREADS spreads the choice must be on it; where it does not, both are right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from grainline.evidence.regret import Race, judged, regret_of, selected

CLEAR_SPREADS = 3


@dataclass(frozen=True)
class Sides:
    """One case under one condition. Times in ns per dispatch; None: no arm of that side came within the screening."""

    case: str
    start: str
    alone_ns: float | None
    shared_ns: float | None
    is_shared: bool
    spread: float
    regret: float

    @property
    def margin(self) -> float:
        """How much longer the other side takes; infinite where it did not race."""
        if self.alone_ns is None or self.shared_ns is None:
            return float("inf")
        return max(self.alone_ns, self.shared_ns) / min(self.alone_ns, self.shared_ns) - 1

    @property
    def is_clear(self) -> bool:
        return self.margin >= CLEAR_SPREADS * self.spread

    @property
    def shared_wins(self) -> bool:
        return self.alone_ns is None or (self.shared_ns is not None and self.shared_ns < self.alone_ns)

    @property
    def is_right(self) -> bool:
        return not self.is_clear or self.is_shared == self.shared_wins


def sides(report: dict[str, Any]) -> Iterator[Sides]:
    """Per case and condition of a report of contests that holds."""
    for record in report["visits"]:
        rows, n = record["dims"]
        measurement = record["measurement"]
        blocks = [code["blocks"] for code in measurement["codes"]]
        for condition in measurement["conditions"]:
            yield _sides(f"{record['operator']} {rows}×{n}", condition, blocks)


def spread_of(race: Race, automatic: int) -> float:
    """The middle of what two turns of the automatic arm in one round differ by."""
    pairs = zip(race["again_ns"], race["elapsed_ns"][automatic], strict=True)
    return median(abs(again / first - 1) for again, first in pairs)


def _sides(case: str, condition: dict[str, Any], blocks: Sequence[int]) -> Sides:
    race, raced, repetitions = condition["races"][-1], condition["raced"], condition["repetitions"]
    arms = [condition["arms"][k] for k in raced]
    is_shared = [arm["grain"] < blocks[arm["code"]] for arm in arms]
    automatic = raced.index(condition["roles"]["automatic"])

    def fastest(wanted: bool) -> float | None:
        numbers = [k for k in range(len(arms)) if is_shared[k] == wanted]
        if not numbers:
            return None
        best = min(numbers, key=lambda k: selected(race["elapsed_ns"][k]) / repetitions[k])
        return judged(race["elapsed_ns"][best]) / repetitions[best]

    spread, regret = spread_of(race, automatic), regret_of(race, automatic, repetitions)
    return Sides(case, condition["start"], fastest(False), fastest(True), is_shared[automatic], spread, regret)
