"""The cost of a call: one Add on one element, through `InferenceSession.run`, beside onnxruntime.

    python benchmarks/overhead.py [--rounds 15] [--seconds 0.2]

The loop and the clock are inside the figure, for every arm the same (about 0.1 us).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnx
from common import machine, print_table, verdict
from onnx import TensorProto, helper

from grainline.tools import arms
from grainline.tools.benching import feed_all

BOUND_US, BOUND_RATIO = 4.0, 0.5


def chain_of_adds(length: int) -> onnx.ModelProto:
    values = ["x", *(f"h{i}" for i in range(length - 1)), "y"]
    nodes = [helper.make_node("Add", [a, "x"], [b]) for a, b in zip(values, values[1:])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "adds", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.2)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for length in (1, 20):
            path = str(Path(folder) / f"adds{length}.onnx")
            onnx.save(chain_of_adds(length), path)
            rows.append(measure(path, length, options))
    head = ("graph", "grainline us", "A/A", "onnxruntime us", "ratio", f"<= {BOUND_US} us", f"<= {BOUND_RATIO}")
    print_table("Call overhead: Adds on one element", head, rows)
    print(f"\n{machine()}")


def measure(path: str, length: int, options: argparse.Namespace) -> list[str]:
    libraries = (("grainline", "grainline"), ("again", "grainline"), ("onnxruntime", "onnxruntime"))
    with arms.arms([(name, library, path, 1) for name, library in libraries]) as running:
        feed_all(running, {"x": np.ones(1, np.float32)})
        arms.interleave(running, options.rounds, options.seconds)
        ours, again, peer = running
        p50_us = [float(np.median(arm.all_calls())) / 1e3 for arm in running]
        ratio = arms.ratio(ours, peer)
        bounds = [verdict(p50_us[0], BOUND_US), verdict(ratio.median, BOUND_RATIO)] if length == 1 else ["-", "-"]
        shown = [f"{p50_us[0]:.2f}", str(arms.ratio(again, ours)), f"{p50_us[2]:.2f}", str(ratio)]
        return [f"{length} Add", *shown, *bounds]


if __name__ == "__main__":
    main()
