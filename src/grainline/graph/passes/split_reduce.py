"""Every reduction gets exactly one axis.

Laws: reduce(x, ()) -> x; an axis of extent 1 is not reduced; neighbouring axes are merged by a reshape; separate runs
of axes are reduced one after the other, the innermost first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from grainline.base.dims import product
from grainline.graph.ir import Graph, Node, Shape, Value
from grainline.graph.names import Names, names_of


@dataclass(frozen=True)
class SplitReduce:
    name = "split_reduce"

    def run(self, graph: Graph) -> Graph:
        names = names_of(graph)
        nodes: list[Node] = []
        for node in graph.nodes:
            nodes.extend(_split(node, names) if node.op == "reduce" else (node,))
        return replace(graph, nodes=tuple(nodes))


def _split(node: Node, names: Names) -> Iterator[Node]:
    source = node.inputs[0]
    assert source.shape is not None
    axes = [a for a in node.attributes["axes"] if source.shape[a] != 1]
    runs = _runs(axes)
    if len(runs) == 1 and len(runs[0]) == 1:
        yield replace(node, attributes={**node.attributes, "axes": tuple(axes)})
        return
    if not runs:
        yield Node("reshape", (source,), node.outputs, {}, node.name)
        return
    value = source
    for run in reversed(runs):
        kept = tuple(1 if a in run else d for a, d in enumerate(value.shape or ()))
        is_last = run is runs[0]
        out = node.output if is_last else Value(names.fresh(f"{node.output.name}__run"), value.dtype, kept)
        yield from _reduce_run(node, value, run, out, names)
        value = out


def _runs(axes: list[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for axis in axes:
        if runs and runs[-1][-1] == axis - 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    return runs


def _reduce_run(node: Node, value: Value, run: list[int], out: Value, names: Names) -> Iterator[Node]:
    """reshape to merge the run, reduce, reshape back to the shape with ones."""
    shape: Shape = value.shape or ()
    if len(run) == 1:
        yield Node("reduce", (value,), (out,), {**node.attributes, "axes": tuple(run)}, node.name)
        return
    first, last = run[0], run[-1] + 1
    merged = (*shape[:first], product(shape[first:last]), *shape[last:])
    flat = Value(names.fresh(f"{out.name}__flat"), value.dtype, merged)
    small = Value(names.fresh(f"{out.name}__small"), value.dtype, (*merged[:first], 1, *merged[first + 1 :]))
    yield Node("reshape", (value,), (flat,), {}, node.name)
    yield Node("reduce", (flat,), (small,), {**node.attributes, "axes": (first,)}, node.name)
    yield Node("reshape", (small,), (out,), {}, node.name)
