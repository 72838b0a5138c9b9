"""Attention in one kernel, on one and on two threads: against torch's scaled_dot_product_attention and onnxruntime.

    python benchmarks/attention.py [--rounds 15] [--threads 1,2] [--cases 1-4-2-16-32-16-16,...]

A case is batch, query heads, key heads, queries, keys, width, value width. Attention is causal (the last query sees all
keys) where there is more than one query. Ours is launched from native code, the peers from Python with bound or given
operands. onnxruntime runs its Attention operator, and where it accepts the case its fused MultiHeadAttention; the
faster of both counts. The ratio is ours by the faster peer; torch is in the extra `peers`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from common import machine, print_table, verdict
from turns import Call, aligned, microseconds, options_of, ratio, repeated, serve, spread, turns

CASES = ("1-4-2-16-32-16-16", "1-8-8-128-128-64-64", "1-12-12-512-512-64-64", "8-12-12-128-128-32-32",
         "1-32-8-1-4096-128-128")  # fmt: skip
ARMS = ("ours", "ours_again", "onnxruntime", "onnxruntime_mha", "torch")
BOUND = 0.7


def operands(case: str) -> tuple[list[int], list[np.ndarray], bool]:
    """The extents, (q, k, v) as [batch, heads, length, width], and whether the case is causal."""
    extents = list(map(int, case.split("-")))
    b, hq, hkv, queries, keys, width, value_width = extents
    rng = np.random.default_rng(0)
    shapes = ((b, hq, queries, width), (b, hkv, keys, width), (b, hkv, keys, value_width))
    return extents, [aligned(rng.standard_normal(shape).astype(np.float32)) for shape in shapes], queries > 1


def ours(case: str, threads: int) -> tuple[Call, Any] | None:
    from grainline.base.dims import symbol
    from grainline.kernels import numpy_meaning
    from grainline.kernels.attention import attention
    from native import NativeKernel

    (b, hq, hkv, queries, keys, width, value_width), (q, k, v), causal = operands(case)
    env = {"B": b, "H": hkv, "Q": queries, "K": keys}
    program = attention(*(symbol(s) for s in "BH"), hq // hkv, *(symbol(s) for s in "QK"), width, value_width, causal)
    o = aligned(np.empty((b, hq, queries, value_width), np.float32))
    native = NativeKernel(program, [q, k, v, o], env, threads)
    native.launch()
    assert np.allclose(o[:1], numpy_meaning.attention(q[:1], k[:1], v[:1], causal), 5e-5, 5e-5), case
    return native.launch, {"compile_ms": native.compile_ms, "plan": f"{native.plan.reason[:18]} homes {native.homes}"}


def onnxruntime(case: str, threads: int, fused: bool = False) -> tuple[Call, Any] | None:
    import onnxruntime as ort
    from onnx import TensorProto, helper

    (b, hq, hkv, queries, keys, _, value_width), (q, k, v), causal = operands(case)
    if fused:
        if hq != hkv or (causal and queries != keys):
            return None
        q, k, v = (np.ascontiguousarray(x.transpose(0, 2, 1, 3).reshape(b, x.shape[2], -1)) for x in (q, k, v))
        node = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["o"], domain="com.microsoft", num_heads=hq,
                                unidirectional=int(causal))  # fmt: skip
        shape = [b, queries, hq * value_width]
    else:
        inputs, masks = ["q", "k", "v"], {}
        if causal and queries != keys:  # the operator's own causal mask is aligned at the top left
            masks["mask"] = np.arange(keys) <= np.arange(queries)[:, None] + keys - queries
            inputs.append("mask")
        node = helper.make_node("Attention", inputs, ["o"], is_causal=int(causal and not masks))
        shape = [b, hq, queries, value_width]
    feeds = dict(zip("qkv", (q, k, v))) | (masks if not fused else {})
    types = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(bool): TensorProto.BOOL}
    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(name, types[x.dtype], x.shape) for name, x in feeds.items()],
        [helper.make_tensor_value_info("o", TensorProto.FLOAT, shape)],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    try:
        session = _ort_session(model.SerializeToString(), threads)
    except Exception as error:  # a case that this version does not have
        return None if fused or "NOT_IMPLEMENTED" in str(error) else _raise(error)
    binding = session.io_binding()
    for name, x in feeds.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(x))
    binding.bind_ortvalue_output("o", ort.OrtValue.ortvalue_from_shape_and_type(shape, np.float32))
    return repeated(lambda: session.run_with_iobinding(binding)), {}


def _ort_session(model: bytes, threads: int) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 4
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _raise(error: Exception) -> Any:
    raise error


def torch(case: str, threads: int) -> tuple[Call, Any] | None:
    import torch
    from torch.nn.functional import scaled_dot_product_attention as attend

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    (_, hq, hkv, queries, keys, _, _), given, causal = operands(case)
    q, k, v = map(torch.from_numpy, given)
    mask = None
    if causal and queries != keys:  # is_causal is aligned at the top left
        mask = torch.from_numpy(np.arange(keys) <= np.arange(queries)[:, None] + keys - queries)
    options = {"attn_mask": mask, "is_causal": causal and mask is None, "enable_gqa": hq != hkv}
    return repeated(lambda: attend(q, k, v, **options)), {}


def arm(name: str, threads: int) -> Callable[[str], tuple[Call, Any] | None]:
    makers = {"ours": ours, "ours_again": ours, "onnxruntime": onnxruntime, "torch": torch,
              "onnxruntime_mha": lambda case, threads: onnxruntime(case, threads, fused=True)}  # fmt: skip
    return lambda case: makers[name](case, threads)


def main() -> None:
    options = options_of(__doc__, ARMS, CASES, rounds=15)
    if options.serve:
        serve(arm(options.serve, int(options.threads)), int(options.threads))
        return
    arms = [name for name in ARMS if name != "torch" or importlib.util.find_spec("torch") is not None]
    head = ["case", "threads", "plan", "ours us", "peer", "peer us", "A/A", "ratio", "10-90 %", "bound", "compile ms"]
    lines = []
    for threads in map(int, options.threads.split(",")):
        with turns(__file__, arms, threads) as running:
            for case in options.cases.split(","):
                answers, facts = running.race(case, options.rounds)
                best = min((name for name in answers if "ours" not in name), key=lambda n: microseconds(answers, n))
                value, (low, high) = ratio(answers, "ours", best), spread(answers, "ours", best)
                again = f"{ratio(answers, 'ours_again', 'ours'):.2f}"
                lines.append([case, threads, facts["ours"]["plan"], f"{microseconds(answers, 'ours'):.1f}", best,
                              f"{microseconds(answers, best):.1f}", again, f"{value:.2f}", f"{low:.2f}-{high:.2f}",
                              f"{BOUND} {verdict(value, BOUND)}", f"{facts['ours']['compile_ms']:.0f}"])  # fmt: skip
                print(*lines[-1], file=sys.stderr, flush=True)
    print_table("Attention", head, lines)
    print(f"\n{machine()}")


if __name__ == "__main__":
    main()
