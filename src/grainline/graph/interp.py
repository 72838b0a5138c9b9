"""Runs a graph, or one node of it, slowly and obviously in NumPy.

This is the oracle of every pass, and at run time the implementation of `host` nodes. An environment maps symbols to the
extents of this run: `bind_inputs` fills it from the feeds, host nodes add the run-time symbols they bear. Only
errors of `base.errors` come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from grainline.base.cancellation import raise_if_cancelled
from grainline.base.dims import Expr, Sym, evaluate, symbols
from grainline.base.errors import Cancelled, FeedError, GrainlineError, KernelError, OutOfMemory
from grainline.graph.host import evaluate_host
from grainline.graph.ir import Graph, Guard, Node, Shape, Value
from grainline.graph.primitives import MEANINGS

Data = Any  # an ndarray, or a list for a sequence, or None for an empty optional


def run(graph: Graph, feeds: Mapping[str, Data], wanted: Sequence[str] | None = None) -> list[Data]:
    """The model outputs named `wanted` (all by default). FeedError for feeds that do not fit."""
    values = dict(feeds)
    for name, constant in graph.defaults.items():
        if name not in values:
            values[name] = constant.load()
    _check_names(graph, values, wanted)
    values = {name: _plain_text(data) for name, data in values.items()}
    env = bind_inputs(graph.inputs, values)
    values = execute(graph, values, env)
    outputs = dict(graph.outputs)
    return [values[outputs[name].name] for name in (wanted if wanted is not None else outputs)]


def execute(graph: Graph, values: dict[str, Data], env: dict[str, int]) -> dict[str, Data]:
    """Evaluates all nodes; `values` holds the inputs by name and is extended. `env` gains run-time symbols."""
    waiting = check_guards(graph.guards, env)
    for name, constant in graph.constants.items():
        values[name] = constant.load()
    for node in graph.nodes:
        raise_if_cancelled()
        results = evaluate_node(node, [values[v.name] if v.name else None for v in node.inputs], env)
        for value, result in zip(node.outputs, results, strict=True):
            if value.name:
                values[value.name] = result
        if node.op == "host" and node.outputs:
            bind_outputs(node, results, env)
            waiting = check_guards(waiting, env)
    return values


def evaluate_node(node: Node, arrays: Sequence[Data], env: Mapping[str, int]) -> list[Data]:
    """The node's outputs from its inputs (None where absent). KernelError or OutOfMemory names the node."""
    try:
        with np.errstate(all="ignore"):
            if node.op == "host":
                return evaluate_host(node, arrays, partial(run_subgraph, env), env)
            return [MEANINGS[node.op](node, list(arrays), env)]
    except GrainlineError as error:
        if error.node is not None or isinstance(error, FeedError | Cancelled):
            raise
        raise type(error)(error.sentence, **{**error.parts(), "node": _label(node)}) from error
    except MemoryError as error:
        raise OutOfMemory("a node needs more memory than there is", node=_label(node), found=str(error)) from error
    except Exception as error:
        raise KernelError("a node failed", node=_label(node), found=f"{type(error).__name__}: {error}") from error


def run_subgraph(around: Mapping[str, int], graph: Graph, inputs: Sequence[Data]) -> list[Data]:
    """Runs the sub-graph of a control-flow node on its positional inputs; `around` are the symbols outside, those of
    its own inputs are bound anew."""
    values = {value.name: data for value, data in zip(graph.inputs, inputs, strict=True)}
    env = dict(around)
    shaped = [(v, values[v.name].shape) for v in graph.inputs if v.shape is not None and v.kind == "tensor"]
    for value, shape in shaped:
        _bind(value, shape, env, KernelError)
    for value, shape in shaped:
        _verify(value, shape, env, KernelError)
    values = execute(graph, values, env)
    return [values[value.name] for _, value in graph.outputs]


def _plain_text(data: Data) -> Data:
    """String arrays of any NumPy kind as arrays of Python strings; bytes that are not UTF-8 become surrogates."""
    if not isinstance(data, np.ndarray) or data.dtype.kind not in "USO":
        return data
    items = [
        item.decode("utf-8", "surrogateescape") if isinstance(item, bytes) else item for item in data.ravel().tolist()
    ]
    plain = np.empty(len(items), dtype=object)
    plain[:] = items
    return plain.reshape(data.shape)


def _label(node: Node) -> str:
    kind = node.attributes.get("op_type", node.op)
    return node.name or f"{kind} -> {', '.join(value.name for value in node.outputs)}"


def _check_names(graph: Graph, values: Mapping[str, Data], wanted: Sequence[str] | None) -> None:
    known = [value.name for value in graph.inputs]
    for name in known:
        if name not in values:
            raise FeedError("an input is missing", value=name, expected=known, found=sorted(values))
    for name in values:
        if name not in known:
            raise FeedError("the model has no such input", value=name, expected=known)
    outputs = [name for name, _ in graph.outputs]
    for name in wanted or ():
        if name not in outputs:
            raise FeedError("the model has no such output", value=name, expected=outputs)


def bind_inputs(inputs: Iterable[Value], values: Mapping[str, Data]) -> dict[str, int]:
    """The environment that the shapes of the feeds make; FeedError where type, rank or an extent does not fit."""
    env: dict[str, int] = {}
    compound: list[tuple[Value, tuple[int, ...]]] = []
    for value in inputs:
        data = values[value.name]
        if value.kind != "tensor" or not isinstance(data, np.ndarray):
            continue
        if value.dtype.kind != "s" and data.dtype != value.dtype.numpy:
            raise FeedError("an input has the wrong type", value=value.name, expected=value, found=data.dtype)
        if value.shape is None:
            continue
        _bind(value, data.shape, env, FeedError)
        compound.append((value, data.shape))
    for value, shape in compound:
        _verify(value, shape, env, FeedError)
    return env


def bind_outputs(node: Node, results: Sequence[Data], env: dict[str, int]) -> None:
    """Binds the run-time symbols that a host node bears, and checks what the importer relied on."""
    pairs = [
        (value, data.shape)
        for value, data in zip(node.outputs, results, strict=True)
        if value.shape is not None and value.kind == "tensor" and isinstance(data, np.ndarray)
    ]
    for value, shape in pairs:
        _bind(value, shape, env, KernelError)
    for value, shape in pairs:
        _verify(value, shape, env, KernelError)


def _bind(value: Value, shape: tuple[int, ...], env: dict[str, int], kind: type[GrainlineError]) -> None:
    assert value.shape is not None
    if len(shape) != len(value.shape):
        raise kind("a tensor has the wrong rank", value=value.name, expected=value, found=list(shape))
    for extent, size in zip(value.shape, shape, strict=True):
        name = _lone_symbol(extent)
        if name is not None:
            env.setdefault(name, size)


def _verify(value: Value, shape: tuple[int, ...], env: Mapping[str, int], kind: type[GrainlineError]) -> None:
    shown: Shape = value.shape or ()
    for extent, size in zip(shown, shape, strict=True):
        if all(name in env for name in symbols(extent)) and evaluate(extent, env) != size:
            bound = {name: env[name] for name in symbols(extent)}
            raise kind(
                "a tensor has the wrong shape", value=value.name, expected=f"{value}, here {bound}", found=list(shape)
            )


def _lone_symbol(extent: int | Expr) -> str | None:
    if isinstance(extent, Expr) and len(extent.terms) == 1:
        atoms, factor = extent.terms[0]
        if factor == 1 and len(atoms) == 1 and isinstance(atoms[0], Sym):
            return atoms[0].name
    return None


def check_guards(guards: Iterable[Guard], env: Mapping[str, int]) -> list[Guard]:
    """Raises for a guard that does not hold; gives those whose symbols are not bound yet."""
    waiting = []
    for guard in guards:
        names = {*symbols(guard.left), *symbols(guard.right)}
        if not names <= env.keys():
            waiting.append(guard)
            continue
        left, right = evaluate(guard.left, env), evaluate(guard.right, env)
        if left != right:
            bound = {name: env[name] for name in sorted(names)}
            raise FeedError(
                guard.reason, node=guard.node or None, expected=f"{guard.left} = {guard.right}",
                found=f"{left} and {right} with {bound}",
            )  # fmt: skip
    return waiting
