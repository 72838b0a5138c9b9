"""One visit: a process that compiles one case under one variant, checks it, times it, checks it again, and prints JSON.

`python -m grainline.evidence.visit` reads a request from stdin and prints the measurement as one line. Protocol: the
whole output is compared with the FP64 oracle before and after timing, guards included; 75 ms of warm-up; then 7 samples
of a batch of about 20 ms hot and parked, of 5 ms at the native entry, and 7 single parked dispatches. No Python runs
inside a sample. An output that is wrong is never timed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from grainline.base.errors import GrainlineError
from grainline.evidence import operators
from grainline.evidence.choice import Choice, choose
from grainline.evidence.realise import GUARD, STARTS, Bound, Realisation, effective_grain, realise
from grainline.evidence.records import sha256, write_atomically
from grainline.evidence.suites import Settings

WARM_UP_NS = 75_000_000
WARM_UP_BATCH = 8
SAMPLES = 7
SAMPLE_NS = 20_000_000
NATIVE_SAMPLE_NS = 5_000_000  # one thread and no pool: less to average over
ENOUGH = 0.8
MOST_ATTEMPTS = 8
MOST_REPETITIONS = 100_000
Timer = Callable[[int], int]


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """The measurement of {operator, dims, settings, homes, keep}; `keep` names a folder for code and tensors, or ""."""
    operator, dims = operators.find(request["operator"]), tuple(request["dims"])
    settings, homes = Settings(**request["settings"]), int(request["homes"])
    clock = _Phases()
    inputs = operator.inputs(dims)
    reference = operator.oracle(*inputs.values())
    clock.lap("fixture")
    choice = choose(operator.program(*dims), settings, homes)
    realisation = realise(choice.plan)
    clock.lap("compile")
    bound = Bound(realisation, inputs, operator.output_shape(dims))
    bound.time(1, choice.blocks_per_task, homes, "parked")
    clock.lap("cold_call")
    error = bound.max_error(reference)
    bound.reset()  # what the second check sees was written while the clock ran
    timers = _timers(bound, choice.blocks_per_task, homes)
    _warm_up(timers["hot"])
    clock.lap("warm_up")
    lengths = {"native": NATIVE_SAMPLE_NS}
    repetitions = {name: repetitions_for(timer, lengths.get(name, SAMPLE_NS)) for name, timer in timers.items()}
    elapsed = {name: [timer(repetitions[name]) for _ in range(SAMPLES)] for name, timer in timers.items()}
    latency = [timers["parked"](1) for _ in range(SAMPLES)]
    error = max(error, bound.max_error(reference))
    if request.get("keep"):
        _keep(Path(request["keep"]), bound)
    return {
        **_facts(realisation, choice, homes),
        **_tensors(inputs, bound.output),
        "phases_ms": clock.laps,
        "repetitions": repetitions,
        "elapsed_ns": elapsed,
        "latency_ns": latency,
        "median_us": {name: median_us(elapsed[name], repetitions[name]) for name in timers},
        "correctness": _correctness(int(reference.size), error),
    }


def _tensors(inputs: dict[str, np.ndarray], output: np.ndarray) -> dict[str, Any]:
    """Hashes and shapes of what went in and of what came out."""
    return {
        "inputs": {name: sha256(array.data) for name, array in inputs.items()},
        "input_shapes": {name: list(array.shape) for name, array in inputs.items()},
        "output": sha256(np.ascontiguousarray(output).data),
        "output_shape": list(output.shape),
    }


def _correctness(elements: int, max_abs_error: float) -> dict[str, Any]:
    """What was checked before and behind the timing; a check that does not pass raises and leaves no measurement."""
    return {
        "checks": 2,
        "passed": True,
        "elements_per_check": elements,
        "guard_elements_per_check": 2 * GUARD,
        "atol": operators.ATOL,
        "rtol": operators.RTOL,
        "max_abs_error": max_abs_error,
    }


def _facts(realisation: Realisation, choice: Choice, homes: int) -> dict[str, Any]:
    """What was realised: the parts of a measurement in which there is no time."""
    facts = realisation.emitted.facts
    return {
        "precision": "f32",
        "fast_math": False,
        "relaxed_precision": False,
        "reduction_policy": "unordered_tree",
        "homes": homes,
        "choice": choice.description(),
        "blocks": realisation.blocks,
        "effective_grain": effective_grain(realisation.blocks, choice.blocks_per_task, homes),
        "scratch_bytes": realisation.scratch_bytes,
        "facts": {
            "mapping": facts.mapping,
            "packet_width": facts.packet_width,
            "packets_in_flight": facts.packets_in_flight,
            "direct_control_flow": facts.direct_control_flow,
            "full_packet_body": facts.full_packet_body,
            "accesses": dict(facts.accesses),
            "math_calls": dict(facts.math_calls),
        },
        "llvm_sha256": realisation.llvm_sha256,
        "object_sha256": realisation.object_sha256,
        "object_bytes": len(realisation.object_bytes),
    }


def _timers(bound: Bound, grain: int, homes: int) -> dict[str, Timer]:
    """native: the bare function. hot and parked: end to end through the pool."""
    timers: dict[str, Timer] = {"native": bound.time_entry}
    for start in STARTS:
        timers[start] = lambda n, start=start: bound.time(n, grain, homes, start)  # type: ignore[misc]
    return timers


def median_us(elapsed_ns: list[int], repetitions: int) -> float:
    """The middle sample, in microseconds for each repetition; there is an odd number of samples."""
    return sorted(elapsed_ns)[len(elapsed_ns) // 2] / repetitions / 1e3


def _warm_up(timer: Timer) -> None:
    spent = 0
    while spent < WARM_UP_NS:
        spent += timer(WARM_UP_BATCH)


def repetitions_for(timer: Timer, length_ns: int) -> int:
    """Repetitions that make a batch of about `length_ns`, pauses included, found in at most MOST_ATTEMPTS batches."""
    count = 1
    for _ in range(MOST_ATTEMPTS):
        begin = time.perf_counter_ns()
        timer(count)
        elapsed = time.perf_counter_ns() - begin
        if elapsed >= ENOUGH * length_ns or count == MOST_REPETITIONS:
            break
        wanted = int(count * length_ns / max(elapsed, 1))
        count = min(max(wanted, count + 1), MOST_REPETITIONS)
    return count


def _keep(folder: Path, bound: Bound) -> None:
    """Code and tensors under the names of their hashes, so that equal ones are kept once."""
    realisation = bound.realisation
    contents = {
        f"{realisation.llvm_sha256}.ll": realisation.emitted.text.encode(),
        f"{realisation.object_sha256}.o": realisation.object_bytes,
    }
    arrays = [*bound.inputs.values(), np.ascontiguousarray(bound.output)]
    contents |= {f"{sha256(array.data)}.f32": array.tobytes() for array in arrays}
    for name, data in contents.items():
        if not (folder / name).exists():
            write_atomically(folder / name, data)


class _Phases:
    """Milliseconds of the phases before timing."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._since = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = (now - self._since) * 1e3
        self._since = now


def main(answer: Callable[[dict[str, Any]], dict[str, Any]] = measure) -> int:
    """Exit code 0 with the measurement on stdout, or 1 with the reason on stderr."""
    try:
        print(json.dumps(answer(json.load(sys.stdin)), allow_nan=False))
    except GrainlineError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
