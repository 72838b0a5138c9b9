"""The compute graph: WHAT to compute.

A `Graph` is immutable and in topological order. A `Value` is identified by its unique `name`; its shape is a tuple of
extents (int or symbolic `Expr`), or None when even the rank is only known at run time. The operators are the small
normalised set of `ops.py`; everything else is an operator `host` that runs the ONNX meaning on the host.

Invariants (`verify.py` checks them):
* every node input is a graph input, a constant, or an output of an earlier node; names are unique;
* `constants` maps value names to `Constant`; a constant's shape is static;
* symbols in shapes are bound by graph inputs, or are *run-time symbols* born at exactly one `host` node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

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


@dataclass(frozen=True, slots=True)
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
class Graph:
    """Inputs and outputs in the model's order; `outputs` pairs the model's output name with the value it shows."""

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[tuple[str, Value], ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Constant]
    #: default values of optional inputs (ONNX initialisers that are also inputs): input name -> constant
    defaults: Mapping[str, Constant] = field(default_factory=dict)

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
