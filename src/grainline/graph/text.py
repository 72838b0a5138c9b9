"""Graphs as text that people read and that parses back.

    graph "name"
    input %x: f32[batch, 4]
    constant %w: f32[4] = [1.0, 2.0, 3.0, 4.0]
    guard min(512, batch) = batch "why" "node"
    %y: f32[batch, 4] = add(%x, %w) {axis: 0} "node name"
    output "y" = %y

Names that are not plain words are quoted: `%"a/b"`. Constants of more than `INLINE_ELEMENTS` elements are shown by
their identity; `parse` takes their data from its argument. `parse(show(g))` has the same nodes, values, guards and
outputs."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from grainline.base import dims
from grainline.base.dims import Expr, product
from grainline.base.dtypes import BY_NAME
from grainline.graph.ir import Constant, Graph, Guard, Node, Value

INLINE_ELEMENTS = 16

_PLAIN = re.compile(r"[A-Za-z0-9_.~]+\Z")


def show(graph: Graph) -> str:
    """The graph as text, one line for each input, constant, guard, node and output."""
    types = {v.name: v for node in graph.nodes for v in node.inputs} | {v.name: v for _, v in graph.outputs}
    lines = [f"graph {json.dumps(graph.name)}"]
    lines += [f"input {_value(value)}" for value in graph.inputs]
    lines += [f"default {_constant(v, graph.defaults[v.name])}" for v in graph.inputs if v.name in graph.defaults]
    lines += [f"constant {_constant(types[name], c)}" for name, c in graph.constants.items() if name in types]
    lines += [f"guard {g.left} = {g.right} {json.dumps(g.reason)} {json.dumps(g.node)}" for g in graph.guards]
    lines += [_node(node) for node in graph.nodes]
    lines += [f"output {json.dumps(name)} = {_reference(value)}" for name, value in graph.outputs]
    return "\n".join(lines) + "\n"


def _reference(value: Value) -> str:
    return f"%{value.name}" if _PLAIN.match(value.name) else f"%{json.dumps(value.name)}"


def _value(value: Value) -> str:
    shape = "?" if value.shape is None else "[" + ", ".join(str(extent) for extent in value.shape) + "]"
    kind = "" if value.kind == "tensor" else f" {value.kind}"
    return f"{_reference(value)}: {value.dtype}{shape}{kind}"


def _constant(value: Value, constant: Constant) -> str:
    count = product(value.shape or ())
    if isinstance(count, int) and count <= INLINE_ELEMENTS and value.dtype.kind in "fiub":
        return f"{_value(value)} = {json.dumps(constant.load().astype(_carrier(value)).ravel().tolist())}"
    return f"{_value(value)} from {json.dumps(constant.identity)}"


def static_shape(value: Value) -> tuple[int, ...]:
    """The shape of a constant."""
    return tuple(int(extent) for extent in value.shape or ())  # type: ignore[arg-type]


def _carrier(value: Value) -> Any:
    """float32 and shorter floats print exactly as Python floats."""
    return np.float64 if value.dtype.kind == "f" else value.dtype.numpy


def _node(node: Node) -> str:
    results = ", ".join(_value(value) for value in node.outputs)
    operands = ", ".join(_reference(value) for value in node.inputs)
    attributes = ", ".join(f"{key}: {_item(item)}" for key, item in node.attributes.items())
    return f"{results} = {node.op}({operands}) {{{attributes}}} {json.dumps(node.name)}"


def _item(item: Any) -> str:
    if isinstance(item, tuple | list):
        return "(" + ", ".join(_item(part) for part in item) + ")"
    if isinstance(item, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)}: {_item(part)}" for key, part in item.items()) + "}"
    if isinstance(item, Graph):
        return "graph " + json.dumps(show(item))
    if isinstance(item, bytes):
        return "bytes " + json.dumps(base64.b64encode(item).decode())
    if isinstance(item, str):
        return json.dumps(item)
    if isinstance(item, bool):
        return "true" if item else "false"
    return str(item) if isinstance(item, Expr) else repr(item)


def parse(text: str, constants: Mapping[str, Constant] | None = None) -> Graph:
    """The graph of a text; `constants` gives the data of constants that the text only names. ValueError otherwise."""
    reader = _Reader(dict(constants or {}))
    for number, line in enumerate(text.splitlines(), 1):
        try:
            reader.read(line.strip())
        except (ValueError, KeyError, IndexError) as error:
            raise ValueError(f"line {number}: {error}: {line!r}") from error
    return reader.graph()


class _Reader:
    """Collects what the lines say."""

    def __init__(self, data: dict[str, Constant]) -> None:
        self.data = data
        self.name = ""
        self.values: dict[str, Value] = {}
        self.inputs: list[Value] = []
        self.outputs: list[tuple[str, Value]] = []
        self.nodes: list[Node] = []
        self.guards: list[Guard] = []
        self.constants: dict[str, Constant] = {}
        self.defaults: dict[str, Constant] = {}

    def graph(self) -> Graph:
        parts = (tuple(self.inputs), tuple(self.outputs), tuple(self.nodes))
        return Graph(self.name, *parts, self.constants, self.defaults, tuple(self.guards))

    def read(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "graph":
            self.name = json.loads(rest)
        elif word == "input":
            self.inputs.append(self._define(rest))
        elif word in ("constant", "default"):
            self._read_constant(rest, self.constants if word == "constant" else self.defaults)
        elif word == "guard":
            self._read_guard(rest)
        elif word == "output":
            name, _, reference = rest.rpartition(" = ")
            self.outputs.append((json.loads(name), self._value(reference)))
        elif word:
            self._read_node(line)

    def _value(self, reference: str) -> Value:
        name = json.loads(reference[1:]) if reference[1:2] == '"' else reference[1:]
        return self.values[name]

    def _define(self, text: str) -> Value:
        reference, _, type_text = _split_type(text)
        name = json.loads(reference[1:]) if reference[1:2] == '"' else reference[1:]
        match = re.match(r"(\w+)(\?|\[.*\])\s*(\w*)\Z", type_text)
        if match is None:
            raise ValueError(f"no type in {text!r}")
        extents = match[2][1:-1]
        shape = None if match[2] == "?" else tuple(dims.parse(part) for part in _parts(extents))
        value = Value(name, BY_NAME[match[1]], shape, match[3] or "tensor")
        self.values.setdefault(name, value) if not name else self.values.update({name: value})
        return value

    def _read_constant(self, text: str, into: dict[str, Constant]) -> None:
        if " = [" in text:
            head, _, items = text.rpartition(" = [")
            value = self._define(head)
            array = np.array(json.loads("[" + items)).astype(value.dtype.numpy).reshape(static_shape(value))
            into[value.name] = Constant(lambda: array)
            return
        head, _, _ = text.rpartition(" from ")
        value = self._define(head)
        into[value.name] = self.data[value.name]

    def _read_guard(self, text: str) -> None:
        equation, reason, node = _head_and_strings(text, 2)
        left, _, right = equation.partition(" = ")
        self.guards.append(Guard(dims.parse(left), dims.parse(right), json.loads(reason), json.loads(node)))

    def _read_node(self, line: str) -> None:
        head, name = _head_and_strings(line, 1)
        results, _, call = _outside(head, " = ")
        op, _, rest = call.partition("(")
        operands, _, attributes = _outside(rest, ")")
        self.values.setdefault("", Value("", BY_NAME["f32"], None))
        inputs = tuple(self._value(reference) for reference in _parts(operands))
        outputs = tuple(self._define(part) for part in _parts(results))
        items = self._mapping(attributes.strip())
        self.nodes.append(Node(op.strip(), inputs, outputs, items, json.loads(name)))

    def _mapping(self, text: str) -> dict[str, Any]:
        pairs = (_outside(part, ": ") for part in _parts(text[1:-1]))
        return {key.strip().strip('"'): self._item(item.strip()) for key, _, item in pairs}

    def _item(self, text: str) -> Any:
        if text.startswith("("):
            return tuple(self._item(part) for part in _parts(text[1:-1]))
        if text.startswith("{"):
            return self._mapping(text)
        if text.startswith("graph "):
            return parse(json.loads(text[6:]), self.data)
        if text.startswith("bytes "):
            return base64.b64decode(json.loads(text[6:]))
        if text.startswith('"'):
            return json.loads(text)
        if text in ("true", "false"):
            return text == "true"
        try:
            return int(text)
        except ValueError:
            return _number_or_extent(text)


def _number_or_extent(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return dims.parse(text)


def _split_type(text: str) -> tuple[str, str, str]:
    return _outside(text.strip(), ": ")


def _depths(text: str) -> Iterator[tuple[int, int]]:
    """(position, nesting) of every character outside of quotes; a quote counts as nested."""
    depth, quoted, escaped = 0, False, False
    for position, character in enumerate(text):
        if quoted:
            quoted = escaped or character != '"'
            escaped = character == "\\" and not escaped
            continue
        if character == '"':
            quoted = True
            continue
        depth -= character in ")]}"
        yield position, depth
        depth += character in "([{"


def _outside(text: str, mark: str) -> tuple[str, str, str]:
    """Partition at the first `mark` outside of quotes and brackets."""
    limit = -1 if mark in ")]}" else 0
    for position, depth in _depths(text):
        if depth == limit and text.startswith(mark, position):
            return text[:position], mark, text[position + len(mark) :]
    raise ValueError(f"no {mark!r} in {text!r}")


def _parts(text: str) -> list[str]:
    """The items of a comma-separated list; brackets and quotes keep commas together."""
    cuts = [position for position, depth in _depths(text) if depth == 0 and text[position] == ","]
    edges = [-1, *cuts, len(text)]
    items = [text[start + 1 : end].strip() for start, end in zip(edges, edges[1:], strict=False)]
    return [item for item in items if item]


def _head_and_strings(text: str, count: int) -> list[str]:
    """What stands before the last `count` quoted strings, and those."""
    found = list(re.finditer(r'"(?:[^"\\]|\\.)*"', text))[-count:]
    return [text[: found[0].start()].rstrip(), *(match[0] for match in found)]
