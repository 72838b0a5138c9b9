"""Builds the control frames of If and of loops into an execution graph; `frames.py` shows them.

    switch = Switch(builder, condition, "choose")
    for branch in (then, otherwise):
        with switch.branch():
            ...                       # nodes of the branch; results are moved into slots made before
    switch.join(passed, feeders)

    loop = Loop(builder, passed, feeders, "count")
    with loop.body(limit, trips, condition):
        ...                           # nodes of one turn; what the next turn reads is moved and passed
        loop.pass_on(0, extents)
    loop.leave(passed, extents)

`passed` are extents that cross a border, as new symbols; feeders are the PassExtents nodes that give them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from grainline.base.dims import Extent
from grainline.execgraph.builder import ABSENT, GraphBuilder, Scope
from grainline.execgraph.frames import Frame
from grainline.execgraph.ir import Shape

#: A loop without another bound ends by its condition.
NO_LIMIT = (1 << 63) - 1


class Switch:
    """One SwitchNotify on a slot (a bool, true is branch 0; or an i64) with its branches and its join."""

    def __init__(self, builder: GraphBuilder, slot: int, branches: int, compute_node: str) -> None:
        self.builder = builder
        self.name = compute_node
        self.count = 0
        self.switch = builder.control("SwitchNotify", {"branches": branches}, compute_node, inputs=(slot,))
        builder.reads(self.switch, (slot,))
        builder.order(builder.scope.last_infer, self.switch)
        self.join_node = builder.control("WaitAnyone", {}, compute_node)

    @contextmanager
    def branch(self) -> Iterator[None]:
        """What is added meanwhile belongs to the next branch."""
        with _frame(self.builder, self.switch, self.join_node, self.count, self.name) as done:
            yield
        self.builder.inner_edge(done, self.join_node)
        self.count += 1

    def join(self, passed: Shape, feeders: Iterable[int]) -> None:
        """Behind all branches: binds the symbols of `passed`."""
        if passed:
            node = self.builder.infer_shape((), self.name, passed=passed, fed_by=feeders)
            self.builder.order(self.join_node, node)
        else:
            self.builder.scope.last_infer = self.join_node


class Loop:
    """Enter and the frame of a loop. `passed` are the extents that change with the turns; `feeders` pass the first."""

    def __init__(self, builder: GraphBuilder, passed: Shape, feeders: Iterable[int], compute_node: str) -> None:
        self.builder = builder
        self.name = compute_node
        self.passed = passed
        self.enter = builder.control("Enter", {}, compute_node)
        builder.order(builder.scope.last_infer, self.enter)
        self.exit = builder.control("Exit", {}, compute_node)
        self.owner = builder.new_owner()
        self.outer, builder.scope = builder.scope, Scope(self.owner, self.enter, self.enter)
        self.head = builder.control("WaitAnyone", {"again": ()}, compute_node)
        builder.inner_edge(self.enter, self.head)
        self.group = builder.next_group
        builder.add_frame(Frame(self.owner, self.outer.owner, self.enter, self.exit, self.group))
        builder.scope.entry = builder.scope.last_infer = self.head
        self.infer = builder.infer_shape((), compute_node, passed=passed, fed_by=feeders)
        builder.scope.entry = self.infer

    @contextmanager
    def body(
        self, turn: Extent, limit: Extent = NO_LIMIT, trips: int = ABSENT, condition: int = ABSENT
    ) -> Iterator[None]:
        """What is added meanwhile runs in every turn; see `SwitchTurn` for when there is one."""
        builder = self.builder
        slots = tuple(dict.fromkeys(slot for slot in (trips, condition) if slot != ABSENT))
        attributes = {"branches": 2, "turn": turn, "limit": limit, "trips": trips, "condition": condition}
        switch = builder.control("SwitchTurn", attributes, self.name, inputs=slots, extents=(turn, limit))
        builder.reads(switch, slots)
        with _frame(builder, switch, None, 0, self.name) as done:
            yield
        builder.again(done, self.head)
        pivot = builder.control("BranchPivot", {"branch": 1}, self.name)
        builder.inner_edge(switch, pivot)
        builder.inner_edge(pivot, self.exit)
        builder.scope = self.outer

    def pass_on(self, first: int, extents: Sequence[Extent], turn: Extent = 0, compute_node: str = "") -> None:
        """In the body: the passed extents of the next turn, from number `first` on."""
        self.builder.pass_extents(self.group, first, extents, turn, compute_node or self.name)

    def leave(self, passed: Shape, extents: Sequence[Extent]) -> None:
        """Behind the loop: `passed`, new symbols, are what `extents` were in the last turn's end."""
        if not passed:
            self.builder.scope.last_infer = self.exit
            return
        feeder = self.builder.pass_extents(None, 0, extents, compute_node=self.name)
        self.builder.order(self.exit, feeder)
        self.builder.infer_shape((), self.name, passed=passed, fed_by=(feeder,))


@contextmanager
def _frame(builder: GraphBuilder, entry: int, leave: int | None, branch: int, name: str) -> Iterator[int]:
    """A branch or a body: its pivot, its first InferShape and its BranchDone, whose id it gives."""
    owner, outer = builder.new_owner(), builder.scope
    builder.scope = Scope(owner, 0, 0)
    pivot = builder.control("BranchPivot", {"branch": branch}, name)
    builder.inner_edge(entry, pivot)
    builder.scope = Scope(owner, pivot, pivot)
    group = builder.next_group
    builder.scope.entry = builder.infer_shape((), name)
    done = builder.control("BranchDone", {}, name)
    builder.add_frame(Frame(owner, outer.owner, entry, done if leave is None else leave, group))
    yield done
    builder.scope = outer
