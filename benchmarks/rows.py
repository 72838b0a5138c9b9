"""Row kernels on one thread: ours at the native entry, against onnxruntime (io-binding) and torch.

    python benchmarks/rows.py [--rounds 15] [--kernels softmax,...] [--shapes 17x65,...]

Ours is launched from native code in a loop; the peers are called from Python with their outputs bound or given, so
their times hold their call overhead: it decides the small shapes and is part of what a caller pays for one operator.
`ratio` is ours by the faster peer; `floor` is the fastest of three copies of the same array (a compiled copy kernel,
memcpy, torch's copy_) by that peer: what reads and writes as much can hardly have a smaller ratio. `of it` says how
much of that copy's speed ours reaches; for the norms it has a bound at DRAM size. "A/A" is a second process of ours.
All arrays begin at a cache line. torch is in the extra `peers`; without it that arm is left out. Compile times are CPU
times of a warm LLVM.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from common import machine, print_table, verdict
from turns import Call, Turns, aligned, microseconds, ratio, repeated, serve, turns

KERNELS = ("rms_norm", "layer_norm", "softmax", "gelu")
SHAPES = ("17x65", "64x256", "129x768", "257x1538", "1024x4096", "1024x4097")
COPIES = ("compiled_copy", "memcpy", "torch_copy")
ARMS = ("ours", "ours_again", "onnxruntime", "torch", *COPIES)
DRAM_BYTES = 8 << 20
# The largest ratio to the faster peer: below DRAM size, and there. Softmax has bounds of its own.
BOUND, DRAM_BOUND, COPY_SHARE = 0.5, 1.0, 0.7
SOFTMAX_BOUND = {"17x65": 0.6, "64x256": 0.6, "129x768": 0.8, "257x1538": 0.8}
COMPILE_BOUND_MS = 20


def bound_of(kernel: str, shape: str) -> float:
    if is_dram_size(shape):
        return DRAM_BOUND
    return SOFTMAX_BOUND[shape] if kernel == "softmax" else BOUND


def is_dram_size(shape: str) -> bool:
    rows, n = map(int, shape.split("x"))
    return rows * n * 4 >= DRAM_BYTES


def inputs(kernel: str, rows: int, n: int) -> list[np.ndarray]:
    """x, then what the kernel scales and shifts with."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, n)).astype(np.float32)
    extra = {"rms_norm": 1, "layer_norm": 2}.get(kernel, 0)
    weights = (1 + 0.1 * rng.standard_normal(n).astype(np.float32) for _ in range(extra))
    return [aligned(each) for each in (x, *weights)]


def ours(kernel: str, rows: int, n: int) -> tuple[Call, Any] | None:
    from grainline.base.dims import symbol
    from grainline.kernels import numpy_meaning, pointwise
    from grainline.kernels import rows as row_kernels
    from native import NativeKernel

    program = getattr(pointwise if kernel in ("gelu", "copy") else row_kernels, kernel)(symbol("M"), symbol("N"))
    given = inputs(kernel, rows, n)
    y = aligned(np.zeros((rows, n), np.float32))
    native = NativeKernel(program, [*given, y], {"M": rows, "N": n})
    native.launch()
    few = (a[:3] if a.ndim > 1 else a for a in given)
    want = given[0][:3] if kernel == "copy" else getattr(numpy_meaning, kernel)(*few)
    assert np.allclose(y[:3], want, 5e-5, 5e-5), kernel
    return native.launch, {"compile_ms": native.compile_ms, "plan": str(native.plan.mapping)}


def onnxruntime(kernel: str, rows: int, n: int) -> tuple[Call, Any] | None:
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    op, opset = {"rms_norm": ("RMSNormalization", 23), "layer_norm": ("LayerNormalization", 17),
                 "softmax": ("Softmax", 17), "gelu": ("Gelu", 20)}[kernel]  # fmt: skip
    x, *weights = inputs(kernel, rows, n)
    names = ["x", *(f"w{i}" for i in range(len(weights)))]
    attributes = {} if kernel == "gelu" else {"axis": -1}
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)],
        kernel,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["m", n])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", n])],
        [numpy_helper.from_array(w, name) for w, name in zip(weights, names[1:])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x))
    binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_shape_and_type([rows, n], x.dtype))
    return repeated(lambda: session.run_with_iobinding(binding)), {}


def torch(kernel: str, rows: int, n: int) -> tuple[Call, Any] | None:
    import torch
    from torch.nn import functional

    torch.set_num_threads(1)
    x, *weights = (torch.from_numpy(a) for a in inputs(kernel, rows, n))
    y = torch.empty_like(x)
    calls: dict[str, Callable[[], Any]] = {
        "rms_norm": lambda: functional.rms_norm(x, (n,), *weights, 1e-5),
        "layer_norm": lambda: functional.layer_norm(x, (n,), *weights, 1e-5),
        "softmax": lambda: torch.softmax(x, -1, out=y),
        "gelu": lambda: torch.ops.aten.gelu.out(x, out=y),
    }
    torch.set_grad_enabled(False)
    return repeated(calls[kernel]), {}


def memcpy(_kernel: str, rows: int, n: int) -> tuple[Call, Any] | None:
    import ctypes

    x, y = inputs("copy", rows, n)[0], aligned(np.zeros((rows, n), np.float32))
    return repeated(lambda: (ctypes.memmove(y.ctypes.data, x.ctypes.data, x.nbytes), x, y)), {}


def torch_copy(_kernel: str, rows: int, n: int) -> tuple[Call, Any] | None:
    import torch

    torch.set_num_threads(1)
    x = torch.from_numpy(inputs("copy", rows, n)[0])
    y = torch.zeros_like(x)
    return repeated(lambda: y.copy_(x)), {}


def arm(name: str) -> Callable[[str], tuple[Call, Any] | None]:
    """The cases of one arm: "kernel shape" -> its call."""
    makers = {"ours": ours, "ours_again": ours, "onnxruntime": onnxruntime, "torch": torch, "memcpy": memcpy,
              "torch_copy": torch_copy, "compiled_copy": lambda _k, rows, n: ours("copy", rows, n)}  # fmt: skip

    def make(case: str) -> tuple[Call, Any] | None:
        kernel, shape = case.split()
        return makers[name](kernel, *map(int, shape.split("x")))

    return make


def measured(running: Turns, kernel: str, shape: str, rounds: int) -> list[object]:
    answers, facts = running.race(f"{kernel} {shape}", rounds)
    peers = [name for name in ("onnxruntime", "torch") if name in answers]
    best = min(peers, key=lambda name: microseconds(answers, name))
    value, bound = ratio(answers, "ours", best), bound_of(kernel, shape)
    fastest = min((name for name in COPIES if name in answers), key=lambda name: microseconds(answers, name))
    part, (rows, n) = ratio(answers, fastest, "ours"), map(int, shape.split("x"))
    copy = f"{fastest} {8 * rows * n / microseconds(answers, fastest) / 1e3:.1f} GB/s"
    is_bounded = kernel.endswith("norm") and is_dram_size(shape)
    share = f"{100 * part:.0f} %" + (f" {verdict(COPY_SHARE, part)}" if is_bounded else "")
    times = [f"{microseconds(answers, name):.2f}" for name in ("ours", *peers)]
    compiled = facts["ours"]["compile_ms"]
    return [kernel, shape, facts["ours"]["plan"], *times, f"{ratio(answers, 'ours_again', 'ours'):.2f}", f"{value:.2f}",
            f"{bound} {verdict(value, bound)}", f"{ratio(answers, fastest, best):.2f}", copy, share,
            f"{compiled:.1f} {verdict(compiled, COMPILE_BOUND_MS)}"]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--kernels", default=",".join(KERNELS))
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--serve", choices=ARMS, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(arm(options.serve), options.threads)
        return
    has_torch = importlib.util.find_spec("torch") is not None
    arms = [name for name in ARMS if has_torch or not name.startswith("torch")]
    peers = [f"{name} us" for name in ("onnxruntime", "torch") if name in arms]
    head = ["kernel", "shape", "plan", "ours us", *peers, "A/A", "ratio", "bound"]
    head += ["floor", "fastest copy", "of it", "compile ms"]
    lines = []
    with turns(__file__, arms) as running:
        for kernel in options.kernels.split(","):
            for shape in options.shapes.split(","):
                lines.append(measured(running, kernel, shape, options.rounds))
                print(*lines[-1], file=sys.stderr, flush=True)
    print_table("Row kernels, one thread", head, lines)
    print(f"\n{machine()}")


if __name__ == "__main__":
    main()
