"""Resident memory: does it come back after a spike, does it stay flat, and what does a further session cost?

    python benchmarks/memory.py [--runs 10000] [--model fp32|int8] [--threads 2]

"spike" is one run at (8, 256) with token ids not seen before: private memory one second later, less that before the
run. Rows of the embedding table lie in the mapped model file; reading them maps pages of the system's file cache, which
every process shares and the system takes back when it likes. They are counted apart, as "file pages": what the same run
mapped of them. "drift" is what 10,000 runs with random small shapes add, at rest, beyond what the first tenth of them
did; "trimmed" is the same after `trim`. "a session more" is a seventh of what seven further sessions over the same file
take, each after a run.
"""

from __future__ import annotations

import argparse

from common import ENCODERS, fresh, machine, model_path, print_table, verdict

SPIKE_BOUND_MIB, DRIFT_BOUND_MIB, SESSION_BOUND_MIB = 16.0, 4.0, 4.0
CODE = """
import json, sys, time
import numpy as np
import grainline
path, threads, runs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = grainline.load(path, threads=threads)
rng = np.random.default_rng(0)

def feeds(batch, length):
    shape = (batch, length)
    every = {"input_ids": rng.integers(1000, 30000, shape), "attention_mask": np.ones(shape, np.int64),
             "token_type_ids": np.zeros(shape, np.int64)}
    return {v.name: every[v.name] for v in model.inputs}

def resident_mib(kind="RssAnon"):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(kind)) / 1024

def at_rest_mib():
    time.sleep(1.0)
    return resident_mib()

seen = {}
model.run(feeds(1, 64))
seen["before"], file_pages = at_rest_mib(), resident_mib("RssFile")
model.run(feeds(8, 256))
seen["during"] = resident_mib()
seen["after"], seen["file_pages"] = at_rest_mib(), resident_mib("RssFile") - file_pages

def run_random(count):
    for _ in range(count):
        model.run(feeds(int(rng.integers(1, 5)), int(rng.integers(1, 33))))

run_random(runs // 10)
seen["early"] = at_rest_mib()
run_random(runs - runs // 10)
seen["late"] = at_rest_mib()
model.trim()
seen["trimmed"] = resident_mib()
more = [grainline.load(path, threads=threads) for _ in range(7)]
for model in more:
    model.run(feeds(1, 64))
seen["session"] = (at_rest_mib() - seen["trimmed"]) / 7
print(json.dumps(seen))
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
            "file pages", f"after {options.runs // 10} runs", f"after {options.runs}", "trimmed", "drift",
            f"<= {DRIFT_BOUND_MIB:.0f} MiB", "a session more", f"<= {SESSION_BOUND_MIB:.0f} MiB")  # fmt: skip
    print_table("Resident memory, private to the process", head, rows)
    print(f"\n{machine()}")


def measure(title: str, path: str, threads: int, runs: int) -> list[object]:
    seen = fresh(CODE, path, threads, runs)
    spike, drift = seen["after"] - seen["before"], seen["late"] - seen["early"]
    spike_row = [*(f"{seen[key]:.1f}" for key in ("before", "during", "after")), f"{spike:+.1f}"]
    spike_row += [verdict(spike, SPIKE_BOUND_MIB), f"{seen['file_pages']:+.1f}"]
    drift_row = [*(f"{seen[key]:.1f}" for key in ("early", "late", "trimmed")), f"{drift:+.1f}"]
    drift_row += [verdict(drift, DRIFT_BOUND_MIB), f"{seen['session']:+.1f}"]
    return [title, *spike_row, *drift_row, verdict(seen["session"], SESSION_BOUND_MIB)]


if __name__ == "__main__":
    main()
