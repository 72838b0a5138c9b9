"""Runs a `host` node: our own implementation where there is one, else the reference operator of the onnx package.

`host_ops.TABLE` comes first; it holds what the reference gets wrong, what needs sub-graphs, and what onnx lacks.
float16 and bfloat16 are computed in float32 and rounded once, whoever implements the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from grainline.base.errors import KernelError
from grainline.base.memo import kept_with_first
from grainline.graph.host_ops import TABLE
from grainline.graph.ir import Graph, Node

RunSubgraph = Callable[[Graph, Sequence[Any]], list[Any]]

#: of the default domain, for operators of other domains that are written in terms of it
DEFAULT_OPSET = 22

HALF = frozenset({"float16", "bfloat16"})
#: operators whose meaning depends on the element type itself, or that run sub-graphs
AS_THEY_ARE = frozenset(
    "Cast CastLike QuantizeLinear DequantizeLinear BitCast If Loop Scan Identity Constant Shape Size RandomNormalLike "
    "RandomUniformLike Bernoulli EyeLike ConstantOfShape Range Attention".split()
)


def evaluate_host(
    node: Node, arrays: Sequence[Any], run_subgraph: RunSubgraph, env: Mapping[str, int] | None = None
) -> list[Any]:
    """The outputs of a host node; None for an output that nobody uses. `env`: the extents known before it."""
    if node.attributes["op_type"] in AS_THEY_ARE or not any(_is_half(data) for data in arrays):
        return _shown(node, _results(node, list(arrays), run_subgraph, env or {}))
    wide = [data.astype(np.float32) if _is_half(data) else data for data in arrays]
    return [
        _rounded(value, data) for value, data in zip(node.outputs, _shown(node, _results(node, wide, run_subgraph, {})))
    ]


def _is_half(data: Any) -> bool:
    return isinstance(data, np.ndarray) and data.dtype.name in HALF


def _rounded(value: Any, data: Any) -> Any:
    """A float result as the declared half type."""
    if value.dtype.name in ("f16", "bf16") and isinstance(data, np.ndarray) and data.dtype.kind == "f":
        return data.astype(value.dtype.numpy)
    return data


def _results(node: Node, arrays: list[Any], run_subgraph: RunSubgraph, env: Mapping[str, int]) -> Sequence[Any]:
    own = TABLE.get((node.attributes["domain"], node.attributes["op_type"]))
    if own is not None:
        results = own(HostCall(node, arrays, run_subgraph, env))
        if results is not NotImplemented:
            return results
    return _by_reference(node, arrays)


class HostCall:
    """One run of a host node as the operator functions see it: formal inputs, attributes, sub-graphs."""

    __slots__ = ("_all", "_run", "arrays", "attributes", "env", "node", "version")

    def __init__(self, node: Node, arrays: list[Any], run_subgraph: RunSubgraph, env: Mapping[str, int]) -> None:
        self.node = node
        self.env = env
        self.version: int = node.attributes["opset"]
        self.arrays = arrays[: node.attributes["formals"]]
        self.attributes = parsed_attributes(node)
        self._all = arrays
        self._run = run_subgraph

    def input(self, index: int) -> Any:
        """Input `index`, or None when absent."""
        return self.arrays[index] if index < len(self.arrays) else None

    def get(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def text(self, name: str, default: str) -> str:
        found = self.get(name, default)
        return found.decode() if isinstance(found, bytes) else found

    def texts(self, name: str) -> list[str]:
        return [item.decode() for item in self.get(name, ())]

    def subgraph(self, name: str, inputs: list[Any]) -> list[Any]:
        """Runs a sub-graph on its formal inputs; what it captures is added."""
        graph = self.node.attributes["subgraphs"].get(name)
        if graph is None:
            raise KernelError(f"the sub-graph {name!r} is missing")
        captured = [self._all[position] for position in self.node.attributes["captures"][name]]
        if len(inputs) + len(captured) != len(graph.inputs):
            raise KernelError(
                f"the sub-graph {name!r} is given a wrong number of inputs",
                expected=len(graph.inputs) - len(captured),
                found=len(inputs),
            )
        return self._run(graph, [*inputs, *captured])


@kept_with_first
def parsed_attributes(node: Node) -> dict[str, Any]:
    """Attribute values as Python numbers, bytes, lists or TensorProtos, by name. Shared: do not change."""
    from onnx.helper import get_attribute_value
    from onnx.onnx_ml_pb2 import NodeProto

    return {item.name: get_attribute_value(item) for item in NodeProto.FromString(node.attributes["proto"]).attribute}


@kept_with_first
def _reference(host: Node) -> Any:
    """The reference operator as a session of one node. Every output has a name, since the reference counts them."""
    from onnx.onnx_ml_pb2 import GraphProto, NodeProto
    from onnx.reference import ReferenceEvaluator

    node = NodeProto.FromString(host.attributes["proto"])
    node.output[:] = [name or f"o{index}" for index, name in enumerate(node.output)]
    if host.attributes["op_type"] == "RoiAlign" and host.attributes["opset"] < 16:  # it rounded otherwise then
        node.attribute.add(name="coordinate_transformation_mode", type=3, s=b"output_half_pixel")
    graph = GraphProto(name="host")
    graph.node.append(node)
    for name in dict.fromkeys(name for name in node.input if name):
        graph.input.add(name=name)
    for name in node.output:
        graph.output.add(name=name)
    return ReferenceEvaluator(graph, opsets={"": DEFAULT_OPSET, host.attributes["domain"]: host.attributes["opset"]})


def _by_reference(node: Node, arrays: Sequence[Any]) -> list[Any]:
    feeds = {f"i{index}": data for index, data in enumerate(arrays) if data is not None}
    return list(_reference(node).run(None, feeds))


def _shown(node: Node, results: Sequence[Any]) -> list[Any]:
    """NumPy scalars become arrays, text objects; outputs that nobody uses become None; missing ones are an error."""
    if len(results) < len(node.outputs):
        raise KernelError("the operator does not give all its outputs", expected=len(node.outputs), found=len(results))
    shown: list[Any] = []
    for value, data in zip(node.outputs, results):
        if not value.name:
            shown.append(None)
        elif value.kind == "tensor" and data is not None and not isinstance(data, list):
            data = np.asarray(data)
            shown.append(data.astype(object) if data.dtype.kind == "U" else data)
        else:
            shown.append(data)
    return shown
