"""Matrix products: (product, plan) -> the LLVM IR of one kernel with run-time rows.

    i32 name(ptr args, i64 begin, i64 end, ptr scratch)

computes the blocks begin..end-1. The whole loop nest is here: matrices of the batch, column ranges, strips of at most
`strip_rows` rows. The rows of a matrix are spread evenly over its strips, because every strip streams all of B. Strips
of one call travel in groups: all read a chunk of B while it is in a near cache, and fetch the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from grainline.base.dims import Expr, maximum
from grainline.base.dtypes import BOOL
from grainline.codegen.emit import ModuleText, Reg
from grainline.codegen.kernel import PLACEHOLDER, EmittedKernel, finished, math_form
from grainline.codegen.mma_digits import as_words, digit_functions
from grainline.codegen.mma_epilogue import streams_of
from grainline.codegen.mma_nest import (
    LeftRows,
    Right,
    StripRows,
    address,
    call_tile,
    coordinates,
    each_strip,
    pack_right,
)
from grainline.codegen.mma_pack import pack_a_function, pack_b_function
from grainline.codegen.mma_stream import THREE_ROW_PANELS, Columns, Share, chunk_panels, fetches_ahead, shares
from grainline.codegen.mma_strip import rows_function
from grainline.codegen.mma_text import KernelText, Writer
from grainline.codegen.mma_tile import TileForm, edge_function, float_tile, tile_function
from grainline.plan.mma import PANEL, STRIP_ROWS, Product, Realisation, scratch_layout
from grainline.plan.mma_chain import ChainRealisation
from grainline.plan.types import Plan
from grainline.tile.access import LinearAccess, linear_access
from grainline.tile.ir import Axis

# Argument words that differ between the realisations of a product.
COLUMN_RANGE = "columns of a range"
BLOCK_STRIPS = "strips of a block"
STRIPS = "strips of a matrix"


def emit_mma(plans: Sequence[Plan]) -> tuple[EmittedKernel, ...]:
    """The kernels of the realisations of one product: the same text and other words."""
    plan, chosen = plans[0], plans[0].mapping.details
    assert isinstance(chosen, Realisation)
    product = chosen.product
    kernel = KernelText(ModuleText(math_form(plan)), product.program.views, 16 if plan.target.has_avx512 else 8, {})
    left, walked = linear_access(product.a), as_words(product)
    stride, to_strip = left.coefficient(product.m), product.epilogue_form == "strip"
    form = TileForm(walked, chosen.packs_a, to_strip, stride, fetches_ahead=fetches_ahead(walked))
    _Entry(kernel.entry(PLACEHOLDER), chosen, walked, left).emit()
    _Strips(kernel, chosen, form).emit()
    if product.b_form == "quads":
        digit_functions(kernel, form, product.k.extent)
    else:
        _float_functions(kernel, form, chosen)
    if form.to_strip:
        rows_function(kernel, chosen)
    else:
        edge_function(kernel, form)
    return tuple(finished(kernel.module, _words(kernel, each), each) for each in plans)


def _words(kernel: KernelText, plan: Plan) -> tuple[Expr, ...]:
    chosen = plan.mapping.details
    assert isinstance(chosen, Realisation)
    return kernel.words({COLUMN_RANGE: chosen.column_range, **strip_words(chosen)})


def strip_words(plan: Realisation | ChainRealisation) -> dict[str, int | Expr]:
    """A matrix without rows has one strip, which does nothing: a block of whole matrices may hold it."""
    return {BLOCK_STRIPS: plan.block_strips, STRIPS: maximum(plan.strips, 1)}


def _float_functions(kernel: KernelText, form: TileForm, chosen: Realisation) -> None:
    tile_function(kernel, form, lambda w, rows: float_tile(w, form, rows))
    if chosen.packs_a:
        pack_a_function(kernel, form)
    if chosen.packs_b:
        pack_b_function(kernel, form)


class _Entry:
    """Emits the entry function: the matrices of the range, each with its B ready to be read by strips."""

    def __init__(self, w: Writer, plan: Realisation, product: Product, left: LinearAccess) -> None:
        self.w = w
        self.plan = plan
        self.product = product
        self.left = left
        self.scratch = scratch_layout(plan)

    def emit(self) -> None:
        w = self.w
        w.function.when(Reg(w.less("%begin", "%end"), BOOL), [], self._all)
        w.function.do("ret i32 0")

    def _all(self) -> list[Reg]:
        w, product = self.w, self.product
        self.n = w.extent(product.n.extent)
        per_matrix = w.own_word(STRIPS)
        if product.offers_columns:
            width = w.own_word(COLUMN_RANGE)
            ranges = w.divide(w.add(self.n, w.sub(width, "1")), width)
            per_matrix = w.mul(per_matrix, w.larger(ranges, "1"))
        begin, end = "%begin", "%end"
        if product.offers_batches:
            unit = w.own_word(BLOCK_STRIPS)
            begin, end = w.mul(begin, unit), w.mul(end, unit)
        first = w.divide(begin, per_matrix)
        after = w.add(w.divide(w.add(end, "-1"), per_matrix), "1")

        def matrix(number: str) -> None:
            start = w.mul(number, per_matrix)
            low = w.larger(w.sub(begin, start), "0")
            self._matrix(number, low, w.smaller(w.sub(end, start), per_matrix))

        w.loop(first, after, 1, matrix)
        return []

    def _matrix(self, number: str, low: str, high: str) -> None:
        """The (range, strip) numbers low..high-1 of one batch element."""
        w, product = self.w, self.product
        at = coordinates(w, product.batch, number)
        a = address(w, product.a.view, self.left, at)
        right = self._right(at, low, high)
        operands = [f"ptr {a}", f"ptr {right.base}", f"i64 {right.row_stride}", f"i64 {right.panel_stride}"]
        operands += [f"i64 {right.columns}", f"ptr {right.tail}", f"i64 {low}", f"i64 {high}"]
        operands += [f"i64 {at[axis]}" for axis in product.batch]
        w.call_or_leave("strips", ["ptr %args", "ptr %scratch", *operands])

    def _right(self, at: dict[Axis, str], low: str, high: str) -> Right:
        """Packs B where the plan asks for it."""
        w, product = self.w, self.product
        if product.b_form != "panels":
            return pack_right(w, product, "", self.scratch.packed_b, at, w.sub(high, low))
        assert product.b.view is not None
        base = w.view(product.b.view)
        return Right(base, str(PANEL), w.mul(w.extent(product.k.extent), str(PANEL)), self.n, base)


class _Strips:
    """Emits `i32 @strips(args, scratch, a, b, brow, bpanel, columns, tail, low, high, batch coordinates...)`."""

    def __init__(self, kernel: KernelText, plan: Realisation, form: TileForm) -> None:
        self.plan = plan
        self.form = form
        self.product = form.product
        self.scratch = scratch_layout(plan)
        pointers = ("scratch", "a", "b", "tail")
        names = ("scratch", "a", "b", "brow", "bpanel", "columns", "tail", "low", "high")
        parameters = [("ptr" if name in pointers else "i64", name) for name in names]
        parameters += [("i64", f"x{i}") for i in range(len(plan.product.batch))]
        self.w = kernel.internal("strips", parameters, "i32", is_cold=True)
        self.batch = {axis: f"%x{i}" for i, axis in enumerate(plan.product.batch)}
        self.keeps_slots: str | None = None  # Whether the packed rows of all strips stay, as i1; None: never.

    def emit(self) -> None:
        w = self.w
        self.strips = w.own_word(STRIPS)
        self.rows = StripRows.of(w, self.product, self.strips)
        places, pack = (self.scratch.packed_a, self.scratch.packed_a_size), "pack_a" if self.plan.packs_a else ""
        self.left = LeftRows(self.rows, self.form.a_row_stride, *places, pack, self.plan.product.b_form != "quads")
        if self.product.offers_columns:
            self._ranges()
        else:
            self._groups("%low", "%high", Columns("%b", "0", "%columns", "%columns"))
        w.function.do("ret i32 0")

    def _ranges(self) -> None:
        """The strips of one column range after the other. If all have a slot, they keep their packed rows in it."""
        w = self.w
        first = w.divide("%low", self.strips)
        if self.left.pack:
            self.keeps_slots = w.less(self.strips, str(self.plan.strips_together + 1))
            single = w.less(self._after_last_range(), w.add(first, "2"))
            before = w.mul(first, self.strips)
            low, high = (w.choose(single, w.sub(x, before), y) for x, y in (("%low", "0"), ("%high", self.strips)))
            each = partial(each_strip, w, low, w.choose(self.keeps_slots, high, low))
            each(lambda strip, _: self.left.fill(w, strip, strip))
        w.loop(first, self._after_last_range(), 1, self._range)

    def _after_last_range(self) -> str:
        w = self.w
        return w.add(w.divide(w.add("%high", "-1"), self.strips), "1")

    def _range(self, number: str) -> None:
        """The strips of [low, high) that lie in one column range."""
        w = self.w
        width, start = w.own_word(COLUMN_RANGE), w.mul(number, self.strips)
        low = w.larger(w.sub("%low", start), "0")
        high = w.smaller(w.sub("%high", start), self.strips)
        column = w.mul(number, width)
        b = w.at("%b", w.mul(w.extent(self.product.k.extent), column))
        left = w.sub("%columns", column)
        reach = w.smaller(left, w.sub(w.mul(self._after_last_range(), width), column))
        self._groups(low, high, Columns(b, column, w.smaller(left, width), reach))

    def _groups(self, low: str, high: str, run: Columns) -> None:
        """Strips low..high-1 times a run of columns."""
        together = self.plan.strips_together

        def group(first: str) -> None:
            after = self.w.smaller(self.w.add(first, str(together)), high)
            self._group(first, after, high, run)

        self.w.loop(low, high, together, group)

    def _group(self, first: str, after: str, high: str, run: Columns) -> None:
        """Strips that share the chunks of B."""
        w = self.w
        each = partial(each_strip, w, first, after)
        self._fill(first, after)
        step = self._chunk_columns(run.count)
        share = shares(w, self.product, run, (first, after, high), step) if self.form.fetches_ahead else None

        def chunk(at: str) -> None:
            width = w.smaller(w.sub(run.count, at), step)
            start = w.at(run.b, w.mul(w.binary("lshr", at, "4"), "%bpanel"))
            right = (start, "%brow", "%bpanel")
            column = w.add(run.start, at)
            each(lambda strip, slot: self._multiply(strip, slot, right, column, width, share and share(slot, at)))

        w.loop_by("0", run.count, step, chunk)
        if self.product.b_form == "rows":
            rest = w.sub(w.extent(self.product.n.extent), "%columns")
            tail = ("%tail", str(PANEL), "0")
            each(lambda strip, slot: self._multiply(strip, slot, tail, "%columns", rest))
        if self.form.to_strip:
            each(lambda strip, slot: self._finish_rows(strip, slot, run.start, run.count))

    def _fill(self, first: str, after: str) -> None:
        """Packs the left rows of a group, unless they are read in place or lie in their slots."""
        if not self.left.pack:
            return
        w = self.w
        stop = after if self.keeps_slots is None else w.choose(self.keeps_slots, first, after)
        each_strip(w, first, stop, partial(self.left.fill, w))

    def _chunk_columns(self, columns: str) -> str:
        """Columns of a chunk that strips share."""
        w = self.w
        panels = chunk_panels(self.product)
        # A tile of few rows alone takes all columns at once, up to six panels together; tiles that share B take turns.
        wide = str(-(-panels // THREE_ROW_PANELS) * THREE_ROW_PANELS * PANEL)
        alone = w.less(self.rows.rows, str(STRIP_ROWS + 1))
        few = w.choose(alone, w.larger(columns, "1"), wide)
        return w.choose(self.rows.has_three(w), few, str(panels * PANEL))

    def _multiply(
        self, strip: str, slot: str, b: tuple[str, str, str], column: str, columns: str, share: Share | None = None
    ) -> None:
        """Calls the tile function for `columns` columns from `column` on."""
        w = self.w
        first, rows = self.rows.at(w, strip)
        ldc = w.extent(self.scratch.strip_row) if self.form.to_strip else "0"
        packed = slot if self.keeps_slots is None else w.choose(self.keeps_slots, strip, slot)
        a = self.left.at(w, first, rows, packed)
        arguments = f"ptr %args, ptr {a}, i64 {rows}, ptr {b[0]}, i64 {b[1]}, i64 {b[2]}, i64 {columns}, i64 {ldc}"
        arguments += "".join(f", ptr {p}" for p in self._outputs(first, slot, column))
        arguments += share.arguments() if share else ""
        call_tile(w, "", rows, arguments)

    def _outputs(self, first_row: str, slot: str, column: str) -> list[str]:
        """The pointers of the tile function at the strip's first row and `column`."""
        w = self.w
        if self.form.to_strip:
            return [w.at(self._strip_slot(slot), column)]
        at = {**self.batch, self.product.m: first_row}
        starts = [(s, address(w, s.operation.view, s.access, at)) for s in streams_of(self.product)]
        return [w.at(start, column) if s.spans_columns else start for s, start in starts]

    def _strip_slot(self, slot: str) -> str:
        w = self.w
        start = w.at("%scratch", w.extent(self.scratch.strip))
        return w.at(start, w.mul(w.mul(w.extent(self.scratch.strip_row), str(self.product.strip_rows)), slot))

    def _finish_rows(self, strip: str, slot: str, column: str, columns: str) -> None:
        """Runs the row-wise epilogue over the finished columns of a strip's rows."""
        w = self.w
        first, rows = self.rows.at(w, strip)
        operands = [f"ptr {self._strip_slot(slot)}", f"i64 {first}", f"i64 {rows}", f"i64 {column}", f"i64 {columns}"]
        operands += [f"i64 {name}" for name in self.batch.values()]
        w.call_or_leave("rows", ["ptr %args", "ptr %scratch", *operands])
