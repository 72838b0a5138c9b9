"""Runs the model checker over every scenario and over every deliberate fault, and prints what was searched.

A check either holds (the whole state space, no error) or must be refuted with the error it names; a fault that the
checker does not find fails the run, because a checker that cannot fail shows nothing. Needs `spin` and a C compiler.

    python verification/check.py [part of a check's name]
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
DEADLOCK = "invalid end state"
HAZARD = "assertion violated ((owed"
STATUS = "assertion violated (status=="
MEMORY_LIMIT_MIB = 4000


@dataclass(frozen=True)
class Check:
    """`refuted_by` is the error that must be found, or "" for a check that must hold in every state."""

    scenario: str
    switches: str
    refuted_by: str = ""

    @property
    def name(self) -> str:
        return f"{self.scenario} {self.switches}"


CHECKS = (
    # The two examples: the cycle is there without the gate, and gone with it, in every memory order.
    Check("e1", "ANY_ORDER", DEADLOCK),
    Check("e1", "ANY_ORDER GATE"),
    Check("e1", "ANY_ORDER GATE BREAK_GATE", DEADLOCK),
    Check("e2", "ANY_ORDER", DEADLOCK),
    Check("e2", "ANY_ORDER GATE"),
    # The continuation alone: E2 succeeds; in E1 the launch needs the allocation itself, so the run ends out of memory.
    Check("e2", "ANY_ORDER PARK"),
    Check("e1", "ANY_ORDER PARK EXPECT_OOM"),
    Check("e1", "ANY_ORDER PARK", STATUS),
    # Silent reuse.
    Check("reuse", "ANY_ORDER", HAZARD),
    Check("reuse", "ANY_ORDER GATE"),
    # The exact wait, blocking and parked, with a failure or end of sequence at every node of the first run.
    Check("wait", "GATE INJECT"),
    Check("wait", "GATE INJECT PARK"),
    Check("wait", "GATE PARK ANY_ORDER EXPECT_OOM"),
    Check("wait", "GATE BREAK_WAIT", HAZARD),
    Check("wait", "GATE BREAK_SYNC", HAZARD),
    Check("wait", "GATE BREAK_REGISTER", DEADLOCK),
    Check("wait", "GATE PARK BREAK_REGISTER", STATUS),
    Check("wait", "GATE PARK ANY_ORDER EXPECT_OOM BREAK_PASS", HAZARD),
    Check("wait", "GATE INJECT BREAK_WAKE", DEADLOCK),
    Check("wait", "GATE INJECT BREAK_STATUS", STATUS),
    Check("wait", "GATE INJECT PARK BREAK_EPOCH", STATUS),
    # A loop: the second Free needs the second submission.
    Check("loop", "GATE"),
    Check("loop", "GATE PARK INJECT"),
    # Every graph of the family.
    Check("family", "GATE"),
    Check("family", "GATE PARK"),
    Check("family", "ANY_ORDER EXPECT_OOM", DEADLOCK),
)


@dataclass(frozen=True)
class Found:
    """What one search saw: its first error ("" for none), states stored, greatest depth, whether it was complete."""

    error: str
    states: int
    depth: int
    is_complete: bool


def search(check: Check) -> Found:
    """Generates, compiles and runs the checker of one check in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        for file in FOLDER.glob("*.pml"):
            shutil.copy(file, folder)
        defines = [f'-DSCENARIO=\\"{check.scenario}.pml\\"', *(f"-D{word}" for word in check.switches.split())]
        _run(["spin", "-a", *defines, "executor.pml"], folder)
        _run(
            ["cc", "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={MEMORY_LIMIT_MIB}", "-o", "pan", "pan.c"], folder
        )
        return _parse(_run(["./pan", "-m100000"], folder))


def _run(command: list[str], folder: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def _parse(report: str) -> Found:
    error = re.search(r"^pan:1: (.*)$", report, re.MULTILINE)
    states, depth = (re.search(pattern, report) for pattern in (r"(\d+) states, stored", r"depth reached (\d+)"))
    if states is None or depth is None:
        raise SystemExit(f"the checker did not finish:\n{report}")
    is_complete = "Search not completed" not in report and "max search depth too small" not in report
    return Found(error.group(1) if error else "", int(states.group(1)), int(depth.group(1)), is_complete)


def verdict(check: Check, found: Found) -> str:
    """ "" when the check came out as it must, else what is wrong."""
    if check.refuted_by:
        return "" if check.refuted_by in found.error else f"not refuted by '{check.refuted_by}': '{found.error}'"
    if found.error:
        return f"does not hold: {found.error}"
    return "" if found.is_complete else "the search did not visit every state"


def main(part: str = "") -> int:
    if shutil.which("spin") is None:
        print("The model checker spin is missing. On Debian and Ubuntu: apt-get install spin")
        return 1
    wrong = 0
    for check in (check for check in CHECKS if part in check.name):
        found = search(check)
        problem = verdict(check, found)
        wrong += bool(problem)
        outcome = problem or ("refuted, as it must be" if check.refuted_by else "holds")
        print(f"{check.name:55} {found.states:>9} states, depth {found.depth:>4}: {outcome}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
