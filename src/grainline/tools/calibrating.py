"""`grainline calibrate`: measures this machine, says how well the prices fit, and keeps them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np

from grainline.base import progress
from grainline.evidence.calibrate import calibrate
from grainline.evidence.fitting import predictions
from grainline.plan.machine import Machine, machine_path, machine_text
from grainline.plan.target import host_target
from grainline.tools.waiting import progress_on_stderr
from grainline.tools.writable import check_file

WORST_SHOWN = 5


def calibrate_machine(output: Path | None, repeat: int = 1) -> Iterator[str]:
    """Lines for people; `repeat` calibrations are fitted as one.

    OptionError when the file cannot be written; nothing is measured then.
    """
    target = host_target()
    path = output or machine_path(target)
    check_file(path)
    with progress_on_stderr("measuring this machine"):
        machine, raw = calibrate(target, progress.report, repeat)
    _write(path, machine_text(machine, raw))
    yield machine.origin
    yield from _fit_lines(machine, raw["prices"])
    awake_ns, asleep_us = machine.hot_paid_ps / 1e3, machine.parked_paid_ps / 1e6
    yield f"handing over: {awake_ns:.0f} ns to threads that are awake, {asleep_us:.1f} us to sleeping ones"
    yield f"a task: {machine.task_ps / 1e3:.0f} ns"
    yield f"written to {path}"


def _fit_lines(machine: Machine, raw: list[dict[str, object]]) -> Iterator[str]:
    ratios = predictions(raw, machine.picoseconds)
    errors = [abs(np.log(ratio)) for ratio, _ in ratios]
    yield f"{len(ratios)} kernels fitted; predicted / measured is off by {np.expm1(median(errors)):.0%} in the median"
    yield "worst: " + ", ".join(f"{name} {ratio:.2f}" for ratio, name in ratios[:WORST_SHOWN])


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    beside = path.with_name(f".{path.name}-{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)
