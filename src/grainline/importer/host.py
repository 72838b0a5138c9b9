"""What a `host` node gives: the types and shapes of its outputs, from the operator schemas of the onnx package.

Only models that need a host node pay for importing onnx. Inference that fails is not an error of the model: the
output's rank is then only known at run time, and the run decides. Extents that inference leaves open become
run-time symbols."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grainline.base.dims import Extent, symbol
from grainline.base.dtypes import BOOL, F32, I64, DType
from grainline.base.errors import ModelError, UnsupportedError
from grainline.graph.ir import Node, Shape, Value
from grainline.importer.builder import Builder
from grainline.importer.call import GRAPH, GRAPHS, Call
from grainline.importer.proto import messages
from grainline.importer.spatial import closed_shape
from grainline.importer.types import element_type, shape_from, type_proto

#: extensions that run on the host where they are not compiled; onnx has no schema for them
MICROSOFT = frozenset(
    "Gelu FastGelu BiasGelu QuickGelu SimplifiedLayerNormalization SkipLayerNormalization "
    "SkipSimplifiedLayerNormalization FusedMatMul".split()
)
STANDARD_DOMAINS = frozenset({"", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training"})
#: shapes that inference may promise and a run may not keep
UNTRUSTED = frozenset("If Loop Scan SequenceMap Optional SequenceAt OptionalGetElement".split())
SMALL_INPUT = 1024
TARGET_SHAPE_INPUT = {"Reshape": 1, "ConstantOfShape": 0}

#: operators whose sub-graphs the graph interpreter runs; what others hold stays in their NodeProto
WITH_SUBGRAPHS = frozenset("If Loop Scan SequenceMap".split())


def schema_of(call: Call, reason: str) -> Any | None:
    """The operator's schema; None for extensions that run on the host; UnsupportedError, with the reason why it is not
    compiled, for others; ModelError when nobody knows the operator."""
    import onnx.defs

    if call.domain == "com.microsoft" and call.op_type in MICROSOFT:
        return None
    if call.domain == "" and call.op_type == "SimplifiedLayerNormalization":
        return None
    try:
        schema = onnx.defs.get_schema(call.op_type, call.version, call.domain)
    except Exception as error:
        name = f"{call.domain or 'ai.onnx'}::{call.op_type}"
        if call.domain not in STANDARD_DOMAINS:
            raise UnsupportedError(
                f"the operator {name} belongs to another engine and is not supported: {reason}",
                node=call.label,
                remedy="Export the model again without that engine's own operators and optimisations.",
            ) from error
        raise ModelError(f"no operator {name} exists in opset {call.version}", node=call.label) from error
    if schema.deprecated:
        raise ModelError(f"{call.op_type} does not exist any more in opset {call.version}", node=call.label)
    return schema


def check_call(call: Call, schema: Any | None) -> None:
    """Arity and attributes against the schema."""
    if schema is None:
        return
    if not schema.min_input <= len(call.inputs) <= schema.max_input:
        expected = f"{schema.min_input} to {schema.max_input} inputs"
        raise ModelError(
            f"{call.op_type} has a wrong number of inputs", node=call.label, expected=expected, found=len(call.inputs)
        )
    if not schema.min_output <= len(call.outputs) <= schema.max_output:
        expected = f"{schema.min_output} to {schema.max_output} outputs"
        raise ModelError(
            f"{call.op_type} has a wrong number of outputs", node=call.label, expected=expected, found=len(call.outputs)
        )
    for name in call.attributes:
        if name not in schema.attributes and not name.startswith("_"):
            raise ModelError(f"{call.op_type} has no attribute {name!r}", node=call.label)
    for name, attribute in schema.attributes.items():
        if attribute.required and name not in call.attributes:
            raise ModelError(f"{call.op_type} lacks its attribute {name!r}", node=call.label)


def node_proto(call: Call) -> Any:
    """The node alone: inputs i0.., outputs o0.., sub-graphs left out."""
    proto = messages().NodeProto(op_type=call.op_type, domain=call.domain, name=call.name)
    proto.input.extend(f"i{index}" if value is not None else "" for index, value in enumerate(call.inputs))
    proto.output.extend(f"o{index}" if name else "" for index, name in enumerate(call.outputs))
    runs_here = call.op_type in WITH_SUBGRAPHS
    proto.attribute.extend(a for a in call.attributes.values() if not runs_here or a.type not in (GRAPH, GRAPHS))
    return proto


def output_values(b: Builder, call: Call, schema: Any | None, hints: dict[str, tuple[DType, str]]) -> list[Value]:
    """One value per output; "" where the output is not used. `hints` gives declared types by output name."""
    proto = node_proto(call)
    inferred = _infer(b, call, schema, proto) if schema is not None and call.op_type not in UNTRUSTED else {}
    known: dict[str, Extent] = {str(d): d for v in call.inputs if v is not None for d in v.shape or ()}
    closed = closed_shape(b, call)
    values = []
    for index, name in enumerate(call.outputs):
        if not name:
            values.append(Value("", F32, None))
            continue
        found = inferred.get(f"o{index}")
        dtype, kind = _type(call, schema, index, found, hints.get(name))
        shape = closed
        if shape is None and found is not None:
            shape = shape_from(found, known, lambda: symbol(b.fresh_symbol("rt")))
        if shape is None:
            shape = _of_known_rank(b, call)
        b.note_sizes(shape or ())
        values.append(Value(b.names.fresh(name), dtype, shape if kind == "tensor" else None, kind))
    return values


def _of_known_rank(b: Builder, call: Call) -> Shape | None:
    """The output of an operator that is given its target shape has as many axes as that has elements."""
    position = TARGET_SHAPE_INPUT.get(call.op_type)
    target = call.optional(position) if position is not None and call.domain == "" else None
    if target is None or target.shape is None or len(target.shape) != 1 or not isinstance(target.shape[0], int):
        return None
    return tuple(symbol(b.fresh_symbol("rt")) for _ in range(target.shape[0]))


def _type(call: Call, schema: Any | None, index: int, found: Any, hint: tuple[DType, str] | None) -> tuple[DType, str]:
    if found is not None and found.WhichOneof("value"):
        try:
            return element_type(found, call.outputs[index])
        except ModelError:
            pass
    if hint is not None:
        return hint
    return _by_schema(call, schema, index) or (_first_type(call), "tensor")


def _first_type(call: Call) -> DType:
    return next((value.dtype for value in call.inputs if value is not None), F32)


def _by_schema(call: Call, schema: Any | None, index: int) -> tuple[DType, str] | None:
    """The output's type where the schema ties it to an input or allows only one."""
    if schema is None:
        return None
    formal = schema.outputs[min(index, len(schema.outputs) - 1)]
    for position, value in enumerate(call.inputs):
        if value is not None and schema.inputs[min(position, len(schema.inputs) - 1)].type_str == formal.type_str:
            return value.dtype, value.kind
    only = {"tensor(int64)": I64, "tensor(bool)": BOOL, "tensor(float)": F32}
    kinds = [only[t] for t in formal.types if t in only]
    return (kinds[0], "tensor") if len(kinds) == 1 and len(formal.types) == 1 else None


def _infer(b: Builder, call: Call, schema: Any, proto: Any) -> dict[str, Any]:
    import onnx.shape_inference

    types = {f"i{index}": type_proto(value) for index, value in enumerate(call.inputs) if value is not None}
    data = _small_data(b, call)
    version = messages().OperatorSetIdProto(domain=call.domain, version=call.version)
    try:
        return dict(onnx.shape_inference.infer_node_outputs(schema, proto, types, data, None, [version]))
    except Exception:
        return _infer_types_only(schema, proto, types, version)


def _infer_types_only(schema: Any, proto: Any, types: dict[str, Any], version: Any) -> dict[str, Any]:
    import onnx.shape_inference

    for item in types.values():
        if item.WhichOneof("value") == "tensor_type":
            item.tensor_type.ClearField("shape")
    try:
        return dict(onnx.shape_inference.infer_node_outputs(schema, proto, types, None, None, [version]))
    except Exception:
        return {}


def _small_data(b: Builder, call: Call) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for index, value in enumerate(call.inputs):
        array = b.static(value, SMALL_INPUT) if value is not None else None
        if array is None or array.dtype.kind == "O":
            continue
        tensor = messages().TensorProto(name=f"i{index}", data_type=value.dtype.onnx, dims=array.shape)
        tensor.raw_data = array.tobytes()
        data[f"i{index}"] = tensor
    return data


def counted(b: Builder, count: Value, reason: str) -> Extent:
    """What `count`, an i64 scalar, holds in a run, as an extent: that of a Range which the host makes."""
    inputs = (b.literal(0, I64), count, b.literal(1, I64))
    call = Call("Range", "", 11, b.node_name, inputs, (f"{b.stem}~count",), {})
    extent = symbol(b.fresh_symbol("rt"))
    output = Value(b.names.fresh(call.outputs[0]), I64, (extent,))
    b.nodes.append(Node("host", inputs, (output,), attributes_of(call, reason, {}, {}), b.node_name))
    return extent


def attributes_of(
    call: Call, reason: str, subgraphs: dict[str, Any], captures: dict[str, Sequence[int]]
) -> dict[str, Any]:
    """The attributes of the host node; see `graph.ops`."""
    return {
        "op_type": call.op_type,
        "domain": call.domain,
        "opset": call.version,
        "proto": node_proto(call).SerializeToString(),
        "subgraphs": subgraphs,
        "captures": captures,
        "formals": len(call.inputs),
        "reason": reason,
    }
