"""Convolutional and recurrent networks beside onnxruntime, with random weights in the shapes of well-known ones.

    python benchmarks/networks.py [--rounds 9] [--threads 1,2] [--cases mobilenet_v2,resnet18,...]

Images are 1 x 3 x 224 x 224. A recurrent case is one layer over 50 steps of 8 sequences, 128 numbers in and out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from common import machine, print_table
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper
from turns import Call, microseconds, options_of, ratio, repeated, serve, spread, turns

ARMS = ("ours", "ours_again", "onnxruntime")
#: expansion, channels, blocks and stride of MobileNetV2's stages
MOBILENET = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class Network:
    """Nodes in order, each with one result, and their random weights."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.rng = np.random.default_rng(0)

    def weight(self, *shape: int) -> str:
        array = self.rng.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:])))
        self.weights.append(numpy_helper.from_array(array.astype(np.float32), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [f"v{len(self.nodes)}"], **attributes))
        return self.nodes[-1].output[0]

    def conv(self, x: str, channels: int, results: int, size: int, stride: int = 1, groups: int = 1) -> str:
        weights = (self.weight(results, channels // groups, size, size), self.weight(results))
        return self.add("Conv", x, *weights, pads=[size // 2] * 4, strides=[stride] * 2, group=groups)

    def classified(self, x: str, channels: int) -> ModelProto:
        x = self.add("Flatten", self.add("GlobalAveragePool", x))
        return self.model(self.add("Gemm", x, self.weight(channels, 1000), self.weight(1000)), (1, 3, 224, 224))

    def model(self, result: str, shape: tuple[int, ...]) -> ModelProto:
        fed = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        graph = helper.make_graph(self.nodes, "network", [fed], [ValueInfoProto(name=result)], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def resnet(depths: tuple[int, ...], widening: int) -> ModelProto:
    """Blocks of two 3 x 3 convolutions, or with `widening` 4 of one between two of 1 x 1."""
    n, channels = Network(), 64
    x = n.add("Relu", n.conv("x", 3, 64, 7, 2))
    x = n.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for stage, depth in enumerate(depths):
        width = 64 << stage
        for block in range(depth):
            stride = 2 if block == 0 and stage > 0 else 1
            is_same = channels == width * widening and stride == 1
            around = x if is_same else n.conv(x, channels, width * widening, 1, stride)
            first = n.conv(x, channels, width, 1 if widening > 1 else 3, 1 if widening > 1 else stride)
            y = n.conv(n.add("Relu", first), width, width, 3, stride if widening > 1 else 1)
            y = n.conv(n.add("Relu", y), width, width * widening, 1) if widening > 1 else y
            x, channels = n.add("Relu", n.add("Add", y, around)), width * widening
    return n.classified(x, channels)


def mobilenet_v2() -> ModelProto:
    n, channels = Network(), 32
    n.weights += [numpy_helper.from_array(np.float32(number), name) for name, number in (("zero", 0), ("six", 6))]
    x = n.add("Clip", n.conv("x", 3, 32, 3, 2), "zero", "six")
    for expansion, results, blocks, first_stride in MOBILENET:
        for block in range(blocks):
            stride, hidden, y = first_stride if block == 0 else 1, channels * expansion, x
            if expansion > 1:
                y = n.add("Clip", n.conv(y, channels, hidden, 1), "zero", "six")
            y = n.add("Clip", n.conv(y, hidden, hidden, 3, stride, hidden), "zero", "six")
            y = n.conv(y, hidden, results, 1)
            x = n.add("Add", x, y) if stride == 1 and channels == results else y
            channels = results
    return n.classified(n.add("Clip", n.conv(x, channels, 1280, 1), "zero", "six"), 1280)


def recurrent(op: str, gates: int) -> ModelProto:
    n, size = Network(), 128
    weights = (n.weight(1, gates * size, size), n.weight(1, gates * size, size), n.weight(1, 2 * gates * size))
    return n.model(n.add(op, "x", *weights, hidden_size=size), (50, 8, size))


CASES: dict[str, Callable[[], ModelProto]] = {
    "mobilenet_v2": mobilenet_v2,
    "resnet18": lambda: resnet((2, 2, 2, 2), 1),
    "resnet50": lambda: resnet((3, 4, 6, 3), 4),
    "lstm": lambda: recurrent("LSTM", 4),
    "gru": lambda: recurrent("GRU", 3),
}


def call_of(library: str, case: str, threads: int) -> tuple[Call, Any]:
    model = CASES[case]()
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    if library == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        return repeated(lambda: session.run(None, feeds)), {}
    import grainline

    loaded = grainline.load(model.SerializeToString(), threads=threads)
    return repeated(lambda: loaded.run(feeds)), {}


def main() -> None:
    options = options_of(__doc__, ARMS, CASES, rounds=9)
    if options.serve:
        library, threads = options.serve.split("_")[0], int(options.threads)
        serve(lambda case: call_of(library, case, threads), threads)
        return
    head = ["network", "threads", "ours ms", "onnxruntime ms", "A/A", "ratio", "10-90 %"]
    lines = []
    for threads in map(int, options.threads.split(",")):
        with turns(__file__, ARMS, threads) as running:
            for case in options.cases.split(","):
                answers, _ = running.race(case, options.rounds)
                value, (low, high) = ratio(answers, "ours", "onnxruntime"), spread(answers, "ours", "onnxruntime")
                times = [f"{microseconds(answers, arm) / 1e3:.2f}" for arm in ("ours", "onnxruntime")]
                again = f"{ratio(answers, 'ours_again', 'ours'):.2f}"
                lines.append([case, threads, *times, again, f"{value:.2f}", f"{low:.2f}-{high:.2f}"])
                print(*lines[-1], file=sys.stderr, flush=True)
    print_table("Networks", head, lines)
    print(f"\n{machine()}")


if __name__ == "__main__":
    main()
