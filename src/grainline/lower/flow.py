"""If, Loop and Scan -> control frames of the execution graph, with their sub-graphs lowered inside.

Values cross a border in slots of their own. A tensor of known rank and plain element type is memory, its extents are
passed beside it; anything else (strings, sequences, an unknown rank) is an object that host calls work on. A result is
moved out of the block that holds it alone, or else copied first: outer values, constants, views, and what leaves twice.

A turn of a loop sees its number as a symbol, so that the slice of a scanned input is a view, and what turns give piece
by piece lies side by side in one block that grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from grainline.base.dims import Expr, Extent, maximum, product, symbol, symbols
from grainline.base.dtypes import BOOL, I64
from grainline.execgraph.builder import ABSENT, GraphBuilder, Result
from grainline.execgraph.flow import NO_LIMIT, Loop, Switch
from grainline.graph.ir import Graph, Node, Shape, Value
from grainline.lower import layout as lay
from grainline.lower.access import Place
from grainline.lower.flow_calls import Length, OneElement, Stack, Take, always_true, append, nothing, same


class Lowering(Protocol):
    """What this file needs of the lowering of one graph."""

    builder: GraphBuilder
    graph: Graph
    notes: list[str]

    def child(self, graph: Graph, captured: Sequence[tuple[Value, Value]]) -> Lowering: ...
    def lower_nodes(self) -> None: ...
    def dense_slot(self, value: Value) -> int: ...
    def addressed(self, value: Value) -> Place: ...
    def dense_place(self, value: Value) -> Place: ...
    def owned_slot(self, value: Value) -> int | None: ...
    def store(self, value: Value, target: Place) -> None: ...
    def new_memory(self, value: Value) -> Place: ...
    def put_place(self, value: Value, place: Place, shape: Shape | None = None) -> None: ...
    def put_object(self, value: Value, slot: int) -> None: ...


def is_flow(node: Node) -> bool:
    """Whether the node's sub-graphs are lowered (`importer/flow.py` imported them for that)."""
    a = node.attributes
    return a["domain"] == "" and (a["op_type"] in ("If", "Loop") or (a["op_type"] == "Scan" and a["opset"] >= 9))


def lower_flow(outer: Lowering, node: Node) -> None:
    a = node.attributes
    if a["op_type"] == "If":
        _lower_if(outer, node)
    else:
        _LoopLowering(outer, node, _loop_of(node) if a["op_type"] == "Loop" else _scan_of(node)).run()
    sizes = " and ".join(f"{len(graph.nodes)} nodes" for graph in a["subgraphs"].values())
    outer.notes.append(f"{a['op_type']} ({node.name or node.outputs[0].name}): sub-graphs of {sizes} run in place")


def _is_memory(value: Value) -> bool:
    return value.shape is not None and value.kind == "tensor" and value.dtype.kind not in "sc"


def _name(node: Node) -> str:
    return node.name or node.attributes["op_type"]


def _child(outer: Lowering, node: Node, attribute: str) -> Lowering:
    """The lowering of a sub-graph, which knows where the captured values lie."""
    graph = node.attributes["subgraphs"][attribute]
    positions = node.attributes["captures"][attribute]
    inner = graph.inputs[len(graph.inputs) - len(positions) :]
    return outer.child(graph, [(value, node.inputs[at]) for value, at in zip(inner, positions, strict=True)])


def _new_extents(builder: GraphBuilder, shape: Shape | None) -> list[int]:
    """The axes whose extents are symbols that nothing binds so far: they are passed."""
    axes = []
    for axis, extent in enumerate(shape or ()):
        if any(not builder.binds(name) for name in symbols(extent)):
            axes.append(axis)
    return axes


def _slot_for(builder: GraphBuilder, value: Value, shape: Shape | None, label: str) -> int:
    return builder.empty_slot("memory" if _is_memory(value) else "object", value.dtype, shape, label)


def _copied(lowering: Lowering, value: Value, is_memory: bool, node: str) -> int:
    """A new slot that holds the value alone."""
    if not is_memory:
        result = Result(value.dtype, None, value.name)
        return lowering.builder.host_call("Identity", same, [lowering.dense_slot(value)], [result], node)[0]
    place = lowering.new_memory(value)
    lowering.store(value, place)
    return place.slot


def _staged(lowering: Lowering, value: Value, is_memory: bool, taken: set[int], node: str) -> int:
    """A slot that holds the value alone, at the end of a sub-graph: the value's own, where it has one."""
    slot = lowering.owned_slot(value) if is_memory else None
    if slot is None or slot in taken:
        slot = _copied(lowering, value, is_memory, node)
    taken.add(slot)
    return slot


def _scalar(lowering: Lowering, value: Value, what: str, node: str) -> int:
    """A slot whose first element is the only one of `value`."""
    if value.shape is None:
        slot = lowering.dense_slot(value)
        return lowering.builder.host_call(
            "Identity", OneElement(what), [slot], [Result(value.dtype, None, what)], node
        )[0]
    if product(value.shape) != 1:
        lowering.builder.guard(product(value.shape), 1, f"{what} is not one element", node)
    return lowering.dense_slot(value)


# ---- If ----------------------------------------------------------------------------------------------------------


def _lower_if(outer: Lowering, node: Node) -> None:
    builder, name = outer.builder, _name(node)
    branches = [_child(outer, node, attribute) for attribute in ("then_branch", "else_branch")]
    condition = _scalar(outer, node.inputs[0], "the condition of If", name)
    used = [(position, value) for position, value in enumerate(node.outputs) if value.name]
    passed = [(position, axis) for position, value in used for axis in _new_extents(builder, value.shape)]
    slots = {position: _slot_for(builder, value, value.shape, value.name) for position, value in used}
    switch = Switch(builder, condition, 2, name)
    feeders = []
    for branch in branches:
        with switch.branch():
            branch.lower_nodes()
            given = [value for _, value in branch.graph.outputs]
            taken: set[int] = set()
            staged = [_staged(branch, given[at], _is_memory(value), taken, name) for at, value in used]
            for at, value in used:
                _agree(builder, given[at].shape, value.shape, name)
            extents = [(given[position].shape or ())[axis] for position, axis in passed]
            if extents:
                feeders.append(builder.pass_extents(None, 0, extents, compute_node=name))
            for slot, (position, _) in zip(staged, used, strict=True):
                builder.move(slot, slots[position], name)
    switch.join(tuple((node.outputs[position].shape or ())[axis] for position, axis in passed), feeders)
    for position, value in used:
        _give(outer, value, slots[position])


def _agree(builder: GraphBuilder, given: Shape | None, expected: Shape | None, node: str) -> None:
    """Extents of an output that are known beforehand are those that a sub-graph gives."""
    for found, extent in zip(given or (), expected or ()):
        if found != extent and all(builder.binds(name) for name in symbols(extent)):
            builder.guard(
                found, extent, "a sub-graph gives another shape than follows from the rest of the model", node
            )


def _give(outer: Lowering, value: Value, slot: int) -> None:
    """The value lies in the slot, dense."""
    if _is_memory(value):
        outer.put_place(value, Place(slot, value.dtype, lay.dense(value.shape or ())), value.shape)
    else:
        outer.put_object(value, slot)


# ---- loops -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Carried:
    """`initial` before the first turn; `formal` in the body, `result` at its end; `output` behind the loop, if used."""

    initial: Value
    formal: Value
    result: Value
    output: Value | None


@dataclass(frozen=True)
class _Slice:
    """One piece of `source` along `axis` per turn, as `formal`; `is_backward`: the last one first."""

    source: Value
    formal: Value
    axis: int
    is_backward: bool


@dataclass(frozen=True)
class _Collected:
    """The `result` of all turns along a new `axis` of `output`; `is_backward`: the last one first; `empty`: the shape
    of a piece when there was none."""

    result: Value
    output: Value
    axis: int
    is_backward: bool
    empty: tuple[int, ...]


@dataclass(frozen=True)
class _Plan:
    """What a loop does, whether it is a Loop or a Scan. Conditions are None where nothing but True can come."""

    carried: tuple[_Carried, ...]
    slices: tuple[_Slice, ...] = ()
    collected: tuple[_Collected, ...] = ()
    turn: Value | None = None
    truth: Value | None = None
    trips: Value | None = None
    first_condition: Value | None = None
    next_condition: Value | None = None


def _used(value: Value | None) -> Value | None:
    return value if value is not None and value.name else None


def _loop_of(node: Node) -> _Plan:
    body = node.attributes["subgraphs"]["body"]
    count = node.attributes["formals"] - 2
    trips, first, *initial = node.inputs[: count + 2]
    results = [value for _, value in body.outputs]
    turn, truth, *formals = body.inputs[: count + 2]
    outputs = [*node.outputs, *[None] * (len(results) - 1 - len(node.outputs))]
    carried = zip(initial, formals[:count], results[1 : 1 + count], map(_used, outputs), strict=False)
    collected = zip(range(1 + count, len(results)), map(_used, outputs[count:]), strict=False)
    return _Plan(
        tuple(_Carried(*each) for each in carried),
        (),
        tuple(
            _Collected(results[at], output, 0, False, body.empty_extents(at))
            for at, output in collected
            if output is not None
        ),
        turn,
        truth,
        _used(trips),
        _used(first),
        None if _is_true(body, results[0]) else results[0],
    )


def _is_true(graph: Graph, value: Value) -> bool:
    constant = graph.constants.get(value.name)
    return (
        constant is not None and value.shape is not None and all(d == 1 for d in value.shape) and constant.load().all()
    )


def _scan_of(node: Node) -> _Plan:
    from grainline.graph.host import parsed_attributes

    attributes = parsed_attributes(node)
    body = node.attributes["subgraphs"]["body"]
    count, formals = attributes["num_scan_inputs"], node.attributes["formals"]
    states = formals - count
    results = [value for _, value in body.outputs]
    outputs = [*node.outputs, *[None] * (len(results) - len(node.outputs))]
    axes, back = (attributes.get(f"scan_input_{name}", [0] * count) for name in ("axes", "directions"))
    pieces = len(results) - states
    out_axes, out_back = (attributes.get(f"scan_output_{name}", [0] * pieces) for name in ("axes", "directions"))
    sources = zip(node.inputs[states:formals], body.inputs[states:formals], axes, map(bool, back), strict=True)
    pairs = zip(map(_used, outputs[states:]), out_axes, map(bool, out_back), strict=True)
    carried = zip(node.inputs[:states], body.inputs[:states], results[:states], map(_used, outputs), strict=False)
    return _Plan(
        tuple(_Carried(*each) for each in carried),
        tuple(_Slice(*each) for each in sources),
        tuple(
            _Collected(results[at], output, axis, is_back, body.empty_extents(at))
            for at, (output, axis, is_back) in enumerate(pairs, states)
            if output is not None
        ),
    )


@dataclass
class _LoopLowering:
    outer: Lowering
    node: Node
    plan: _Plan
    #: extents that change with the turns, as symbols, and what they are before the first
    passed: list[Expr] = field(default_factory=list)
    first: list[Extent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = _name(self.node)
        self.builder = self.outer.builder
        self.turn = self._extent(0)

    def run(self) -> None:
        builder, plan, outer = self.builder, self.plan, self.outer
        body = _child(outer, self.node, "body")
        sources = {each.formal.name: self._source(each) for each in plan.slices}
        limit = self._limit()
        trips = self._trips()
        pieces = [self._piece(each) for each in plan.collected]
        dims = [self._carried_extents(each) for each in plan.carried]
        carried = [self._begin(each) for each in plan.carried]
        condition = self._condition()
        collected = [self._collector(each) for each in plan.collected]
        feeder = builder.pass_extents(None, 0, self.first, compute_node=self.name)
        loop = Loop(builder, tuple(self.passed), (feeder,), self.name)
        with loop.body(self.turn, limit, trips, condition):
            for each, slot in zip(plan.carried, carried, strict=True):
                _give(body, each.formal, slot)
            self._formals(body, sources)
            body.lower_nodes()
            self._end_of_turn(loop, body, carried, condition, collected, pieces, dims)
        self._leave(loop, carried, collected, pieces)

    def _extent(self, first: Extent) -> Expr:
        """A new extent that changes with the turns."""
        number = 0
        while self.builder.binds(f"turn__{number}") or symbol(f"turn__{number}") in self.passed:
            number += 1
        self.passed.append(symbol(f"turn__{number}"))  # type: ignore[arg-type]
        self.first.append(first)
        return self.passed[-1]

    # ---- before the first turn -----------------------------------------------------------------------------------

    def _source(self, each: _Slice) -> Place | None:
        """Where a scanned input lies, one stride along its axis; None: only a host call can slice it."""
        if not _is_memory(each.source) or not _is_memory(each.formal):
            self.outer.dense_slot(each.source)
            return None
        axis = each.axis % len(each.source.shape or ())
        place = self.outer.addressed(each.source)
        is_plain = len(lay.merge(list(place.layout.axes[axis]))) <= 1
        return place if is_plain else self.outer.dense_place(each.source)

    def _limit(self) -> Extent:
        lengths = [each.source.shape[each.axis] for each in self.plan.slices if each.source.shape is not None]
        if lengths:
            return lengths[0]
        constant = None if self.plan.trips is None else self.outer.graph.constants.get(self.plan.trips.name)
        return NO_LIMIT if constant is None else int(constant.load().reshape(-1)[0])

    def _trips(self) -> int:
        """A slot with the number of turns, where the run alone knows it."""
        if self.plan.trips is not None:
            return _scalar(self.outer, self.plan.trips, "the trip count of Loop", self.name)
        unknown = [each for each in self.plan.slices if each.source.shape is None]
        if not unknown:
            return ABSENT
        arguments = [self.outer.dense_slot(each.source) for each in unknown]
        if len(unknown) < len(self.plan.slices):
            arguments.append(self.builder.memory(I64, (1,), 8, "length"))
            self.builder.extents_tensor(arguments[-1], [self._limit()], compute_node=self.name)
        lengths = Length(tuple(each.axis for each in unknown))
        return self.builder.host_call("Shape", lengths, arguments, [Result(I64, None, "length")], self.name)[0]

    def _piece(self, each: _Collected) -> Shape | None:
        """The shape of what one turn gives, with extents that hold outside of the body."""
        if each.result.shape is None:
            return None
        new = set(_new_extents(self.builder, each.result.shape))
        pairs = enumerate(zip(each.result.shape, each.empty, strict=True))
        return tuple(self._extent(empty) if axis in new else d for axis, (d, empty) in pairs)

    def _carried_extents(self, each: _Carried) -> list[int]:
        """The axes of a carried value that change, whose symbols its formal has already."""
        axes = _new_extents(self.builder, each.formal.shape)
        for axis in axes:
            self.passed.append((each.formal.shape or ())[axis])  # type: ignore[arg-type]
            self.first.append((each.initial.shape or ())[axis])
        return axes

    def _begin(self, each: _Carried) -> int:
        slot = _slot_for(self.builder, each.formal, each.formal.shape, each.formal.name)
        self.builder.move(_copied(self.outer, each.initial, _is_memory(each.formal), self.name), slot, self.name)
        return slot

    def _condition(self) -> int:
        plan, builder = self.plan, self.builder
        if plan.next_condition is None and plan.first_condition is None:
            return ABSENT
        if plan.first_condition is None:
            first = builder.weight("true", BOOL, (), always_true)
        else:
            first = _scalar(self.outer, plan.first_condition, "the condition of Loop", self.name)
        slot = builder.empty_slot("memory", BOOL, (), "condition")
        builder.move(self._bool_copy(first), slot, self.name)
        return slot

    def _bool_copy(self, scalar: int) -> int:
        """A bool of the slot in a block of its own."""
        slot = self.builder.memory(BOOL, (), 1, "condition")
        self.builder.copy(scalar, slot, 1, compute_node=self.name)
        return slot

    def _collector(self, each: _Collected) -> int:
        slot = _slot_for(self.builder, each.result, None, each.output.name)
        if not _is_memory(each.result):
            (empty,) = self.builder.host_call("SequenceEmpty", nothing, [], [Result(None, None, "")], self.name)
            self.builder.move(empty, slot, self.name)
        return slot

    # ---- in the body ---------------------------------------------------------------------------------------------

    def _formals(self, body: Lowering, sources: dict[str, Place | None]) -> None:
        read = {value.name for node in body.graph.nodes for value in node.inputs} | body.graph.output_names()
        plan, builder = self.plan, self.builder
        by_host = [each for each in plan.slices if sources[each.formal.name] is None]
        if plan.truth is not None and plan.truth.name in read:
            _give(body, plan.truth, builder.weight("true", BOOL, (), always_true))
        number = ABSENT
        if by_host or (plan.turn is not None and plan.turn.name in read):
            number = builder.memory(I64, (), 8, "turn")
            builder.extents_tensor(number, [self.turn], compute_node=self.name)
        if plan.turn is not None and number != ABSENT:
            _give(body, plan.turn, number)
        for each in plan.slices:
            place = sources[each.formal.name]
            if place is not None:
                body.put_place(each.formal, _sliced(place, each, self.turn))
                continue
            source = self.outer.dense_slot(each.source)
            take = Take(each.axis, each.is_backward)
            result = Result(each.formal.dtype, each.formal.shape, each.formal.name)
            body.put_object(each.formal, builder.host_call("Gather", take, [source, number], [result], self.name)[0])

    def _end_of_turn(
        self,
        loop: Loop,
        body: Lowering,
        carried: list[int],
        condition: int,
        collected: list[int],
        pieces: list[Shape | None],
        axes: list[list[int]],
    ) -> None:
        """Everything is read before anything is moved."""
        plan, builder, taken = self.plan, self.builder, set[int]()
        moves = [
            (_staged(body, each.result, _is_memory(each.formal), taken, self.name), slot)
            for each, slot in zip(plan.carried, carried, strict=True)
        ]
        if plan.next_condition is not None:
            scalar = _scalar(body, plan.next_condition, "the condition of Loop", self.name)
            moves.append((self._bool_copy(scalar), condition))
        for each, slot in zip(plan.collected, collected, strict=True):
            self._collect(body, each, slot, moves)
        given = [d for each, piece in zip(plan.collected, pieces, strict=True) for d in self._fresh(each, piece)]
        if given:
            loop.pass_on(1, given, self.turn)
        following = [(c.result.shape or ())[axis] for c, own in zip(plan.carried, axes, strict=True) for axis in own]
        loop.pass_on(1 + len(given), following)
        loop.pass_on(0, (self.turn + 1,))
        for source, slot in moves:
            builder.move(source, slot, self.name)

    def _fresh(self, each: _Collected, piece: Shape | None) -> list[Extent]:
        """Of the extents of a result those that `_piece` has symbols for."""
        return [d for d, known in zip(each.result.shape or (), piece or (), strict=True) if d != known]

    def _collect(self, body: Lowering, each: _Collected, slot: int, moves: list[tuple[int, int]]) -> None:
        builder = self.builder
        if not _is_memory(each.result):
            arguments = [slot, body.dense_slot(each.result)]
            moves.append((builder.host_call("SequenceInsert", append, arguments, [Result(None, None, "")])[0], slot))
            return
        shape = each.result.shape or ()
        size = product(shape)
        limit = self._limit() if self.plan.slices else 0
        builder.grow(slot, size * each.result.dtype.size_bytes, self.turn, limit, self.name)
        body.store(each.result, Place(slot, each.result.dtype, lay.dense(shape, self.turn * size)))

    # ---- behind the last turn ------------------------------------------------------------------------------------

    def _leave(self, loop: Loop, carried: list[int], collected: list[int], pieces: list[Shape | None]) -> None:
        builder, plan = self.builder, self.plan
        pairs: list[tuple[Extent, Extent]] = []
        for each in plan.carried:
            if each.output is not None:
                pairs.extend(zip(each.output.shape or (), each.formal.shape or ()))
        for one, piece in zip(plan.collected, pieces, strict=True):
            if one.output.shape is not None and piece is not None:
                pairs.extend(zip(_moved_first(one.output.shape, one.axis), (self.turn, *piece)))
        new: dict[Extent, Extent] = {}
        for outside, inside in pairs:
            if _new_extents(builder, (outside,)) and outside not in new:
                new[outside] = inside
            elif outside != inside:  # the rest of the model relies on it
                known = self._extent(0)
                new[known] = inside
                builder.guard(known, outside, "a loop gives another shape than follows from the rest", self.name)
        loop.leave(tuple(new), tuple(new.values()))
        for each, slot in zip(plan.carried, carried, strict=True):
            if each.output is not None:
                result = _slot_for(builder, each.formal, each.output.shape, each.output.name)
                builder.move(slot, result, self.name)
                _give(self.outer, each.output, result)
        for one, slot in zip(plan.collected, collected, strict=True):
            self._give_collected(one, slot)

    def _give_collected(self, each: _Collected, slot: int) -> None:
        builder, output = self.builder, each.output
        if not _is_memory(output):
            stack = Stack(each.axis, each.is_backward, output.dtype.numpy, each.empty)
            results = [Result(output.dtype, None, output.name)]
            self.outer.put_object(output, builder.host_call("ConcatFromSequence", stack, [slot], results, self.name)[0])
            return
        shape = _moved_first(output.shape or (), each.axis)
        result = builder.empty_slot("memory", output.dtype, shape, output.name)
        builder.move(slot, result, self.name)
        layout: lay.Layout | None = lay.dense(shape)
        if each.is_backward:
            starts = (maximum(shape[0] - 1, 0), *(0 for _ in shape[1:]))
            layout = lay.slice_(lay.dense(shape), starts, (-1, *(1 for _ in shape[1:])), shape)
        assert layout is not None, "a dense layout has one stride along each axis"
        order = [*range(1, len(shape))]
        order.insert(each.axis % len(shape), 0)
        self.outer.put_place(output, Place(result, output.dtype, lay.transpose(layout, tuple(order))), shape)


def _moved_first(shape: Shape, axis: int) -> Shape:
    """The shape with an axis in front."""
    at = axis % len(shape)
    return (shape[at], *shape[:at], *shape[at + 1 :])


def _sliced(place: Place, each: _Slice, turn: Expr) -> Place:
    """The piece of a turn as a view."""
    shape = each.source.shape or ()
    axis = each.axis % len(shape)
    start = shape[axis] - 1 - turn if each.is_backward else turn
    starts = tuple(start if a == axis else 0 for a in range(len(shape)))
    ends = tuple(1 if a == axis else d for a, d in enumerate(shape))
    layout = lay.slice_(place.layout, starts, (1,) * len(shape), ends)
    assert layout is not None, "the axis has one stride"
    return Place(place.slot, place.dtype, lay.Layout(layout.axes[:axis] + layout.axes[axis + 1 :], layout.offset))
