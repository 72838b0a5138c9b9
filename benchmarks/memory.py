"""Resident memory: does it come back after a spike, and does it stay flat?

    python benchmarks/memory.py [--runs 10000] [--model fp32|int8] [--threads 2]

"spike" is one run at (8, 256): resident memory one second later, less that before the run. Its token ids were all seen
before, at (1, 64): reading rows of the embedding table for the first time brings pages of the model file into memory,
which are weights and no spike; what a second run with new ids adds is shown as "new ids". "drift" is what 10,000 runs
with random small shapes add, at rest, beyond what the first tenth of them did; "trimmed" is the same after `trim`.
"""

from __future__ import annotations

import argparse

from common import ENCODERS, fresh, machine, model_path, print_table, verdict

SPIKE_BOUND_MIB, DRIFT_BOUND_MIB = 16.0, 4.0
CODE = """
import json, resource, sys, time
import numpy as np
import grainline
path, threads, runs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = grainline.load(path, threads=threads)
rng = np.random.default_rng(0)

KNOWN_IDS = rng.integers(1000, 30000, 64)

def feeds(batch, length, ids=KNOWN_IDS):
    shape = (batch, length)
    every = {"input_ids": np.resize(ids, shape), "attention_mask": np.ones(shape, np.int64),
             "token_type_ids": np.zeros(shape, np.int64)}
    return {v.name: every[v.name] for v in model.inputs}

def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20

def at_rest_mib():
    time.sleep(1.0)
    return resident_mib()

model.run(feeds(1, 64))
before = at_rest_mib()
model.run(feeds(8, 256))
during = resident_mib()
after = at_rest_mib()
model.run(feeds(8, 256, rng.integers(1000, 30000, 2048)))
new_ids = at_rest_mib()

def run_random(count):
    for _ in range(count):
        model.run(feeds(int(rng.integers(1, 5)), int(rng.integers(1, 33))))

run_random(runs // 10)
early = at_rest_mib()
run_random(runs - runs // 10)
late = at_rest_mib()
model.trim()
print(json.dumps({"before": before, "during": during, "after": after, "new_ids": new_ids, "early": early, "late": late,
                  "trimmed": resident_mib()}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--model", default="", help="only models with this in their title")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    rows = [
        measure(title, model_path(package), options.threads, options.runs)
        for title, package in ENCODERS.items()
        if options.model in title
    ]
    head = ("model", "before, MiB", "right after (8, 256)", "1 s later", "spike", f"<= {SPIKE_BOUND_MIB:.0f} MiB",
            "new ids", f"after {options.runs // 10} runs", f"after {options.runs}", "trimmed", "drift",
            f"<= {DRIFT_BOUND_MIB:.0f} MiB")  # fmt: skip
    print_table("Resident memory", head, rows)
    print(f"\n{machine()}")


def measure(title: str, path: str, threads: int, runs: int) -> list[object]:
    seen = fresh(CODE, path, threads, runs)
    spike, drift = seen["after"] - seen["before"], seen["late"] - seen["early"]
    spike_row = [*(f"{seen[key]:.0f}" for key in ("before", "during", "after")), f"{spike:+.1f}"]
    new_ids = f"{seen['new_ids'] - seen['after']:+.1f}"
    drift_row = [*(f"{seen[key]:.1f}" for key in ("early", "late", "trimmed")), f"{drift:+.1f}"]
    return [title, *spike_row, verdict(spike, SPIKE_BOUND_MIB), new_ids, *drift_row, verdict(drift, DRIFT_BOUND_MIB)]


if __name__ == "__main__":
    main()
