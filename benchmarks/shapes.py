"""Changing shapes: 300 random (batch, length) through one loaded model.

    python benchmarks/shapes.py [--count 300] [--model fp32|int8] [--threads 1|2]

Counts compilations after load, compares resident memory after the first 50 shapes with that after all (both at rest:
while shapes change, a model may hold the memory of recent larger ones; the highest of either part is shown too), and
compares the first call of a visit with the steady time of that visit. Every shape is visited twice, in another order
and with other token ids. What the second visit shows too is not the price of a new shape: caches that other work has
cooled, threads that parked, the host.
"""

from __future__ import annotations

import argparse

from common import ENCODERS, fresh, machine, model_path, print_table, verdict

RATIO_BOUND, GROWTH_BOUND_MIB = 1.3, 8.0
CODE = """
RUNS = 4  # the first and three steady ones
import json, os, resource, sys, time
import numpy as np
import grainline
path, threads, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = grainline.load(path, threads=threads)

compiled = 0
import llvmlite.binding as llvm
emit = llvm.TargetMachine.emit_object
def counted(self, module):
    global compiled
    compiled += 1
    return emit(self, module)
llvm.TargetMachine.emit_object = counted

def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20

rng = np.random.default_rng(0)
def feeds(batch, length):
    mask = (rng.random((batch, length)) < 0.9).astype(np.int64)
    mask[:, 0] = 1
    every = {"input_ids": rng.integers(1000, 30000, (batch, length)), "attention_mask": mask,
             "token_type_ids": np.zeros((batch, length), np.int64)}
    return {v.name: every[v.name] for v in model.inputs}

def at_rest_mib():
    time.sleep(1.5)
    return resident_mib()

def visit(shape):  # the first call over the steady time that follows
    fed, times = feeds(*shape), []
    for _ in range(RUNS):
        begin = time.perf_counter()
        model.run(fed)
        times.append(time.perf_counter() - begin)
    return times[0] / float(np.median(times[1:]))

shapes, first, in_use = [], [], []
model.run(feeds(4, 64))
while len(shapes) < count:
    shape = (int(rng.integers(1, 9)), int(rng.integers(1, 257)))
    if shape in shapes:
        continue
    shapes.append(shape)
    first.append(visit(shape))
    in_use.append(resident_mib())
    if len(shapes) == min(50, count):
        at_50 = at_rest_mib()
grown = at_rest_mib() - at_50
again = [visit(shapes[index]) for index in rng.permutation(count)]
at = lambda values, q: float(np.quantile(values, q))
print(json.dumps({"compiled": compiled, "grown": grown, "at_50": at_50,
                  "in_use": [max(in_use[:50]), max(in_use[50:], default=0.0)],
                  "first": [at(first, 0.5), at(first, 0.95)], "again": [at(again, 0.5), at(again, 0.95)]}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--model", default="", help="only models with this in their title")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    chosen = {title: package for title, package in ENCODERS.items() if options.model in title}
    rows = [
        measure(title, model_path(package), threads, options.count)
        for title, package in chosen.items()
        for threads in options.threads
    ]
    head = ("model", "threads", "compiled after load", "RSS at 50, MiB", "grown since, MiB", "highest: to 50, after",
            "first/steady p50, p95",
            "second visit: p50, p95", f"p95 <= {RATIO_BOUND}", f"<= {GROWTH_BOUND_MIB} MiB")  # fmt: skip
    print_table(f"{options.count} random shapes", head, rows)
    print(f"\n{machine()}")


def measure(title: str, path: str, threads: int, count: int) -> list[object]:
    seen = fresh(CODE, path, threads, count)
    shown = [f"{seen[kind][0]:.2f}, {seen[kind][1]:.2f}" for kind in ("first", "again")]
    resident = [f"{seen['at_50']:.0f}", f"{seen['grown']:.1f}", "{:.0f}, {:.0f}".format(*seen["in_use"])]
    bounds = [verdict(seen["first"][1], RATIO_BOUND), verdict(seen["grown"], GROWTH_BOUND_MIB)]
    return [title, threads, seen["compiled"], *resident, *shown, *bounds]


if __name__ == "__main__":
    main()
