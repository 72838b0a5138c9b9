"""Processor time of a process that does nothing, or little, after runs on all allowed threads.

    python benchmarks/idle.py

"idle" is the processor time used in the 3 s after the last run. "paced" is the processor time beyond the work itself
when the model is called six times a second: spinning between calls shows here.
"""

from __future__ import annotations

from common import ENCODERS, fresh, machine, model_path, print_table, verdict

IDLE_BOUND_MS = 1.0
CODE = """
import json, sys, time
library, path = sys.argv[1:]
runtime = __import__(library)
import numpy as np
session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
feeds = {v.name: np.ones((1, 32), np.int64) for v in session.get_inputs()}
for _ in range(20):
    session.run(None, feeds)
begin = time.process_time()
for _ in range(18):
    session.run(None, feeds)
work = time.process_time() - begin
time.sleep(1)
begin = time.process_time()
for _ in range(18):
    session.run(None, feeds)
    time.sleep(1 / 6)
paced = time.process_time() - begin
session.run(None, feeds)
time.sleep(0.002)
begin = time.process_time()
time.sleep(3)
idle = time.process_time() - begin
print(json.dumps({"work": work * 1e3, "paced": paced * 1e3, "idle": idle * 1e3}))
"""


def main() -> None:
    rows = []
    for title, package in ENCODERS.items():
        for library in ("grainline", "onnxruntime"):
            used = fresh(CODE, library, model_path(package))
            bound = verdict(used["idle"], IDLE_BOUND_MS) if library == "grainline" else "-"
            rows.append([title, library, f"{used['work']:.0f}", f"{used['paced']:.0f}", f"{used['idle']:.2f}", bound])
    head = (
        "model",
        "library",
        "18 calls, CPU ms",
        "18 calls in 3 s, CPU ms",
        "idle 3 s, CPU ms",
        f"<= {IDLE_BOUND_MS}",
    )
    print_table("Idle: processor time", head, rows)
    print(f"\n{machine()}")


if __name__ == "__main__":
    main()
