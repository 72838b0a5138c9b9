"""What planning one kernel takes: the six row operators with the whole search, static and symbolic, and under a policy.

    python benchmarks/planning.py [--rounds 15]

Every plan is of a program that was not planned before. Times are CPU milliseconds of the thread, medians over rounds;
arms take turns in every round. The second static arm (A/A) shows how far two equal things differ here and now.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from common import machine, print_table

from grainline.base.dims import symbol
from grainline.evidence.operators import ROW_OPERATORS, Operator
from grainline.plan.planner import plan
from grainline.plan.policy import AnalyticExecutionCostPolicy
from grainline.plan.target import host_target
from grainline.plan.types import DEFAULT_OPTIONS, PlannerOptions
from grainline.tile.ir import TileProgram

POLICY = PlannerOptions(cost_policy=AnalyticExecutionCostPolicy())
ARMS: dict[str, tuple[tuple[object, object], PlannerOptions]] = {
    "static": ((129, 768), DEFAULT_OPTIONS),
    "static again (A/A)": ((129, 768), DEFAULT_OPTIONS),
    "one symbol": ((symbol("M"), 768), DEFAULT_OPTIONS),
    "static, a policy": ((129, 768), POLICY),
    "one symbol, a policy": ((symbol("M"), 768), POLICY),
}


def planning_ms(program: TileProgram, options: PlannerOptions) -> tuple[float, int]:
    """CPU milliseconds of one plan, and how many candidates were scored for it."""
    begin = time.thread_time_ns()
    found = plan(program, host_target(), options)
    return (time.thread_time_ns() - begin) / 1e6, len(found.candidates)


def measured(operator: Operator, rounds: int) -> list[object]:
    build: Callable[..., TileProgram] = operator.program
    times: dict[str, list[float]] = {name: [] for name in ARMS}
    candidates = 0
    for turn in range(rounds):
        names = list(ARMS)[turn % len(ARMS) :] + list(ARMS)[: turn % len(ARMS)]
        for name in names:
            dims, options = ARMS[name]
            spent, count = planning_ms(build(*dims), options)
            times[name].append(spent)
            candidates = count if name == "static" else candidates
    return [operator.name, candidates, *(f"{statistics.median(times[name]):.2f}" for name in ARMS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print(machine())
    plan(ROW_OPERATORS[0].program(3, 70), host_target(), DEFAULT_OPTIONS)  # what the first plan imports
    rows = [measured(operator, rounds) for operator in ROW_OPERATORS]
    print_table("CPU milliseconds of one plan", ("operator", "candidates", *ARMS), rows)


if __name__ == "__main__":
    main()
