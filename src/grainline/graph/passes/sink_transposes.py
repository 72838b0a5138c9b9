"""Transposes that move the last axis sink below the work that can be done in the order of their source.

Laws, t being a transpose: f(t(x), t(y)) -> t(f(x, y)) for pointwise f, also where an operand is smaller and is turned
instead; reduce(t(x)) -> t(reduce(x)), pad(t(x)) -> t(pad(x)) and concat(t(x), t(y)) -> t(concat(x, y)) over the axes
that t moves there; t(u(x)) is one transpose.

What is stored with its channels last is then worked on in that order, along rows that lie dense, until a transpose
undoes the first. Transposes that keep the last axis in its place cost nothing and stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grainline.graph.ir import Graph, Node, Shape, Value
from grainline.graph.names import Names, names_of
from grainline.graph.ops import is_pointwise

Perm = tuple[int, ...]


@dataclass(frozen=True)
class SinkTransposes:
    name = "sink_transposes"

    def run(self, graph: Graph) -> Graph:
        sinking = _Sinking({value.name for value in graph.inputs}, names_of(graph))
        for node in graph.nodes:
            sinking.take(node)
        return replace(graph, nodes=tuple(sinking.nodes))


@dataclass
class _Sinking:
    """`turned`: value -> (what it is a transpose of, how). A graph input is not stored for the work here, so its
    transposes stay."""

    inputs: set[str]
    names: Names
    nodes: list[Node] = field(default_factory=list)
    turned: dict[str, tuple[Value, Perm]] = field(default_factory=dict)

    def take(self, node: Node) -> None:
        if node.op == "transpose":
            source, perm = self.turned.get(node.inputs[0].name, (node.inputs[0], None))
            given = tuple(node.attributes["perm"])
            self.turn(source, given if perm is None else tuple(perm[axis] for axis in given), node)
            return
        perm = self._perm(node)
        moved = None if perm is None else self._moved(node, perm)
        if perm is None or moved is None:
            self.nodes.append(node)
            return
        self.nodes.append(moved)
        self.turn(moved.output, perm, node)

    def turn(self, source: Value, perm: Perm, node: Node) -> None:
        """The output of `node` is source, transposed."""
        self.nodes.append(Node("transpose", (source,), node.outputs, {"perm": perm}, node.name))
        if source.name not in self.inputs:
            self.turned[node.output.name] = source, perm

    def _name(self, value: Value) -> str:
        """Of what `value` is in the order of the source."""
        return self.names.fresh(f"{value.name}__unturned")

    def _perm(self, node: Node) -> Perm | None:
        """The one order in which the operands of full rank are transposes, if it moves the last axis."""
        if not (is_pointwise(node.op) or node.op in MOVED):
            return None
        rank = len(node.output.shape or ())
        perms = {self.turned[v.name][1] for v in node.inputs if v.name in self.turned and len(v.shape or ()) == rank}
        if len(perms) != 1:
            return None
        (perm,) = perms
        return perm if perm[-1] != rank - 1 else None

    def _moved(self, node: Node, perm: Perm) -> Node | None:
        """The node in the order of the sources; None where an operand of full size is not turned alike."""
        operands = [self._operand(value, node, perm) for value in node.inputs]
        if any(operand is None for operand in operands):
            return None
        attributes = MOVED[node.op](node.attributes, perm) if node.op in MOVED else node.attributes
        output = replace(node.output, name=self._name(node.output), shape=_back(node.output.shape or (), perm))
        return replace(node, inputs=tuple(v for v in operands if v), outputs=(output,), attributes=attributes)

    def _operand(self, value: Value, node: Node, perm: Perm) -> Value | None:
        if value.name in self.turned and self.turned[value.name][1] == perm:
            return self.turned[value.name][0]
        shape = value.shape or ()
        if all(extent == 1 for extent in shape) and is_pointwise(node.op):
            return value
        if not is_pointwise(node.op) or shape == node.output.shape:
            return None
        aligned: Shape = (*[1] * (len(perm) - len(shape)), *shape)
        wide = replace(value, name=self.names.fresh(f"{value.name}__aligned"), shape=aligned)
        small = replace(value, name=self._name(value), shape=_back(aligned, perm))
        self.nodes.append(Node("reshape", (value,), (wide,), {}, node.name))
        self.nodes.append(Node("transpose", (wide,), (small,), {"perm": _inverse(perm)}, node.name))
        return small


def _inverse(perm: Perm) -> Perm:
    return tuple(perm.index(axis) for axis in range(len(perm)))


def _back(items: Sequence[Any], perm: Perm) -> tuple[Any, ...]:
    """One item per axis, in the order of the source."""
    return tuple(items[axis] for axis in _inverse(perm))


#: how the attributes of an operator are given in the order of the source
MOVED: dict[str, Callable[[Any, Perm], dict[str, Any]]] = {
    "reduce": lambda given, perm: {**given, "axes": tuple(sorted(perm[axis] for axis in given["axes"]))},
    "concat": lambda given, perm: {**given, "axis": perm[given["axis"]]},
    "pad": lambda given, perm: {**given, "before": _back(given["before"], perm)},
}
