"""Matrix products: which `mma` programs are realised, how, and at what predicted cost.

`describe` reads a tile program into a `Product` (operand forms as linear address functions, epilogue class) or gives
a `MmaRefusal` with its reason. `realisations` lists the register-tiled plans of a product, cheapest numbers attached as
extents, so that the choice among them can be made for every single call. All plans of one product have one numeric
signature: each output element is one FMA chain in increasing k from 0, whatever the plan; with int8 weights it is an
exact sum of integers (see `codegen/mma_digits.py`).

A block is one strip (at most `strip_rows` rows of one batch element) times all columns, or times one column range, or
it is all strips of one batch element. Blocks are numbered (batch..., range, strip), strip fastest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import gcd
from typing import TypeVar

from grainline.base.dims import Expr, ceil_div, floordiv, maximum, minimum
from grainline.base.dims import product as extent_product
from grainline.base.dtypes import F32
from grainline.plan.cost import launch_cost
from grainline.plan.digits import BYTE_PRODUCTS, DigitStrip
from grainline.plan.legal import refuse_local
from grainline.plan.machine import Machine
from grainline.plan.panels import PANEL, STRIP_ROWS, WIDE_STRIP_ROWS
from grainline.plan.row_schedule import schedule_rows
from grainline.plan.target import Target
from grainline.plan.types import LOCAL, MMA, Mapping, Plan, PlanError, PlannerOptions, PlanResult
from grainline.tile.access import linear_access, tile_axes
from grainline.tile.ir import Affine, Axis, Operation, Tile, TileProgram, View

Described = TypeVar("Described")


# Rows after a product: sixteen lanes, two packets in flight, as in row programs.
def row_mapping(n: Axis) -> Mapping:
    return Mapping(LOCAL, n, 16, 2)


@dataclass(frozen=True, slots=True)
class MmaRefusal:
    """Why a program is not realised as a register-tiled product; a sentence for people."""

    reason: str


@dataclass(frozen=True, eq=False, slots=True)
class Product:
    """acc[batch..., m, n] = sum over k of a[batch..., m, k] * b[batch..., k, n], then `epilogue` in program order.

    b_form: "panels" (packed ahead), "quads" (i8, packed ahead and cast by `b_cast`), "rows" (n stride 1), "columns" (k
    stride 1), "scattered" (any strides).
    epilogue_form: "registers" (cheap elementwise code on the accumulators) or "strip" (row-wise code on the finished
    rows of a strip). strip_rows: the most rows of a strip. Invariants: a has k stride 1; b does not depend on m; m is
    the last root, or an axis of extent 1 of its own when the last root moves b.
    """

    program: TileProgram
    mma: Operation
    a: Operation
    b: Operation
    m: Axis
    n: Axis
    k: Axis
    batch: tuple[Axis, ...]
    b_form: str
    epilogue: tuple[Operation, ...]
    epilogue_form: str
    b_cast: Operation | None = None
    strip_rows: int = STRIP_ROWS

    @property
    def is_packed(self) -> bool:
        """Whether B was packed when the model was loaded."""
        return self.b_form in ("panels", "quads")

    @property
    def operands(self) -> tuple[Operation | None, ...]:
        """The operations that bring the operands of the product."""
        return (self.a, self.b, self.b_cast)

    @property
    def matrices(self) -> int | Expr:
        """How many matrices the product has."""
        return extent_product(axis.extent for axis in self.batch)

    @property
    def offers_columns(self) -> bool:
        """Whether a block may hold a part of the columns: nothing after the product crosses them."""
        n = self.n.extent
        if not self.is_packed or (isinstance(n, int) and range_panels(n) == 0):
            return False
        stores = [linear_access(o) for o in self.epilogue if o.op == "store"]
        reduces = any(o.op == "reduce" for o in self.epilogue)
        return not reduces and all(self.n in store.coefficients or store.dynamic for store in stores)

    @property
    def offers_batches(self) -> bool:
        """Whether a block may hold a whole matrix, so that a B packed in scratch is packed once."""
        return bool(self.batch) and not self.is_packed


def describe(program: TileProgram) -> Product | MmaRefusal:
    """The product that `program` computes, or the reason why it is not realised."""
    products = [o for o in program.body if o.op == "mma"]
    if len(products) != 1:
        return MmaRefusal(f"{program.name} has {len(products)} matrix products; one per program is realised")
    if not program.roots:
        return MmaRefusal(f"{program.name} has no root axis for the rows")
    mma = products[0]
    producers = {o.result: o for o in program.body if o.result is not None}
    a, b = (producers[operand] for operand in mma.operands)
    cast = b if b.op == "cast" and _is_quads(producers[b.operands[0]]) else None
    b = producers[b.operands[0]] if cast is not None else b
    refusal = _refuse_operands(program, mma, a, b)
    if refusal is not None:
        return refusal
    assert mma.axis is not None and mma.result is not None
    n = mma.result.space[0]
    b_form = _b_form(b, n, mma.axis)
    if isinstance(b_form, MmaRefusal):
        return b_form
    batch, m = _rows(program, b)
    epilogue = tuple(o for o in program.body if all(o is not operand for operand in (mma, a, b, cast)))
    form = "registers" if all(is_register_op(o, n) for o in epilogue) else "strip"
    product = Product(program, mma, a, b, m, n, mma.axis, batch, b_form, epilogue, form, cast)
    return refuse_epilogue(product) or product


def refuse_epilogue(product: Product) -> MmaRefusal | None:
    """What follows the product must be a legal row program over its columns."""
    if product.epilogue_form != "strip":
        return None
    program, _, _ = epilogue_program(product)
    reason = refuse_local(program)
    if reason is None and tile_axes(program) != (product.n,):
        reason = "it runs over another axis than the columns"
    return None if reason is None else MmaRefusal(f"the code after the product is no row program: {reason}")


def _rows(program: TileProgram, b: Operation) -> tuple[tuple[Axis, ...], Axis]:
    """Batch axes and the row axis. A last root that moves B is a batch axis; the matrices then have one row each."""
    last = program.roots[-1]
    if b.view is not None and b.view.layout == "strided" and linear_access(b).coefficient(last) != 0:
        return program.roots, Axis("row", 1)
    return program.roots[:-1], last


def _refuse_operands(program: TileProgram, mma: Operation, a: Operation, b: Operation) -> MmaRefusal | None:
    if a.op != "load" or b.op != "load":
        return MmaRefusal("an operand of the product is computed in the program; it must be a load")
    if a.attributes.get("bounds", "assume") != "assume" or b.attributes.get("bounds", "assume") != "assume":
        return MmaRefusal("an operand of the product has guarded loads; only assumed bounds are realised")
    assert mma.result is not None and mma.axis is not None
    assert a.result is not None and b.result is not None and a.view is not None and b.view is not None
    if mma.result.dtype is not F32 or a.result.dtype is not F32 or (b.result.dtype is not F32 and not _is_quads(b)):
        return MmaRefusal("only f32 products are realised")
    if a.result.space != (mma.axis,):
        return MmaRefusal("the left operand must span the contracted axis only")
    if len(mma.result.space) != 1 or set(b.result.space) != {mma.axis, mma.result.space[0]}:
        return MmaRefusal("the right operand must span the contracted axis and one column axis")
    if a.view.layout != "strided":
        return MmaRefusal("the left operand must be a strided view")
    if any(len([o for o in program.body if t in o.operands]) != 1 for t in (*mma.operands, b.result)):
        return MmaRefusal("an operand of the product is used again in the program")
    left = linear_access(a)
    if left.dynamic:
        return MmaRefusal("the left operand is indexed at run time")
    stride = left.coefficient(mma.axis)
    if stride != 1 and mma.axis.extent != 1:
        return MmaRefusal(f"the left operand has stride {stride} along the contracted axis; it must be 1")
    return None


def _b_form(b: Operation, n: Axis, k: Axis) -> str | MmaRefusal:
    assert b.view is not None
    if b.view.layout in ("panels", "quads"):
        rows, columns = Affine(((k, 1),)), Affine(((n, 1),))
        if b.view.panel != PANEL:
            return MmaRefusal(f"the right operand is packed in panels of {b.view.panel}; {PANEL} is realised")
        if b.index != (rows, columns) or b.view.shape != (k.extent, n.extent):
            return MmaRefusal("a packed right operand must be read whole, as [k, n]")
        return _refuse_quads(k) or "quads" if _is_quads(b) else "panels"
    right = linear_access(b)
    if right.dynamic:
        return MmaRefusal("the right operand is indexed at run time")
    if right.coefficient(n) == 1 or n.extent == 1:
        return "rows"
    return "columns" if right.coefficient(k) == 1 or k.extent == 1 else "scattered"


def _is_quads(b: Operation) -> bool:
    return b.op == "load" and b.view is not None and b.view.layout == "quads"


def _refuse_quads(k: Axis) -> MmaRefusal | None:
    if isinstance(k.extent, int) and k.extent <= BYTE_PRODUCTS:
        return None
    return MmaRefusal(f"sums of {k.extent} products of bytes may leave 32 bits; up to {BYTE_PRODUCTS} are realised")


# Work that is cheap enough to run on live accumulators; anything else runs on the finished strip.
REGISTER_OPERATIONS = frozenset(("add", "sub", "mul", "div", "neg", "abs", "relu", "min", "max"))


def is_register_op(operation: Operation, n: Axis) -> bool:
    """Whether `operation` can run on the accumulators, element by element along `n`."""
    if operation.op == "const":
        return operation.result is not None and operation.result.dtype is F32
    if operation.op in REGISTER_OPERATIONS:
        return operation.result is not None and operation.result.dtype is F32 and _spans_only(operation.result, n)
    if operation.op not in ("load", "store"):
        return False
    assert operation.view is not None
    tile = operation.result if operation.op == "load" else operation.operands[0]
    assert tile is not None
    if operation.view.dtype is not F32 or operation.view.layout != "strided" or not _spans_only(tile, n):
        return False
    if operation.attributes.get("bounds", "assume") != "assume":
        return False
    access = linear_access(operation)
    return not access.dynamic and access.coefficient(n) == (1 if n in tile.space else 0)


def _spans_only(tile: Tile, n: Axis) -> bool:
    return tile.space in ((), (n,))


# Picoseconds of one core: a byte of B streamed from the shared cache, a float moved by packing, and the fixed price of
# one strip.
B_BYTE_PS = 16
# What of the way of B remains, fetched while strips compute. Measured: a quarter to a third with B beyond the private
# caches (Emerald Rapids: 16 of 51 ps a byte; Zen 4: 2 of 6.5), nothing that shows with B inside them.
TASK_B_SHARE = 0.3
PACK_PS = 60
STRIP_PS = 250_000

# A is read in place when so few columns follow that packing it would cost more than it saves. Of up to the second
# number only where rows lie a known distance apart that puts few of them in the same set of the first cache.
UNPACKED_A_COLUMNS = 64
SPREAD_A_COLUMNS = 768
ROWS_PER_SET = 6
LINE_BYTES, SETS = 64, 64
# A strided B of rows is read in place by up to this many strips of one call; more of them share one packed copy.
DIRECT_B_STRIPS = 2
# Strips read a chunk of B one after the other while it is in a near cache; their rows wait in the second level.
CHUNK_PANELS = 12
ROWS_TOGETHER = 144
TOGETHER_BYTES = {"registers": 1 << 20, "strip": 1 << 19}
# Column ranges are whole groups of the widest tile group (6 panels).
RANGE_STEP_PANELS = 6
RANGES_WANTED = 8
HALF_STRIPS = "half strips"
# A line of B serves half as many rows there: more time for each multiply-add, and the more the busier the caches are.
HALF_STRIPS_SLOWER = 1.125


@dataclass(frozen=True, eq=False, slots=True)
class Realisation:
    """One way to run a product; all of them give the same bits.

    form: "strips" (block = strip), "half strips" (the same of half the rows: B passes more often, but a few rows can be
    shared among threads), "columns" (block = strip x `range_panels` panels), "batches" (block = all strips of one batch
    element, so that a B packed in scratch is packed once). `strips_together` strips of one call read a chunk
    of B one after the other.
    """

    product: Product
    form: str
    packs_a: bool
    packs_b: bool
    range_panels: int
    strips_together: int

    @property
    def strips(self) -> int | Expr:
        """Strips of one matrix: many rows in an even number, so that two threads have equal shares."""
        m, rows = self.product.m.extent, self.product.strip_rows
        if rows == STRIP_ROWS:
            return ceil_div(m, rows)
        rows = rows // 2 if self.form == HALF_STRIPS else rows
        return maximum(ceil_div(m, 2 * rows) * 2 - maximum(2 - ceil_div(m, rows), 0), 0)

    @property
    def packed_strips(self) -> int | Expr:
        """Strips of A packed per matrix: once where all have a slot, else once for every range."""
        spilled = minimum(self.strips, maximum(self.strips - self.strips_together, 0) * self.strips)
        return self.strips + (self.ranges - 1) * spilled

    @property
    def ranges(self) -> int | Expr:
        """Column ranges of a matrix."""
        return ceil_div(self.product.n.extent, self.range_panels * PANEL) if self.range_panels else 1

    @property
    def blocks(self) -> int | Expr:
        matrices = self.product.matrices
        return matrices if self.form == "batches" else matrices * self.strips * self.ranges

    @property
    def column_range(self) -> int | Expr:
        """Columns of a range."""
        return self.range_panels * PANEL if self.range_panels else maximum(self.product.n.extent, 1)

    @property
    def block_strips(self) -> int | Expr:
        """Strips that a block holds, at least one."""
        return maximum(self.strips, 1) if self.form == "batches" else 1

    def __str__(self) -> str:
        rows = self.product.strip_rows
        return f"{self.form} of {rows}x{PANEL}, B {self.product.b_form}, epilogue in {self.product.epilogue_form}"


@dataclass(frozen=True, slots=True)
class ScratchLayout:
    """Offsets and sizes in floats; every part is 64-byte aligned.

    packed_a: `strips_together` packed strips of A, `packed_a_size` each. packed_b: panels of B. strip: finished rows,
    `strip_row` apart, `strip_rows` per strip. spills: what the row-wise epilogue keeps between its passes.
    """

    packed_a: int | Expr
    packed_a_size: int | Expr
    packed_b: int | Expr
    strip: int | Expr
    strip_row: int | Expr
    spills: int | Expr
    total: int | Expr


def scratch_layout(plan: Realisation) -> ScratchLayout:
    product = plan.product
    n, k = product.n.extent, product.k.extent
    padded = ceil_div(n, PANEL) * PANEL
    rows = product.strip_rows
    a_size = packed_a_floats(k, rows) if plan.packs_a else 0
    if product.b_form == "quads":
        a_size = DigitStrip.of(k).size_bytes // 4
    after_a = a_size * plan.strips_together
    after_b = after_a + (padded * k if plan.packs_b else 0)
    # One line more than the columns, so that the rows of a strip do not fall on the same cache sets.
    row = padded + PANEL
    is_strip = product.epilogue_form == "strip"
    after_strip = after_b + (row * (rows * plan.strips_together) if is_strip else 0)
    return ScratchLayout(0, a_size, after_a, after_b, row, after_strip, after_strip + _spill_floats(product))


def packed_a_floats(k: int | Expr, rows: int) -> int | Expr:
    """Floats of a packed strip [k][rows]. Packing stores vectors of eight: the last one reaches past the end."""
    return align16(k * rows + -rows % 8)


def _spill_floats(product: Product) -> int | Expr:
    """What the passes of the row-wise epilogue keep: one 8-byte slot per column and value, in whole 64 columns."""
    if product.epilogue_form != "strip":
        return 0
    program, _, _ = epilogue_program(product)
    return ceil_div(product.n.extent, 64) * (64 * 2 * schedule_rows(program, product.n).scratch_slots)


def epilogue_program(product: Product, strip_row: int | Expr = 0) -> tuple[TileProgram, View, Axis]:
    """The program of one row after its product: (program, view of the strip, axis of rows in the strip).

    The product is a load from the strip, whose rows are `strip_row` apart; everything else stays as it was.
    """
    row = Axis("strip_row", product.strip_rows)
    strip = View("finished strip", F32, (product.strip_rows, product.n.extent), (strip_row, 1))
    index = (Affine(((row, 1),)), Affine(((product.n, 1),)))
    load = Operation("load", (), product.mma.result, view=strip, index=index, attributes={"bounds": "assume"})
    dropped = product.operands
    body = tuple(load if o is product.mma else o for o in product.program.body if o not in dropped)
    roots = (*product.batch, product.m, row)
    views = tuple(v for v in product.program.views if any(o.view is v for o in body))
    return TileProgram(product.program.name, (*views, strip), roots, body), strip, row


def align16(extent: int | Expr) -> int | Expr:
    return ceil_div(extent, 16) * 16


def realisations(product: Product) -> tuple[Realisation, ...]:
    """Every realisation of `product`, the general one first; which is fastest depends on the extents of a call."""
    return tuple(_realisation(product, form) for form in _forms(product))


def _forms(product: Product) -> Iterator[str]:
    yield "strips"
    if product.strip_rows > STRIP_ROWS:
        yield HALF_STRIPS
    if product.offers_columns:
        yield "columns"
    if product.offers_batches:
        yield "batches"


def range_panels(n: int | Expr) -> int:
    """Panels per column range: about RANGES_WANTED ranges of whole tile groups; 0 when N is too narrow to share."""
    if not isinstance(n, int):
        return 2 * RANGE_STEP_PANELS
    panels = -(-n // PANEL)
    wanted = max(1, round(panels / RANGES_WANTED / RANGE_STEP_PANELS)) * RANGE_STEP_PANELS
    return wanted if panels > wanted else 0


def _realisation(product: Product, form: str) -> Realisation:
    n = product.n.extent
    packs_a = product.b_form == "quads" or not _reads_a_in_place(product)
    width = range_panels(n) if form == "columns" else 0
    return Realisation(product, form, packs_a, not product.is_packed, width, _strips_together(product))


def _reads_a_in_place(product: Product) -> bool:
    n, stride = product.n.extent, linear_access(product.a).coefficient(product.m)
    if not isinstance(n, int) or n > SPREAD_A_COLUMNS:
        return False
    if n <= UNPACKED_A_COLUMNS:
        return True
    lines = gcd(stride * 4 // LINE_BYTES, SETS) if isinstance(stride, int) and stride % (LINE_BYTES // 4) == 0 else 0
    return 0 < lines * product.strip_rows <= ROWS_PER_SET * SETS


def _strips_together(product: Product) -> int:
    """How many strips share a chunk of B: as many as keep their packed rows (and finished rows) in cache."""
    k, n = product.k.extent, product.n.extent
    columns = n if product.epilogue_form == "strip" else 0
    if not isinstance(k, int) or not isinstance(columns, int):
        return 4
    per_strip = product.strip_rows * 4 * max(k + columns, 1)
    return max(2, min(ROWS_TOGETHER // product.strip_rows, TOGETHER_BYTES[product.epilogue_form] // per_strip))


def cost_ps(plan: Realisation, machine: Machine) -> int | Expr:
    """Predicted picoseconds of all blocks on one core.

    Multiply-adds of padded columns, the stream of B (a strip waits for it, later strips find it near), packing, the
    row-wise epilogue, and a fixed price per strip. Every task pays for the range of a packed B that it begins with; of
    the others, which may be begun by a task or not, half is counted here.
    """
    product = plan.product
    m, k = product.m.extent, product.k.extent
    padded = ceil_div(product.n.extent, PANEL) * PANEL
    strips = product.matrices * plan.strips * plan.ranges
    in_bytes = product.b_form == "quads"
    slower = HALF_STRIPS_SLOWER if plan.form == HALF_STRIPS else 1
    multiply = product.matrices * m * k * padded * round(fma_ps(machine, in_bytes) * slower)
    stream = product.matrices * k * padded * 4 * B_BYTE_PS
    if product.is_packed:
        stream = floordiv((plan.ranges - 1) * task_ps(plan, machine), 2)
    packing = product.matrices * plan.packed_strips * k * product.strip_rows * PACK_PS if plan.packs_a else 0
    if plan.packs_b:
        times = product.matrices if plan.form == "batches" else plan.blocks
        packing = packing + times * k * padded * (PACK_PS // 4)
    return multiply + stream + packing + strips * STRIP_PS + _epilogue_ps(product)


def fma_ps(machine: Machine, in_bytes: bool = False) -> int:
    """Whole picoseconds of a multiply-add."""
    return max(round(machine.byte_fma_ps if in_bytes else machine.fma_ps), 1)


def task_ps(plan: Realisation, machine: Machine) -> int | Expr:
    """What every task does anew: it streams the B of a block once, however many strips it has, ahead of its use.

    All of B passes between two tasks of a thread, so where B lies depends on all of it.
    """
    product = plan.product
    size = 1 if product.b_form == "quads" else 4
    padded = ceil_div(product.n.extent, PANEL) * PANEL
    whole = product.k.extent * padded * size
    fits = isinstance(whole, int) and whole <= machine.private_bytes / 2
    byte_ps = machine.private_byte_ps if fits else machine.shared_byte_ps
    columns = plan.range_panels * PANEL if plan.range_panels else padded
    return product.k.extent * columns * max(round(size * byte_ps * TASK_B_SHARE), 1)


def _epilogue_ps(product: Product) -> int | Expr:
    if product.epilogue_form != "strip":
        return 0
    program, _, _ = epilogue_program(product)
    rows = TileProgram(program.name, program.views, (*product.batch, product.m), program.body)
    return launch_cost(rows, row_mapping(product.n), 1)


def plan_mma(program: TileProgram, target: Target, options: PlannerOptions, machine: Machine) -> PlanResult:
    """The plans of a matrix product, one per realisation; `PlanError` with the reason when there is none."""
    product = accepted(program, describe(program), options)
    if product.b_form == "quads" and not target.has_byte_products:
        raise PlanError(f"tile program {program.name!r}: {target.cpu} has no products of bytes for its int8 weights")
    if target.has_avx512 and product.b_form != "quads":
        product = replace(product, strip_rows=WIDE_STRIP_ROWS)
    return result_of(_plan(product, target, machine, each) for each in realisations(product))


def accepted(program: TileProgram, described: Described | MmaRefusal, options: PlannerOptions) -> Described:
    """What `program` was described as; `PlanError` for a refusal, or when another mapping is asked for."""
    if not isinstance(described, MmaRefusal) and options.mapping in ("", MMA):
        return described
    is_refused = isinstance(described, MmaRefusal)
    reason = described.reason if is_refused else f"mapping {options.mapping!r} has no products"
    raise PlanError(f"tile program {program.name!r} has no legal mapping ({MMA}: {reason})")


def result_of(plans: Iterable[Plan]) -> PlanResult:
    """Plans of one numeric signature, all kept."""
    variants = tuple(plans)
    notes = "; ".join(each.reason for each in variants)
    return PlanResult(variants, (), (), f"one k-order for all of: {notes}; the extents of a call choose")


def _plan(product: Product, target: Target, machine: Machine, chosen: Realisation) -> Plan:
    return Plan(
        program=product.program,
        mapping=Mapping(MMA, product.n, PANEL, 1, chosen),
        target=target,
        block=1,
        blocks=chosen.blocks,
        cost_ps=cost_ps(chosen, machine),
        task_ps=task_ps(chosen, machine),
        scratch_bytes=scratch_layout(chosen).total * 4,
        signature=f"{MMA} {'digits' if product.b_form == 'quads' else 'k-order'}, rows {row_mapping(product.n)}",
        reason=str(chosen),
    )
