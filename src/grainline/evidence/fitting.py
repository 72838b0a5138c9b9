"""From the samples of a calibration to a `Machine`: the same samples and the same prior give the same prices.

    {"processor", "cpu", "homes", "caches": {field: bytes},
     "prices":   [{"kernel", "mapping", "items": {kind: count}, "ns": [...]}],
     "products": {price: {"shape", "ns": [...]}},
     "memory":   {place: {"bytes", "items", "ns": [...]}},
     "reach":    [{"kernel", "kind", "bytes", "items", "ns": [...]}],
     "threads":  {"two": [{"kernel", "alone": [...], "ns": [...]}], what: [...]}}

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
OVERFLOW = 4  # of bytes beyond a cache, how many are not found in it; as in `launch_time`
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
    """Picoseconds of a multiply-add, from products whose operands lie near.

    From the fastest tenth: no luck is faster than the processor, and a neighbour on its core doubles the time for
    minutes. A price of such minutes would share products among too few threads in all others.
    """
    found = {}
    for name, sample in raw.items():
        m, k, n = map(int, sample["shape"].split("x"))
        found[name] = _rounded(sorted(sample["ns"])[len(sample["ns"]) // 10] * 1e3 / (m * k * n))
    return found


def _memory(machine: Machine, raw: Raw, homes: int) -> dict[str, float]:
    """What a byte takes beyond the first cache, the core's own, and all, by copies that fit the next one only.

    Arithmetic and memory overlap as `launch_time` has it: the square of the time is the sum of the squares of both.
    """

    def memory_ps(place: str) -> float:
        sample = raw[place]
        arithmetic = _priced(sample["items"], machine.picoseconds)
        return float(max((median(sample["ns"]) * 1e3) ** 2 - arithmetic**2, 0.0) ** 0.5)

    def bytes_of(place: str) -> tuple[float, ...]:
        return tuple(max(amount, 1.0) for amount in levels(machine, raw[place]["bytes"]))

    near = [memory_ps(place) / bytes_of(place)[0] for place in ("private", "private, ragged rows")]
    prices = [sum(near) / len(near)]
    for level, place in ((1, "shared"), (2, "memory")):
        amounts = bytes_of(place)
        nearer = sum(amount * price for amount, price in zip(amounts[:level], prices, strict=True))
        # What a farther cache takes is no less than what a nearer one does.
        prices.append(max((memory_ps(place) - nearer) / amounts[level], prices[-1]))
    found = dict(zip(("private_byte_ps", "shared_byte_ps", "memory_byte_ps"), prices, strict=True))
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
    """What one thread waits for `size` bytes, as `launch_time` has it."""
    prices = (machine.private_byte_ps, machine.shared_byte_ps, machine.memory_byte_ps)
    return sum(amount * price for amount, price in zip(levels(machine, size), prices, strict=True))


def levels(machine: Machine, size: float) -> tuple[float, float, float]:
    """Of `size` bytes those that are found in the core's own cache, in that of all, and in memory only.

    Walked through again and again, nothing is found in a cache that holds three quarters of it.
    """
    limits = (machine.nearest_bytes, machine.private_bytes, machine.shared_bytes)
    nearest, private, shared = (min(size, OVERFLOW * max(size - limit, 0.0)) for limit in limits)
    return max(nearest - private, 0.0), max(private - shared, 0.0), shared


def _threads(raw: Raw) -> dict[str, float]:
    """What handing over, a task, late starts and company take, for the model of `launch_time`.

    Dispatches that work for no time show what the caller pays. A launch of two equal tasks is over when the other
    home has come, has done one and has been joined; that takes longer where lines pass between the homes, so several
    kernels say it. Many almost empty tasks show what a task takes, a long launch of arithmetic what company does. What
    a thread that sleeps loses is in `_lost`.
    """
    long, many, company, awake = (median(raw[label]) * 1e3 for label in ("long", "many", "both", "hand over, awake"))
    late = [1e3 * (median(each["ns"]) - median(each["alone"]) / 2) for each in raw["two"]]
    task = max(many - late[0], 0.0) / (raw["tasks"] / 2)
    delay = max(median(late) - task, awake)
    crowd = max((2 * company - awake - delay) / long - 1, 0.0)
    found = {"task_ps": task, "hot_paid_ps": awake, "hot_delay_ps": delay, "crowd": crowd}
    for start in ASLEEP:
        paid = max(median(raw[f"hand over, {start}"]) * 1e3, awake)
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
