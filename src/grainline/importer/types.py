"""TypeProto and ValueInfoProto -> our types and shapes, and back for type inference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from grainline.base.dims import Expr, Extent
from grainline.base.dtypes import BY_ONNX, F32, DType
from grainline.base.errors import ModelError
from grainline.graph.ir import Declared, Shape, Value
from grainline.importer.proto import messages


def element_type(proto: Any, name: str) -> tuple[DType, str]:
    """(element type, kind of value) of a TypeProto; for containers the type of the innermost element."""
    which = proto.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        code = getattr(proto, which).elem_type
        if code not in BY_ONNX:
            raise ModelError("an element type that models cannot carry", value=name, found=code)
        return BY_ONNX[code], "tensor"
    if which in ("sequence_type", "optional_type"):
        inner = getattr(proto, which).elem_type
        dtype = element_type(inner, name)[0] if inner.WhichOneof("value") else F32
        return dtype, which.removesuffix("_type")
    if which == "map_type":
        return F32, "map"
    raise ModelError("a value without a type", value=name, expected="a tensor, sequence, optional or map")


def declared(info: Any) -> Declared:
    """A model input or output as declared."""
    if not info.type.WhichOneof("value"):
        return Declared(info.name, F32, None)
    dtype, kind = element_type(info.type, info.name)
    tensor = info.type.tensor_type
    if kind != "tensor":
        return Declared(info.name, dtype, None, kind, _spelled(info.type))
    if not tensor.HasField("shape"):
        return Declared(info.name, dtype, None)
    dims = tuple(_dimension(dim) for dim in tensor.shape.dim)
    return Declared(info.name, dtype, dims)


def _spelled(proto: Any) -> str:
    """A TypeProto as ONNX writes it: seq(map(int64,tensor(float)))."""
    which = proto.WhichOneof("value")
    if which in ("sequence_type", "optional_type"):
        return f"{'seq' if which == 'sequence_type' else 'optional'}({_spelled(getattr(proto, which).elem_type)})"
    if which == "map_type":
        key = BY_ONNX.get(proto.map_type.key_type)
        return f"map({key.onnx_name if key else '?'},{_spelled(proto.map_type.value_type)})"
    return f"tensor({element_type(proto, '')[0].onnx_name})" if which else "?"


def _dimension(dim: Any) -> int | str | None:
    """A number, a name, or None; "?", "-1" and the like are no names and bind nothing together."""
    which = dim.WhichOneof("value")
    if which == "dim_value":
        return dim.dim_value if dim.dim_value >= 0 else None
    name = dim.dim_param if which == "dim_param" else ""
    return name if any(character.isalpha() for character in name) else None


def type_proto(value: Value) -> Any:
    """The TypeProto of a value; an extent that is not a number becomes a parameter that `shape_from` reads back."""
    proto = messages().TypeProto()
    if value.kind != "tensor":
        inner = proto.sequence_type if value.kind == "sequence" else proto.optional_type
        inner.elem_type.tensor_type.elem_type = value.dtype.onnx
        return proto
    proto.tensor_type.elem_type = value.dtype.onnx
    if value.shape is not None:
        proto.tensor_type.shape.SetInParent()
        for extent in value.shape:
            dim = proto.tensor_type.shape.dim.add()
            if isinstance(extent, Expr):
                dim.dim_param = str(extent)
            else:
                dim.dim_value = extent
    return proto


def shape_from(proto: Any, known: Mapping[str, Extent], fresh: Callable[[], Extent]) -> Shape | None:
    """The shape of an inferred TypeProto; parameters that are not `known` become fresh symbols."""
    tensor = proto.tensor_type
    if proto.WhichOneof("value") != "tensor_type" or not tensor.HasField("shape"):
        return None
    shape: list[Extent] = []
    for dim in tensor.shape.dim:
        if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0:
            shape.append(dim.dim_value)
        else:
            shape.append(known[dim.dim_param] if dim.dim_param in known else fresh())
    return tuple(shape)
