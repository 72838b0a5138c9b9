"""What only the model file knows: its description and its overridable initializers. Read on demand, without weights."""

from __future__ import annotations

from typing import Any

from grainline.session.options import ModelMetadata, NodeArg, onnx_type


def model_metadata(source: str | bytes) -> ModelMetadata:
    proto = _parse(source)
    return ModelMetadata(
        producer_name=proto.producer_name,
        graph_name=proto.graph.name,
        domain=proto.domain,
        description=proto.doc_string,
        graph_description=proto.graph.doc_string,
        version=proto.model_version,
        custom_metadata_map={entry.key: entry.value for entry in proto.metadata_props},
    )


def overridable_initializers(source: str | bytes) -> list[NodeArg]:
    """Inputs that have an initializer; before IR version 4 every initializer is an input and none may be replaced."""
    proto = _parse(source)
    if proto.ir_version < 4:
        return []
    initialised = {tensor.name for tensor in proto.graph.initializer}
    return [_describe(value) for value in proto.graph.input if value.name in initialised]


def _describe(value: Any) -> NodeArg:
    tensor = value.type.tensor_type
    shape = [d.dim_value if d.HasField("dim_value") else (d.dim_param or None) for d in tensor.shape.dim]
    return NodeArg(value.name, onnx_type(int(tensor.elem_type)), shape)


def _parse(source: str | bytes) -> Any:
    import onnx

    return onnx.load_from_string(source) if isinstance(source, bytes) else onnx.load(source, load_external_data=False)
