"""From the samples of a calibration to a `Machine`: the same samples and the same prior give the same prices.

    {"processor", "cpu", "homes", "caches": {field: bytes},
     "prices":   [{"kernel", "mapping", "items": {kind: count}, "ns": [...]}],
     "products": {price: {"shape", "ns": [...]}},
     "memory":   {place: {"bytes", "items", "ns": [...]}},
     "reach":    [{"kernel", "kind", "bytes", "items", "ns": [...]}],
     "threads":  {start: [...]}}

Prices of work are nonnegative and minimise the sum of squared relative errors of fast turns, for others only add to
them; a weak pull towards the prior settles what the samples leave open. Everything else follows from medians, step by
step, in the order of the list. What has no sample keeps the prior.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from statistics import median
from typing import Any

import numpy as np

from grainline.plan.machine import Machine

PULL = 1e-3  # weight of the prior beside one sample
SWEEPS = 2000
LATE_TASKS = 16  # of the launch that says what a woken thread saves
ASLEEP = ("parked", "condvar")

Raw = dict[str, Any]


def fitted(raw: Raw, prior: Machine) -> Machine:
    """The machine that these samples show."""
    machine = replace(prior, **raw["caches"])
    machine = replace(machine, picoseconds=fit_prices(raw["prices"], dict(machine.picoseconds)))
    machine = replace(machine, **_products(raw["products"]))
    machine = replace(machine, **_memory(machine, raw["memory"], raw["homes"]))
    machine = replace(machine, picoseconds={**machine.picoseconds, **_reach(machine, raw["reach"])})
    return replace(machine, **_threads(raw["threads"])) if raw["homes"] > 1 else machine


def merged(runs: list[Raw]) -> Raw:
    """One calibration with the samples of all; ValueError where they measured different things."""
    return reduce(_together, runs)


def _together(one: Any, two: Any) -> Any:
    """Lists of samples one behind the other, everything else pairwise."""
    if isinstance(one, dict):
        return {key: _together(one[key], two[key]) for key in one}
    if isinstance(one, list) and one and isinstance(one[0], dict):
        return [_together(a, b) for a, b in zip(one, two, strict=True)]
    if isinstance(one, list):
        return [*one, *two]
    if one != two:
        raise ValueError(f"calibrations of one machine: expected {one!r}, found {two!r}")
    return one


def fit_prices(samples: list[dict[str, Any]], prior: dict[str, float]) -> dict[str, float]:
    """Nonnegative picoseconds per kind, by coordinate descent on the squared relative errors of all samples."""
    kinds = sorted(prior)
    times = np.array([fast(row["ns"]) * 1e3 for row in samples])
    amounts = np.array([[row["items"].get(kind, 0) for kind in kinds] for row in samples], np.float64) / times[:, None]
    start = np.array([prior[kind] for kind in kinds])
    normal, right = amounts.T @ amounts, amounts.sum(axis=0)
    pull = PULL / np.maximum(start, 1e-3) ** 2
    found = start.copy()
    for _ in range(SWEEPS):
        for j in range(len(kinds)):
            rest = right[j] - normal[j] @ found + normal[j, j] * found[j]
            found[j] = max((rest + pull[j] * start[j]) / (normal[j, j] + pull[j]), 0.0)
    return {kind: _rounded(price) for kind, price in zip(kinds, found, strict=True)}


def predictions(samples: list[dict[str, Any]], prices: Mapping[str, float]) -> list[tuple[float, str]]:
    """(predicted / measured, kernel) of every sample, worst first."""
    ratios = []
    for row in samples:
        ratios.append((max(_priced(row["items"], prices), 1e-3) / (fast(row["ns"]) * 1e3), str(row["kernel"])))
    return sorted(ratios, key=lambda each: -abs(np.log(each[0])))


def fast(samples: list[float]) -> float:
    """The slowest of the fastest quarter: one lucky turn of many is no measure either."""
    return sorted(samples)[len(samples) // 4]


def _priced(items: Mapping[str, int], prices: Mapping[str, float]) -> float:
    return sum(prices[kind] * amount for kind, amount in items.items())


def _rounded(value: float) -> float:
    """Four digits: samples say no more."""
    return float(f"{value:.4g}")


def _products(raw: Raw) -> dict[str, float]:
    """Picoseconds of a multiply-add, from products whose operands lie near."""
    found = {}
    for name, sample in raw.items():
        m, k, n = map(int, sample["shape"].split("x"))
        found[name] = _rounded(fast(sample["ns"]) * 1e3 / (m * k * n))
    return found


def _memory(machine: Machine, raw: Raw, homes: int) -> dict[str, float]:
    """What a byte takes beyond the first cache, the core's own, and all, by copies that fit the next one only.

    Arithmetic and memory overlap as `launch_time` has it: the square of the time is the sum of the squares of both.
    """

    def memory_ps(place: str) -> float:
        sample = raw[place]
        arithmetic = _priced(sample["items"], machine.picoseconds)
        return float(max((median(sample["ns"]) * 1e3) ** 2 - arithmetic**2, 0.0) ** 0.5)

    def beyond(place: str, limit: float) -> float:
        return max(raw[place]["bytes"] - limit, 1.0)

    near = [memory_ps(place) / beyond(place, machine.nearest_bytes) for place in ("private", "private, ragged rows")]
    private_byte = sum(near) / len(near)
    private = (machine.private_bytes - machine.nearest_bytes) * private_byte
    shared = max(memory_ps("shared") - private, 0.0) / beyond("shared", machine.private_bytes)
    inner = private + (machine.shared_bytes - machine.private_bytes) * shared
    memory = max(memory_ps("memory") - inner, 0.0) / beyond("memory", machine.shared_bytes)
    found = {
        "private_byte_ps": private_byte,
        "shared_byte_ps": max(shared, private_byte),
        "memory_byte_ps": max(memory, shared, private_byte),
    }
    if homes > 1:
        found["bus_byte_ps"] = median(raw["bus"]["ns"]) * 1e3 / raw["bus"]["bytes"]
    return {name: _rounded(value) for name, value in found.items()}


def _reach(machine: Machine, raw: list[dict[str, Any]]) -> dict[str, float]:
    """What an element takes more when its line is no longer in the first cache, and when not in the core's own.

    Nearer levels come first: a farther one pays for what it takes beyond them.
    """
    prices = dict(machine.picoseconds)
    for sample in raw:
        memory = traffic_ps(machine, sample["bytes"])
        work = max((median(sample["ns"]) * 1e3) ** 2 - memory**2, 0.0) ** 0.5
        others = {kind: amount for kind, amount in sample["items"].items() if kind != sample["kind"]}
        more = max(work - _priced(others, prices), 0.0) / sample["items"][sample["kind"]]
        prices[sample["kind"]] = _rounded(more)
    return {sample["kind"]: prices[sample["kind"]] for sample in raw}


def traffic_ps(machine: Machine, size: float) -> float:
    """What one thread waits for `size` bytes: those that fit a cache cost what the next nearer one could not hold."""
    limits = (machine.nearest_bytes, machine.private_bytes, machine.shared_bytes, float("inf"))
    prices = (machine.private_byte_ps, machine.shared_byte_ps, machine.memory_byte_ps)
    return sum(
        price * max(min(size, high) - low, 0.0)
        for low, high, price in zip(limits[:-1], limits[1:], prices, strict=True)
    )


def _threads(raw: Raw) -> dict[str, float]:
    """What handing over, a task, late starts and company take, for the model of `launch_time`.

    Dispatches that work for no time show what the caller pays. A launch of two equal tasks is over when the other
    home has come, has done one and has been joined. Many almost empty tasks show what a task takes, a long launch of
    arithmetic what company does. What a thread that sleeps loses is in `_lost`.
    """
    one, long, two, many, company = (median(raw[label]) * 1e3 for label in ("one", "long", "two, hot", "many", "both"))
    hot_paid = median(raw["hand over, awake"]) * 1e3
    task = max(many - (two - one), 0.0) / (raw["tasks"] / 2)
    delay = max(two - one - task, hot_paid)
    crowd = max((2 * company - hot_paid - delay) / long - 1, 0.0)
    found = {"task_ps": task, "hot_paid_ps": hot_paid, "hot_delay_ps": delay, "crowd": crowd}
    for start in ASLEEP:
        paid = max(median(raw[f"hand over, {start}"]) * 1e3, hot_paid)
        lost = _lost(raw, start, crowd) - LATE_TASKS * task - paid
        found |= {f"{start}_paid_ps": paid, f"{start}_delay_ps": max(lost, paid, delay)}
    return {name: _rounded(value) for name, value in found.items()}


def _lost(raw: Raw, start: str, crowd: float) -> float:
    """Picoseconds by which a launch of known length is later than if two homes had halved it.

    A sleeping thread comes late in more than time: it finds its caches cold, now and then it comes very late. So its
    delay is what it does not save: two homes need half of (work * (1 + crowd) + tasks + paid + delay). What it saves is
    counted against a launch of one home after the same pause, which makes the caller slower too: there is nothing that
    a choice could do about that.
    """
    arms = (raw["late"], raw[f"late, {start}, 1 tasks"], raw[f"late, {start}, {LATE_TASKS} tasks"])
    return median(
        1e3 * (2 * (alone / 2 - (one - many)) - alone * crowd) for alone, one, many in zip(*arms, strict=True)
    )
