"""Imports the nodes of one graph: names to values, functions inlined, sub-graphs kept as graphs of host nodes.

A `Frame` is the scope of one graph or function call. The main graph and the functions it calls share one `Builder`;
a sub-graph has its own and takes outer values as explicit inputs (its captures), constants excepted. What `flow.py`
carries is compiled like the main graph; the sub-graphs of other operators run on the host, node by node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from grainline.base.dims import symbol
from grainline.base.dtypes import BOOL, F32, I64, STRING, DType
from grainline.base.errors import GrainlineError, ModelError
from grainline.graph.ir import Graph, ModelInfo, Node, Value, map_extents
from grainline.importer import call as calls
from grainline.importer import extents, flow, host
from grainline.importer.builder import Builder, Decline
from grainline.importer.call import Call
from grainline.importer.contents import propagate
from grainline.importer.coverage import rule_for
from grainline.importer.flow import Formal
from grainline.importer.proto import OpenModel
from grainline.importer.recurrent import GATES, expanded
from grainline.importer.tensors import Tensor, constant_of, read_tensor, text_of
from grainline.importer.types import declared

GREATEST_DEPTH = 32

#: names under which the default domain is also known
_DEFAULT_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True, slots=True)
class Library:
    """What all frames of a model share."""

    model: OpenModel
    functions: Mapping[tuple[str, str], Any]


@dataclass(slots=True)
class Frame:
    """Names visible in one graph; `bindings` gives a function's attributes, `captured` a sub-graph's inputs."""

    library: Library
    builder: Builder
    opsets: Mapping[str, int]
    is_host_only: bool = False
    depth: int = 0
    prefix: str = ""
    parent: Frame | None = None
    bindings: Mapping[str, Any] | None = None
    values: dict[str, Value] = field(default_factory=dict)
    captured: dict[str, Value] = field(default_factory=dict)
    hints: dict[str, tuple[DType, str]] = field(default_factory=dict)

    def define(self, name: str, value: Value, node: str) -> None:
        if name in self.values:
            raise ModelError("a name is defined twice", node=node, value=name)
        self.values[name] = value

    def find(self, name: str) -> Value | None:
        """The value of a name, captured from an outer graph where this is a sub-graph."""
        if name in self.values:
            return self.values[name]
        if self.parent is None:
            return None
        outer = self.parent.find(name)
        if outer is None:
            return None
        self.values[name] = inner = self._inherited(name, outer, self.parent.builder)
        return inner

    def _inherited(self, name: str, outer: Value, around: Builder) -> Value:
        if self.is_host_only:
            self.captured[name] = outer
            return Value(self.builder.names.fresh(name), outer.dtype, None, outer.kind)
        if outer.name in around.constants and outer.shape is not None:
            return self.builder.add_constant(name, outer.dtype, outer.shape, around.constants[outer.name])
        shape = None if outer.shape is None else around.shape(outer)
        inner = Value(self.builder.names.fresh(name), outer.dtype, shape, outer.kind)
        content = around.content(outer)
        if content is not None:
            self.builder.contents[inner.name] = content
        self.captured[name] = outer
        return inner


def import_nodes(frame: Frame, nodes: Iterable[Any], spans: Mapping[int, tuple[int, int]] | None = None) -> None:
    """Imports nodes in order; every one defines its outputs in the frame."""
    listed = list(nodes)
    later = {name for node in listed for name in node.output}
    for position, node in enumerate(listed):
        call = _call(frame, node, later, position if spans is not None else None)
        _import_call(frame, call, spans or {})


def _call(frame: Frame, node: Any, later: set[str], position: int | None) -> Call:
    domain = "" if node.domain in _DEFAULT_DOMAINS else node.domain
    label = node.name or f"{node.op_type} -> {', '.join(node.output)}"
    if not node.op_type:
        raise ModelError("a node has no operator type", node=label)
    if domain not in frame.opsets and (domain, node.op_type) not in frame.library.functions:
        raise ModelError(f"the model does not import the domain {node.domain or 'ai.onnx'!r}", node=label)
    inputs = tuple(_resolve(frame, name, label, later) for name in node.input)
    return Call(
        node.op_type, domain, frame.opsets.get(domain, 1), node.name, inputs, tuple(node.output),
        _attributes(frame, node, label), position,
    )  # fmt: skip


def _resolve(frame: Frame, name: str, label: str, later: set[str]) -> Value | None:
    if not name:
        return None
    value = frame.find(name)
    if value is None:
        why = (
            "a node reads a value that only a later node makes"
            if name in later
            else "a node reads a value that nothing makes"
        )
        raise ModelError(why, node=label, value=name, remedy="The graph must be acyclic and in topological order.")
    return value


def _attributes(frame: Frame, node: Any, label: str) -> dict[str, Any]:
    """Attributes by name, references to a function's attributes resolved."""
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        if attribute.name in found:
            raise ModelError(f"attribute {attribute.name!r} is given twice", node=label)
        if not attribute.ref_attr_name:
            found[attribute.name] = attribute
            continue
        if frame.bindings is None:
            raise ModelError(
                f"attribute {attribute.name!r} refers to a function's attribute outside a function", node=label
            )
        bound = frame.bindings.get(attribute.ref_attr_name)
        if bound is not None:
            copy = type(attribute)()
            copy.CopyFrom(bound)
            copy.name = attribute.name
            found[attribute.name] = copy
    return found


def _import_call(frame: Frame, call: Call, spans: Mapping[int, tuple[int, int]]) -> None:
    b = frame.builder
    b.stem = frame.prefix + (next((name for name in call.outputs if name), "") or call.op_type)
    b.node_name = frame.prefix + call.name
    function = frame.library.functions.get((call.domain, call.op_type))
    mark = b.mark()
    try:
        if function is not None:
            results = _inline(frame, call, function)
        elif call.op_type in GATES and call.domain == "":
            host.check_call(call, host.schema_of(call, ""))
            results = _inline(frame, call, expanded(call))
        elif call.op_type == "Constant" and call.domain == "":
            results = [_constant(frame, call, spans)]
        else:
            results = _compiled_or_host(frame, call)
    except (GrainlineError, RecursionError):
        raise
    except Exception as error:
        raise ModelError("the node is not valid", node=call.label, found=f"{type(error).__name__}: {error}") from error
    _define_outputs(frame, call, results, mark)


def _define_outputs(frame: Frame, call: Call, results: list[Value | None], mark: Any) -> None:
    pairs = [(name, value) for name, value in zip(call.outputs, results, strict=False) if name]
    if len(results) < len([name for name in call.outputs if name]):
        raise ModelError(
            f"{call.op_type} has too many outputs", node=call.label, expected=len(results), found=len(call.outputs)
        )
    wishes = {
        value.name: frame.prefix + name for name, value in reversed(pairs) if value is not None and "~" in value.name
    }
    renamed = frame.builder.rename(mark, wishes)
    for name, value in pairs:
        if value is None:
            raise ModelError(f"{call.op_type} does not give this output", node=call.label, value=name)
        frame.define(name, renamed.get(value.name, value), call.label)


def _compiled_or_host(frame: Frame, call: Call) -> list[Value | None]:
    b = frame.builder
    if frame.is_host_only:
        return _host(frame, call, "inside a sub-graph")
    known = _attempt_contents(b, call)
    if known is not None:
        return known
    rule = rule_for(call.domain, call.op_type, call.version)
    if rule is None:
        if flow.carries(call):
            return _flow(frame, call)
        has_subgraphs = call.op_type in host.WITH_SUBGRAPHS
        reason = "control flow runs in the graph interpreter" if has_subgraphs else f"no rule compiles {call.op_type}"
        return _host(frame, call, reason)
    mark = b.mark()
    try:
        results = rule(b, call)
    except Decline as decline:
        b.roll_back(mark)
        return _host(frame, call, decline.reason)
    return results


def _attempt_contents(b: Builder, call: Call) -> list[Value | None] | None:
    mark = b.mark()
    try:
        return propagate(b, call)
    except Decline:
        b.roll_back(mark)
        return None


def _flow(frame: Frame, call: Call) -> list[Value | None]:
    """If, Loop and Scan with sub-graphs that are compiled too."""
    schema = host.schema_of(call, "control flow is not compiled")
    host.check_call(call, schema)

    def subgraph(attribute: str, formals: Sequence[Formal]) -> tuple[Graph, list[Value]]:
        if call.attributes[attribute].type != calls.GRAPH:
            raise ModelError(f"attribute {attribute!r} has the wrong type", node=call.label, expected="graph")
        return _subgraph(frame, call.attributes[attribute].g, call, attribute, formals)

    return flow.import_flow(frame.builder, call, subgraph)


def _host(frame: Frame, call: Call, reason: str) -> list[Value | None]:
    b = frame.builder
    schema = host.schema_of(call, reason)
    host.check_call(call, schema)
    subgraphs: dict[str, Graph] = {}
    captures: dict[str, tuple[int, ...]] = {}
    inputs: list[Value] = [value or Value("", _first_dtype(call), None) for value in call.inputs]
    for name, attribute in call.attributes.items():
        if attribute.type != calls.GRAPH or call.op_type not in host.WITH_SUBGRAPHS:
            continue
        graph, outer = _subgraph(frame, attribute.g, call, name)
        subgraphs[name] = graph
        captures[name] = tuple(range(len(inputs), len(inputs) + len(outer)))
        inputs.extend(outer)
    hints = {**frame.hints, **_hints_from(call, subgraphs)}
    outputs = host.output_values(b, call, schema, hints)
    b.nodes.append(
        Node("host", tuple(inputs), tuple(outputs), host.attributes_of(call, reason, subgraphs, captures), b.node_name)
    )
    return [value if value.name else None for value in outputs]


def _first_dtype(call: Call) -> DType:
    return next((value.dtype for value in call.inputs if value is not None), F32)


def _hints_from(call: Call, subgraphs: Mapping[str, Graph]) -> dict[str, tuple[DType, str]]:
    """Types of the outputs of If, Loop and Scan from what their sub-graphs give."""
    branch = subgraphs.get("then_branch") or subgraphs.get("body")
    if branch is None:
        return {}
    given = [value for _, value in branch.outputs]
    if call.op_type == "Loop":
        given = given[1:]
    return {name: (value.dtype, value.kind) for name, value in zip(call.outputs, given, strict=False) if name}


def _subgraph(
    frame: Frame, proto: Any, call: Call, attribute: str, given: Sequence[Formal] | None = None
) -> tuple[Graph, list[Value]]:
    """The sub-graph with its captures as last inputs, and the outer values that feed those.

    `given` says what it is called with; None: it runs on the host, and nothing is known.
    """
    if frame.depth >= GREATEST_DEPTH:
        raise ModelError("sub-graphs are nested too deeply", node=call.label, expected=f"at most {GREATEST_DEPTH}")
    inner = Frame(
        frame.library, Builder(frame.builder), frame.opsets, given is None, frame.depth + 1, "", frame, frame.bindings,
    )  # fmt: skip
    b = inner.builder
    formals = _formals(inner, proto, call, given)
    add_initialisers(inner, proto, {})
    inner.hints.update(declared_hints(proto))
    import_nodes(inner, proto.node)
    outputs = tuple(
        (info.name, _as_declared(inner, info, required(inner, info.name, call.label))) for info in proto.output
    )
    read = {value.name for node in b.nodes for value in node.inputs} | {value.name for _, value in outputs}
    captures = {name: outer for name, outer in inner.captured.items() if inner.values[name].name in read}
    inputs = (*formals, *(inner.values[name] for name in captures))
    constants = {name: constant for name, constant in b.constants.items() if name in read}
    info = ModelInfo(outputs=tuple(declared(info) for info in proto.output))
    graph = Graph(
        f"{call.label}.{attribute}", inputs, outputs, tuple(b.nodes), constants, guards=b.settled_guards(), info=info
    )
    changed = map_extents(graph, lambda extent: extents.apply_all(extent, b.replacements))
    return replace(changed, inputs=inputs, guards=graph.guards), list(captures.values())


def _formals(inner: Frame, proto: Any, call: Call, given: Sequence[Formal] | None) -> list[Value]:
    """What the body is called with: types as declared or as given, shapes as given."""
    formals: list[Value] = []
    types = _formal_types(call) if given is None else [(formal.dtype, formal.kind) for formal in given]
    initialisers = {tensor.name for tensor in proto.initializer}
    for info in proto.input:
        if info.name in initialisers:
            continue
        shown, position = declared(info), len(formals)
        dtype, kind = shown.dtype, shown.kind
        if not info.type.WhichOneof("value") and position < len(types):
            dtype, kind = types[position]
        formal = given[position] if given is not None and position < len(given) else None
        value = Value(inner.builder.names.fresh(info.name), dtype, None if formal is None else formal.shape, kind)
        inner.define(info.name, value, call.label)
        if formal is not None and formal.content is not None:
            inner.builder.contents[value.name] = formal.content
        formals.append(value)
    return formals


def _formal_types(call: Call) -> list[tuple[DType, str]]:
    """What a body is given, for bodies that do not declare it."""
    given = [(value.dtype, value.kind) if value is not None else (F32, "tensor") for value in call.inputs]
    if call.op_type == "Loop":
        return [(I64, "tensor"), (BOOL, "tensor"), *given[2:]]
    if call.op_type == "SequenceMap":
        return [(dtype, "tensor") for dtype, _ in given]
    return given if call.op_type == "Scan" else []


def _as_declared(frame: Frame, info: Any, value: Value) -> Value:
    """A sub-graph's output with its declared shape: a Loop without a trip has nothing else to go by."""
    if value.shape is not None or not info.type.WhichOneof("value"):
        return value
    shape = declared(info).shape
    if shape is None:
        return value
    fresh = frame.builder.fresh_symbol
    return replace(value, shape=tuple(d if isinstance(d, int) else symbol(fresh("open")) for d in shape))


def declared_hints(proto: Any) -> dict[str, tuple[DType, str]]:
    hints = {}
    for info in (*proto.value_info, *proto.output):
        if info.type.WhichOneof("value"):
            shown = declared(info)
            hints[info.name] = (shown.dtype, shown.kind)
    return hints


def required(frame: Frame, name: str, label: str) -> Value:
    value = frame.find(name)
    if value is None:
        raise ModelError("an output is a value that nothing makes", node=label, value=name)
    return value


def add_initialisers(
    frame: Frame, proto: Any, spans: Mapping[int, tuple[int, int]], skip: frozenset[str] = frozenset()
) -> dict[str, Tensor]:
    """Defines the initialisers of a graph; those in `skip` are only returned."""
    found: dict[str, Tensor] = {}
    for index, tensor in enumerate(proto.initializer):
        if not tensor.name:
            raise ModelError("an initialiser has no name")
        if tensor.name in found:
            raise ModelError("an initialiser is given twice", value=tensor.name)
        read = read_tensor(tensor, frame.library.model, spans.get(index))
        found[tensor.name] = read
        if tensor.name not in skip:
            value = frame.builder.add_constant(tensor.name, read.dtype, read.shape, read.constant)
            frame.define(tensor.name, value, "")
    for sparse in proto.sparse_initializer:
        raise ModelError("sparse initialisers are not supported", value=sparse.values.name)
    return found


def _constant(frame: Frame, call: Call, spans: Mapping[int, tuple[int, int]]) -> Value:
    """A Constant node: one of several attributes holds the value."""
    given = [name for name in call.attributes if name.startswith(("value", "sparse_value"))]
    if len(given) != 1 or len(call.outputs) != 1 or call.inputs:
        raise ModelError(
            "Constant needs exactly one value and one output", node=call.label, found=sorted(call.attributes)
        )
    wish = frame.prefix + call.outputs[0]
    if given[0] == "value":
        span = spans.get(call.position) if call.position is not None else None
        read = read_tensor(call.tensor("value"), frame.library.model, span, label=call.outputs[0])
        return frame.builder.add_constant(wish, read.dtype, read.shape, read.constant)
    array, dtype = _plain_constant(call, given[0])
    return frame.builder.add_constant(wish, dtype, array.shape, constant_of(array))


def _plain_constant(call: Call, name: str) -> tuple[Any, DType]:
    readers = {
        "value_int": (lambda: call.integer(name), "int64", I64),
        "value_ints": (lambda: call.integers(name), "int64", I64),
        "value_float": (lambda: call.real(name), "float32", F32),
        "value_floats": (lambda: list(call.attributes[name].floats), "float32", F32),
        "value_string": (lambda: text_of(call.attributes[name].s), "object", STRING),
        "value_strings": (lambda: [text_of(item) for item in call.attributes[name].strings], "object", STRING),
    }
    if name not in readers:
        raise ModelError("Constant holds a value of an unsupported kind", node=call.label, found=name)
    read, numpy_name, dtype = readers[name]
    return np.array(read(), dtype=numpy_name), dtype


def _inline(frame: Frame, call: Call, function: Any) -> list[Value | None]:
    """Imports a function's body in a scope of its own."""
    if frame.depth >= GREATEST_DEPTH:
        raise ModelError("functions call each other without end", node=call.label)
    if len(call.inputs) > len(function.input) or len(call.outputs) > len(function.output):
        raise ModelError("a function is called with too many inputs or outputs", node=call.label)
    bindings = {attribute.name: attribute for attribute in function.attribute_proto}
    bindings.update(call.attributes)
    opsets = {("" if o.domain in _DEFAULT_DOMAINS else o.domain): o.version for o in function.opset_import}
    prefix = f"{frame.prefix}{call.name or call.outputs[0]}/"
    inner = Frame(
        frame.library, frame.builder, {**frame.opsets, **opsets}, frame.is_host_only, frame.depth + 1, prefix,
        frame.parent if frame.is_host_only else None, bindings,
    )  # fmt: skip
    inner.parent = None
    for name, value in zip(function.input, call.inputs, strict=False):
        if value is not None:
            inner.define(name, value, call.label)
    absent = set(function.input[len(call.inputs) :]) | {
        n for n, v in zip(function.input, call.inputs, strict=False) if v is None
    }
    import_nodes(inner, [_without(node, absent) for node in function.node])
    results: list[Value | None] = [inner.values.get(name) for name in function.output[: len(call.outputs)]]
    return results


def _without(node: Any, absent: set[str]) -> Any:
    """The node with inputs that the caller left out left out too."""
    if not any(name in absent for name in node.input):
        return node
    copy = type(node)()
    copy.CopyFrom(node)
    copy.input[:] = ["" if name in absent else name for name in node.input]
    return copy
