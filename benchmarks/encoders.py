"""Latency of both sentence encoders beside onnxruntime, and beside onnxruntime on its own optimised graph (fp32).

    python benchmarks/encoders.py [--rounds 9] [--seconds 0.3] [--only L3] [--threads 1,2] [--shapes 1x8,8x128]

A row is one cell (model, batch x length, threads). Ratios are grainline's time over the peer's, by round: median and
10th-90th percentile. `A/A` is grainline over grainline. `diff` is the largest absolute difference to onnxruntime.
One thread is timed by its processor time, which other work on the machine disturbs less; two threads by the wall clock.
`floor` is the time of the fp32 model's multiply-adds alone at the rate of loops of independent FMAs, one on each thread
at once, measured once a round; `floor/ort` is the least ratio that fp32 multiply-adds can reach, whoever makes them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from common import ENCODERS, encoder_feeds, machine, model_path, print_table, verdict
from matmul import PEAK_FLOPS, peak, peak_lanes

from grainline.tools import arms
from grainline.tools.benching import feed_all

LAYERS, WIDTH, HIDDEN = 3, 384, 1536  # of the fp32 encoder
SHAPES = ((1, 8), (1, 32), (1, 128), (8, 128))
PLAIN_BOUND, OPTIMISED_BOUND = 0.75, 0.85
CLOCKS = ("wall", "cpu")  # of several threads, of one
HEAD = ("model", "shape", "threads", "floor ms", "grainline ms", "A/A", "onnxruntime ms", "floor/ort",
        "ratio", f"<= {PLAIN_BOUND}", "optimised ms", "ratio ", f"<= {OPTIMISED_BOUND}", "diff")  # fmt: skip


def optimised_by_peer(path: str, folder: str) -> str:
    """onnxruntime's transformer optimizer applied to the model; the new file."""
    from onnxruntime.transformers import optimizer

    target = str(Path(folder) / "optimised.onnx")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        optimizer.optimize_model(path, model_type="bert", num_heads=0, hidden_size=0, opt_level=0).save_model_to_file(
            target
        )
    return target


def input_names(path: str) -> list[str]:
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    return [value.name for value in graph.input if value.name not in weights]


def largest_difference(ours: arms.Arm, peer: arms.Arm, folder: str) -> float:
    results = []
    for arm in (ours, peer):
        path = str(Path(folder) / f"{arm.name}.npz")
        arm.ask(do="save", path=path)
        with np.load(path) as archive:
            results.append([archive[name] for name in archive.files])
    return max(float(np.max(np.abs(a.astype(np.float64) - b))) for a, b in zip(*results) if a.size)


def multiply_adds(batch: int, length: int) -> float:
    """Of the fp32 model: four projections, two products of the feed-forward part and two of attention, per layer."""
    return LAYERS * batch * length * (4 * WIDTH**2 + 2 * WIDTH * HIDDEN + 2 * length * WIDTH)


def fma_loops(threads: int) -> Callable[[], float]:
    """Measures the GFLOP/s of loops of independent FMAs at once: one by its processor time, several by the wall clock.

    Processors of a virtual machine may be two threads of one core: then several loops are as fast as one.
    """
    calls, turns_a_call = [peak()[0] for _ in range(threads)], 1000 if threads > 1 else 100
    workers = ThreadPoolExecutor(threads)

    def measure() -> float:
        clock = time.perf_counter if threads > 1 else time.thread_time
        start = clock()
        if threads == 1:
            calls[0](turns_a_call)
        else:
            list(workers.map(lambda call: call(turns_a_call), calls))
        return threads * turns_a_call * PEAK_FLOPS * peak_lanes() / (clock() - start) / 1e9

    return measure


def p50_ms(arm: arms.Arm) -> str:
    return f"{np.median(arm.all_calls()) / 1e6:.2f}"


def cell(running: list[arms.Arm], names: list[str], shape: tuple[int, int], threads: int, options: Any) -> list[str]:
    """Measures one cell with arms that are loaded already and returns the rest of its row."""
    feed_all(running, encoder_feeds(names, *shape))
    with tempfile.TemporaryDirectory() as folder:
        difference = largest_difference(running[0], running[2], folder)
    for arm in running:
        arm.turns.clear()
    fma_gflops, gflops = fma_loops(threads), []
    clock = CLOCKS[threads == 1]
    arms.interleave(running, options.rounds, options.seconds, lambda *_: gflops.append(fma_gflops()), clock)
    ours, again, plain, *optimised = running
    floors_ms = 2 * multiply_adds(*shape) / np.array(gflops) / 1e6
    least = float(np.median(floors_ms / (plain.medians() / 1e6)))
    floor = [f"{np.median(floors_ms):.2f}", f"{least:.2f}"] if optimised else ["-", "-"]
    ratio = arms.ratio(ours, plain)
    row = [floor[0], p50_ms(ours), str(arms.ratio(again, ours)), p50_ms(plain), floor[1], str(ratio)]
    row.append(verdict(ratio.median, PLAIN_BOUND))
    if optimised:
        best = arms.ratio(ours, optimised[0])
        row += [p50_ms(optimised[0]), str(best), verdict(best.median, OPTIMISED_BOUND)]
    else:
        row += ["-", "-", "-"]
    return [*row, f"{difference:.1e}"]


def measure(title: str, path: str, threads: int, options: argparse.Namespace, folder: str) -> list[list[str]]:
    names = input_names(path)
    specifications = [(name, library, path, threads) for name, library in
                      (("grainline", "grainline"), ("again", "grainline"), ("onnxruntime", "onnxruntime"))]  # fmt: skip
    if "fp32" in title:
        specifications.append(("optimised", "onnxruntime", optimised_by_peer(path, folder), threads))
    rows = []
    with arms.arms(specifications) as running:
        for shape in options.shapes:
            row = cell(running, names, shape, threads, options)
            rows.append([title, f"({shape[0]},{shape[1]})", f"{threads} {CLOCKS[threads == 1]}", *row])
    return rows


def parse_shapes(text: str) -> list[tuple[int, int]]:
    return [(int(batch), int(length)) for batch, length in (pair.split("x") for pair in text.split(","))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.3, help="length of one turn")
    parser.add_argument("--only", default="", help="part of a model's name")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--shapes", type=parse_shapes, default=list(SHAPES))
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for title, package in ENCODERS.items():
            if options.only in title:
                for threads in map(int, options.threads.split(",")):
                    rows += measure(title, model_path(package), threads, options, folder)
    print_table("Encoders: latency", HEAD, rows)
    missed = sum("NO" in row for row in rows)
    print(f"\n{machine()}\n{options.rounds} rounds of {options.seconds} s")
    print(f"cells that miss a bound: {missed}")


if __name__ == "__main__":
    main()
