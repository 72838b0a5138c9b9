"""Measures what this machine takes: a `Machine` with the raw samples that it was fitted to, in a few seconds.

Prices come from timing the fixed `fitting_set` at the native entry and solving for nonnegative prices that minimise the
sum of squared relative errors of the fastest turns, for others only add to them; a weak pull towards the shipped prices
settles what the samples leave open. Memory comes from one copy at sizes that fit each cache, the pool from kernels of
known length dispatched to two homes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from grainline import _native
from grainline.base.dims import evaluate
from grainline.evidence.fitting_set import Sample, busy_rows, fitting_set, matrix_product, pointwise
from grainline.evidence.realise import Realisation, aligned, realise
from grainline.plan.cost import launch_items, traffic_bytes
from grainline.plan.machine import Machine, shipped_machine
from grainline.plan.planner import plan
from grainline.plan.target import Target, processor_name
from grainline.plan.types import LOCAL, MMA, WHOLE, PlannerOptions
from grainline.tile.build import Value

ROUNDS = 5
TURN_NS = 400_000  # shortest batch that is timed
NEAR = "near"  # a byte beyond the first cache; fitted with the prices
PULL = 1e-3  # weight of the shipped prices beside one sample
SWEEPS = 2000
PRODUCT = (96, 256, 384)  # rows, contracted, columns


class Timed:
    """A sample compiled, with its arrays."""

    def __init__(self, sample: Sample, target: Target) -> None:
        options = PlannerOptions(mapping=sample.mapping, block_size=sample.block_size, search_task_grain=False)
        self.name = sample.program.name
        chosen = plan(sample.program, target, options, machine=shipped_machine(target)).variants[0]
        self.realisation: Realisation = realise(chosen)
        random = np.random.default_rng(0)
        views = self.realisation.plan.program.views
        self.arrays = [aligned(int(np.prod(view.shape)), first_element=0) for view in views]
        for array in self.arrays:
            array[...] = random.uniform(0.5, 1.5, array.size)
        words = [evaluate(word, {}) for word in self.realisation.emitted.words]
        self.words = [array.ctypes.data for array in self.arrays] + words

    @property
    def bytes(self) -> int:
        return evaluate(traffic_bytes(self.realisation.plan.program), {})

    def items(self) -> Counter[str]:
        """How often each priced kind happens in one launch."""
        found: Counter[str] = Counter()
        chosen = self.realisation.plan
        for times, amounts in launch_items(chosen.program, chosen.mapping, self.realisation.blocks):
            for kind, amount in amounts.items():
                found[kind] += evaluate(times, {}) * amount
        return found

    def entry_ns(self) -> float:
        """Nanoseconds of one call on this thread, from one batch."""
        r = self.realisation
        return _batch(lambda repeat: _native.time_entry(r.address, self.words, r.blocks, r.scratch_bytes, repeat))

    def dispatch_ns(self, grain: int, parked: bool) -> float:
        """Nanoseconds of one dispatch to two homes, from one batch."""
        r = self.realisation

        def timed(repeat: int) -> int:
            return int(
                _native.time_dispatches(r.address, self.words, r.blocks, grain, 2, r.scratch_bytes, repeat, parked)
            )

        timed(1)
        return timed(24) / 24 if parked else _batch(timed)


def _batch(timed: Callable[[int], int]) -> float:
    """Nanoseconds of one repetition, from a batch of at least TURN_NS."""
    repeat = 1
    while (spent := timed(repeat)) < TURN_NS:
        repeat = max(2 * repeat, int(repeat * TURN_NS / max(spent, 1)))
    return spent / repeat


def calibrate(target: Target, tell: Callable[[str], None] = lambda text: None) -> tuple[Machine, dict[str, Any]]:
    """The measured machine and its raw samples. Takes a few seconds on idle cores; `tell` hears of each step."""
    shipped = replace(shipped_machine(target), **cache_sizes())
    raw: dict[str, Any] = {"processor": processor_name(), "cpu": target.cpu, "homes": target.homes}
    tell("prices of work")
    machine, raw["prices"] = _fit_prices(shipped, target)
    tell("products")
    machine, raw["products"] = _fit_products(machine, target)
    tell("memory")
    machine, raw["memory"] = _fit_memory(machine, target)
    if target.homes > 1:
        tell("threads")
        machine, raw["threads"] = _fit_threads(machine, target)
    return replace(machine, origin=f"measured on {processor_name() or target.cpu}, {target.homes} processors"), raw


# ---- prices --------------------------------------------------------------------------------------------------------


def _fit_prices(shipped: Machine, target: Target) -> tuple[Machine, list[dict[str, Any]]]:
    timed = [Timed(sample, target) for sample in fitting_set()]
    rounds = [[each.entry_ns() for each in timed] for _ in range(ROUNDS)]
    raw = []
    for position, each in enumerate(timed):
        items = each.items()
        items[NEAR] = max(each.bytes - int(shipped.nearest_bytes), 0)
        samples = [turn[position] for turn in rounds]
        raw.append({"kernel": each.name, "mapping": str(each.realisation.plan.mapping), "items": items, "ns": samples})
    prices = fit(raw, {**shipped.picoseconds, NEAR: shipped.private_byte_ps})
    near = prices.pop(NEAR)
    return replace(shipped, picoseconds=prices, private_byte_ps=near), raw


def fit(raw: list[dict[str, Any]], prior: dict[str, float]) -> dict[str, float]:
    """Nonnegative picoseconds per kind, by coordinate descent on the squared relative errors of all samples."""
    kinds = sorted(prior)
    times = np.array([min(row["ns"]) * 1e3 for row in raw])
    amounts = np.array([[row["items"].get(kind, 0) for kind in kinds] for row in raw], np.float64) / times[:, None]
    start = np.array([prior[kind] for kind in kinds])
    normal, right = amounts.T @ amounts, amounts.sum(axis=0)
    pull = PULL / np.maximum(start, 1e-3) ** 2
    found = start.copy()
    for _ in range(SWEEPS):
        for j in range(len(kinds)):
            rest = right[j] - normal[j] @ found + normal[j, j] * found[j]
            found[j] = max((rest + pull[j] * start[j]) / (normal[j, j] + pull[j]), 0.0)
    return {kind: float(f"{price:.4g}") for kind, price in zip(kinds, found, strict=True)}


# ---- products -----------------------------------------------------------------------------------------------------


def _fit_products(machine: Machine, target: Target) -> tuple[Machine, dict[str, Any]]:
    """Picoseconds of a multiply-add, from products whose operands lie near."""
    raw: dict[str, Any] = {}
    kinds = {"fma_ps": False, "byte_fma_ps": True} if target.has_byte_products else {"fma_ps": False}
    for name, in_bytes in kinds.items():
        timed = Timed(Sample(matrix_product(*PRODUCT, in_bytes), MMA, 0), target)
        raw[name] = {"shape": list(PRODUCT), "ns": [timed.entry_ns() for _ in range(ROUNDS)]}
    m, k, n = PRODUCT
    found = {name: float(f"{min(each['ns']) * 1e3 / (m * k * n):.4g}") for name, each in raw.items()}
    return replace(machine, **found), raw


# ---- memory --------------------------------------------------------------------------------------------------------


def cache_sizes() -> dict[str, float]:
    """First, private and shared cache of a core as the system tells; empty where it does not."""
    sizes: dict[int, int] = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        with suppress(OSError, ValueError):
            if (index / "type").read_text().strip() != "Instruction":
                text = (index / "size").read_text().strip()
                sizes[int((index / "level").read_text())] = int(text.rstrip("KM")) << (20 if text.endswith("M") else 10)
    names = {1: "nearest_bytes", 2: "private_bytes", 3: "shared_bytes"}
    return {names[level]: float(size) for level, size in sizes.items() if level in names}


def _copy(size_bytes: float, target: Target) -> Timed:
    def same(p: Any, x: Value) -> Value:
        return x

    return Timed(Sample(pointwise("copy", int(size_bytes) // 8, same), WHOLE, 1024), target)


def _fit_memory(machine: Machine, target: Target) -> tuple[Machine, dict[str, Any]]:
    """What a byte adds when a copy fits the shared cache only, and when it fits none."""
    raw: dict[str, Any] = {}

    def extra_ps(size: float, label: str) -> float:
        timed = _copy(size, target)
        raw[label] = {"bytes": timed.bytes, "ns": [timed.entry_ns() for _ in range(ROUNDS)]}
        items = timed.items()
        near = sum(machine.picoseconds[kind] * amount for kind, amount in items.items())
        return max(median(raw[label]["ns"]) * 1e3 - near, 0.0)

    def beyond(size: float, limit: float) -> float:
        return max(size - limit, 1.0)

    size = min(machine.shared_bytes / 3, 6 * machine.private_bytes)
    private = (machine.private_bytes - machine.nearest_bytes) * machine.private_byte_ps
    shared = max(extra_ps(size, "shared") - private, 0.0) / beyond(size, machine.private_bytes)
    size = 3 * machine.shared_bytes
    inner = private + (machine.shared_bytes - machine.private_bytes) * shared
    memory = max(extra_ps(size, "memory") - inner, 0.0) / beyond(size, machine.shared_bytes)
    bus = machine.bus_byte_ps
    if target.homes > 1:
        both = _copy(size, target)
        raw["bus"] = {"bytes": both.bytes, "ns": [both.dispatch_ns(16, False) for _ in range(ROUNDS)]}
        bus = median(raw["bus"]["ns"]) * 1e3 / both.bytes
    rounded = {"shared_byte_ps": shared, "memory_byte_ps": max(memory, shared), "bus_byte_ps": bus}
    return replace(machine, **{name: float(f"{value:.4g}") for name, value in rounded.items()}), raw


# ---- threads -------------------------------------------------------------------------------------------------------


def _fit_threads(machine: Machine, target: Target) -> tuple[Machine, dict[str, Any]]:
    """Solves the model of `launch_time` for what a task, handing over, late starts and company take.

    Two empty tasks give what the caller pays, many empty ones what a task takes. Of many tasks of known length two
    homes need half of (work * (1 + crowd) + tasks + delay of the other home): a long launch shows the crowd, and a
    parked one the delay. A short launch of two tasks ends as late as the other home begins.
    """
    raw: dict[str, Any] = {}

    def measure(label: str, timed: Timed, is_parked: bool, grain: int = 1) -> float:
        raw[label] = [timed.dispatch_ns(grain, is_parked) for _ in range(ROUNDS)]
        return median(raw[label]) * 1e3

    two, many = (_busy(blocks, 16, target) for blocks in (2, 130))
    short, long = (_busy(blocks, 1024, target) for blocks in (16, 1024))
    raw["short, alone"], raw["long, alone"] = ([t.entry_ns() for _ in range(ROUNDS)] for t in (short, long))
    short_ps, long_ps = (median(raw[f"{name}, alone"]) * 1e3 for name in ("short", "long"))

    two_ps = measure("two empty tasks, hot", two, False)
    task = max(measure("many empty tasks, hot", many, False) - two_ps, 0.0) / (130 // 2 - 1)
    paid = max(two_ps - task, 10e3)
    parked_paid = max(measure("two empty tasks, parked", two, True) - task, paid)
    crowd = max((2 * (measure("long, hot", long, False) - paid) - 1024 * task) / long_ps - 1, 0.0)
    late = measure("short, hot", short, False, 8) - paid - short_ps / 2 * (1 + crowd) - task
    parked_late = 2 * (measure("long, parked", long, True) - parked_paid) - long_ps * (1 + crowd) - 1024 * task
    found = {
        "task_ps": task,
        "hot_paid_ps": paid,
        "parked_paid_ps": parked_paid,
        "crowd": crowd,
        "hot_delay_ps": paid + max(late, 0.0),
        "parked_delay_ps": parked_paid + max(parked_late, 0.0),
    }
    return replace(machine, **{name: float(f"{value:.4g}") for name, value in found.items()}), raw


def _busy(rows: int, n: int, target: Target) -> Timed:
    """`rows` blocks of one row each, all arithmetic."""
    return Timed(Sample(busy_rows(rows, n), LOCAL, target.packet_width), target)


def predictions(raw: list[dict[str, Any]], prices: Mapping[str, float]) -> list[tuple[float, str]]:
    """(predicted / measured, kernel) of every sample, worst first."""
    ratios = []
    for row in raw:
        predicted = sum(prices[kind] * amount for kind, amount in row["items"].items())
        ratios.append((max(predicted, 1e-3) / (min(row["ns"]) * 1e3), str(row["kernel"])))
    return sorted(ratios, key=lambda each: -abs(np.log(each[0])))
