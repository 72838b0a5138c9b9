"""The whole model: checks its frame, imports its main graph, applies what was learnt about extents."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

from grainline.base.dims import Extent, symbol
from grainline.base.errors import GrainlineError, ModelError
from grainline.graph.ir import Constant, Declared, Graph, ModelInfo, Value, map_extents
from grainline.importer import extents
from grainline.importer.builder import Builder
from grainline.importer.frames import (
    Frame,
    Library,
    add_initialisers,
    declared_hints,
    import_nodes,
    required,
)
from grainline.importer.proto import OpenModel, open_model
from grainline.importer.tensors import Tensor
from grainline.importer.types import declared

GREATEST_IR_VERSION = 14
GREATEST_OPSET = 28
FIRST_IR_WITH_OVERRIDABLE = 4


def import_model(source: Any) -> Graph:
    """A path, bytes, ModelProto or opened model -> Graph; ModelError, and no other error, for what is not valid."""
    try:
        return _import(source if isinstance(source, OpenModel) else open_model(source))
    except GrainlineError:
        raise
    except RecursionError as error:
        raise ModelError("the model is nested too deeply") from error
    except MemoryError:
        raise
    except Exception as error:
        raise ModelError("the model is not valid", found=f"{type(error).__name__}: {error}") from error


def _import(opened: OpenModel) -> Graph:
    model = opened.proto
    opsets = _opsets(model)
    proto = model.graph
    frame = Frame(Library(opened, _functions(model)), Builder(), opsets)
    overridable = _overridable(model)
    symbols: dict[str, str] = {}
    tensors = _inputs_and_initialisers(frame, opened, overridable, symbols)
    inputs = tuple(
        frame.values[info.name]
        for info in proto.input
        if info.name in frame.values and _is_fed(info, tensors, overridable)
    )
    frame.hints.update(declared_hints(proto))
    import_nodes(frame, proto.node, opened.split.nodes)
    if not proto.output:
        raise ModelError("the model has no output")
    outputs = tuple((info.name, required(frame, info.name, "model")) for info in proto.output)
    _distinct(proto.output, "output")
    defaults = {name: tensors[name].constant for name in overridable}
    info = _info(opened, opsets, tensors, overridable)
    graph = _finished(frame, proto, inputs, outputs, defaults, info)
    dimensions = {symbol: name for name, symbol in symbols.items()}
    shown = [
        _shown_output(mine, value, dimensions) for mine, (_, value) in zip(proto.output, graph.outputs, strict=True)
    ]
    return replace(graph, info=replace(info, outputs=tuple(shown)))


def _opsets(model: Any) -> dict[str, int]:
    if not model.ir_version:
        raise ModelError("the model has no IR version", expected=f"1 to {GREATEST_IR_VERSION}")
    if not 0 < model.ir_version <= GREATEST_IR_VERSION:
        raise ModelError(
            "the IR version is out of range", expected=f"1 to {GREATEST_IR_VERSION}", found=model.ir_version
        )
    opsets: dict[str, int] = {}
    for entry in model.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        opsets[domain] = max(entry.version, opsets.get(domain, 0))
    if model.ir_version < 3 and not opsets:
        opsets[""] = 1
    if not opsets:
        raise ModelError("the model imports no operator set")
    version = opsets.get("", 1)
    if not 1 <= version <= GREATEST_OPSET:
        raise ModelError("the opset is out of range", expected=f"1 to {GREATEST_OPSET}", found=version)
    if not model.HasField("graph"):
        raise ModelError("the model has no graph")
    return opsets


def _functions(model: Any) -> dict[tuple[str, str], Any]:
    found: dict[tuple[str, str], Any] = {}
    for function in model.functions:
        key = ("" if function.domain == "ai.onnx" else function.domain, function.name)
        if key in found and getattr(found[key], "overload", "") == getattr(function, "overload", ""):
            raise ModelError("a function is defined twice", value=f"{key[0]}::{key[1]}")
        found[key] = function
    return found


def _overridable(model: Any) -> frozenset[str]:
    """Initialisers that are also inputs: defaults since IR 4, plain constants before."""
    if model.ir_version < FIRST_IR_WITH_OVERRIDABLE:
        return frozenset()
    inputs = {info.name for info in model.graph.input}
    return frozenset(tensor.name for tensor in model.graph.initializer if tensor.name in inputs)


def _is_fed(info: Any, tensors: dict[str, Tensor], overridable: frozenset[str]) -> bool:
    return info.name not in tensors or info.name in overridable


def _inputs_and_initialisers(
    frame: Frame, opened: OpenModel, overridable: frozenset[str], symbols: dict[str, str]
) -> dict[str, Tensor]:
    """Defines them, and notes in `symbols` the symbol of each named dimension."""
    proto = opened.proto.graph
    _distinct(proto.input, "input")
    initialisers = {tensor.name for tensor in proto.initializer}
    for info in proto.input:
        if info.name in initialisers and info.name not in overridable:
            continue
        if not info.type.WhichOneof("value"):
            raise ModelError("an input has no type", value=info.name)
        shown = declared(info)
        shape = _input_shape(frame.builder, shown, symbols)
        frame.define(info.name, Value(frame.builder.names.fresh(info.name), shown.dtype, shape, shown.kind), "")
    tensors = add_initialisers(frame, proto, opened.split.initialisers, overridable)
    for name in overridable:
        if tensors[name].dtype != frame.values[name].dtype:
            raise ModelError(
                "an initialiser and its input differ in type",
                value=name,
                expected=frame.values[name].dtype,
                found=tensors[name].dtype,
            )
    return tensors


def _input_shape(b: Builder, shown: Declared, symbols: dict[str, str]) -> tuple[Extent, ...] | None:
    """Named dimensions are one symbol each throughout the model; open ones get a symbol of their own."""
    if shown.shape is None:
        return None
    shape: list[Extent] = []
    for axis, dim in enumerate(shown.shape):
        if isinstance(dim, int):
            shape.append(dim)
            continue
        key = dim if dim is not None else f"{shown.name}_{axis}"
        if dim is None or key not in symbols:
            name = b.fresh_symbol(_symbol_name(key))
            if dim is None:
                shape.append(symbol(name))
                continue
            symbols[key] = name
        shape.append(symbol(symbols[key]))
    return tuple(shape)


def _symbol_name(wish: str) -> str:
    name = re.sub(r"\W", "_", wish)
    return name if re.match(r"[^\W\d]", name) and name not in extents.OPERATIONS else f"d_{name}"


def _shown_output(info: Any, value: Value, dimensions: dict[str, str]) -> Declared:
    """An output as declared; what the model leaves open is filled with what was found."""
    if not info.type.WhichOneof("value"):
        shown = Declared(info.name, value.dtype, None, value.kind)
    else:
        shown = declared(info)
    if shown.kind != "tensor" or value.kind != "tensor":
        return shown
    if shown.dtype != value.dtype:
        raise ModelError(
            "an output is declared with another type", value=info.name, expected=value.dtype, found=shown.dtype
        )
    if shown.shape is not None or value.shape is None:
        return shown
    return replace(shown, shape=tuple(d if isinstance(d, int) else dimensions.get(str(d)) for d in value.shape))


def _distinct(infos: Any, what: str) -> None:
    seen: set[str] = set()
    for info in infos:
        if not info.name:
            raise ModelError(f"an {what} has no name")
        if info.name in seen:
            raise ModelError(f"an {what} is given twice", value=info.name)
        seen.add(info.name)


def _finished(
    frame: Frame,
    proto: Any,
    inputs: tuple[Value, ...],
    outputs: tuple[tuple[str, Value], ...],
    defaults: dict[str, Constant],
    info: ModelInfo,
) -> Graph:
    """Only constants that something reads stay; every extent is written as what it must equal."""
    b = frame.builder
    read = {value.name for node in b.nodes for value in node.inputs} | {value.name for _, value in outputs}
    constants = {name: constant for name, constant in b.constants.items() if name in read}
    graph = Graph(proto.name, inputs, outputs, tuple(b.nodes), constants, defaults, b.settled_guards(), info)
    if not b.replacements:
        return graph
    changed = map_extents(graph, cache(lambda extent: extents.apply_all(extent, b.replacements)))
    return replace(changed, guards=graph.guards)


def _info(
    opened: OpenModel, opsets: dict[str, int], tensors: dict[str, Tensor], overridable: frozenset[str]
) -> ModelInfo:
    model = opened.proto
    fed = [info for info in model.graph.input if info.name not in tensors]
    return ModelInfo(
        inputs=tuple(declared(info) for info in fed),
        overridable=tuple(declared(info) for info in model.graph.input if info.name in overridable),
        ir_version=model.ir_version,
        opsets=opsets,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        description=model.doc_string,
        graph_description=model.graph.doc_string,
        custom={entry.key: entry.value for entry in model.metadata_props},
        other_files=tuple(sorted(opened.other_files)),
    )
