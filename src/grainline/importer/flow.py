"""If, Loop and Scan whose sub-graphs are imported like the main graph: what each sub-graph is called with, and what
shapes come out.

A dimension that every turn of a loop, or both branches of an If, give alike keeps its extent. Any other is a new
symbol, born at the node: inside a loop the extent of this turn, outside the one at the end. Where not even the rank is
the same the shape is unknown, and the values are objects that host calls work on. Which dimensions of a loop stay is
found by importing its body: first as if all stayed, then with symbols for those that did not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from grainline.base.dims import Expr, symbol, symbols
from grainline.base.dtypes import BOOL, F32, I64, DType
from grainline.base.errors import ModelError
from grainline.graph.ir import Graph, Node, Shape, Value
from grainline.importer.builder import Builder, Content, objects
from grainline.importer.call import Call, axis_of
from grainline.importer.host import attributes_of

REASON = "control flow"
#: Bodies inside of so many others are imported once, with shapes unknown: an attempt multiplies those inside.
DEEPEST_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Formal:
    """What a sub-graph is called with; `content`: its elements, where they are known."""

    dtype: DType
    kind: str = "tensor"
    shape: Shape | None = None
    content: Content | None = None


#: (attribute, formals) -> the sub-graph, and the outer values that feed its last inputs
Importer = Callable[[str, Sequence[Formal]], tuple[Graph, list[Value]]]


def carries(call: Call) -> bool:
    """Whether this operator's sub-graphs are compiled: not those of Scan before opset 9, which has a batch axis."""
    return call.domain == "" and (call.op_type in ("If", "Loop") or (call.op_type == "Scan" and call.version >= 9))


def import_flow(b: Builder, call: Call, subgraph: Importer) -> list[Value | None]:
    """Adds the node; gives its outputs, None where one is not used. ModelError for sub-graphs that do not fit."""
    known = b.symbols()
    rule = {"If": _if, "Loop": _loop, "Scan": _scan}[call.op_type]
    found = rule(b, call, subgraph, known)
    if len(call.outputs) > len(found.shapes):
        raise ModelError(
            f"{call.op_type} has too many outputs", node=call.label, expected=len(found.shapes),
            found=len(call.outputs),
        )  # fmt: skip
    inputs = [value or Value("", F32, None) for value in call.inputs]
    captures: dict[str, tuple[int, ...]] = {}
    for name, (_, outer) in found.subgraphs.items():
        captures[name] = tuple(range(len(inputs), len(inputs) + len(outer)))
        inputs.extend(outer)
    graphs = {name: graph for name, (graph, _) in found.subgraphs.items()}
    outputs = []
    for name, given, shape in zip(call.outputs, found.given, found.shapes, strict=False):
        b.note_sizes(shape or ())
        outputs.append(Value(b.names.fresh(name), given.dtype, shape, given.kind) if name else Value("", F32, None))
    b.nodes.append(
        Node("host", tuple(inputs), tuple(outputs), attributes_of(call, REASON, graphs, captures), b.node_name)
    )
    return [value if value.name else None for value in outputs]


@dataclass(frozen=True, slots=True)
class _Found:
    """Sub-graphs by attribute, and per output the value that a sub-graph gives for it and the shape of the output."""

    subgraphs: dict[str, tuple[Graph, list[Value]]]
    given: list[Value]
    shapes: list[Shape | None]


# ---- If ----------------------------------------------------------------------------------------------------------


def _if(b: Builder, call: Call, subgraph: Importer, known: frozenset[str]) -> _Found:
    _one_element(b, call, 0, BOOL, "the condition of If")
    branches = {name: subgraph(name, ()) for name in ("then_branch", "else_branch")}
    then, other = ([value for _, value in graph.outputs] for graph, _ in branches.values())
    if len(then) != len(other):
        raise ModelError(
            "the branches of If give different numbers of outputs", node=call.label, expected=len(then),
            found=len(other),
        )  # fmt: skip
    shapes = []
    for one, two in zip(then, other, strict=True):
        _same_type(call, "the branches of If", one, two)
        shapes.append(_met(b, known, one.shape, two.shape))
    return _Found(branches, then, shapes)


def _met(b: Builder, known: frozenset[str], one: Shape | None, two: Shape | None) -> Shape | None:
    """What both shapes are; extents that differ, or that only the sub-graphs know, become new symbols."""
    if one is None or two is None or len(one) != len(two):
        return None
    return tuple(
        left if left == right and known.issuperset(symbols(left)) else symbol(b.fresh_symbol("rt"))
        for left, right in zip(one, two)
    )


# ---- loops -------------------------------------------------------------------------------------------------------


def _loop(b: Builder, call: Call, subgraph: Importer, known: frozenset[str]) -> _Found:
    _one_element(b, call, 0, I64, "the trip count of Loop")
    _one_element(b, call, 1, BOOL, "the condition of Loop")
    first = [Formal(I64, shape=()), Formal(BOOL, shape=(), content=objects([True], ()))]
    carried = [_formal(b, value) for value in call.inputs[2:]]
    body = _Body(b, call, subgraph, first, (), leading=1)
    graph, outer, carried = body.settled(carried)
    _fits(call, graph, outer, len(first) + len(carried), 1 + len(carried))
    given = [value for _, value in graph.outputs][1:]
    return _Found({"body": (graph, outer)}, given, _outputs(b, known, carried, given, [0] * len(given), None))


def _scan(b: Builder, call: Call, subgraph: Importer, known: frozenset[str]) -> _Found:
    count = call.integer("num_scan_inputs")
    if not 1 <= count <= len(call.inputs) or any(value is None for value in call.inputs):
        raise ModelError("Scan has a wrong number of inputs", node=call.label, expected=f"at least {count}, all given")
    states, sources = call.inputs[: len(call.inputs) - count], call.inputs[len(call.inputs) - count :]
    axes = _per_input(call, "scan_input_axes", count)
    slices, lengths = [], []
    for value, axis in zip(sources, axes, strict=True):
        formal = _formal(b, value)
        if formal.shape is not None:
            axis = axis_of(call, axis, len(formal.shape))
            lengths.append(formal.shape[axis])
            formal = replace(formal, shape=(*formal.shape[:axis], *formal.shape[axis + 1 :]))
        slices.append(formal)
    for length in lengths[1:]:
        b.equate(lengths[0], length, "scanned inputs have different lengths")
    graph, outer, carried = _Body(b, call, subgraph, (), slices).settled([_formal(b, value) for value in states])
    _fits(call, graph, outer, len(carried) + count, len(carried))
    given = [value for _, value in graph.outputs]
    out_axes = _per_input(call, "scan_output_axes", len(given) - len(carried))
    ends = [0] * len(carried) + out_axes
    return _Found({"body": (graph, outer)}, given, _outputs(b, known, carried, given, ends, lengths[:1]))


@dataclass(frozen=True, slots=True)
class _Body:
    """Imports the body of a loop until the shapes that it is called with are those of every turn.

    `first` and `last` are the formals before and behind the carried ones; the results of the carried ones stand behind
    `leading` others.
    """

    b: Builder
    call: Call
    subgraph: Importer
    first: Sequence[Formal]
    last: Sequence[Formal]
    leading: int = 0
    own: set[Expr] = field(default_factory=set)  # extents that change with the turns

    def settled(self, carried: list[Formal]) -> tuple[Graph, list[Value], list[Formal]]:
        attempts = 0
        while True:
            attempts += 1
            if attempts > DEEPEST_ATTEMPTS:
                carried = [replace(formal, shape=None) for formal in carried]
            try:
                graph, outer = self.subgraph("body", (*self.first, *carried, *self.last))
            except ModelError:
                loose = [self._loose(formal) for formal in carried]
                if loose == carried or attempts > 1:
                    raise
                carried = loose  # a shape that no turn but the first has may fit nothing
                continue
            results = [value for _, value in graph.outputs][self.leading :]
            if len(results) < len(carried):
                return graph, outer, carried  # `_fits` refuses it
            following = [self._following(formal, value) for formal, value in zip(carried, results)]
            if following == carried:
                return graph, outer, carried
            carried = following

    def _loose(self, formal: Formal) -> Formal:
        shape = formal.shape
        return formal if shape is None else replace(formal, shape=tuple(self._own() for _ in shape))

    def _own(self) -> Expr:
        extent = symbol(self.b.fresh_symbol("turn"))
        self.own.add(extent)
        return extent

    def _following(self, formal: Formal, result: Value) -> Formal:
        """The formal as both this turn and the next have it."""
        _same_type(self.call, "what a loop carries", formal, result)
        shape, found = formal.shape, result.shape
        if shape is None or found is None or len(shape) != len(found):
            return replace(formal, shape=None)
        kept = tuple(d if d == f or d in self.own else self._own() for d, f in zip(shape, found))
        return replace(formal, shape=kept)


def _outputs(
    b: Builder,
    known: frozenset[str],
    carried: Sequence[Formal],
    given: Sequence[Value],
    axes: Sequence[int],
    length: Sequence[int | Expr] | None,
) -> list[Shape | None]:
    """Carried values as they end, then what was collected: one axis more, of as many turns as there were. Without a
    turn an extent that only the body knows is 0."""
    shapes: list[Shape | None] = [_met(b, known, formal.shape, formal.shape) for formal in carried]
    turns = length[0] if length else symbol(b.fresh_symbol("rt"))
    for value, axis in zip(given[len(carried) :], axes[len(carried) :]):
        if value.shape is None or value.kind != "tensor":
            shapes.append(None)
            continue
        piece = list(_met(b, known, value.shape, value.shape) or ())
        at = axis + len(piece) + 1 if axis < 0 else axis
        if not 0 <= at <= len(piece):
            raise ModelError("an axis is out of range", expected=f"[{-len(piece) - 1}, {len(piece) + 1})", found=axis)
        shapes.append((*piece[:at], turns, *piece[at:]))
    return shapes


# ---- what is given -----------------------------------------------------------------------------------------------


def _formal(b: Builder, value: Value | None) -> Formal:
    if value is None:
        raise ModelError("a carried value is left out", node=b.node_name or b.stem)
    shape = b.shape(value) if value.shape is not None else None
    return Formal(value.dtype, value.kind, shape)


def _per_input(call: Call, name: str, count: int) -> list[int]:
    found = list(call.integers(name, (0,) * count))
    if len(found) != count:
        raise ModelError(f"{name} has a wrong length", node=call.label, expected=count, found=len(found))
    return found


def _one_element(b: Builder, call: Call, index: int, dtype: DType, what: str) -> None:
    value = call.optional(index)
    if value is None:
        return
    if value.dtype != dtype or value.kind != "tensor":
        raise ModelError(f"{what} has the wrong type", node=call.label, expected=dtype, found=value.dtype)
    for extent in value.shape or ():
        b.equate(extent, 1, f"{what} is not one element")


def _same_type(call: Call, what: str, one: Value | Formal, two: Value) -> None:
    if (one.dtype, one.kind) != (two.dtype, two.kind):
        raise ModelError(
            f"{what} has different types", node=call.label, expected=f"{one.kind} of {one.dtype}",
            found=f"{two.kind} of {two.dtype}",
        )  # fmt: skip


def _fits(call: Call, graph: Graph, outer: Sequence[Value], formals: int, results: int) -> None:
    found = len(graph.inputs) - len(outer)
    if found != formals or len(graph.outputs) < results:
        raise ModelError(
            f"the body of {call.op_type} does not fit", node=call.label,
            expected=f"{formals} inputs and at least {results} outputs",
            found=f"{found} and {len(graph.outputs)}",
        )  # fmt: skip
