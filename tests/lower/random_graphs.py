"""Random compute graphs of compiled operators over two symbols, with feeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grainline.base.dims import Expr, evaluate, exact_div, product, symbol
from grainline.base.dtypes import F32, I64
from grainline.graph.ir import Constant, Graph, Node, Value

B, L = symbol("b"), symbol("l")
START_SHAPES = ((B, L, 8), (B, L), (L, 8), (8,), (B, 1, 8), (B, 4, L, 2))


@dataclass
class RandomGraph:
    graph: Graph
    feeds: dict[str, np.ndarray]
    env: dict[str, int]


class _Grower:
    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.nodes: list[Node] = []
        self.values: list[Value] = []
        self.constants: dict[str, Constant] = {}

    def pick(self, values=None):
        values = self.values if values is None else values
        return values[int(self.rng.integers(len(values)))] if values else None

    def add(self, op, inputs, shape, attributes=None):
        out = Value(f"t{len(self.nodes)}", F32, tuple(shape))
        self.nodes.append(Node(op, tuple(inputs), (out,), attributes or {}, f"n{len(self.nodes)}"))
        self.values.append(out)

    def constant(self, shape, dtype=F32, high=None):
        name = f"c{len(self.constants)}"
        if dtype is F32:
            array = self.rng.standard_normal(shape).astype(np.float32)
        else:
            array = self.rng.integers(-high, high, shape)
        self.constants[name] = Constant(lambda: array)
        return Value(name, dtype, tuple(shape))

    def step(self):
        op = str(self.rng.choice(list(_STEPS)))
        _STEPS[op](self)


def _unary(g):
    v = g.pick()
    g.add(str(g.rng.choice(["neg", "tanh", "sigmoid", "relu", "abs"])), (v,), v.shape)


def _scalar(g):
    v = g.pick()
    g.add(str(g.rng.choice(["add", "mul"])), (v, g.constant(())), v.shape)


def _binary(g):
    a = g.pick()
    same = [v for v in g.values if _broadcast(a.shape, v.shape) is not None]
    b = g.pick(same)
    g.add(str(g.rng.choice(["add", "sub", "mul", "max", "min"])), (a, b), _broadcast(a.shape, b.shape))


def _broadcast(a, b):
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    if any(x != y and x != 1 and y != 1 for x, y in zip(a, b, strict=True)):
        return None
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))


def _reduce(g):
    v = g.pick([v for v in g.values if v.shape])
    if v is None:
        return
    axis = int(g.rng.integers(len(v.shape)))
    kind = str(g.rng.choice(["sum", "max", "min"]))
    shape = tuple(1 if a == axis else d for a, d in enumerate(v.shape))
    g.add("reduce", (v,), shape, {"kind": kind, "axes": (axis,)})


def _transpose(g):
    v = g.pick()
    perm = tuple(int(p) for p in g.rng.permutation(len(v.shape)))
    g.add("transpose", (v,), (v.shape[p] for p in perm), {"perm": perm})


def _reshape(g):
    v = g.pick()
    total = product(v.shape)
    targets = [
        t
        for t in ((B, L, 2, 4), (B * L, 8), (B, 8 * L), (8, L), (L * 2, 4), (8,), (B * 4, L, 2))
        if product(t) == total
    ]
    if targets:
        g.add("reshape", (v,), targets[int(g.rng.integers(len(targets)))])


def _slice(g):
    v = g.pick([v for v in g.values if 8 in v.shape])
    if v is None:
        return
    axis = v.shape.index(8)
    start, step, extent = ((0, 1, 4), (4, 1, 4), (1, 2, 4), (7, -1, 8))[int(g.rng.integers(4))]
    rank = len(v.shape)
    starts = tuple(start if a == axis else 0 for a in range(rank))
    steps = tuple(step if a == axis else 1 for a in range(rank))
    shape = tuple(extent if a == axis else d for a, d in enumerate(v.shape))
    g.add("slice", (v,), shape, {"starts": starts, "steps": steps})


def _windows(g):
    v = g.pick([v for v in g.values if 8 in v.shape])
    if v is None:
        return
    axis = v.shape.index(8)
    steps, taps, step, dilation = ((6, 3, 1, 1), (3, 4, 2, 1), (2, 4, 4, 1), (2, 3, 1, 3), (8, 1, 1, 1))[
        g.rng.integers(5)
    ]
    attributes = {"axis": axis, "step": step, "dilation": dilation}
    g.add("windows", (v,), (*v.shape[:axis], steps, taps, *v.shape[axis + 1 :]), attributes)


def _expand(g):
    v = g.pick([v for v in g.values if 1 in v.shape])
    if v is not None:
        g.add("expand", (v,), (3 if d == 1 else d for d in v.shape))


def _concat(g):
    v = g.pick([v for v in g.values if v.shape])
    if v is None:
        return
    axis = int(g.rng.integers(len(v.shape)))
    others = [
        w
        for w in g.values
        if len(w.shape) == len(v.shape) and all(a == axis or x == y for a, (x, y) in enumerate(zip(v.shape, w.shape)))
    ]
    w = g.pick(others)
    shape = tuple(x + y if a == axis else x for a, (x, y) in enumerate(zip(v.shape, w.shape)))
    g.add("concat", (v, w), shape, {"axis": axis})


def _matmul_weight(g):
    v = g.pick([v for v in g.values if len(v.shape) >= 2 and isinstance(v.shape[-1], int)])
    if v is None:
        return
    n = int(g.rng.choice([1, 8, 17]))
    g.add("matmul", (v, g.constant((v.shape[-1], n))), (*v.shape[:-1], n))


def _matmul(g):
    a = g.pick([v for v in g.values if len(v.shape) >= 2])
    if a is None:
        return
    fits = [
        w
        for w in g.values
        if len(w.shape) >= 2 and w.shape[-2] == a.shape[-1] and _broadcast(a.shape[:-2], w.shape[:-2]) is not None
    ]
    b = g.pick(fits)
    if b is not None:
        g.add("matmul", (a, b), (*_broadcast(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]))


def _gather(g):
    v = g.pick([v for v in g.values if any(isinstance(d, int) and d > 1 for d in v.shape)])
    if v is None:
        return
    axes = [a for a, d in enumerate(v.shape) if isinstance(d, int) and d > 1]
    axis = axes[int(g.rng.integers(len(axes)))]
    shape = ((2,), (), (2, 3))[int(g.rng.integers(3))]
    index = g.constant(shape, I64, v.shape[axis])
    g.add("gather", (v, index), (*v.shape[:axis], *shape, *v.shape[axis + 1 :]), {"axis": axis})


def _pad(g):
    v = g.pick([v for v in g.values if v.shape])
    if v is None:
        return
    before = tuple(int(x) for x in g.rng.integers(0, 2, len(v.shape)))
    after = g.rng.integers(0, 2, len(v.shape))
    shape = tuple(d + b + int(a) for d, b, a in zip(v.shape, before, after, strict=True))
    g.add("pad", (v,), shape, {"before": before, "value": float(g.rng.choice([0.0, 1.5]))})


_STEPS = {
    "unary": _unary, "scalar": _scalar, "binary": _binary, "binary2": _binary, "reduce": _reduce,
    "transpose": _transpose, "reshape": _reshape, "slice": _slice, "windows": _windows, "expand": _expand, "concat": _concat,
    "matmul_weight": _matmul_weight, "matmul": _matmul, "gather": _gather, "pad": _pad,
}  # fmt: skip


def random_graph(seed: int, steps: int = 12) -> RandomGraph:
    """A graph of about `steps` nodes whose tensors stay small."""
    rng = np.random.default_rng(seed)
    g = _Grower(rng)
    shapes = [START_SHAPES[i] for i in rng.choice(len(START_SHAPES), 3, replace=False)]
    inputs = tuple(Value(f"x{i}", F32, s) for i, s in enumerate(shapes))
    g.values.extend(inputs)
    env = {"b": int(rng.integers(1, 4)), "l": int(rng.integers(1, 20))}
    for _ in range(steps):
        g.step()
        g.values = [v for v in g.values if _size(v.shape, env) <= 20000 and len(v.shape) <= 6]
    made = [v for node in g.nodes for v in node.outputs]
    read = {v.name for node in g.nodes for v in node.inputs}
    outs = [v for v in made if v.name not in read or rng.random() < 0.15]
    graph = Graph("random", inputs, tuple((f"out{i}", v) for i, v in enumerate(outs)), tuple(g.nodes), g.constants)
    feeds = {v.name: rng.standard_normal([evaluate(d, env) for d in v.shape]).astype(np.float32) for v in inputs}
    return RandomGraph(graph, feeds, env)


def _size(shape, env) -> int:
    return evaluate(product(shape), env)


assert exact_div(B * L, B) == L and isinstance(B, Expr)
