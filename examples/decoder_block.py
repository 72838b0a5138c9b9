"""Writes a decoder block as exporters write it: RMSNorm, rotary positions, grouped-query attention and SwiGLU, all
spelled out in small ONNX operators, with random weights and symbolic batch and length.

    python examples/decoder_block.py block.onnx --hidden 256 --heads 8 --kv-heads 2 --layers 2
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


@dataclass(frozen=True)
class Config:
    """Sizes of a block; `hidden` is heads * head_size."""

    hidden: int = 128
    heads: int = 4
    kv_heads: int = 2
    inner: int = 344
    layers: int = 1
    base: float = 10000.0
    seed: int = 0

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


@dataclass
class Writer:
    """Collects nodes and weights; every method gives the name of a result."""

    config: Config
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    random: np.random.Generator = field(default_factory=np.random.default_rng)

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def ints(self, *values: int) -> str:
        return self._weight("ints_" + "_".join(map(str, values)), np.array(values, np.int64))

    def number(self, value: float, name: str) -> str:
        return self._weight(name, np.array(value, np.float32))

    def _weight(self, name: str, array: np.ndarray) -> str:
        self.weights.setdefault(name, array)
        return name

    def matrix(self, name: str, rows: int, columns: int) -> str:
        array = self.random.standard_normal((rows, columns), np.float32) / np.float32(math.sqrt(rows))
        return self._weight(name, array)

    def gain(self, name: str, size: int) -> str:
        return self._weight(name, 1 + 0.1 * self.random.standard_normal(size, np.float32))

    def norm(self, x: str, name: str) -> str:
        """x / sqrt(mean(x^2) + epsilon) * weight"""
        square = self.op("Pow", x, self.number(2.0, "two"))
        mean = self.op("ReduceMean", square, axes=[-1], keepdims=1)
        root = self.op("Sqrt", self.op("Add", mean, self.number(1e-6, "epsilon")))
        scaled = self.op("Mul", x, self.op("Reciprocal", root))
        return self.op("Mul", self.gain(name, self.config.hidden), scaled)


def build(config: Config = Config()) -> onnx.ModelProto:
    """The model: hidden f32[batch, length, hidden] -> result of the same shape."""
    w = Writer(config, random=np.random.default_rng(config.seed))
    shape = w.op("Shape", "hidden")
    length = w.op("Gather", shape, w._weight("one", np.array(1, np.int64)), axis=0)
    tables = _rotation_tables(w, length)
    mask = _causal_mask(w, length)
    x = "hidden"
    for layer in range(config.layers):
        x = w.op("Add", x, _attention(w, w.norm(x, f"l{layer}.norm1"), tables, mask, f"l{layer}"))
        x = w.op("Add", x, _swiglu(w, w.norm(x, f"l{layer}.norm2"), f"l{layer}"))
    w.nodes.append(helper.make_node("Identity", [x], ["result"]))
    return _model(w)


def _model(w: Writer) -> onnx.ModelProto:
    form = ["batch", "length", w.config.hidden]
    graph = helper.make_graph(
        w.nodes,
        "decoder_block",
        [helper.make_tensor_value_info("hidden", TensorProto.FLOAT, form)],
        [helper.make_tensor_value_info("result", TensorProto.FLOAT, form)],
        [numpy_helper.from_array(array, name) for name, array in w.weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="decoder_block")
    model.ir_version = 8
    return model


def _positions(w: Writer, length: str) -> str:
    zero, one = w._weight("zero", np.array(0, np.int64)), w._weight("one", np.array(1, np.int64))
    return w.op("Range", zero, length, one)


def _rotation_tables(w: Writer, length: str) -> tuple[str, str]:
    """cos and sin, [length, head_size]: both halves of a head turn by the same angles."""
    half = np.arange(0, w.config.head_size, 2, dtype=np.float32) / np.float32(w.config.head_size)
    frequencies = w._weight("frequencies", (w.config.base**-half).reshape(1, -1).astype(np.float32))
    column = w.op("Unsqueeze", w.op("Cast", _positions(w, length), to=TensorProto.FLOAT), w.ints(1))
    angles = w.op("Mul", column, frequencies)
    both = w.op("Concat", angles, angles, axis=-1)
    return w.op("Cos", both), w.op("Sin", both)


def _rotated(w: Writer, x: str, tables: tuple[str, str]) -> str:
    """x * cos + (-x2, x1) * sin with x = (x1, x2)"""
    half = w.config.head_size // 2
    first = w.op("Slice", x, w.ints(0), w.ints(half), w.ints(-1))
    second = w.op("Slice", x, w.ints(half), w.ints(2**63 - 1), w.ints(-1))
    turned = w.op("Concat", w.op("Neg", second), first, axis=-1)
    return w.op("Add", w.op("Mul", x, tables[0]), w.op("Mul", turned, tables[1]))


def _causal_mask(w: Writer, length: str) -> str:
    """0 where a key is not after the query, -inf elsewhere: [length, length]"""
    row = w.op("Unsqueeze", _positions(w, length), w.ints(0))
    column = w.op("Unsqueeze", _positions(w, length), w.ints(1))
    is_past = w.op("LessOrEqual", row, column)
    return w.op("Where", is_past, w.number(0.0, "open"), w.number(-np.inf, "shut"))


def _heads(w: Writer, x: str, count: int) -> str:
    """[batch, length, count * size] -> [batch, count, length, size]"""
    split = w.op("Reshape", x, w.ints(0, 0, count, w.config.head_size))
    return w.op("Transpose", split, perm=[0, 2, 1, 3])


def _repeated(w: Writer, x: str) -> str:
    """Each key or value head serves heads / kv_heads query heads."""
    c = w.config
    groups = c.heads // c.kv_heads
    if groups == 1:
        return x
    shape = w.op("Shape", x)
    batch, length = w.op("Slice", shape, w.ints(0), w.ints(1)), w.op("Slice", shape, w.ints(2), w.ints(3))
    wide = w.op("Concat", batch, w.ints(c.kv_heads), w.ints(groups), length, w.ints(c.head_size), axis=0)
    spread = w.op("Expand", w.op("Unsqueeze", x, w.ints(2)), wide)
    flat = w.op("Concat", batch, w.ints(c.heads), length, w.ints(c.head_size), axis=0)
    return w.op("Reshape", spread, flat)


def _attention(w: Writer, x: str, tables: tuple[str, str], mask: str, name: str) -> str:
    c = w.config
    kv_size = c.kv_heads * c.head_size
    query = _rotated(w, _heads(w, w.op("MatMul", x, w.matrix(f"{name}.q", c.hidden, c.hidden)), c.heads), tables)
    key = _rotated(w, _heads(w, w.op("MatMul", x, w.matrix(f"{name}.k", c.hidden, kv_size)), c.kv_heads), tables)
    value = _heads(w, w.op("MatMul", x, w.matrix(f"{name}.v", c.hidden, kv_size)), c.kv_heads)
    turned = w.op("Transpose", _repeated(w, key), perm=[0, 1, 3, 2])
    scores = w.op("Mul", w.op("MatMul", query, turned), w.number(c.head_size**-0.5, "scale"))
    weights = w.op("Softmax", w.op("Add", scores, mask), axis=-1)
    mixed = w.op("Transpose", w.op("MatMul", weights, _repeated(w, value)), perm=[0, 2, 1, 3])
    joined = w.op("Reshape", mixed, w.ints(0, 0, c.hidden))
    return w.op("MatMul", joined, w.matrix(f"{name}.o", c.hidden, c.hidden))


def _swiglu(w: Writer, x: str, name: str) -> str:
    c = w.config
    gate = w.op("MatMul", x, w.matrix(f"{name}.gate", c.hidden, c.inner))
    up = w.op("MatMul", x, w.matrix(f"{name}.up", c.hidden, c.inner))
    active = w.op("Mul", w.op("Mul", gate, w.op("Sigmoid", gate)), up)
    return w.op("MatMul", active, w.matrix(f"{name}.down", c.inner, c.hidden))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    for name in ("hidden", "heads", "kv_heads", "inner", "layers", "seed"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(Config(), name))
    given = vars(parser.parse_args())
    onnx.save(build(Config(**{key: item for key, item in given.items() if key != "path"})), given["path"])


if __name__ == "__main__":
    main()
