"""Time to the first result, in fresh processes: first compile, warm start from the cache on disk, and onnxruntime.

    python benchmarks/startup.py [--rounds 7]

"start" is import + load + first run at (1, 32); the interpreter's own start is not in it, for either library. The
compile row begins each time with an empty cache folder.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import numpy as np
from common import ENCODERS, fresh, machine, model_path, print_table, verdict

COMPILE_BOUND_S = 2.0
CODE = """
import json, sys, time
library, path = sys.argv[1:]
begin = time.perf_counter()
runtime = __import__(library)
import numpy as np
imported = time.perf_counter()
session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
loaded = time.perf_counter()
feeds = {v.name: np.ones((1, 32), np.int64) for v in session.get_inputs()}
session.run(None, feeds)
done = time.perf_counter()
print(json.dumps({"import": imported - begin, "load": loaded - imported, "run": done - loaded, "start": done - begin}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    rows: list[list[str]] = []
    for title, package in ENCODERS.items():
        rows += measure(title, model_path(package), options.rounds)
    head = ("model", "arm", "import ms", "load ms", "first run ms", "start ms", "range", "bound")
    print_table("Start: fresh processes, medians", head, rows)
    print(f"\n{machine()}\nbounds: compile at most {COMPILE_BOUND_S} s; warm start below onnxruntime's")


def measure(title: str, path: str, rounds: int) -> list[list[str]]:
    measured: dict[str, list[dict[str, float]]] = {"compile": [], "warm": [], "onnxruntime": []}
    with tempfile.TemporaryDirectory() as warm:
        fresh(CODE, "grainline", path, GRAINLINE_CACHE_DIR=warm)
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as empty:
                measured["compile"].append(fresh(CODE, "grainline", path, GRAINLINE_CACHE_DIR=empty))
            measured["warm"].append(fresh(CODE, "grainline", path, GRAINLINE_CACHE_DIR=warm))
            measured["onnxruntime"].append(fresh(CODE, "onnxruntime", path))
    peer_start = np.median([m["start"] for m in measured["onnxruntime"]])
    compile_s = float(np.median([m["load"] for m in measured["compile"]]))
    warm_start = float(np.median([m["start"] for m in measured["warm"]]))
    bounds = {
        "compile": verdict(compile_s, COMPILE_BOUND_S),
        "warm": verdict(warm_start, float(peer_start)),
        "onnxruntime": "-",
    }
    return [[title, arm, *columns(runs), bounds[arm]] for arm, runs in measured.items()]


def columns(runs: list[dict[str, Any]]) -> list[str]:
    medians = [f"{np.median([run[part] for run in runs]) * 1e3:.0f}" for part in ("import", "load", "run", "start")]
    starts = [run["start"] * 1e3 for run in runs]
    return [*medians, f"{min(starts):.0f}-{max(starts):.0f}"]


if __name__ == "__main__":
    main()
