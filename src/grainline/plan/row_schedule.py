"""Cuts a row program (mapping "local") into passes over its one tile axis n.

A reduction over n is known only after a pass, so a value's *level* is the number of passes that must end before it can
be computed. Pass p computes the reductions of level-p operands. A value of a lower level that pass p needs again is
recomputed when cheap, else *spilled*: written by the first pass that computes it, into the row of a later store where
that is legal, otherwise into scratch.

Legality of a row as spill place: the store has the value's type, is dense along n and unguarded, is the view's only
store, comes no earlier than the last read, and no later pass loads what it holds. A load is a snapshot: a view that the
program loads and stores under different indices is copied to scratch before the first store.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from grainline.base.memo import kept_with_first
from grainline.plan.switches import DEFAULT_SWITCHES, Switches
from grainline.tile.access import clobbers, dataflow, linear_access, operands_of
from grainline.tile.ir import Axis, Operation, Tile, TileProgram

RECOMPUTE_LIMIT = 6
DEAR = {"exp": 12, "log": 12, "log1p": 14, "tanh": 12, "erf": 12, "sigmoid": 14, "softplus": 24, "sin": 20, "cos": 20}
DEAR |= {"pow": 40, "div": 5, "mod": 30, "fmod": 30, "sqrt": 5, "rsqrt": 8, "reciprocal": 5}


@dataclass(frozen=True, slots=True)
class Spill:
    """A value kept between passes: in the elements of `row` (a store), or in scratch slot `slot` if row is None."""

    tile: Tile
    written_in: int
    row: Operation | None
    slot: int


@dataclass(frozen=True, slots=True)
class RowPass:
    """What one pass over n computes; spills are written, then stores happen, packet by packet."""

    reductions: tuple[Operation, ...]
    spills: tuple[Spill, ...]
    stores: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class RowSchedule:
    axis: Axis
    passes: tuple[RowPass, ...]
    spills: tuple[Spill, ...]
    scalar_stores: tuple[Operation, ...]

    @property
    def scratch_slots(self) -> int:
        return sum(spill.row is None for spill in self.spills)

    def has_lead(self, switches: Switches) -> bool:
        """Whether the first pass of a program may run before the last pass of the program before it.

        The chains of one program's sums then wait behind another program's work instead of standing alone. The pass
        must write nothing, and programs must not share memory that an order between them would show.
        """
        first = self.passes[0]
        is_alone = bool(first.reductions) and not (first.stores or first.spills)
        return len(self.passes) > 1 and is_alone and not switches.may_alias


@kept_with_first
def schedule_rows(program: TileProgram, axis: Axis, switches: Switches = DEFAULT_SWITCHES) -> RowSchedule:
    """The passes of a program whose only tile axis is `axis`."""
    return _Scheduler(program, axis, switches).run()


class _Scheduler:
    def __init__(self, program: TileProgram, axis: Axis, switches: Switches) -> None:
        self.axis = axis
        self.switches = switches
        self.recompute_limit = RECOMPUTE_LIMIT if switches.keeps_rows else inf
        self.bound = program.bound_axes
        self.flow = dataflow(program)
        self.level: dict[int, int] = {}  # of a tile
        self.levels: dict[int, int] = {}  # of an operation: the latest of what it reads
        self.unfused = self._unfused(program)
        for operation in program.body:
            if operation.result is not None:
                ends_a_pass = operation.op == "reduce" or operation.result.id in self.unfused
                self.level[operation.result.id] = self._level_of(operation) + ends_a_pass
        self.reductions = [o for o in program.body if o.op == "reduce"]
        stores = [o for o in program.body if o.op == "store"]
        self.row_stores = [o for o in stores if axis in self.flow.axes_of(o)]
        self.scalar_stores = [o for o in stores if axis not in self.flow.axes_of(o)]
        self.loads = [o for o in program.body if o.op == "load" and self._is_row(o.result)]
        self.snapshots = self._snapshots()

    def run(self) -> RowSchedule:
        effects = (*self.reductions, *self.row_stores, *(self.flow.definition[t] for t in self.unfused))
        levels = [self._level_of(o) for o in effects]
        last = max([*levels, 1 if self.snapshots else 0], default=0)
        store_pass = {id(o): self._level_of(o) for o in self.row_stores}
        needed, written = self._choose_spills(last, store_pass)
        if self.snapshots or self._stores_clobber(last, store_pass, needed):
            store_pass = dict.fromkeys(store_pass, last)
            needed, written = self._choose_spills(last, store_pass)
        spills = self._place(written, store_pass, needed)
        passes = tuple(self._pass(p, spills, store_pass) for p in range(last + 1))
        return RowSchedule(self.axis, passes, spills, tuple(self.scalar_stores))

    def _pass(self, p: int, spills: tuple[Spill, ...], store_pass: dict[int, int]) -> RowPass:
        return RowPass(
            tuple(o for o in self.reductions if self._level_of(o) == p),
            tuple(s for s in spills if s.written_in == p),
            tuple(o for o in self.row_stores if store_pass[id(o)] == p),
        )

    def _level_of(self, operation: Operation) -> int:
        level = self.levels.get(id(operation))
        if level is None:
            level = self.levels[id(operation)] = max((self.level[t.id] for t in operands_of(operation)), default=0)
        return level

    def _is_row(self, tile: Tile | None) -> bool:
        return tile is not None and self.axis in self.flow.depends[tile.id]

    def _snapshots(self) -> list[Tile]:
        """Loads that a store in the same packet may change: of other elements of one view, or of any shared memory."""
        changed = (o for o in self.loads if any(self._clobbers(o, s, True) for s in self.row_stores))
        return [load.result for load in changed if load.result is not None]

    def _unfused(self, program: TileProgram) -> set[int]:
        """Rows that are complete in private memory before they are reduced."""
        found: set[int] = set()
        reduced = [o.operands[0] for o in program.body if o.op == "reduce" and self._is_row(o.operands[0])]
        if not self.switches.fuse_expression_reduction:
            found |= {tile.id for tile in reduced if self.flow.define(tile).op != "load"}
        if not self.switches.fuse_load_reduction:
            loads = [o.result for o in self.flow.cone(reduced) if o.op == "load" and o.result is not None]
            found |= {tile.id for tile in loads if self._is_row(tile)}
        return found

    def _clobbers(self, load: Operation, store: Operation, together: bool) -> bool:
        return clobbers(load, store, self.switches.may_alias, together, self.bound)

    def _roots(self, p: int, store_pass: dict[int, int]) -> list[Tile]:
        effects = [o for o in self.reductions if self._level_of(o) == p]
        effects += [o for o in self.row_stores if store_pass[id(o)] == p]
        return [tile for effect in effects for tile in operands_of(effect)]

    def _choose_spills(self, last: int, store_pass: dict[int, int]) -> tuple[list[set[int]], dict[int, int]]:
        """(row values that each pass reads or computes, spilled tile -> pass that writes it)."""
        written = {tile.id: 0 for tile in self.snapshots}
        written |= {number: self._level_of(self.flow.definition[number]) for number in self.unfused}
        forced = dict(written)
        needed: list[set[int]] = []
        for p in range(last + 1):
            here: set[int] = set()
            stack = self._roots(p, store_pass) + [self._tile(number) for number, q in forced.items() if q == p]
            while stack:
                tile = stack.pop()
                if tile.id in here or not self._is_row(tile):
                    continue
                here.add(tile.id)
                if tile.id in written and written[tile.id] < p:
                    continue
                first = next((q for q in range(p) if tile.id in needed[q]), None)
                if first is not None and self._recompute_cost(tile, written) > self.recompute_limit:
                    written[tile.id] = first
                    continue
                stack.extend(operands_of(self.flow.define(tile)))
            needed.append(here)
        return needed, written

    def _recompute_cost(self, tile: Tile, written: dict[int, int]) -> int:
        total, seen, stack = 0, set(), [tile]
        while stack:
            current = stack.pop()
            if current.id in seen or not self._is_row(current):
                continue
            seen.add(current.id)
            definition = self.flow.define(current)
            if definition.op == "load" and linear_access(definition).dynamic:
                total += 6
            else:
                total += DEAR.get(definition.op, 1)
            if current.id not in written:
                stack.extend(operands_of(definition))
        return total

    def _stores_clobber(self, last: int, store_pass: dict[int, int], needed: list[set[int]]) -> bool:
        """Whether a store before the last pass may change what a later pass loads."""
        for store in self.row_stores:
            for p in range(store_pass[id(store)] + 1, last + 1):
                if self._reloads(store, needed[p]):
                    return True
        return False

    def _reloads(self, store: Operation, values: set[int]) -> bool:
        """Whether one of `values` is a load that may read what `store` writes."""
        loads = (o for o in self.loads if o.result is not None and o.result.id in values)
        return any(self._clobbers(load, store, False) for load in loads)

    def _place(self, written: dict[int, int], store_pass: dict[int, int], needed: list[set[int]]) -> tuple[Spill, ...]:
        spills: list[Spill] = []
        taken: set[int] = set()
        for number, p in sorted(written.items()):
            tile = self._tile(number)
            reads = [q for q in range(p + 1, len(needed)) if number in needed[q]]
            row = self._free_row(tile, p, max(reads, default=p), store_pass, needed, taken)
            if row is not None:
                taken.add(id(row))
            spills.append(Spill(tile, p, row, sum(s.row is None for s in spills)))
        return tuple(spills)

    def _tile(self, number: int) -> Tile:
        result = self.flow.definition[number].result
        assert result is not None
        return result

    def _free_row(
        self, tile: Tile, p: int, last_read: int, store_pass: dict[int, int], needed: list[set[int]], taken: set[int]
    ) -> Operation | None:
        if tile in self.snapshots or self.switches.may_alias:
            return None
        for store in self.row_stores:
            if id(store) in taken or store_pass[id(store)] < last_read or not self._is_dense(store, tile):
                continue
            if not any(self._reloads(store, needed[q]) for q in range(p + 1, len(needed))):
                return store
        return None

    def _is_dense(self, store: Operation, tile: Tile) -> bool:
        assert store.view is not None
        form = linear_access(store)
        return (
            store.view.dtype == tile.dtype
            and store.attributes["bounds"] == "assume"
            and not form.dynamic
            and form.coefficient(self.axis) == 1
            and sum(other.view == store.view for other in self.row_stores) == 1
        )
