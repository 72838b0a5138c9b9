"""Runs a `host` node: our own implementation where there is one, else the reference operator of the onnx package.

`host_ops.TABLE` comes first; it holds what the reference gets wrong, what needs sub-graphs, and what onnx lacks.
float16 and bfloat16 are computed in float32 and rounded once, whoever implements the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from grainline.base.errors import UnsupportedError
from grainline.graph.ir import Graph, Node

RunSubgraph = Callable[[Graph, Sequence[Any]], list[Any]]


def evaluate_host(node: Node, arrays: Sequence[Any], run_subgraph: RunSubgraph) -> list[Any]:
    """The outputs of a host node; unused outputs may be None."""
    from grainline.graph.host_ops import TABLE

    a = node.attributes
    own = TABLE.get((a["domain"], a["op_type"]))
    if own is not None:
        results = own(HostCall(node, list(arrays), run_subgraph))
        if results is not NotImplemented:
            return _as_declared(node, results)
    return _as_declared(node, _by_reference(node, arrays))


class HostCall:
    """One run of a host node as the operator functions see it."""

    __slots__ = ("arrays", "attributes", "node", "run_subgraph", "version")

    def __init__(self, node: Node, arrays: list[Any], run_subgraph: RunSubgraph) -> None:
        self.node = node
        self.arrays = arrays[: node.attributes["formals"]]
        self.run_subgraph = run_subgraph
        self.version: int = node.attributes["opset"]
        self.attributes = parsed_attributes(node.attributes["proto"])
        self._captured(arrays)

    def _captured(self, arrays: list[Any]) -> None:
        pass

    def input(self, index: int) -> Any:
        """Input `index`, or None when absent."""
        return self.arrays[index] if index < len(self.arrays) else None

    def get(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)


@lru_cache(maxsize=4096)
def parsed_attributes(proto: bytes) -> dict[str, Any]:
    """Attribute values as Python numbers, bytes, lists or TensorProtos, by name. Shared: do not change."""
    from onnx.helper import get_attribute_value
    from onnx.onnx_ml_pb2 import NodeProto

    return {item.name: get_attribute_value(item) for item in NodeProto.FromString(proto).attribute}


@lru_cache(maxsize=1024)
def _reference(proto: bytes, domain: str, opset: int) -> Any:
    from onnx.onnx_ml_pb2 import NodeProto
    from onnx.reference import ReferenceEvaluator

    node = NodeProto.FromString(proto)
    return ReferenceEvaluator(node, opsets={"": opset if domain == "" else 22, domain: opset})


def _by_reference(node: Node, arrays: Sequence[Any]) -> list[Any]:
    a = node.attributes
    session = _reference(a["proto"], a["domain"], a["opset"])
    feeds = {f"i{index}": data for index, data in enumerate(arrays) if data is not None}
    found = iter(session.run(None, feeds))
    return [next(found) if value.name else None for value in node.outputs]


def _as_declared(node: Node, results: Sequence[Any]) -> list[Any]:
    """NumPy scalars become arrays; missing outputs are an error."""
    if len(results) < len(node.outputs):
        raise UnsupportedError(f"{node.attributes['op_type']} does not give all its outputs on the host")
    shown = []
    for value, data in zip(node.outputs, results, strict=False):
        is_tensor = value.kind == "tensor" and not isinstance(data, list) and data is not None
        shown.append(np.asarray(data) if is_tensor else data)
    return shown
