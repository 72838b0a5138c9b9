"""Execution graphs as text: `print_graph(graph)`, and `parse(text)` which reads it back.

One line per item; every line is a call in Python's notation, extents stand as `dim("N + 1")` when they are symbolic.
Callables (the loads of weights, host operations) are not part of the text: a graph that was read can be inspected,
compared, interpreted with the interpreter's own callables and packed, but not loaded.

    graph("add")
    slot(0, "input", "x", f32, (dim("N"), 4))
    input("x", f32, (dim("N"), 4), 0)
    main(1, "AllocMemory", (), (1,), (0,), {"size_bytes": dim("16*N")}, "add")
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from grainline.base import dims
from grainline.base.dims import Expr
from grainline.base.dtypes import BY_NAME, DType
from grainline.execgraph.frames import Frame
from grainline.execgraph.ir import (
    NO_RELATIONS,
    ExecuteGraph,
    ExecuteNode,
    HostOp,
    Input,
    LaunchTable,
    Output,
    Slot,
    Variant,
    View,
    Weight,
)

_CONTAINERS = ("init", "main", "deinit")


def print_graph(graph: ExecuteGraph) -> str:
    lines = [_line("graph", graph.name)]
    lines += [_line("slot", s.id, s.kind, s.label, s.dtype, s.shape) for s in graph.slots]
    lines += [_line("input", i.name, i.dtype, i.shape, i.slot, i.default, i.kind) for i in graph.inputs]
    lines += [_line("output", o.name, o.dtype, o.shape, o.slot, o.kind) for o in graph.outputs]
    lines += [_line("weight", w.label, w.dtype, w.shape, w.identity, w.layout) for w in graph.weights]
    lines += [_line("host_op", h.name) for h in graph.host_ops]
    for container in _CONTAINERS:
        lines += [_node(container, node) for node in getattr(graph, container)]
    lines += [_line("relation", free, launch) for free, launch in graph.relations.pairs()]
    lines += [_line("frame", f.owner, f.parent, f.entry, f.exit, f.group) for f in graph.frames]
    return "\n".join(lines) + "\n"


def parse(text: str) -> ExecuteGraph:
    """The graph; ValueError names the line that is wrong."""
    items: dict[str, list[Any]] = {kind: [] for kind in (*_BUILDERS, "graph")}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            call = ast.parse(line.strip(), mode="eval").body
            assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name), "not an item"
            arguments = [_read(argument) for argument in call.args]
            kind = call.func.id
            items[kind].append(arguments[0] if kind == "graph" else _BUILDERS[kind](*arguments))
        except (SyntaxError, AssertionError, KeyError, TypeError, ValueError) as problem:
            raise ValueError(f"line {number}: {problem!r} in {line!r}") from problem
    parts = {kind: tuple(found) for kind, found in items.items()}
    name = parts["graph"][0] if parts["graph"] else ""
    containers = {container: parts[container] for container in _CONTAINERS}
    tables = {"weights": parts["weight"], "host_ops": parts["host_op"], "frames": parts["frame"]}
    relations = NO_RELATIONS.merged(parts["relation"])
    return ExecuteGraph(
        name, parts["input"], parts["output"], parts["slot"], **containers, **tables, relations=relations
    )


_BUILDERS: dict[str, Callable[..., Any]] = {
    "slot": Slot,
    "input": Input,
    "output": Output,
    "weight": Weight,
    "host_op": HostOp,
    **dict.fromkeys(_CONTAINERS, ExecuteNode),
    "relation": lambda free, launch: (free, launch),
    "frame": Frame,
}


# ---- writing ---------------------------------------------------------------------------------------------------


def _line(kind: str, *arguments: Any) -> str:
    return f"{kind}({', '.join(map(_write, arguments))})"


def _node(container: str, node: ExecuteNode) -> str:
    return _line(
        container,
        node.id,
        node.kernel,
        node.inputs,
        node.outputs,
        node.controls,
        node.attributes,
        node.compute_node,
        *([node.owner] if node.owner else []),
    )


def _write(value: Any) -> str:
    if isinstance(value, Expr):
        return f'dim("{value}")'
    if isinstance(value, DType):
        return value.name
    if isinstance(value, Variant):
        return _line("variant", *(getattr(value, each.name) for each in fields(value)))
    if isinstance(value, LaunchTable):
        return _line("launch_table", value.axes, value.rows)
    if isinstance(value, View):
        return _line("view", value.slot, value.offset_bytes, value.access)
    if isinstance(value, tuple):
        return f"({', '.join(map(_write, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_write(key)}: {_write(part)}" for key, part in value.items()) + "}"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    raise TypeError(f"{type(value).__name__} has no text")


# ---- reading ---------------------------------------------------------------------------------------------------


def _read(tree: ast.expr) -> Any:
    match tree:
        case ast.Name(id=name):
            return BY_NAME[name]
        case ast.Tuple(elts=parts):
            return tuple(_read(part) for part in parts)
        case ast.Dict(keys=keys, values=values):
            return {_read(key): _read(value) for key, value in zip(keys, values, strict=True) if key is not None}
        case ast.Call(func=ast.Name(id="dim"), args=[ast.Constant(value=str(text))]):
            return dims.parse(text)
        case ast.Call(func=ast.Name(id="variant"), args=arguments):
            return Variant(*map(_read, arguments))
        case ast.Call(func=ast.Name(id="launch_table"), args=arguments):
            return LaunchTable(*map(_read, arguments))
        case ast.Call(func=ast.Name(id="view"), args=arguments):
            return View(*map(_read, arguments))
    return ast.literal_eval(tree)
