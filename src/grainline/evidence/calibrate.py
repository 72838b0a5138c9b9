"""Measures what this machine takes: a `Machine` with the raw samples that it was fitted to, in a few seconds.

Prices come from timing the fixed `fitting_set` at the native entry and solving for nonnegative prices that minimise the
sum of squared relative errors of the fastest turns, for others only add to them; a weak pull towards the shipped prices
settles what the samples leave open. Memory comes from copies at sizes that fit each cache, the pool from kernels of
known length dispatched to two homes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from grainline import _native
from grainline.base.dims import evaluate
from grainline.evidence.fitting_set import Sample, busy_rows, fitting_set, matrix_product, pointwise, row_program
from grainline.evidence.operators import aligned
from grainline.evidence.realise import Realisation, realise
from grainline.plan.cost import launch_items, traffic_bytes
from grainline.plan.machine import Machine, shipped_machine
from grainline.plan.planner import plan
from grainline.plan.target import Target, processor_name
from grainline.plan.types import LOCAL, MMA, WHOLE, PlannerOptions
from grainline.tile.build import Value

ROUNDS = 5
TURN_NS = 400_000  # shortest batch that is timed
RAGGED = 331  # elements of a row that is no whole number of cache lines
PULL = 1e-3  # weight of the shipped prices beside one sample
SWEEPS = 2000
PRODUCT = (96, 256, 384)  # rows, contracted, columns
AWAKE_HANDOVERS = 1000
ASLEEP_HANDOVERS = 40
# How long threads have slept: between two launches that are far apart, or that follow each other in one run.
ASLEEP_NS = {"parked": 1_000_000, "condvar": 20_000}
# A launch of some fifty microseconds whose data fit the private caches, in LATE_TASKS tasks.
LATE_ELEMENTS = 160 * 1024
LATE_BLOCK = 512
LATE_TASKS = 16
LATE_ROUNDS = 9
MANY = 130


class Timed:
    """A sample compiled, with its arrays."""

    def __init__(self, sample: Sample, target: Target) -> None:
        options = PlannerOptions(mapping=sample.mapping, block_size=sample.block_size, search_task_grain=False)
        self.name = sample.program.name
        chosen = plan(sample.program, target, options, machine=shipped_machine(target)).variants[0]
        self.realisation: Realisation = realise(chosen)
        random = np.random.default_rng(0)
        views = self.realisation.plan.program.views
        self.arrays = [aligned(int(np.prod(view.shape))) for view in views]
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

    def dispatch_ns(self, grain: int, start: str = "hot") -> float:
        """Nanoseconds of one dispatch to two homes, from one batch; `start` as in `evidence.realise`."""
        r = self.realisation

        def timed(repeat: int) -> int:
            how = (repeat, start == "parked", 1.0, start != "condvar")
            return int(_native.time_dispatches(r.address, self.words, r.blocks, grain, 2, r.scratch_bytes, *how))

        timed(1)
        return timed(24) / 24 if start == "parked" else _batch(timed)


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
        samples = [turn[position] for turn in rounds]
        raw.append({"kernel": each.name, "mapping": str(each.realisation.plan.mapping), "items": items, "ns": samples})
    return replace(shipped, picoseconds=fit(raw, dict(shipped.picoseconds))), raw


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


def _row_copy(size_bytes: float, target: Target) -> Timed:
    """Rows that begin anywhere in a cache line."""
    return Timed(Sample(row_program("row copy", int(size_bytes) // 8 // RAGGED, RAGGED), LOCAL), target)


def _fit_memory(machine: Machine, target: Target) -> tuple[Machine, dict[str, Any]]:
    """What a byte takes beyond the first cache, the core's own, and all, by copies that fit the next one only.

    Arithmetic and memory overlap as `launch_time` has it: the square of the time is the sum of the squares of both.
    """
    raw: dict[str, Any] = {}

    def memory_ps(timed: Timed, label: str) -> float:
        raw[label] = {"bytes": timed.bytes, "ns": [timed.entry_ns() for _ in range(ROUNDS)]}
        arithmetic = sum(machine.picoseconds[kind] * amount for kind, amount in timed.items().items())
        return float(max((median(raw[label]["ns"]) * 1e3) ** 2 - arithmetic**2, 0.0) ** 0.5)

    def beyond(size: float, limit: float) -> float:
        return max(size - limit, 1.0)

    size = min(machine.private_bytes / 2, 8 * machine.nearest_bytes)
    copies = {"private": _copy(size, target), "private, ragged rows": _row_copy(size, target)}
    near = [memory_ps(timed, label) / beyond(timed.bytes, machine.nearest_bytes) for label, timed in copies.items()]
    private_byte = sum(near) / len(near)
    size = min(machine.shared_bytes / 3, 6 * machine.private_bytes)
    private = (machine.private_bytes - machine.nearest_bytes) * private_byte
    shared = max(memory_ps(_copy(size, target), "shared") - private, 0.0) / beyond(size, machine.private_bytes)
    size = 3 * machine.shared_bytes
    inner = private + (machine.shared_bytes - machine.private_bytes) * shared
    memory = max(memory_ps(_copy(size, target), "memory") - inner, 0.0) / beyond(size, machine.shared_bytes)
    bus = machine.bus_byte_ps
    if target.homes > 1:
        both = _copy(size, target)
        raw["bus"] = {"bytes": both.bytes, "ns": [both.dispatch_ns(16) for _ in range(ROUNDS)]}
        bus = median(raw["bus"]["ns"]) * 1e3 / both.bytes
    rounded = {
        "private_byte_ps": private_byte,
        "shared_byte_ps": max(shared, private_byte),
        "memory_byte_ps": max(memory, shared, private_byte),
        "bus_byte_ps": bus,
    }
    return replace(machine, **{name: float(f"{value:.4g}") for name, value in rounded.items()}), raw


# ---- threads -------------------------------------------------------------------------------------------------------


def _fit_threads(machine: Machine, target: Target) -> tuple[Machine, dict[str, Any]]:
    """What handing over, a task, late starts and company take, for the model of `launch_time`.

    Dispatches that work for no time show what the caller pays. A launch of two equal tasks is over when the other
    home has come, has done one and has been joined. Many almost empty tasks show what a task takes, a long launch of
    arithmetic what company does. What a thread that sleeps loses is in `_woken`.
    """
    raw: dict[str, Any] = {}

    def dispatched(label: str, timed: Timed, grain: int) -> float:
        raw[label] = [timed.dispatch_ns(grain) for _ in range(ROUNDS)]
        return median(raw[label]) * 1e3

    def alone(label: str, timed: Timed) -> float:
        raw[label] = [timed.entry_ns() for _ in range(ROUNDS)]
        return median(raw[label]) * 1e3

    long = _busy(1024, 1024, target)
    one_ps, long_ps = alone("one", _busy(1, 2048, target)), alone("long", long)
    two_ps = dispatched("two, hot", _busy(2, 2048, target), 1)
    hot_paid = _paid(raw, "hand over, awake", 0, AWAKE_HANDOVERS)
    task = max(dispatched("many, hot", _busy(MANY, 16, target), 1) - (two_ps - one_ps), 0.0) / (MANY / 2)
    delay = max(two_ps - one_ps - task, hot_paid)
    crowd = max((2 * dispatched("long, hot", long, 64) - hot_paid - delay) / long_ps - 1, 0.0)
    found = {"task_ps": task, "hot_paid_ps": hot_paid, "hot_delay_ps": delay, "crowd": crowd}
    for start, loss in _woken(raw, target).items():
        paid = max(_paid(raw, f"hand over, {start}", ASLEEP_NS[start], ASLEEP_HANDOVERS, start != "condvar"), hot_paid)
        lost = median(2 * saved - alone * crowd for alone, saved in loss) - LATE_TASKS * task - paid
        found |= {f"{start}_paid_ps": paid, f"{start}_delay_ps": max(lost, paid, delay)}
    return replace(machine, **{name: float(f"{value:.4g}") for name, value in found.items()}), raw


def _woken(raw: dict[str, Any], target: Target) -> dict[str, list[tuple[float, float]]]:
    """Of a launch of known length, for every start and round: (picoseconds alone, half of them less what the help of a
    woken thread saves).

    A sleeping thread comes late in more than time: it finds its caches cold, now and then it comes very late. So its
    delay is what it does not save: two homes need half of (work * (1 + crowd) + tasks + paid + delay). What it saves is
    counted against a launch of one home after the same pause, which makes the caller slower too: there is nothing that
    a choice could do about that. Arms take turns, for a machine that is faster in one second than in the next.
    """
    late = _late(target)
    blocks = late.realisation.blocks
    arms = {(start, tasks): blocks // tasks for start in ASLEEP_NS for tasks in (1, LATE_TASKS)}
    raw["late"] = []
    raw |= {f"late, {start}, {tasks} tasks": [] for start, tasks in arms}
    for _ in range(LATE_ROUNDS):
        raw["late"].append(late.entry_ns())
        for (start, tasks), grain in arms.items():
            raw[f"late, {start}, {tasks} tasks"].append(late.dispatch_ns(grain, start))
    found = {}
    for start in ASLEEP_NS:
        times = zip(raw["late"], *(raw[f"late, {start}, {tasks} tasks"] for tasks in (1, LATE_TASKS)), strict=True)
        found[start] = [(alone * 1e3, (alone / 2 - (one - many)) * 1e3) for alone, one, many in times]
    return found


def _paid(raw: dict[str, Any], label: str, asleep_ns: int, repeat: int, keeps_hot: bool = True) -> float:
    """Picoseconds until the caller works itself."""
    raw[label] = [_native.time_handovers(repeat, asleep_ns, keeps_hot) for _ in range(ROUNDS)]
    return float(median(paid for paid, _ in chain(*raw[label])) * 1e3)


def _late(target: Target) -> Timed:
    return Timed(Sample(pointwise("exp", LATE_ELEMENTS, lambda p, x: p.exp(x)), WHOLE, LATE_BLOCK), target)


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
