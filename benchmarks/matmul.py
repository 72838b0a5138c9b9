"""Matrix products on one thread: ours against NumPy and onnxruntime.

    python benchmarks/matmul.py [--rounds 15] [--shapes 128x384x1536,...] [--cold]

Every library lives in a process of its own and is asked in turn, round by round, so that no library's threads disturb
another and drift hits all alike. Time is thread CPU time; the table holds medians over the rounds. "A/A" is a second
process of ours against the first: what differs there is noise. The peak is a loop of independent FMAs in our process,
measured next to every product. B is constant, so onnxruntime may pack it at load, as we do. "int8" is ours with int8
weights and a scale per column, where the machine has byte products.

Warm, every call reads the same B. With --cold the calls of a process go round over COLD_BYTES of distinct matrices, so
that each finds its B in memory, as the products of a model do.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

SHAPES = ("128x384x1536", "129x768x768", "512x512x512", "1024x1024x1024", "17x384x1536")
SHAPES += tuple(f"{rows}x384x1536" for rows in (8, 6, 4, 3, 2, 1))
ARMS = ("ours", "ours_again", "ours_int8", "numpy", "onnxruntime")
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
SLICE_SECONDS = 0.02
COLD_BYTES = 80 << 20


def timed(call: Callable[[], Any], flops: int) -> float:
    """Thread CPU seconds of one call, over a slice of about SLICE_SECONDS."""
    repeats = max(1, int(SLICE_SECONDS * 60e9 / flops))
    start = time.thread_time()
    for _ in range(repeats):
        call()
    return (time.thread_time() - start) / repeats


def in_turn(calls: Iterable[Callable[[], Any]]) -> Callable[[], Any]:
    """A call that makes the next one of `calls` every time."""
    turns = itertools.cycle(list(calls))
    return lambda: next(turns)()


def operands(m: int, k: int, n: int) -> tuple[Any, Any]:
    import numpy as np

    rng = np.random.default_rng(0)
    return rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)


def program(k: int, n: int, in_bytes: bool) -> Any:
    """c = a @ b, or c = a @ (b * scale) with b of int8, for any number of rows."""
    from grainline.base.dims import symbol
    from grainline.base.dtypes import F32, I8
    from grainline.tile.build import ProgramBuilder

    p, rows = ProgramBuilder("matmul"), symbol("M")
    r, column, inner = p.root("m", rows), p.axis("n", n), p.axis("k", k)
    a, layout = p.view("a", F32, (rows, k)), "quads" if in_bytes else "panels"
    b = p.view("b", I8 if in_bytes else F32, (k, n), layout=layout, panel=16)
    c, scale = p.view("c", F32, (rows, n), access="write"), p.view("scale", F32, (n,))
    y = p.mma(p.load(a, (r, inner)), p.cast(p.load(b, (inner, column)), F32), inner)
    p.store(c, (r, column), y * p.load(scale, (column,)) if in_bytes else y)
    return p.finish()


def ours(m: int, k: int, n: int, copies: int, in_bytes: bool = False) -> Callable[[], Any]:
    import numpy as np

    from grainline.base.dims import evaluate
    from grainline.codegen.kernel import emit
    from grainline.plan.panels import pack_panels, pack_quads
    from grainline.plan.planner import plan
    from grainline.plan.target import host_target

    chosen = plan(program(k, n, in_bytes), host_target()).variants[0]
    kernel = emit(chosen)
    call, keep = linked(kernel.text, kernel.symbol)
    left, right = operands(m, k, n)
    scale = np.ones(n, np.float32)
    if in_bytes:
        scale = (np.abs(right).max(0) / 127).astype(np.float32)
        quads = np.round(right / scale).astype(np.int8)
        right = quads * scale
    panels = [pack_quads(quads) if in_bytes else pack_panels(right) for _ in range(copies)]
    result, env = np.empty((m, n), np.float32), {"M": m}
    words = [evaluate(word, env) for word in kernel.words]
    places_of = [[x.ctypes.data for x in (left, b, result, scale)] for b in panels]
    args = np.array([[*views, *words] for views in places_of], np.int64)
    scratch = np.empty(evaluate(chosen.scratch_bytes, env) + 64, np.uint8)
    aligned = scratch.ctypes.data + -scratch.ctypes.data % 64
    blocks, places = evaluate(chosen.blocks, env), [block.ctypes.data for block in args]
    call(places[0], 0, blocks, aligned)
    assert np.allclose(result, left @ right, 1e-3, 1e-3)
    alive = (keep, left, panels, result, scale, args, scratch)
    turns = itertools.cycle(places)
    return lambda: (call(next(turns), 0, blocks, aligned), alive)


def linked(text: str, symbol: str) -> tuple[Any, Any]:
    import ctypes

    from grainline.codegen.llvm import compile_object, link_object
    from grainline.plan.target import host_target

    code = link_object(compile_object(text, host_target()), (symbol,))
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    return kind(code.address(symbol)), code


def numpy_product(m: int, k: int, n: int, copies: int) -> Callable[[], Any]:
    import numpy as np

    a, b = operands(m, k, n)
    c, turns = np.empty((m, n), np.float32), itertools.cycle([b.copy() for _ in range(copies)])
    return lambda: np.matmul(a, next(turns), out=c)


def onnxruntime_product(m: int, k: int, n: int, copies: int) -> Callable[[], Any]:
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    a, b = operands(m, k, n)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["c"])],
        "matmul",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, ["m", k])],
        [helper.make_tensor_value_info("c", TensorProto.FLOAT, ["m", n])],
        [numpy_helper.from_array(b, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    data, left = model.SerializeToString(), ort.OrtValue.ortvalue_from_numpy(a)
    result = ort.OrtValue.ortvalue_from_shape_and_type([m, n], a.dtype)

    def bound() -> Callable[[], Any]:
        """One session: it holds a packed copy of B."""
        session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        binding.bind_ortvalue_input("a", left)
        binding.bind_ortvalue_output("c", result)
        return lambda: session.run_with_iobinding(binding)

    return in_turn(bound() for _ in range(copies))


def peak_loop() -> Callable[[], float]:
    """GFLOP/s of twelve independent chains of 8-lane FMAs."""
    import numpy as np

    from grainline.base.dtypes import F32, I64
    from grainline.codegen.emit import ModuleText, Reg, constant

    module, chains, unroll, turns = ModuleText(), 12, 4, 100_000
    parameters = [("ptr", "args"), ("i64", "begin"), ("i64", "end"), ("ptr", "scratch")]
    f = module.function("peak", "i32", parameters, "nounwind")
    half, one = constant(0.5, F32, 8), constant(1.0, F32, 8)

    def step(_index: Reg, totals: list[Reg]) -> list[Reg]:
        for _ in range(unroll):
            totals = [f.fma(total, half, one) for total in totals]
        return totals

    totals = f.loop(Reg("0", I64), Reg("%end", I64), 1, [constant(float(i), F32, 8) for i in range(chains)], step)
    for i, total in enumerate(totals):
        f.do(f"store {total.typed}, ptr {f.pointer('%scratch', Reg(str(8 * i), I64), 4)}, align 4")
    f.do("ret i32 0")
    call, keep = linked(module.text, "peak")
    sink = np.empty(8 * chains, np.float32)

    def measure(keep: Any = keep) -> float:
        start = time.thread_time()
        call(None, 0, turns, sink.ctypes.data)
        return turns * unroll * chains * 16 / (time.thread_time() - start) / 1e9

    return measure


def ours_int8(m: int, k: int, n: int, copies: int) -> Callable[[], Any]:
    from grainline.plan.target import host_target

    return ours(m, k, n, copies, host_target().has_byte_products)


MAKERS = {
    "ours": ours,
    "ours_again": ours,
    "ours_int8": ours_int8,
    "numpy": numpy_product,
    "onnxruntime": onnxruntime_product,
}


def serve(arm: str, cold: bool) -> None:
    """Answers each line "MxKxN" on stdin with a JSON line {seconds, peak}."""
    peak = peak_loop() if arm == "ours" else None
    calls: dict[str, Callable[[], Any]] = {}
    for line in sys.stdin:
        m, k, n = map(int, line.split("x"))
        if line not in calls:
            copies = -(-COLD_BYTES // (4 * k * n)) if cold else 1
            calls = {line: MAKERS[arm](m, k, n, copies)}
            calls[line]()
        seconds = timed(calls[line], 2 * m * k * n)
        print(json.dumps({"seconds": seconds, "peak": peak() if peak else None}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--cold", action="store_true", help="every call finds its B out of cache")
    parser.add_argument("--serve", choices=ARMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.cold)
        return
    environment = {**os.environ, **ONE_THREAD}
    workers = {
        arm: subprocess.Popen(
            [sys.executable, __file__, "--serve", arm, *(["--cold"] if options.cold else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for arm in ARMS
    }
    print(f"{'MxKxN':>16} {'ours us':>9} {'GF/s':>6} {'% peak':>6} {'A/A':>5} {'int8':>6} {'numpy':>6} {'ort':>6}")
    for shape in options.shapes.split(","):
        print(row(shape, race(workers, shape, options.rounds)), flush=True)
    for worker in workers.values():
        worker.stdin.close()  # type: ignore[union-attr]
        worker.wait()


def race(workers: dict[str, Any], shape: str, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Asks every process once per round; the first round warms up and is dropped."""
    answers: dict[str, list[dict[str, float]]] = {arm: [] for arm in workers}
    for number in range(rounds + 1):
        for arm, worker in workers.items():
            worker.stdin.write(shape + "\n")
            worker.stdin.flush()
            answer = json.loads(worker.stdout.readline())
            if number:
                answers[arm].append(answer)
    return answers


def row(shape: str, answers: dict[str, list[dict[str, float]]]) -> str:
    m, k, n = map(int, shape.split("x"))
    seconds = {arm: statistics.median(a["seconds"] for a in got) for arm, got in answers.items()}
    rate = 2 * m * k * n / seconds["ours"] / 1e9
    peak = statistics.median(a["peak"] for a in answers["ours"])
    ratios = [seconds[arm] / seconds["ours"] for arm in ARMS[1:]]
    shown = " ".join(f"{ratio:{width}.2f}" for ratio, width in zip(ratios, (5, 6, 6, 6)))
    return f"{shape:>16} {seconds['ours'] * 1e6:9.1f} {rate:6.1f} {100 * rate / peak:6.1f} {shown}"


if __name__ == "__main__":
    main()
