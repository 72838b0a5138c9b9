"""Chains of two products, as in attention: o = (row-wise code of q x k) x v, realised without storing the middle.

`describe_chain` cuts a program with two products into two `Product`s over the same rows. The first one's finished strip
stays in scratch, its row-wise code runs there in place, and the second product reads its left rows from that strip.
Each product keeps its law: one FMA chain per element in increasing k, whatever the strips, blocks or threads.

A block is one strip of one batch element, GROUP_STRIPS of them, or all: the more, the fewer times its right operands
are packed. Both are packed once per call and batch element.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from grainline.base.dims import Expr, ceil_div, floordiv, maximum
from grainline.base.dtypes import F32
from grainline.plan.cost import launch_cost, traffic_bytes, typical
from grainline.plan.machine import Machine
from grainline.plan.mma import (
    B_BYTE_PS,
    PACK_PS,
    STRIP_PS,
    MmaRefusal,
    Product,
    accepted,
    describe,
    epilogue_program,
    fma_ps,
    packed_a_floats,
    plan_mma,
    refuse_epilogue,
    result_of,
    row_mapping,
)
from grainline.plan.panels import PANEL, STRIP_ROWS
from grainline.plan.row_schedule import schedule_rows
from grainline.plan.target import Target
from grainline.plan.types import MMA, Mapping, Plan, PlannerOptions, PlanResult
from grainline.plan.visible import last_seen
from grainline.tile.access import Dataflow
from grainline.tile.ir import Affine, Axis, Operation, Tile, TileProgram, View

FORMS = ("strips", "groups", "batches")
GROUP_STRIPS = 8
# Strips that share a near copy of both right operands; their finished rows wait in the second level of cache.
STRIPS_TOGETHER = 4
# Per byte of a head, paid by every task: see chain_task_ps.
NEIGHBOUR_BYTE_PS = 120
# A home keeps the packed right operands of one batch element and its strips: at typical extents, the second level of
# cache several times over. Beyond that, writing the middle to memory costs less than what the chain evicts.
SCRATCH_LIMIT_BYTES = 4 << 20


@dataclass(frozen=True, eq=False, slots=True)
class Chain:
    """Two products over the same rows; `between` is the left operand of the second, made from rows of the first.

    `seen`: columns of a row after this scalar count for nothing (see `plan.visible`); None: all of them count.
    Invariants: both have the same batch axes and rows; second.k is first.n; nothing after the second product reads
    the rows of the first; right operands are not packed ahead.
    """

    program: TileProgram
    first: Product
    second: Product
    between: Tile
    seen: Tile | None = None

    @property
    def stages(self) -> tuple[Product, Product]:
        return self.first, self.second


def describe_chain(program: TileProgram) -> Chain | MmaRefusal:
    """The chain that a program with two products computes, or the reason why it is not realised."""
    one, two = (o for o in program.body if o.op == "mma")
    flow = Dataflow(program)
    stages = _cut(program, flow, one, two)
    if isinstance(stages, MmaRefusal):
        return stages
    first, second = (describe(stage) for stage in stages)
    if isinstance(first, MmaRefusal):
        return MmaRefusal(f"the first product: {first.reason}")
    if isinstance(second, MmaRefusal):
        return MmaRefusal(f"the second product: {second.reason}")
    skips = two.attributes.get("skips_hidden", False)
    seen = last_seen(first.program, two.operands[0], first.n) if skips else None
    chain = Chain(program, replace(first, epilogue_form="strip"), second, two.operands[0], seen)
    return _refuse_chain(chain) or chain


def _cut(
    program: TileProgram, flow: Dataflow, one: Operation, two: Operation
) -> tuple[TileProgram, TileProgram] | MmaRefusal:
    """The programs of both stages. In the second, the finished strip is a view whose rows are the program's rows."""
    assert one.result is not None and two.result is not None
    later = _users(program, two.result)
    ends: tuple[list[Tile], list[Tile]] = ([two.operands[0]], [])
    stores: tuple[list[Operation], list[Operation]] = ([], [])
    for store in (o for o in program.body if o.op == "store"):
        stage = int(store.operands[0].id in later)
        stores[stage].append(store)
        ends[stage].extend([store.operands[0], *(i for i in store.index if isinstance(i, Tile))])
    early = flow.cone(ends[0])
    late = _after(flow, two, ends[1])
    if one not in early or two in early:
        return MmaRefusal("the left operand of the second product is not made from rows of the first")
    if one in late:
        return MmaRefusal("what follows the second product reads rows of the first")
    if two.axis is not one.result.space[0]:
        return MmaRefusal("the second product must contract the columns of the first")
    strip, load = _strip_load(program, one, two)
    first = _program(program, [*early, *stores[0]], ())
    second = _program(program, [*late, two, *stores[1]], (strip, load))
    return first, second


def _users(program: TileProgram, tile: Tile) -> set[int]:
    """The tiles that depend on `tile`, itself included."""
    found = {tile.id}
    for o in program.body:
        if o.result is not None and any(t.id in found for t in o.operands):
            found.add(o.result.id)
    return found


def _after(flow: Dataflow, two: Operation, ends: list[Tile]) -> list[Operation]:
    """What the second stage computes beside its product: the right operand, and all that `ends` need."""
    assert two.result is not None
    needed, stack = {two.result.id}, [two.operands[1], *ends]
    while stack:
        tile = stack.pop()
        if tile.id not in needed:
            needed.add(tile.id)
            definition = flow.define(tile)
            stack.extend([*definition.operands, *(i for i in definition.index if isinstance(i, Tile))])
    needed.discard(two.result.id)
    return [o for o in flow.body if o.result is not None and o.result.id in needed]


def _strip_load(program: TileProgram, one: Operation, two: Operation) -> tuple[View, Operation]:
    n, m = one.result.space[0] if one.result is not None else None, program.roots[-1]
    assert n is not None
    strip = View("finished strip", F32, (m.extent, n.extent), (strip_row(n), 1))
    index = (Affine(((m, 1),)), Affine(((n, 1),)))
    return strip, Operation("load", (), two.operands[0], view=strip, index=index, attributes={"bounds": "assume"})


def _program(program: TileProgram, chosen: list[Operation], strip: tuple[View, Operation] | tuple[()]) -> TileProgram:
    """The operations `chosen` in the program's order, behind the load of the finished strip."""
    body = tuple(o for o in program.body if any(o is c for c in chosen))
    views = tuple(v for v in program.views if any(o.view is v for o in body))
    if strip:
        views, body = (*views, strip[0]), (strip[1], *body)
    return TileProgram(program.name, views, program.roots, body)


def _refuse_chain(chain: Chain) -> MmaRefusal | None:
    first, second = chain.stages
    if first.batch != second.batch or first.m is not second.m:
        return MmaRefusal("the two products do not have the same rows")
    if first.is_packed or second.is_packed:
        return MmaRefusal("a right operand is packed ahead; streaming it once per strip would lose")
    for view in first.program.views:
        if view.access == "readwrite":
            return MmaRefusal(f"the view {view.name!r} is loaded and stored")
    refusal = refuse_epilogue(first)
    if refusal is not None:
        return refusal
    needed = typical(chain_scratch(ChainRealisation(chain, "batches", STRIPS_TOGETHER)).total) * 4
    if needed > SCRATCH_LIMIT_BYTES:
        return MmaRefusal(f"a home would need {needed >> 20} MiB of scratch at typical extents")
    return None


@dataclass(frozen=True, eq=False, slots=True)
class ChainRealisation:
    """One way to run a chain; all of them give the same bits. form: what a block holds, see FORMS."""

    chain: Chain
    form: str
    strips_together: int

    @property
    def strips(self) -> int | Expr:
        """Strips of one matrix."""
        return ceil_div(self.chain.first.m.extent, STRIP_ROWS)

    @property
    def block_strips(self) -> int | Expr:
        """Strips that a block holds, at least one."""
        return {"strips": 1, "groups": GROUP_STRIPS, "batches": maximum(self.strips, 1)}[self.form]

    @property
    def blocks(self) -> int | Expr:
        matrices = self.chain.first.matrices
        return matrices if self.form == "batches" else matrices * ceil_div(self.strips, self.block_strips)

    def __str__(self) -> str:
        forms = " then ".join(f"B {s.b_form}, epilogue in {s.epilogue_form}" for s in self.chain.stages)
        return f"chain in {self.form} of {STRIP_ROWS}x{PANEL}, {forms}"


@dataclass(frozen=True, slots=True)
class ChainScratch:
    """Offsets and sizes in floats, every part 64-byte aligned; pairs are (first product, second product).

    packed_a: `strips_together` packed strips of the first left operand, `packed_a_size` each. packed_b: panels of the
    right operands. strips: finished rows, STRIP_ROWS per strip. spills: what row-wise code keeps between its passes.
    """

    packed_a: int | Expr
    packed_a_size: int | Expr
    packed_b: tuple[int | Expr, int | Expr]
    strips: tuple[int | Expr, int | Expr]
    spills: tuple[int | Expr, int | Expr]
    total: int | Expr


def strip_row(n: Axis) -> int | Expr:
    """Distance of finished rows: one line more than the columns, so that rows do not fall on the same cache sets."""
    return ceil_div(n.extent, PANEL) * PANEL + PANEL


def chain_scratch(plan: ChainRealisation) -> ChainScratch:
    first, second = plan.chain.stages
    size = packed_a_floats(first.k.extent, STRIP_ROWS)
    sizes = [size * plan.strips_together]
    sizes += [ceil_div(stage.n.extent, PANEL) * PANEL * stage.k.extent for stage in (first, second)]
    for stage in (first, second):
        is_strip = stage.epilogue_form == "strip"
        sizes.append(strip_row(stage.n) * (STRIP_ROWS * plan.strips_together) if is_strip else 0)
    sizes += [_spill_floats(plan.chain, stage) for stage in (first, second)]
    starts: list[int | Expr] = [0]
    for each in sizes:
        starts.append(starts[-1] + each)
    a, b0, b1, strips0, strips1, spills0, spills1, total = starts
    return ChainScratch(a, size, (b0, b1), (strips0, strips1), (spills0, spills1), total)


def _spill_floats(chain: Chain, stage: Product) -> int | Expr:
    """What the passes of row-wise code keep: one 8-byte slot per column and value, in whole 64 columns."""
    if stage.epilogue_form != "strip":
        return 0
    program, _, _ = stage_rows(chain, stage)
    return ceil_div(stage.n.extent, 64) * (64 * 2 * schedule_rows(program, stage.n).scratch_slots)


def stage_rows(chain: Chain, stage: Product) -> tuple[TileProgram, View, Axis]:
    """The row-wise program after a product: (program, view of its strip, axis of rows in the strip).

    After the first product it ends with a store of the second's left operand into the strip, in place.
    """
    program, strip, row = epilogue_program(stage, strip_row(stage.n))
    if stage is chain.first:
        index = (Affine(((row, 1),)), Affine(((stage.n, 1),)))
        store = Operation("store", (chain.between,), None, view=strip, index=index, attributes={"bounds": "assume"})
        program = replace(program, body=(*program.body, store))
    return program, strip, row


def chain_cost_ps(plan: ChainRealisation, machine: Machine) -> int | Expr:
    """Predicted picoseconds of all blocks on one core, in the terms of single products."""
    chain, total = plan.chain, plan.chain.first.matrices * plan.strips * STRIP_PS
    for stage in chain.stages:
        right = stage.k.extent * (ceil_div(stage.n.extent, PANEL) * PANEL)
        total = total + stage.matrices * right * (stage.m.extent * fma_ps(machine) + 4 * B_BYTE_PS)
        total = total + plan.blocks * right * (PACK_PS // 4)
        if stage.epilogue_form == "strip":
            program, _, _ = stage_rows(chain, stage)
            rows = replace(program, roots=(*stage.batch, stage.m))
            total = total + launch_cost(rows, row_mapping(stage.n), 1)
    return total


def chain_task_ps(plan: ChainRealisation) -> int | Expr:
    """Predicted picoseconds that a task takes for being apart from the one before it.

    Heads lie side by side in a row. What prefetching brings beyond a head's own lines serves the next head if the same
    core computes it, and disturbs another core if not: single heads took 1.25 times as long as eight to a task.
    """
    heads = maximum(plan.chain.first.matrices, 1)
    return floordiv(traffic_bytes(plan.chain.program), heads) * NEIGHBOUR_BYTE_PS


def plan_products(program: TileProgram, target: Target, options: PlannerOptions, machine: Machine) -> PlanResult:
    """The plans of a program with products; `PlanError` with the reason when there is none."""
    if sum(o.op == "mma" for o in program.body) != 2:
        return plan_mma(program, target, options, machine)
    chain = accepted(program, describe_chain(program), options)
    return result_of(_plan(target, machine, ChainRealisation(chain, form, STRIPS_TOGETHER)) for form in FORMS)


def refusal_of(program: TileProgram) -> str | None:
    """Why a program with two products is not realised; None when it is."""
    chain = describe_chain(program)
    return chain.reason if isinstance(chain, MmaRefusal) else None


def _plan(target: Target, machine: Machine, chosen: ChainRealisation) -> Plan:
    chain = chosen.chain
    return Plan(
        program=chain.program,
        mapping=Mapping(MMA, chain.second.n, PANEL, 1, chosen),
        target=target,
        block=1,
        blocks=chosen.blocks,
        cost_ps=chain_cost_ps(chosen, machine),
        task_ps=chain_task_ps(chosen),
        scratch_bytes=chain_scratch(chosen).total * 4,
        signature=f"{MMA} k-order twice, rows {row_mapping(chain.first.n)}",
        reason=str(chosen),
    )
