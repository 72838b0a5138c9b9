"""The compute graph: WHAT to compute.

A `Graph` is immutable and in topological order. A `Value` is identified by its unique `name`; its shape is a tuple of
extents (int or symbolic `Expr`), or None when even the rank is only known at run time. The operators are the small
normalised set of `ops.py`; everything else is an operator `host` that runs the ONNX meaning on the host.

Invariants (`verify.py` checks them):
* every node input is a graph input, a constant, or an output of an earlier node; names are unique;
* `constants` maps value names to `Constant`; a constant's shape is static;
* symbols in shapes are bound by graph inputs, or are *run-time symbols* born at exactly one `host` node;
* a `Guard` is an equation between extents on which the shapes rely; a run checks it as soon as its symbols are bound,
  and before any node that comes later than the symbols' birth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from grainline.base.dims import Expr
from grainline.base.dtypes import DType

Shape = tuple["int | Expr", ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor (or, with `kind` other than "tensor", a sequence, optional or map that only host nodes touch)."""

    name: str
    dtype: DType
    shape: Shape | None
    kind: str = "tensor"

    def __str__(self) -> str:
        shape = "?" if self.shape is None else "[" + ", ".join(str(d) for d in self.shape) + "]"
        return f"%{self.name}: {self.dtype}{shape}"


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant tensor. `load` gives the array (C-contiguous, native byte order; possibly mapped from the file).

    `identity` says where the bytes come from so that equal weights are shared without being read; "" = unknown.
    """

    load: Callable[[], np.ndarray[Any, Any]]
    identity: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A `load` that gives an array already in memory. Loads are objects, not closures, so that they can be saved."""

    array: np.ndarray[Any, Any]

    def __call__(self) -> np.ndarray[Any, Any]:
        return self.array


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Node:
    """One application of operator `op`. `name` is the ONNX node name (for messages), attributes are plain values."""

    op: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    @property
    def output(self) -> Value:
        return self.outputs[0]

    def with_inputs(self, inputs: Iterable[Value]) -> Node:
        return replace(self, inputs=tuple(inputs))


@dataclass(frozen=True, slots=True)
class Guard:
    """`left == right` must hold in a run; otherwise the run ends with a `FeedError` that gives `reason`."""

    left: int | Expr
    right: int | Expr
    reason: str
    node: str = ""


@dataclass(frozen=True, slots=True)
class Declared:
    """A model input or output as its author declared it: a dimension is an int, a name, or None where left open.

    `spelling` is the type of what is no tensor, as ONNX writes it: seq(tensor(float)).
    """

    name: str
    dtype: DType
    shape: tuple[int | str | None, ...] | None
    kind: Literal["tensor", "sequence", "optional", "map"] = "tensor"
    spelling: str = ""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a model says about itself; nothing here changes what is computed. `other_files` hold its external data."""

    inputs: tuple[Declared, ...] = ()
    outputs: tuple[Declared, ...] = ()
    overridable: tuple[Declared, ...] = ()
    ir_version: int = 0
    opsets: Mapping[str, int] = field(default_factory=dict)
    producer_name: str = ""
    producer_version: str = ""
    domain: str = ""
    model_version: int = 0
    description: str = ""
    graph_description: str = ""
    custom: Mapping[str, str] = field(default_factory=dict)
    other_files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """Inputs and outputs in the model's order; `outputs` pairs the model's output name with the value it shows."""

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[tuple[str, Value], ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Constant]
    #: default values of optional inputs (ONNX initialisers that are also inputs): input name -> constant
    defaults: Mapping[str, Constant] = field(default_factory=dict)
    guards: tuple[Guard, ...] = ()
    info: ModelInfo = field(default_factory=ModelInfo)

    def empty_extents(self, output: int) -> tuple[int, ...]:
        """The shape of what a body gives when it never ran: as inferred or declared, 0 where neither has a number."""
        shape = self.outputs[output][1].shape or ()
        shown = self.info.outputs[output].shape if output < len(self.info.outputs) else None
        if shown is None or len(shown) != len(shape):
            shown = (None,) * len(shape)
        numbers = ([d for d in pair if isinstance(d, int)] for pair in zip(shape, shown, strict=True))
        return tuple(found[0] if found else 0 for found in numbers)

    def producers(self) -> dict[str, Node]:
        return {value.name: node for node in self.nodes for value in node.outputs}

    def consumers(self) -> dict[str, list[Node]]:
        """Nodes that read each value, once per node, in topological order."""
        users: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(v.name for v in node.inputs):
                users.setdefault(name, []).append(node)
        return users

    def output_names(self) -> set[str]:
        """Names of the values (not of the model outputs) that leave the graph."""
        return {value.name for _, value in self.outputs}


def map_extents(graph: Graph, change: Callable[[int | Expr], int | Expr]) -> Graph:
    """The graph with `change` applied to every extent: in shapes, attributes (sub-graphs included) and guards."""

    def shape_of(value: Value) -> Value:
        if value.shape is None:
            return value
        return replace(value, shape=tuple(change(d) for d in value.shape))

    def node_of(node: Node) -> Node:
        return replace(
            node,
            inputs=tuple(map(shape_of, node.inputs)),
            outputs=tuple(map(shape_of, node.outputs)),
            attributes={key: _map_attribute(item, change) for key, item in node.attributes.items()},
        )

    return replace(
        graph,
        inputs=tuple(map(shape_of, graph.inputs)),
        outputs=tuple((name, shape_of(value)) for name, value in graph.outputs),
        nodes=tuple(map(node_of, graph.nodes)),
        guards=tuple(replace(g, left=change(g.left), right=change(g.right)) for g in graph.guards),
    )


def _map_attribute(item: Any, change: Callable[[int | Expr], int | Expr]) -> Any:
    if isinstance(item, Expr):
        return change(item)
    if isinstance(item, Graph):
        return map_extents(item, change)
    if isinstance(item, dict):
        return {key: _map_attribute(part, change) for key, part in item.items()}
    return tuple(_map_attribute(part, change) for part in item) if isinstance(item, tuple) else item
