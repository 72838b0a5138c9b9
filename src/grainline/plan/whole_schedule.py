"""Cuts a program whose lanes run one instance each (mapping "whole") into segments, and chooses its private arrays.

A *segment* is a stretch of a body in which every load happens before every store: it ends before a load that may read
what the segment stored, at a stage cut, and at a loop. It evaluates its scalars and fills its private arrays in program
order, then runs its store groups, then its loop.

A tile is a *recipe*, evaluated per element inside the loop that needs it, unless it is *kept*: written to a private
array [slot][lane] where it is defined. Kept are
* tiles that are indexed freely (`extract`), running sums that are not carried by their only store,
* loads (a load is a snapshot) that a store may change before a recipe reads them, and what crosses a stage cut,
* values that cost more than RECOMPUTE_LIMIT and would be computed again: in every iteration of a loop that they do not
  vary over, or in several nests; arrays of pure convenience must be small.
Tiles that a loop carries have two arrays, so that all of the next values exist before one of the present is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from grainline.base.dims import Expr, product
from grainline.base.memo import kept_with_first
from grainline.plan.row_schedule import DEAR, RECOMPUTE_LIMIT
from grainline.tile.access import clobbers, dataflow, effect_axes, is_zero, operands_of, store_groups
from grainline.tile.ir import Axis, Operation, Tile, TileProgram

CONVENIENT_ELEMENTS = 1024
NESTED_COST = 100


@dataclass(frozen=True, eq=False, slots=True)
class Segment:
    """Of `operations`, `values` are evaluated in order, then `groups` of stores run, then `loop` over `inner`."""

    operations: tuple[Operation, ...]
    values: tuple[Operation, ...]
    groups: tuple[tuple[Operation, ...], ...]
    loop: Operation | None = None
    inner: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True)
class PrivateArray:
    """Elements of `tile`, `copies` times one after the other; `first` counts the elements before it."""

    tile: Tile
    first_bytes: int | Expr
    copies: int = 1

    @property
    def copy_bytes(self) -> int | Expr:
        """Bytes of one copy, per lane."""
        return product(axis.extent for axis in self.tile.space) * self.tile.dtype.size_bytes


@dataclass(frozen=True, slots=True)
class WholeSchedule:
    """`arrays` by the id of the tile, or of the first carried tile. Sizes and offsets are per lane."""

    segments: tuple[Segment, ...]
    arrays: dict[int, PrivateArray]

    @property
    def bytes_per_lane(self) -> int | Expr:
        return sum((a.copy_bytes * a.copies for a in self.arrays.values()), 0)


@kept_with_first
def schedule_whole(program: TileProgram, may_alias: bool = False) -> WholeSchedule:
    """The segments and private arrays of a program; `may_alias` as in `tile.access.clobbers`."""
    return _Scheduler(program, may_alias).run()


@dataclass(eq=False, slots=True)
class _Draft:
    """A segment before it is known what is kept. `number` orders all segments; `end` is past those of the loop."""

    number: int
    depth: tuple[Operation, ...]
    operations: list[Operation] = field(default_factory=list)
    groups: list[list[Operation]] = field(default_factory=list)
    loop: Operation | None = None
    inner: list[_Draft] = field(default_factory=list)
    after_stage: bool = False


class _Visit(NamedTuple):
    """A recipe is evaluated in nest `nest`, at time (segment, group), inside loops over `axes`, outermost first."""

    nest: int
    draft: _Draft
    group: int
    axes: tuple[Axis, ...]


class _Scheduler:
    def __init__(self, program: TileProgram, may_alias: bool) -> None:
        self.program = program
        self.may_alias = may_alias
        self.flow = dataflow(program)
        self.bound = program.bound_axes
        self.drafts: list[_Draft] = []
        self.home: dict[int, _Draft] = {}
        self.kept: set[int] = set()
        self.fuses_scans = scans_ride_the_store(program)

    def run(self) -> WholeSchedule:
        body = self._cut(self.program.body, ())
        while True:
            found = self._next_kept()
            if not found:
                break
            self.kept |= found
        segments = tuple(self._segment(draft) for draft in body)
        return WholeSchedule(segments, self._arrays())

    # ---- segments ----

    def _cut(self, body: Sequence[Operation], depth: tuple[Operation, ...]) -> list[_Draft]:
        drafts = [self._draft(depth)]
        for operation in body:
            current = drafts[-1]
            if operation.op == "load" and self._reads_back(operation, current):
                current = self._draft(depth)
                drafts.append(current)
            self.home.update((tile.id, current) for tile in operation.defined)
            if operation.region is not None:
                current.loop = operation
                self.home.update((tile.id, current) for tile in operation.region.carried)
                current.inner = self._cut(operation.region.body, (*depth, operation))
            if operation.region is not None or operation.op == "stage":
                drafts.append(self._draft(depth))
                drafts[-1].after_stage = operation.op == "stage"
            else:
                current.operations.append(operation)
        for draft in drafts:
            stores = [o for o in draft.operations if o.op == "store"]
            draft.groups = store_groups(stores, self.bound, self.may_alias)
        return drafts

    def _draft(self, depth: tuple[Operation, ...]) -> _Draft:
        self.drafts.append(_Draft(len(self.drafts), depth))
        return self.drafts[-1]

    def _reads_back(self, load: Operation, draft: _Draft) -> bool:
        """Whether a load may read what the segment has stored."""
        stores = [o for o in draft.operations if o.op == "store"]
        return any(s.view == load.view or self.may_alias for s in stores)

    def _segment(self, draft: _Draft) -> Segment:
        values = tuple(o for o in draft.operations if o.result is not None and self._is_value(o.result))
        groups = tuple(tuple(group) for group in draft.groups)
        return Segment(
            tuple(draft.operations), values, groups, draft.loop, tuple(self._segment(inner) for inner in draft.inner)
        )

    def _is_value(self, tile: Tile) -> bool:
        return not tile.space or tile.id in self.kept

    # ---- what is kept ----

    def _next_kept(self) -> set[int]:
        """Tiles to keep, given those that are kept already."""
        visits: dict[int, list[_Visit]] = {}
        for nest, (draft, group, axes, roots) in enumerate(self._nests()):
            for tile in roots:
                self._visit(tile, _Visit(nest, draft, group, axes), visits)
        found = {tile.id for o in self.flow.operations if o.op == "extract" for tile in self._indexed(o)}
        if not self.fuses_scans:
            found |= {o.result.id for o in self.flow.operations if o.op == "scan" and o.result is not None}
        has_stages = any(draft.after_stage for draft in self.drafts)
        for number, seen in visits.items():
            operation = self.flow.definition[number]
            is_lost = self._loses_its_snapshot(operation, seen) or (
                has_stages and self._crosses_a_stage(operation, seen)
            )
            if is_lost or self._is_computed_again(operation, seen):
                found.add(number)
        return found - self.kept

    def _nests(self) -> Iterator[tuple[_Draft, int, tuple[Axis, ...], list[Tile]]]:
        """(segment, group, loops, operands) of everything that runs a loop nest, in order."""
        for draft in self.drafts:
            for operation in draft.operations:
                if operation.result is not None and self._is_value(operation.result):
                    yield draft, -1, *self._operands(operation, ())
            for number, group in enumerate(draft.groups):
                yield draft, number, effect_axes(group[0], self.bound), [t for o in group for t in operands_of(o)]
            if draft.loop is not None and draft.loop.region is not None:
                for tile in draft.loop.operands:
                    yield draft, len(draft.groups), tile.space, [tile]
                last = draft.inner[-1]
                for tile in draft.loop.region.yields:
                    yield last, len(last.groups), tile.space, [tile]

    def _visit(self, tile: Tile, visit: _Visit, visits: dict[int, list[_Visit]]) -> None:
        if not tile.space or tile.id in self.kept or self.flow.define(tile).region is not None:
            return
        seen = visits.setdefault(tile.id, [])
        if visit in seen:
            return
        seen.append(visit)
        axes, operands = self._operands(self.flow.define(tile), visit.axes)
        for operand in operands:
            self._visit(operand, _Visit(visit.nest, visit.draft, visit.group, axes), visits)

    def _operands(self, operation: Operation, axes: tuple[Axis, ...]) -> tuple[tuple[Axis, ...], list[Tile]]:
        """The loops around the operands of a recipe: its own, and that of a reduction."""
        own = axes or (operation.result.space if operation.result is not None else ())
        if operation.op in ("reduce", "mma", "scan") and operation.axis is not None and operation.axis not in own:
            own = (*own, operation.axis)
        return own, list(operands_of(operation))

    def _indexed(self, extract: Operation) -> list[Tile]:
        (operand,) = extract.operands
        is_array = self.flow.define(operand).region is not None or not operand.space
        return [] if is_array or is_owner_preserving(extract) else [operand]

    def _loses_its_snapshot(self, operation: Operation, seen: list[_Visit]) -> bool:
        return operation.op == "load" and any(self._is_clobbered(operation, visit) for visit in seen)

    def _is_clobbered(self, load: Operation, visit: _Visit) -> bool:
        """Whether a store may change the elements of `load` between its definition and this evaluation."""
        assert load.result is not None
        home = self.home[load.result.id]
        entered = [loop for loop in visit.draft.depth if loop not in home.depth]
        for draft in self.drafts[home.number :]:
            for number, group in enumerate(draft.groups):
                here = draft is visit.draft and number == visit.group
                is_before = (draft.number, number) < (visit.draft.number, visit.group)
                repeats = bool(entered) and entered[0] in draft.depth
                together = here and not repeats  # the second iteration loads after the stores of the first
                if (here or is_before or repeats) and any(
                    clobbers(load, s, self.may_alias, together, self.bound) for s in group
                ):
                    return True
        return False

    def _crosses_a_stage(self, operation: Operation, seen: list[_Visit]) -> bool:
        assert operation.result is not None
        home = self.home[operation.result.id]
        cuts = [d.number for d in self.drafts if d.after_stage and d.number > home.number and d.depth == home.depth]
        if operation.op in ("const", "coord", "splat") or not cuts:
            return False
        return any(visit.draft.number >= cuts[0] for visit in seen)

    def _is_computed_again(self, operation: Operation, seen: list[_Visit]) -> bool:
        result = operation.result
        assert result is not None
        home = self.home[result.id]
        iterates = any(loop not in home.depth for visit in seen for loop in visit.draft.depth)
        repeats = any(visit.nest != seen[0].nest for visit in seen) or any(
            _is_under_foreign(result, v.axes) for v in seen
        )
        if not (iterates or repeats):
            return False
        cost = self._cost(result)
        if cost <= RECOMPUTE_LIMIT:
            return False
        volume = product(axis.extent for axis in result.space)
        return iterates or cost >= NESTED_COST or (isinstance(volume, int) and volume <= CONVENIENT_ELEMENTS)

    def _cost(self, tile: Tile) -> int:
        """Of one element of a recipe."""
        total, seen, stack = 0, set(), [tile]
        while stack:
            current = stack.pop()
            if current.id in seen or not current.space or (current.id in self.kept and current is not tile):
                continue
            seen.add(current.id)
            definition = self.flow.define(current)
            if definition.region is not None:
                continue
            total += NESTED_COST if definition.op in ("reduce", "mma") else DEAR.get(definition.op, 1)
            stack.extend(operands_of(definition))
        return total

    # ---- arrays ----

    def _arrays(self) -> dict[int, PrivateArray]:
        arrays: dict[int, PrivateArray] = {}
        first: int | Expr = 0
        for tile, copies in self._array_tiles():
            arrays[tile.id] = PrivateArray(tile, first, copies)
            first = first + arrays[tile.id].copy_bytes * copies
        return arrays

    def _array_tiles(self) -> Iterator[tuple[Tile, int]]:
        for operation in self.flow.operations:
            if operation.result is not None and operation.result.id in self.kept:
                yield operation.result, 1
            if operation.region is not None:
                yield from ((tile, 2) for tile in operation.region.carried if tile.space)


def is_owner_preserving(extract: Operation) -> bool:
    """Whether every element is read at its own coordinates."""
    own = [((axis, 1),) for axis in extract.operands[0].space]
    return own == [None if isinstance(i, Tile) or not is_zero(i.offset) else i.terms for i in extract.index]


def scans_ride_the_store(program: TileProgram) -> bool:
    """Whether running sums can be carried by the one loop of the one store."""
    operations = list(program.operations())
    spaces = {axis for o in operations for tile in o.defined for axis in tile.space}
    is_simple = all(o.region is None and o.op != "extract" for o in operations)
    return is_simple and len(spaces) == 1 and sum(o.op == "store" for o in operations) == 1


def _is_under_foreign(tile: Tile, axes: tuple[Axis, ...]) -> bool:
    """Whether a loop that the tile does not vary over lies around the innermost one that it does."""
    last = max((axes.index(axis) for axis in tile.space if axis in axes), default=-1)
    return any(axis not in tile.space for axis in axes[:last])
