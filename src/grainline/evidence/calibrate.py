"""Measures what this machine takes, in a few seconds; `evidence.fitting` makes a `Machine` of the samples.

Prices come from timing the fixed `fitting_set` at the native entry. Memory comes from copies at sizes that fit each
cache, strided and gathered accesses from transposes and gathers that reach as far, the pool from kernels of known
length dispatched to two homes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from grainline import _native
from grainline.base.dims import evaluate
from grainline.base.dtypes import I64
from grainline.evidence.fitting import LATE_TASKS, Raw, fitted, merged
from grainline.evidence.fitting_set import (
    Sample,
    busy_rows,
    fitting_set,
    matrix_product,
    pointwise,
    reaching_set,
    row_program,
)
from grainline.evidence.operators import aligned
from grainline.evidence.realise import Realisation, realise
from grainline.plan.cost import launch_items, traffic_bytes
from grainline.plan.machine import Machine, shipped_machine
from grainline.plan.planner import plan
from grainline.plan.target import Target, processor_name
from grainline.plan.types import LOCAL, MMA, WHOLE, PlannerOptions
from grainline.tile.build import Value
from grainline.tile.ir import View

ROUNDS = 5
TURN_NS = 400_000  # shortest batch that is timed
RAGGED = 331  # elements of a row that is no whole number of cache lines
PRODUCT = (96, 256, 384)  # rows, contracted, columns
NEAR_ROWS = 80
AWAKE_HANDOVERS = 1000
ASLEEP_HANDOVERS = 40
# How long threads have slept: between two launches that are far apart, or that follow each other in one run.
ASLEEP_NS = {"parked": 1_000_000, "condvar": 20_000}
# A launch of some fifty microseconds whose data fit the private caches, in LATE_TASKS tasks.
LATE_ELEMENTS = 160 * 1024
LATE_BLOCK = 512
LATE_ROUNDS = 9
MANY = 130


class Timed:
    """A sample compiled, with its arrays."""

    def __init__(self, sample: Sample, target: Target) -> None:
        options = PlannerOptions(
            mapping=sample.mapping,
            block_size=sample.block_size,
            root_axis_order=sample.order,
            search_task_grain=False,
        )
        self.name = sample.program.name
        chosen = plan(sample.program, target, options, machine=shipped_machine(target)).variants[0]
        self.realisation: Realisation = realise(chosen)
        random = np.random.default_rng(0)
        self.arrays = [_filled(view, random) for view in self.realisation.plan.program.views]
        words = [evaluate(word, {}) for word in self.realisation.emitted.words]
        self.words = [array.ctypes.data for array in self.arrays] + words

    @property
    def bytes(self) -> int:
        return evaluate(traffic_bytes(self.realisation.plan.program), {})

    def items(self, machine: Machine) -> dict[str, int]:
        """How often each priced kind happens in one launch, with the caches of `machine`."""
        found: Counter[str] = Counter()
        chosen = self.realisation.plan
        for times, amounts in launch_items(chosen.program, chosen.mapping, self.realisation.blocks, machine):
            for kind, amount in amounts.items():
                found[kind] += evaluate(times, {}) * amount
        return {kind: amount for kind, amount in sorted(found.items()) if amount}

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
        return _short(timed(24) / 24) if start == "parked" else _batch(timed)

    def entries_ns(self) -> list[float]:
        return [self.entry_ns() for _ in range(ROUNDS)]

    def dispatches_ns(self, grain: int) -> list[float]:
        return [self.dispatch_ns(grain) for _ in range(ROUNDS)]


def _filled(view: View, random: np.random.Generator) -> np.ndarray:
    """Numbers between 0.5 and 1.5; run-time indices lie in any view of as many elements."""
    size = int(np.prod(view.shape))
    if view.dtype is I64:
        indices = aligned(2 * size).view(np.int64)
        indices[...] = random.integers(0, size, size)
        return indices
    array = aligned(size)
    array[...] = random.uniform(0.5, 1.5, size)
    return array


def _batch(timed: Callable[[int], int]) -> float:
    """Nanoseconds of one repetition, from a batch of at least TURN_NS."""
    repeat = 1
    while (spent := timed(repeat)) < TURN_NS:
        repeat = max(2 * repeat, int(repeat * TURN_NS / max(spent, 1)))
    return _short(spent / repeat)


def _short(nanoseconds: float) -> float:
    """Six digits: what is kept of a sample is what prices are fitted to."""
    return float(f"{nanoseconds:.6g}")


def calibrate(
    target: Target, tell: Callable[[str], None] = lambda text: None, repeat: int = 1
) -> tuple[Machine, dict[str, Any]]:
    """The measured machine and its raw samples, of `repeat` turns one after the other.

    A turn takes some ten seconds on idle cores; `tell` hears of each step.
    """
    shipped = shipped_machine(target)
    raw = merged([measured(target, shipped, tell) for _ in range(repeat)])
    origin = f"measured on {processor_name() or target.cpu}, {target.homes} processors"
    return replace(fitted(raw, shipped), origin=origin), raw


def measured(target: Target, shipped: Machine, tell: Callable[[str], None]) -> Raw:
    """The samples of this machine; `shipped` tells the sizes of caches where the system does not."""
    caches = cache_sizes()
    machine = replace(shipped, **caches)
    raw: Raw = {"processor": processor_name(), "cpu": target.cpu, "homes": target.homes, "caches": caches}
    tell("prices of work")
    raw["prices"] = _prices(machine, target)
    tell("products")
    raw["products"] = _products(target)
    tell("memory")
    raw["memory"] = _memory(machine, target)
    raw["reach"] = _reach(machine, target)
    if target.homes > 1:
        tell("threads")
        raw["threads"] = _threads(target)
    return raw


# ---- prices --------------------------------------------------------------------------------------------------------


def _prices(machine: Machine, target: Target) -> list[dict[str, Any]]:
    """The fitting set, all samples in every round."""
    timed = [Timed(sample, target) for sample in fitting_set()]
    rounds = [[each.entry_ns() for each in timed] for _ in range(ROUNDS)]
    return [
        {
            "kernel": each.name,
            "mapping": str(each.realisation.plan.mapping),
            "items": each.items(machine),
            "ns": [turn[position] for turn in rounds],
        }
        for position, each in enumerate(timed)
    ]


def _products(target: Target) -> dict[str, Any]:
    raw: dict[str, Any] = {}
    kinds = {"fma_ps": False, "byte_fma_ps": True} if target.has_byte_products else {"fma_ps": False}
    for name, in_bytes in kinds.items():
        timed = Timed(Sample(matrix_product(*PRODUCT, in_bytes), MMA, 0), target)
        raw[name] = {"shape": "x".join(map(str, PRODUCT)), "ns": timed.entries_ns()}
    return raw


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


def _memory(machine: Machine, target: Target) -> dict[str, Any]:
    """Copies that fit one cache and not the nearer ones, and one that two threads share."""
    raw: dict[str, Any] = {}

    def measure(place: str, timed: Timed) -> Timed:
        raw[place] = {"bytes": timed.bytes, "items": timed.items(machine), "ns": timed.entries_ns()}
        return timed

    size = min(machine.private_bytes / 2, 8 * machine.nearest_bytes)
    measure("private", _copy(size, target))
    measure("private, ragged rows", _row_copy(size, target))
    measure("shared", _copy(min(machine.shared_bytes / 3, 6 * machine.private_bytes), target))
    far = measure("memory", _copy(3 * machine.shared_bytes, target))
    if target.homes > 1:
        raw["bus"] = {"bytes": far.bytes, "ns": far.dispatches_ns(16)}
    return raw


def _reach(machine: Machine, target: Target) -> list[dict[str, Any]]:
    """Strided and gathered accesses whose lines lie in the core's own cache, then in that of all cores."""
    raw = []
    # In the middle between two sizes, by ratio, and no farther than four times the nearer one.
    private = min((machine.nearest_bytes * machine.private_bytes) ** 0.5, 4 * machine.nearest_bytes)
    shared = min((machine.private_bytes * machine.shared_bytes) ** 0.5, 4 * machine.private_bytes)
    for level, size in (("private", private), ("shared", shared)):
        for kind, sample in reaching_set(int(size)):
            timed = Timed(sample, target)
            row = {"kernel": timed.name, "kind": f"{kind}_{level}", "bytes": timed.bytes, "items": timed.items(machine)}
            raw.append({**row, "ns": timed.entries_ns()})
    return raw


# ---- threads -------------------------------------------------------------------------------------------------------


def _threads(target: Target) -> dict[str, Any]:
    """Launches of known length on one home and on two."""
    long = _busy(1024, 1024, target)
    raw: dict[str, Any] = {"tasks": MANY}
    raw["two"] = [_halved(timed) for timed in (_busy(2, 2048, target), *_near_copies(target))]
    raw["long"] = long.entries_ns()
    raw["hand over, awake"] = _handovers(0, AWAKE_HANDOVERS, True)
    raw["many"] = _busy(MANY, 16, target).dispatches_ns(1)
    raw["both"] = long.dispatches_ns(64)
    for start, asleep_ns in ASLEEP_NS.items():
        raw[f"hand over, {start}"] = _handovers(asleep_ns, ASLEEP_HANDOVERS, start != "condvar")
    return raw | _woken(target)


def _near_copies(target: Target) -> Iterator[Timed]:
    """Copies in the core's own cache, of rows that share no cache line and of rows that do, a block each."""
    for n in (16 * (RAGGED // 16), RAGGED):
        yield Timed(Sample(row_program("row copy", NEAR_ROWS, n), LOCAL, target.packet_width), target)


def _halved(timed: Timed) -> dict[str, Any]:
    """A launch of two equal tasks, beside what it takes alone."""
    alone, shared = [], []
    for _ in range(ROUNDS):
        alone.append(timed.entry_ns())
        shared.append(timed.dispatch_ns(timed.realisation.blocks // 2))
    return {"kernel": timed.name, "alone": alone, "ns": shared}


def _handovers(asleep_ns: int, repeat: int, keeps_hot: bool) -> list[float]:
    """Of every round the median of what the caller pays before it works itself, in nanoseconds."""
    rounds = [_native.time_handovers(repeat, asleep_ns, keeps_hot) for _ in range(ROUNDS)]
    return [median(paid for paid, _ in each) for each in rounds]


def _woken(target: Target) -> dict[str, list[float]]:
    """A launch of one task and of several that finds the pool asleep, for every start, and the launch alone.

    Arms take turns, for a machine that is faster in one second than in the next.
    """
    late = _late(target)
    blocks = late.realisation.blocks
    arms = {(start, tasks): blocks // tasks for start in ASLEEP_NS for tasks in (1, LATE_TASKS)}
    raw: dict[str, list[float]] = {"late": []}
    raw |= {f"late, {start}, {tasks} tasks": [] for start, tasks in arms}
    for _ in range(LATE_ROUNDS):
        raw["late"].append(late.entry_ns())
        for (start, tasks), grain in arms.items():
            raw[f"late, {start}, {tasks} tasks"].append(late.dispatch_ns(grain, start))
    return raw


def _late(target: Target) -> Timed:
    return Timed(Sample(pointwise("exp", LATE_ELEMENTS, lambda p, x: p.exp(x)), WHOLE, LATE_BLOCK), target)


def _busy(rows: int, n: int, target: Target) -> Timed:
    """`rows` blocks of one row each, all arithmetic."""
    return Timed(Sample(busy_rows(rows, n), LOCAL, target.packet_width), target)
