"""Attention graphs become one launch, in any of their shapes, and only where the rule of chains allows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from grainline import pipeline
from grainline.base.dims import Expr, evaluate, symbol
from grainline.base.dtypes import F32
from grainline.base.knobs import Options
from grainline.graph.interp import run as interpret
from grainline.graph.ir import Constant, Graph, Node, Value
from grainline.graph.passes.fuse import Group, fuse

B, Q, L = symbol("b"), symbol("q"), symbol("l")
OPTIONS = Options(threads=2).resolved()
Shape = tuple[int | Expr, ...]


class Maker:
    """Appends nodes to a graph under construction."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.inputs: list[Value] = []
        self.constants: dict[str, Constant] = {}

    def input(self, name: str, shape: Shape) -> Value:
        self.inputs.append(Value(name, F32, shape))
        return self.inputs[-1]

    def constant(self, name: str, array: np.ndarray) -> Value:
        self.constants[name] = Constant(lambda: array)
        return Value(name, F32, array.shape)

    def add(self, op: str, inputs: tuple[Value, ...], shape: Shape, **attributes: object) -> Value:
        out = Value(f"t{len(self.nodes)}", F32, shape)
        self.nodes.append(Node(op, inputs, (out,), attributes, f"n{len(self.nodes)}"))
        return out

    def finish(self, *outputs: Value) -> Graph:
        named = tuple((f"out{i}", v) for i, v in enumerate(outputs))
        return Graph("attention", tuple(self.inputs), named, tuple(self.nodes), self.constants)

    def softmax(self, x: Value) -> Value:
        shape = x.shape or ()
        axis = {"axes": (len(shape) - 1,)}
        top = self.add("reduce", (x,), (*shape[:-1], 1), kind="max", **axis)
        e = self.add("exp", (self.add("sub", (x, top), shape),), shape)
        total = self.add("reduce", (e,), (*shape[:-1], 1), kind="sum", **axis)
        return self.add("div", (e, total), shape)


@dataclass(frozen=True)
class Attention:
    """What varies: heads, width of keys, width of values, mask, and what stands after the second product."""

    heads: int = 3
    d: int = 8
    e: int = 8
    mask: Shape | None = None
    groups: int = 1
    after: bool = False
    queries: int | Expr = Q

    def heads_of(self, g: Maker, name: str, length: int | Expr, heads: int, width: int) -> Value:
        x = g.input(name, (B, length, heads * width))
        split = g.add("reshape", (x,), (B, length, heads, width))
        return g.add("transpose", (split,), (B, heads, length, width), perm=(0, 2, 1, 3))

    def shared(self, g: Maker, x: Value, width: int) -> Value:
        """Key heads repeated for their group of query heads."""
        if self.groups == 1:
            return x
        few = self.heads // self.groups
        x = g.add("reshape", (x,), (B, few, 1, L, width))
        x = g.add("expand", (x,), (B, few, self.groups, L, width))
        return g.add("reshape", (x,), (B, self.heads, L, width))

    def build(self, g: Maker) -> tuple[Value, Value, Value]:
        """(scores, probabilities, result before its heads are merged)"""
        h, few = self.heads, self.heads // self.groups
        q = self.heads_of(g, "q", self.queries, h, self.d)
        k = self.shared(g, self.heads_of(g, "k", L, few, self.d), self.d)
        v = self.shared(g, self.heads_of(g, "v", L, few, self.e), self.e)
        space = (B, h, self.queries, L)
        turned = g.add("transpose", (k,), (B, h, self.d, L), perm=(0, 1, 3, 2))
        scores = g.add("matmul", (q, turned), space)
        x = scores
        if self.mask is not None:
            x = g.add("add", (x, g.input("mask", self.mask)), space)
        p = g.softmax(x)
        return scores, p, g.add("matmul", (p, v), (B, h, self.queries, self.e))

    def finish(self, g: Maker, o: Value) -> Graph:
        merged = g.add("transpose", (o,), (B, self.queries, self.heads, self.e), perm=(0, 2, 1, 3))
        out = g.add("reshape", (merged,), (B, self.queries, self.heads * self.e))
        if not self.after:
            return g.finish(out)
        rows = g.add("reduce", (o,), (B, self.heads, self.queries, 1), kind="sum", axes=(3,))
        return g.finish(g.add("sub", (o, rows), o.shape or ()), out)


def feeds_of(graph: Graph, env: dict[str, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(len(env))
    shapes = {v.name: [evaluate(d, env) for d in v.shape or ()] for v in graph.inputs}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def check(graph: Graph, env: dict[str, int]) -> str:
    """Runs the compiled graph against its interpreter; the compiler's explanation."""
    compiled, feeds = pipeline.compile_graph(graph, OPTIONS), feeds_of(graph, env)
    for want, got in zip(interpret(graph, feeds), compiled.run(feeds), strict=True):
        np.testing.assert_allclose(got, want, 5e-5, 5e-5)
    return compiled.explanation


CASES = {
    "plain": Attention(),
    "wider values": Attention(heads=2, d=5, e=19, mask=(B, 1, 1, L)),
    "mask of rows": Attention(mask=(1, 1, Q, L)),
    "mask of heads": Attention(mask=(3, 1, L)),
    "a constant per row": Attention(mask=(B, 3, Q, 1)),
    "grouped heads": Attention(heads=6, groups=3, d=4, e=4),
    "rows after": Attention(after=True),
    "one query": Attention(queries=1, mask=(B, 1, 1, L)),
    "one column": Attention(d=1, e=1),
}


def graph_of(case: Attention) -> Graph:
    g = Maker()
    return case.finish(g, case.build(g)[2])


def chains(graph: Graph) -> list[Group]:
    return [group for group in fuse(graph) if group.second is not None]


@pytest.mark.parametrize("name", CASES)
def test_attention_is_one_launch_and_means_the_graph(name: str) -> None:
    graph = graph_of(CASES[name])
    assert len(chains(graph)) == 1
    compiled = pipeline.compile_graph(graph, OPTIONS)
    assert "two launches" not in compiled.explanation
    for q, length in ((1, 1), (5, 17), (40, 9), (7, 200)):
        env = {"b": 2, "q": q, "l": length}
        feeds = feeds_of(graph, env)
        for want, got in zip(interpret(graph, feeds), compiled.run(feeds), strict=True):
            np.testing.assert_allclose(got, want, 5e-5, 5e-5, err_msg=f"{name} {env}")


def read_twice(g: Maker) -> Graph:
    _, p, o = Attention().build(g)
    return g.finish(o, g.add("exp", (p,), p.shape or ()))


def probabilities_leave(g: Maker) -> Graph:
    _, p, o = Attention().build(g)
    return g.finish(o, p)


def weight_on_the_right(g: Maker) -> Graph:
    x, y = g.input("x", (B, Q, 8)), g.input("y", (B, 8, 16))
    p = g.softmax(g.add("matmul", (x, y), (B, Q, 16)))
    w = g.constant("w", np.ones((16, 4), np.float32))
    return g.finish(g.add("matmul", (p, w), (B, Q, 4)))


def more_batches_later(g: Maker) -> Graph:
    x, y, z = g.input("x", (B, 1, Q, 8)), g.input("y", (B, 1, 8, L)), g.input("z", (B, 3, L, 4))
    p = g.softmax(g.add("matmul", (x, y), (B, 1, Q, L)))
    return g.finish(g.add("matmul", (p, z), (B, 3, Q, 4)))


def rows_of_the_first_are_needed_after(g: Maker) -> Graph:
    x, y, z = g.input("x", (B, Q, 8)), g.input("y", (B, 8, L)), g.input("z", (B, L, 4))
    s = g.add("matmul", (x, y), (B, Q, L))
    top = g.add("reduce", (s,), (B, Q, 1), kind="max", axes=(2,))
    p = g.add("exp", (g.add("sub", (s, top), (B, Q, L)),), (B, Q, L))
    return g.finish(g.add("add", (g.add("matmul", (p, z), (B, Q, 4)), top), (B, Q, 4)))


@pytest.mark.parametrize(
    "build",
    (read_twice, probabilities_leave, weight_on_the_right, more_batches_later, rows_of_the_first_are_needed_after),
)
def test_a_product_stays_alone_where_the_rule_forbids_a_chain(build: Callable[[Maker], Graph]) -> None:
    g = Maker()
    graph = build(g)
    assert not chains(graph)
    check(graph, {"b": 2, "q": 7, "l": 19})


def test_scores_may_leave_a_chain() -> None:
    g = Maker()
    scores, _, o = Attention().build(g)
    graph = g.finish(scores, o)
    assert len(chains(graph)) == 1
    check(graph, {"b": 2, "q": 7, "l": 19})


def test_a_chain_whose_scratch_is_too_large_is_two_launches() -> None:
    g = Maker()
    x, y, z = g.input("x", (B, Q, 64)), g.input("y", (B, 64, 20000)), g.input("z", (B, 20000, 4))
    p = g.softmax(g.add("matmul", (x, y), (B, Q, 20000)))
    explanation = check(g.finish(g.add("matmul", (p, z), (B, Q, 4))), {"b": 1, "q": 3})
    assert "two launches for a chain of products: a home would need" in explanation


def test_the_square_of_a_product_is_two_launches() -> None:
    """Both operands of the second product are the result of the first, so all of it must be in memory."""
    make = Maker()
    x, y = make.input("x", (B, 4, 4)), make.input("y", (B, 4, 4))
    product = make.add("matmul", (x, y), (B, 4, 4))
    graph = make.finish(make.add("matmul", (product, product), (B, 4, 4)))
    assert all(group.second is None for group in fuse(graph))
    feeds = {name: np.random.default_rng(0).standard_normal((3, 4, 4)).astype(np.float32) for name in "xy"}
    compiled = pipeline.compile_graph(graph, OPTIONS)
    np.testing.assert_allclose(compiled.run(feeds)[0], interpret(graph, feeds)[0], rtol=1e-4, atol=1e-5)
