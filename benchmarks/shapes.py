"""Changing shapes: 300 random (batch, length) through one loaded model.

    python benchmarks/shapes.py [--count 300]

Counts compilations after load, watches resident memory after the first 50 shapes, and compares the first visit of a
shape with its steady time. One late call against the same steady time shows how much a single call varies by itself.
"""

from __future__ import annotations

import argparse

from common import ENCODERS, fresh, machine, model_path, print_table, verdict

RATIO_BOUND, GROWTH_BOUND_MIB = 1.3, 8.0
CODE = """
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

seen, first, late, sizes, at_50 = set(), [], [], [], 0.0
model.run(feeds(4, 64))
while len(seen) < count:
    shape = (int(rng.integers(1, 9)), int(rng.integers(1, 257)))
    if shape in seen:
        continue
    seen.add(shape)
    fed, times = feeds(*shape), []
    for _ in range(7):
        begin = time.perf_counter()
        model.run(fed)
        times.append(time.perf_counter() - begin)
    steady = float(np.median(times[1:6]))
    first.append(times[0] / steady)
    late.append(times[6] / steady)
    if len(seen) == 50:
        at_50 = resident_mib()
grown = resident_mib() - at_50
at = lambda values, q: float(np.quantile(values, q))
print(json.dumps({"compiled": compiled, "grown": grown, "at_50": at_50,
                  "first": [at(first, 0.5), at(first, 0.95)], "late": [at(late, 0.5), at(late, 0.95)]}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300)
    options = parser.parse_args()
    rows = []
    for title, package in ENCODERS.items():
        for threads in (1, 2):
            rows.append(measure(title, model_path(package), threads, options.count))
    head = ("model", "threads", "compiled after load", "RSS at 50, MiB", "grown since, MiB", "first/steady p50, p95",
            "late/steady p50, p95", f"p95 <= {RATIO_BOUND}", f"<= {GROWTH_BOUND_MIB} MiB")  # fmt: skip
    print_table(f"{options.count} random shapes", head, rows)
    print(f"\n{machine()}")


def measure(title: str, path: str, threads: int, count: int) -> list[object]:
    seen = fresh(CODE, path, threads, count)
    shown = [f"{seen[kind][0]:.2f}, {seen[kind][1]:.2f}" for kind in ("first", "late")]
    bounds = [verdict(seen["first"][1], RATIO_BOUND), verdict(seen["grown"], GROWTH_BOUND_MIB)]
    return [title, threads, seen["compiled"], f"{seen['at_50']:.0f}", f"{seen['grown']:.1f}", *shown, *bounds]


if __name__ == "__main__":
    main()
