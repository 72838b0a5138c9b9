"""Nodes that compute nothing disappear; chains of views become one view.

Each rule is titled by its law and gives a value (the node's output is that value), a node (it replaces the node), or
None. IEEE decides which laws hold for floats: `x * 1`, `x / 1`, `x - 0` and `x + (-0)` are x; `x + 0` is not, for it
turns -0 into +0, and `x * 0` is not 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grainline.base.dims import product
from grainline.graph.ir import Constant, Graph, Node, Shape, Value

SMALL_ELEMENTS = 64

Outcome = Value | Node | None


@dataclass(frozen=True)
class Facts:
    """What a rule may look at: who makes a value, and small constants."""

    producers: Mapping[str, Node]
    constants: Mapping[str, Constant]

    def maker(self, value: Value, op: str) -> Node | None:
        node = self.producers.get(value.name)
        return node if node is not None and node.op == op else None

    def uniform(self, value: Value) -> Any | None:
        """The one number that all elements of a small constant are, as a NumPy scalar; None otherwise."""
        if value.name not in self.constants or value.shape is None:
            return None
        count = product(value.shape)
        if not isinstance(count, int) or not 1 <= count <= SMALL_ELEMENTS:
            return None
        data = self.constants[value.name].load().reshape(-1)
        same = data.tobytes() == data[:1].tobytes() * count
        return data[0] if same else None


@dataclass(frozen=True)
class Simplify:
    name = "simplify"

    def run(self, graph: Graph) -> Graph:
        same: dict[str, Value] = {}
        producers: dict[str, Node] = {}
        nodes: list[Node] = []
        for node in graph.nodes:
            current = node.with_inputs(same.get(value.name, value) for value in node.inputs)
            result = _simplified(current, Facts(producers, graph.constants))
            if isinstance(result, Value):
                same[node.output.name] = result
                continue
            nodes.append(result)
            producers.update((value.name, result) for value in result.outputs)
        outputs = tuple((name, same.get(value.name, value)) for name, value in graph.outputs)
        return replace(graph, nodes=tuple(nodes), outputs=outputs)


def _simplified(node: Node, facts: Facts) -> Value | Node:
    """Applies rules until none applies."""
    progress = True
    while progress:
        progress = False
        for rule in RULES.get(node.op, ()):
            result = rule(node, facts)
            if isinstance(result, Value):
                return result
            if result is not None:
                node, progress = result, True
                break
    return node


def _is_same(node: Node, value: Value) -> bool:
    return value.dtype == node.output.dtype and value.shape == node.output.shape


def no_change_of_shape(node: Node, facts: Facts) -> Outcome:
    """reshape(x, shape of x) -> x, and so for expand, cast, pad and slice that change nothing"""
    return node.inputs[0] if _is_same(node, node.inputs[0]) else None


def no_change_by_slice(node: Node, facts: Facts) -> Outcome:
    """x[0:n:1] -> x"""
    is_whole = all(isinstance(s, int) and s == 0 for s in node.attributes["starts"])
    steps_one = all(step == 1 for step in node.attributes["steps"])
    return node.inputs[0] if is_whole and steps_one and _is_same(node, node.inputs[0]) else None


def reshape_of_reshape(node: Node, facts: Facts) -> Outcome:
    """reshape(reshape(x, s), t) -> reshape(x, t)"""
    inner = facts.maker(node.inputs[0], "reshape")
    return None if inner is None else node.with_inputs(inner.inputs)


def expand_of_expand(node: Node, facts: Facts) -> Outcome:
    """expand(expand(x, s), t) -> expand(x, t)"""
    inner = facts.maker(node.inputs[0], "expand")
    return None if inner is None else node.with_inputs(inner.inputs)


def transpose_of_transpose(node: Node, facts: Facts) -> Outcome:
    """transpose(transpose(x, p), q) -> transpose(x, p[q])"""
    inner = facts.maker(node.inputs[0], "transpose")
    if inner is None:
        return None
    perm = tuple(inner.attributes["perm"][axis] for axis in node.attributes["perm"])
    return Node("transpose", inner.inputs, node.outputs, {"perm": perm}, node.name)


def split_of_transpose_of_merge(node: Node, facts: Facts) -> Outcome:
    """reshape(transpose(reshape(x))) that merges axes and splits the same ones again -> transpose(x)"""
    moved = facts.maker(node.inputs[0], "transpose")
    merged = None if moved is None else facts.maker(moved.inputs[0], "reshape")
    if moved is None or merged is None:
        return None
    source, shape = merged.inputs[0], merged.inputs[0].shape or ()
    groups = _merged_axes(shape, merged.output.shape or ())
    if groups is None:
        return None
    perm = tuple(axis for group in moved.attributes["perm"] for axis in groups[group])
    if tuple(shape[axis] for axis in perm) != node.output.shape:
        return None
    return Node("transpose", (source,), node.outputs, {"perm": perm}, node.name)


def _merged_axes(shape: Shape, merged: Shape) -> list[list[int]] | None:
    """Which runs of axes of `shape` make the extents of `merged`; None when it is not a merge."""
    groups: list[list[int]] = []
    axis = 0
    for extent in merged:
        group = [axis]
        axis += 1
        while axis <= len(shape) and product(shape[a] for a in group if a < len(shape)) != extent:
            group.append(axis)
            axis += 1
        groups.append(group)
    return groups if axis == len(shape) and all(a < axis for group in groups for a in group) else None


def transpose_by_identity(node: Node, facts: Facts) -> Outcome:
    """transpose(x, (0, 1, ..)) -> x"""
    perm = node.attributes["perm"]
    return node.inputs[0] if tuple(perm) == tuple(range(len(perm))) else None


def slice_of_concat(node: Node, facts: Facts) -> Outcome:
    """slice(concat(a, b, ..)) that is exactly one part -> that part"""
    joined = facts.maker(node.inputs[0], "concat")
    if joined is None or any(step != 1 for step in node.attributes["steps"]):
        return None
    axis, start = joined.attributes["axis"], 0
    if any(s != 0 for a, s in enumerate(node.attributes["starts"]) if a != axis):
        return None
    for part in joined.inputs:
        assert part.shape is not None
        if start == node.attributes["starts"][axis] and _is_same(node, part):
            return part
        start = start + part.shape[axis]
    return None


def concat_of_one(node: Node, facts: Facts) -> Outcome:
    """concat(x) -> x"""
    return node.inputs[0] if len(node.inputs) == 1 else None


def reduce_of_nothing(node: Node, facts: Facts) -> Outcome:
    """reduce over no axis -> x"""
    return None if node.attributes["axes"] else node.inputs[0]


def neutral(number: float, is_negative_zero: bool = False, commutes: bool = True) -> Callable[[Node, Facts], Outcome]:
    """x op number -> x, where the other operand does not widen x"""

    def rule(node: Node, facts: Facts) -> Outcome:
        sides = ((0, 1), (1, 0)) if commutes else ((0, 1),)
        for kept, other in sides:
            found = facts.uniform(node.inputs[other])
            if found is not None and _is_same(node, node.inputs[kept]) and _is_number(found, number, is_negative_zero):
                return node.inputs[kept]
        return None

    return rule


def _is_number(found: Any, number: float, is_negative_zero: bool) -> bool:
    if found != number:
        return False
    return number != 0 or found.dtype.kind != "f" or bool(np.signbit(found)) == is_negative_zero


def where_of_constant(node: Node, facts: Facts) -> Outcome:
    """where(true, a, b) -> a and where(false, a, b) -> b, widened to the output"""
    found = facts.uniform(node.inputs[0])
    if found is None:
        return None
    taken = node.inputs[1 if found else 2]
    return taken if _is_same(node, taken) else Node("expand", (taken,), node.outputs, {}, node.name)


def double_not(node: Node, facts: Facts) -> Outcome:
    """not(not(x)) -> x"""
    inner = facts.maker(node.inputs[0], "not")
    return None if inner is None else inner.inputs[0]


def cast_of_widening(node: Node, facts: Facts) -> Outcome:
    """cast(cast(x, wide), t) -> cast(x, t) where the first cast loses nothing"""
    inner = facts.maker(node.inputs[0], "cast")
    if inner is None or inner.output.dtype.name not in LOSSLESS.get(inner.inputs[0].dtype.name, ()):
        return None
    source = inner.inputs[0]
    return source if source.dtype == node.output.dtype else node.with_inputs((source,))


#: conversions that keep every value
LOSSLESS: dict[str, tuple[str, ...]] = {
    "bool": ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f16", "bf16", "f32", "f64"),
    "u8": ("u16", "i16", "u32", "i32", "u64", "i64", "f16", "bf16", "f32", "f64"),
    "i8": ("i16", "i32", "i64", "f16", "bf16", "f32", "f64"),
    "u16": ("u32", "i32", "u64", "i64", "f32", "f64"),
    "i16": ("i32", "i64", "f32", "f64"),
    "u32": ("u64", "i64", "f64"),
    "i32": ("i64", "f64"),
    "f16": ("f32", "f64"),
    "bf16": ("f32", "f64"),
    "f32": ("f64",),
}

RULES: dict[str, tuple[Callable[[Node, Facts], Outcome], ...]] = {
    "reshape": (no_change_of_shape, reshape_of_reshape, split_of_transpose_of_merge),
    "expand": (no_change_of_shape, expand_of_expand),
    "cast": (no_change_of_shape, cast_of_widening),
    "pad": (no_change_of_shape,),
    "slice": (no_change_by_slice, slice_of_concat),
    "transpose": (transpose_by_identity, transpose_of_transpose),
    "concat": (concat_of_one,),
    "reduce": (reduce_of_nothing,),
    "mul": (neutral(1.0),),
    "div": (neutral(1.0, commutes=False),),
    "sub": (neutral(0.0, commutes=False),),
    "add": (neutral(0.0, is_negative_zero=True),),
    "and": (neutral(1),),
    "or": (neutral(0),),
    "where": (where_of_constant,),
    "not": (double_not,),
}
