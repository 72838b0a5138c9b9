"""Random ONNX models with nested If, Loop and Scan, which onnxruntime and the interpreter run too.

Values are float matrices [rows, K]; a loop may change the rows of what it carries, a branch may give other rows than its
sibling. Everything is bounded: sums of tanh, so that no turn grows the numbers, and at most a few turns.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

K = 3
F = np.float32


def info(name: str, dtype: int = TensorProto.FLOAT, shape: Any = (None, K)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


class RandomModel:
    """`model` and the names of its outputs; `feeds(seed)` gives inputs."""

    def __init__(self, seed: int, size: int = 8, depth: int = 3) -> None:
        self.rng = random.Random(seed)
        self.count = 0
        nodes: list[onnx.NodeProto] = []
        values = self._graph(nodes, ["x", "y"], size, depth)
        made = [name for name in values if name not in ("x", "y")] or ["x"]
        outputs = self.rng.sample(made, min(len(made), self.rng.randint(1, 3)))
        self.outputs = []
        for name in outputs:
            nodes.append(helper.make_node("Identity", [name], [f"{name}_out"]))
            self.outputs.append(f"{name}_out")
        inputs = [
            info("x", shape=("n", K)), info("y", shape=("m", K)), info("c", TensorProto.BOOL, ()),
            info("d", TensorProto.BOOL, ()), info("t", TensorProto.INT64, ()), info("one", TensorProto.INT64, (1,)),
        ]  # fmt: skip
        weights = [
            helper.make_tensor("w", TensorProto.FLOAT, (K, K), np.linspace(-1, 1, K * K).astype(F)),
            helper.make_tensor("two", TensorProto.INT64, (), [2]),
            helper.make_tensor("row", TensorProto.FLOAT, (1, K), [0.5, -0.25, 1]),
        ]
        graph = helper.make_graph(nodes, f"random {seed}", inputs, [info(name) for name in self.outputs], weights)
        self.model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def feeds(self, seed: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        return {
            "x": rng.standard_normal((rng.integers(1, 5), K)).astype(F),
            "y": rng.standard_normal((rng.integers(1, 4), K)).astype(F),
            "c": np.array(bool(rng.integers(2))),
            "d": np.array(bool(rng.integers(2))),
            "t": np.array(rng.integers(0, 4)),
            "one": np.array([rng.integers(0, 3)]),
        }

    def _new(self, stem: str = "v") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def _graph(self, nodes: list[onnx.NodeProto], values: list[str], size: int, depth: int) -> list[str]:
        """Appends nodes over `values`; the names of all values, new ones last."""
        values = list(values)
        for _ in range(size):
            kinds = ["tanh", "join", "product", "mean", "unique"]
            if depth:
                kinds += ["if", "loop", "scan", "if", "loop"]
            values += getattr(self, f"_{self.rng.choice(kinds)}")(nodes, values, depth - 1)
        return values

    # ---- plain operators -----------------------------------------------------------------------------------------

    def _tanh(self, nodes: list[onnx.NodeProto], values: list[str], depth: int) -> list[str]:
        out = self._new()
        nodes.append(helper.make_node("Tanh", [self.rng.choice(values)], [out]))
        return [out]

    def _join(self, nodes: list[onnx.NodeProto], values: list[str], depth: int) -> list[str]:
        out = self._new()
        nodes.append(
            helper.make_node("Concat", [self.rng.choice(values), self.rng.choice([*values, "row"])], [out], axis=0)
        )
        return self._short(nodes, out)

    def _short(self, nodes: list[onnx.NodeProto], name: str) -> list[str]:
        """At most 6 rows, so that nothing grows without bound."""
        out, starts, ends = self._new(), self._new("starts"), self._new("ends")
        nodes.append(helper.make_node("Constant", [], [starts], value_ints=[0]))
        nodes.append(helper.make_node("Constant", [], [ends], value_ints=[6]))
        nodes.append(helper.make_node("Slice", [name, starts, ends], [out]))
        return [out]

    def _product(self, nodes: list[onnx.NodeProto], values: list[str], depth: int) -> list[str]:
        out, small = self._new(), self._new()
        nodes.append(helper.make_node("MatMul", [self.rng.choice(values), "w"], [out]))
        nodes.append(helper.make_node("Tanh", [out], [small]))
        return [small]

    def _mean(self, nodes: list[onnx.NodeProto], values: list[str], depth: int) -> list[str]:
        mean, out = self._new(), self._new()
        one, other = self.rng.choice(values), self.rng.choice(values)
        nodes.append(helper.make_node("ReduceMean", [one], [mean], axes=[0], keepdims=1))
        nodes.append(helper.make_node("Sub", [other, mean], [out]))
        return [out]

    def _unique(self, nodes: list[onnx.NodeProto], values: list[str], depth: int) -> list[str]:
        """A host operator whose rows only the run knows."""
        flags, out, mean = self._new(), self._new(), self._new()
        nodes.append(helper.make_node("ReduceMean", [self.rng.choice(values)], [mean], axes=[1], keepdims=0))
        source = nodes[-1].input[0]
        zero = self._new()
        nodes.append(helper.make_node("Constant", [], [zero], value_float=0.0))
        nodes.append(helper.make_node("Greater", [mean, zero], [flags]))
        nodes.append(helper.make_node("Compress", [source, flags], [out], axis=0))
        both = self._new()
        nodes.append(helper.make_node("Concat", [out, "row"], [both], axis=0))
        return [both]

    # ---- control flow --------------------------------------------------------------------------------------------

    def _if(self, nodes: list[onnx.NodeProto], values: list[str], depth: int) -> list[str]:
        count = self.rng.randint(1, 2)
        branches = {}
        for name in ("then_branch", "else_branch"):
            inner: list[onnx.NodeProto] = []
            made = self._graph(inner, values, self.rng.randint(0, 3), depth)
            outs = []
            for _ in range(count):
                outs.append(self._new())
                inner.append(helper.make_node("Identity", [self.rng.choice(made)], [outs[-1]]))
            branches[name] = helper.make_graph(inner, self._new("g"), [], [info(out) for out in outs])
        outs = [self._new() for _ in range(count)]
        nodes.append(helper.make_node("If", [self.rng.choice("cd")], outs, name=self._new("if"), **branches))
        return outs

    def _loop(self, nodes: list[onnx.NodeProto], values: list[str], depth: int) -> list[str]:
        """Carried rows change; stops early when a comparison says so; collects a mean of fixed shape."""
        rng = self.rng
        number, go, on, last, seen = (self._new(stem) for stem in ("i", "go", "on", "s", "m"))
        carried = [self._new("a") for _ in range(rng.randint(1, 2))]
        inner: list[onnx.NodeProto] = []
        made = self._graph(inner, [*values, *carried], rng.randint(1, 3), depth)
        following = []
        for name in carried:
            following.append(self._new())
            inner.append(helper.make_node("Identity", [rng.choice([*made[-2:], name, *carried])], [following[-1]]))
        if rng.random() < 0.4:
            inner.append(helper.make_node("Less", [number, "two"], [on]))
        else:
            inner.append(helper.make_node("Identity", [go], [on]))
        inner.append(helper.make_node("ReduceMean", [rng.choice(made)], [seen], axes=[0], keepdims=0))
        body = helper.make_graph(
            inner, self._new("g"),
            [info(number, TensorProto.INT64, ()), info(go, TensorProto.BOOL, ()), *map(info, carried)],
            [info(on, TensorProto.BOOL, ()), *map(info, following), info(seen, shape=(K,))],
        )  # fmt: skip
        outs = [self._new() for _ in carried]
        trips, first = rng.choice(("t", "two", "one")), rng.choice(("", "c", "d"))
        initial = [rng.choice(values) for _ in carried]
        nodes.append(
            helper.make_node("Loop", [trips, first, *initial], [*outs, last], name=self._new("loop"), body=body)
        )
        return [*outs, *self._padded(nodes, last)]

    def _padded(self, nodes: list[onnx.NodeProto], name: str) -> list[str]:
        """One row more: what a loop collects may be empty."""
        out = self._new()
        nodes.append(helper.make_node("Concat", [name, "row"], [out], axis=0))
        return [out]

    def _scan(self, nodes: list[onnx.NodeProto], values: list[str], depth: int) -> list[str]:
        rng = self.rng
        state, piece, following, seen, flat, wide = (self._new(stem) for stem in ("a", "p", "n", "s", "f", "u"))
        inner: list[onnx.NodeProto] = []
        axes = self._new("axes")
        inner.append(helper.make_node("Constant", [], [axes], value_ints=[0]))
        inner.append(helper.make_node("Unsqueeze", [piece, axes], [wide]))
        made = self._graph(inner, [*values, wide], rng.randint(0, 2), depth)
        mean = self._new()
        inner.append(helper.make_node("ReduceMean", [rng.choice(made)], [mean], axes=[0], keepdims=0))
        inner.append(helper.make_node("Add", [state, mean], [flat]))
        inner.append(helper.make_node("Tanh", [flat], [following]))
        inner.append(helper.make_node("Mul", [following, piece], [seen]))
        body = helper.make_graph(
            inner, self._new("g"), [info(state, shape=(K,)), info(piece, shape=(K,))],
            [info(following, shape=(K,)), info(seen, shape=(K,))],
        )  # fmt: skip
        first, end, every, back = self._new(), self._new(), self._new(), rng.randint(0, 1)
        nodes.append(helper.make_node("ReduceMean", [rng.choice(values)], [first], axes=[0], keepdims=0))
        out_axis = rng.choice((0, 1, -1))
        nodes.append(
            helper.make_node(
                "Scan", [first, rng.choice(values)], [end, every], name=self._new("scan"), body=body, num_scan_inputs=1,
                scan_input_directions=[back], scan_output_directions=[rng.randint(0, 1)],
                scan_output_axes=[out_axis],
            )
        )  # fmt: skip
        if out_axis != 0:
            turned = self._new()
            nodes.append(helper.make_node("Transpose", [every], [turned], perm=[1, 0]))
            every = turned
        return [*self._padded(nodes, every)]
