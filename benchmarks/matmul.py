"""Matrix products on one thread: ours against NumPy (OpenBLAS), torch (MKL) and onnxruntime.

    python benchmarks/matmul.py [--rounds 9] [--shapes 128x384x1536,... | --grid] [--cold]

Every library lives in a process of its own and is asked in turn (see `turns.py`); times are thread CPU time. `ratio` is
ours by the fastest of the others; "A/A" is a second process of ours, with the 10th and 90th percentile over the rounds.
The peak is a loop of independent FMAs. B is constant, so onnxruntime may pack it at load, as we do. "int8" is ours with
int8 weights and a scale per column, where the machine has byte products. --grid adds {1, 7, 31, 100, 1000} x {64, 768,
3072} x {64, 768, 3072}. torch is in the extra `peers`; without it that arm is left out.

Warm, every call reads the same B. With --cold the calls of a process go round over COLD_BYTES of distinct matrices, so
that each finds its B in memory, as the products of a model do.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import math
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from common import machine, print_table, verdict
from turns import Answers, Call, aligned, microseconds, ratio, repeated, serve, spread, turns

SHAPES = ("128x384x1536", "129x768x768", "512x512x512", "1024x1024x1024", "17x384x1536")
SHAPES += tuple(f"{rows}x384x1536" for rows in (8, 6, 4, 3, 2, 1))
GRID = tuple("x".join(map(str, s)) for s in itertools.product((1, 7, 31, 100, 1000), (64, 768, 3072), (64, 768, 3072)))
PEERS = ("numpy", "onnxruntime", "torch")
ARMS = ("ours", "ours_again", "ours_int8", "peak", *PEERS)
COLD_BYTES = 80 << 20
MEAN_BOUND, CELL_BOUND, PEAK_SHARE, COMPILE_BOUND_MS = 0.85, 1.05, 0.85, 60
NEAR_PEAK = ("128x384x1536", "1024x1024x1024")
PEAK_TURNS, PEAK_CHAINS, PEAK_UNROLL = 1000, 12, 4
# Per lane of a vector.
PEAK_FLOPS = 2 * PEAK_TURNS * PEAK_CHAINS * PEAK_UNROLL


def in_turn(calls: Iterable[Callable[[], Any]]) -> Call:
    """A call that makes the next one of `calls` every time."""
    turn = itertools.cycle(list(calls))
    return repeated(lambda: next(turn)())


def operands(m: int, k: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    return aligned(a), aligned(b)


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


def ours(m: int, k: int, n: int, copies: int, in_bytes: bool = False) -> tuple[Call, Any]:
    from grainline.plan.panels import pack_panels, pack_quads
    from native import NativeKernel

    left, right = operands(m, k, n)
    scale = np.ones(n, np.float32)
    if in_bytes:
        scale = (np.abs(right).max(0) / 127).astype(np.float32)
        quads = np.round(right / scale).astype(np.int8)
        right = quads * scale
    result = aligned(np.empty((m, n), np.float32))
    packed = [aligned(pack_quads(quads) if in_bytes else pack_panels(right)) for _ in range(copies)]
    kernels = [NativeKernel(program(k, n, in_bytes), [left, b, result, scale], {"M": m}) for b in packed]
    kernels[0].launch()
    assert np.allclose(result, left @ right, 1e-3, 1e-3)
    call = kernels[0].launch if copies == 1 else in_turn(kernel.launch for kernel in kernels)
    return call, {"compile_ms": kernels[0].compile_ms}


def ours_int8(m: int, k: int, n: int, copies: int) -> tuple[Call, Any] | None:
    from grainline.plan.target import host_target

    return ours(m, k, n, copies, True) if host_target().has_byte_products else None


def numpy_product(m: int, k: int, n: int, copies: int) -> tuple[Call, Any]:
    a, b = operands(m, k, n)
    c, turn = aligned(np.empty((m, n), np.float32)), itertools.cycle([aligned(b) for _ in range(copies)])
    return repeated(lambda: np.matmul(a, next(turn), out=c)), {}


def torch_product(m: int, k: int, n: int, copies: int) -> tuple[Call, Any]:
    import torch

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    a, b = map(torch.from_numpy, operands(m, k, n))
    c, turn = torch.empty((m, n)), itertools.cycle([b.clone() for _ in range(copies)])
    return repeated(lambda: torch.mm(a, next(turn), out=c)), {}


def onnxruntime_product(m: int, k: int, n: int, copies: int) -> tuple[Call, Any]:
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

    return in_turn(bound() for _ in range(copies)), {}


def peak_lanes() -> int:
    """Floats of the widest vector."""
    from grainline.plan.target import host_target

    return host_target().vector_bytes // 4


def peak(*_shape: int) -> tuple[Call, Any]:
    """PEAK_FLOPS a lane in twelve independent chains of FMAs of the widest vectors."""
    import ctypes

    from grainline.base.dtypes import F32, I64
    from grainline.codegen.emit import ModuleText, Reg, constant
    from grainline.codegen.llvm import compile_object, link_object
    from grainline.plan.target import host_target

    module = ModuleText()
    f = module.function("peak", "i32", [("i64", "end"), ("ptr", "sink")], "nounwind")
    lanes = peak_lanes()
    half, one = constant(0.5, F32, lanes), constant(1.0, F32, lanes)

    def step(_index: Reg, totals: list[Reg]) -> list[Reg]:
        for _ in range(PEAK_UNROLL):
            totals = [f.fma(total, half, one) for total in totals]
        return totals

    start = [constant(float(i), F32, lanes) for i in range(PEAK_CHAINS)]
    totals = f.loop(Reg("0", I64), Reg("%end", I64), 1, start, step)
    for i, total in enumerate(totals):
        f.do(f"store {total.typed}, ptr {f.pointer('%sink', Reg(str(lanes * i), I64), 4)}, align 4")
    f.do("ret i32 0")
    code = link_object(compile_object(module.text, host_target()), ("peak",))
    entry = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p)(code.address("peak"))
    sink = np.empty(lanes * PEAK_CHAINS, np.float32)
    return lambda times, _code=code: entry(PEAK_TURNS * times, sink.ctypes.data), {}


MAKERS = {"ours": ours, "ours_again": ours, "ours_int8": ours_int8, "numpy": numpy_product, "torch": torch_product,
          "onnxruntime": onnxruntime_product, "peak": peak}  # fmt: skip


def arm(name: str, cold: bool) -> Callable[[str], tuple[Call, Any] | None]:
    def make(shape: str) -> tuple[Call, Any] | None:
        m, k, n = map(int, shape.split("x"))
        return MAKERS[name](m, k, n, -(-COLD_BYTES // (4 * k * n)) if cold else 1)

    return make


def row(shape: str, answers: Answers, facts: dict[str, Any]) -> tuple[list[object], float]:
    """(a line of the table, ours by the fastest peer)."""
    m, k, n = map(int, shape.split("x"))
    us = {name: microseconds(answers, name) for name in answers}
    rate = 2 * m * k * n / us["ours"] / 1e3
    share = rate / (PEAK_FLOPS * peak_lanes() / us["peak"] / 1e3)
    best = min((name for name in PEERS if name in answers), key=lambda name: us[name])
    value, (low, high) = ratio(answers, "ours", best), spread(answers, "ours_again", "ours")
    others = [f"{us[name]:.1f}" if name in us else "" for name in (*PEERS, "ours_int8")]
    near = verdict(PEAK_SHARE, share) if shape in NEAR_PEAK else ""
    compiled = facts["ours"]["compile_ms"]
    line = [shape, f"{us['ours']:.1f}", *others, f"{low:.2f}-{high:.2f}", best, f"{value:.2f}",
            verdict(value, CELL_BOUND), f"{rate:.0f}", f"{100 * share:.0f} {near}",
            f"{compiled:.0f} {verdict(compiled, COMPILE_BOUND_MS)}"]  # fmt: skip
    return line, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--shapes", default="")
    parser.add_argument("--grid", action="store_true", help="the grid of small and large extents as well")
    parser.add_argument("--cold", action="store_true", help="every call finds its B out of cache")
    parser.add_argument("--serve", choices=ARMS, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(arm(options.serve, options.cold), options.threads)
        return
    shapes = options.shapes.split(",") if options.shapes else [*SHAPES, *(GRID if options.grid else ())]
    has_torch = importlib.util.find_spec("torch") is not None
    head = ["MxKxN", "ours us", *(f"{name} us" for name in PEERS), "int8 us", "A/A", "fastest peer", "ratio",
            f"<= {CELL_BOUND}", "GFLOP/s", "% of peak", "compile ms"]  # fmt: skip
    lines, ratios = [], []
    arms = [name for name in ARMS if has_torch or name != "torch"]
    with turns(__file__, arms, arguments=("--cold",) if options.cold else ()) as running:
        for shape in shapes:
            line, value = row(shape, *running.race(shape, options.rounds))
            lines.append(line)
            ratios.append(value)
            print(*line, file=sys.stderr, flush=True)
    print_table("Matrix products, one thread" + (", cold" if options.cold else ""), head, lines)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"\ngeometric mean of the ratios {mean:.3f}, bound {MEAN_BOUND}: {verdict(mean, MEAN_BOUND)}\n{machine()}")


if __name__ == "__main__":
    main()
