"""Nodes whose inputs are constants become constants that are computed when they are first loaded.

Law: a folded constant has the bits that the run would have computed, for the same NumPy meaning computes it.

Nothing large is computed here and nothing can grow without bound: a fold is refused when its result is much larger
than its inputs. A node that could fail (a zero divisor, an index out of range) is folded only after it was tried; if it
fails it stays a node, and the run reports it. Generators (`iota`, `extents`) stay: a kernel makes them faster than
memory gives them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from grainline.graph.folded import Folded
from grainline.graph.ir import Constant, Graph, Held, Node, Value

MAY_FAIL = frozenset({"div", "mod", "fmod", "gather", "gather_nd"})
GENERATORS = frozenset({"iota", "extents"})
#: host operators that convert weights: total, and no larger than their inputs by more than a type's width
CONVERSIONS = frozenset({"Cast", "CastLike", "DequantizeLinear"})

SMALL_BYTES = 4096


@dataclass(frozen=True)
class FoldConstants:
    """`growth` bounds result bytes per input byte; `spare_bytes` is allowed on top."""

    growth: int = 8
    spare_bytes: int = 1 << 16
    name: str = field(default="fold_constants", init=False)

    def run(self, graph: Graph) -> Graph:
        constants = dict(graph.constants)
        nodes: list[Node] = []
        for node in graph.nodes:
            folded = self._folded(node, constants)
            if folded is None:
                nodes.append(node)
            else:
                constants[node.output.name] = folded
        return replace(graph, nodes=tuple(nodes), constants=constants)

    def _folded(self, node: Node, constants: dict[str, Constant]) -> Constant | None:
        if not self._may_fold(node, constants):
            return None
        inputs = [constants[value.name] if value.name else None for value in node.inputs]
        load = Folded(node, tuple(inputs))
        if _bytes(node.output) > SMALL_BYTES and node.op not in MAY_FAIL:
            return Constant(load, _identity(node, inputs))
        return _tried(load)

    def _may_fold(self, node: Node, constants: dict[str, Constant]) -> bool:
        if node.op in GENERATORS or len(node.outputs) != 1 or not node.inputs:
            return False
        if node.op == "host" and node.attributes["op_type"] not in CONVERSIONS:
            return False
        if not all(value.name in constants or not value.name for value in node.inputs) or not _is_static(node.output):
            return False
        limit = self.growth * sum(_bytes(value) for value in node.inputs if _is_static(value)) + self.spare_bytes
        return node.output.dtype.kind != "s" and _bytes(node.output) <= limit


def _is_static(value: Value) -> bool:
    return value.shape is not None and all(isinstance(extent, int) for extent in value.shape)


def _bytes(value: Value) -> int:
    return prod(value.shape or ()) * value.dtype.size_bytes  # type: ignore[return-value]


def _tried(load: Callable[[], np.ndarray[Any, Any]]) -> Constant | None:
    """The constant, already computed; None when computing it fails."""
    try:
        array = load()
    except Exception:  # whatever it is, the run will report it
        return None
    digest = hashlib.sha256(array.tobytes()).hexdigest()
    return Constant(Held(array), f"bytes:{array.dtype.name}:{array.shape}:{digest}")


def _identity(node: Node, inputs: list[Constant | None]) -> str:
    """Names the computation when every input is named; "" otherwise."""
    names = ["-" if constant is None else constant.identity for constant in inputs]
    if "" in names:
        return ""
    plain = {key: item for key, item in node.attributes.items() if key not in ("reason", "subgraphs")}
    attributes = sorted((key, repr(item)) for key, item in plain.items())
    text = repr((node.op, attributes, node.output.dtype.name, node.output.shape, names))
    return "fold:" + hashlib.sha256(text.encode()).hexdigest()
