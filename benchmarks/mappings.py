"""Whole programs against one program per packet, and the fusion switches, at the native entry on one thread.

    python benchmarks/mappings.py [--rounds 9] [--shapes 17x65,257x1538]

Every arm computes the same operator on the same inputs and is checked against its FP64 oracle first. Arms take turns in
an order that changes every round; times are thread CPU time; a ratio is the median of the ratios within a round. The
second local arm (A/A) shows how far two equal kernels differ here and now.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence

from common import machine, print_table

from grainline.evidence.operators import ROW_OPERATORS, Operator, Shape
from grainline.evidence.realise import Bound, bind, realise
from grainline.plan.planner import plan
from grainline.plan.target import host_target
from grainline.plan.types import PlannerOptions

TURN_S = 0.004
ARMS = {
    "local": PlannerOptions(mapping="local"),
    "local again (A/A)": PlannerOptions(mapping="local"),
    "whole": PlannerOptions(mapping="whole"),
    "local, loads unfused": PlannerOptions(mapping="local", fuse_load_reduction=False),
    "local, expressions unfused": PlannerOptions(mapping="local", fuse_expression_reduction=False),
}


def bound(operator: Operator, dims: Shape, options: PlannerOptions) -> Bound:
    """A checked launch of the operator under one arm's options."""
    chosen = plan(operator.program(*dims), host_target(), options).variants[0]
    launch = bind(realise(chosen), operator, dims)
    launch.time_entry()
    launch.max_error(operator.oracle(*operator.inputs(dims).values()))
    return launch


def turn_us(launch: Bound, repeat: int) -> float:
    """CPU microseconds of one launch, over `repeat` of them."""
    begin = time.thread_time_ns()
    launch.time_entry(repeat)
    return (time.thread_time_ns() - begin) / repeat / 1e3


def measure(operator: Operator, dims: Shape, rounds: int) -> dict[str, list[float]]:
    """Microseconds per launch of every arm, round by round."""
    launches = {name: bound(operator, dims, options) for name, options in ARMS.items()}
    repeats = {name: max(int(TURN_S * 1e6 / turn_us(launch, 20)), 1) for name, launch in launches.items()}
    times: dict[str, list[float]] = {name: [] for name in ARMS}
    order, shuffle = list(ARMS), random.Random(0)
    for _ in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            times[name].append(turn_us(launches[name], repeats[name]))
    return times


def row(name: str, dims: Shape, times: dict[str, list[float]]) -> Sequence[object]:
    base = times["local"]
    ratios = [statistics.median(t / b for t, b in zip(times[arm], base)) for arm in ARMS if arm != "local"]
    return (name, "x".join(map(str, dims)), f"{statistics.median(base):.2f}", *(f"{ratio:.2f}" for ratio in ratios))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--shapes", default="17x65,257x1538")
    options = parser.parse_args()
    print(machine())
    rows = []
    for text in options.shapes.split(","):
        rows_count, n = (int(part) for part in text.split("x"))
        for operator in ROW_OPERATORS:
            dims = (rows_count, n + n % 2) if operator.name == "rope" else (rows_count, n)
            rows.append(row(operator.name, dims, measure(operator, dims, options.rounds)))
    head = ("operator", "shape", "local us", *(f"{arm} / local" for arm in ARMS if arm != "local"))
    print_table("Mappings and fusion", head, rows)


if __name__ == "__main__":
    main()
