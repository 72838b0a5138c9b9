"""Matrix products: (product, plan) -> the LLVM IR of one kernel with run-time rows.

    i32 name(ptr args, i64 begin, i64 end, ptr scratch)

computes the blocks begin..end-1. The whole loop nest is here: matrices of the batch, column ranges, strips of at most six
rows. The rows of a matrix are spread evenly over its strips (8 rows are 4 + 4), because every strip streams all of B.
"""

from __future__ import annotations

from dataclasses import dataclass

from grainline.base.dims import Expr
from grainline.base.dtypes import BOOL as _BOOL
from grainline.codegen.emit import ModuleText, Reg
from grainline.codegen.mma_epilogue import streams_of
from grainline.codegen.mma_pack import pack_a_function, pack_b_function
from grainline.codegen.mma_text import KernelText, Writer
from grainline.codegen.mma_tile import TileForm, edge_function, tile_function
from grainline.plan.mma import (
    DIRECT_B_STRIPS,
    PANEL,
    STRIP_ROWS,
    MmaPlan,
    Product,
    scratch_layout,
)
from grainline.tile.access import LinearAccess, linear_access
from grainline.tile.ir import Axis, View


@dataclass(frozen=True, slots=True)
class EmittedKernel:
    """`text` defines `symbol`; the argument block holds one pointer per view, then the extents `words` in order."""

    symbol: str
    text: str
    words: tuple[int | Expr, ...]
    scratch_bytes: int | Expr


@dataclass(frozen=True, slots=True)
class _Matrix:
    """One batch element: operand addresses, and where and how its B is read."""

    coordinates: dict[Axis, str]
    a: str
    b: str


def emit_product(plan: MmaPlan, symbol: str = "kernel") -> EmittedKernel:
    """The kernel of `plan`; equal plans give equal text."""
    product = plan.product
    kernel = KernelText(ModuleText(), product.program.views, {})
    left = linear_access(product.a)
    form = TileForm(product, plan.packs_a, product.epilogue_form == "strip", left.coefficient(product.m))
    _Kernel(kernel.entry(symbol), plan, form, left).emit()
    for rows in range(1, STRIP_ROWS + 1):
        tile_function(kernel, form, rows)
    if plan.packs_a:
        pack_a_function(kernel, form)
    if plan.packs_b:
        pack_b_function(kernel, form)
    if not form.to_strip:
        edge_function(kernel, form)
    return EmittedKernel(symbol, kernel.module.text, tuple(kernel.numbers), plan.scratch_bytes)


class _Kernel:
    """Emits the entry function: the nest of matrices, column ranges and strips."""

    def __init__(self, w: Writer, plan: MmaPlan, form: TileForm, left: LinearAccess) -> None:
        self.w = w
        self.plan = plan
        self.product: Product = plan.product
        self.form = form
        self.left = left
        self.scratch = scratch_layout(plan.product, plan.packs_a, plan.packs_b)

    def emit(self) -> None:
        w = self.w
        w.function.when(Reg(w.less("%begin", "%end"), _BOOL), [], self._all)
        w.function.do("ret i32 0")

    def _all(self) -> list[Reg]:
        w, product = self.w, self.product
        m = w.extent(product.m.extent)
        self.strips = w.larger(w.divide(w.add(m, str(STRIP_ROWS - 1)), str(STRIP_ROWS)), "1")
        self.rows_each, self.longer = w.divide(m, self.strips), w.remainder(m, self.strips)
        self.n = w.extent(product.n.extent)
        self.range_columns = str(self.plan.range_panels * PANEL) if self.plan.range_panels else self.n
        per_matrix = self.strips
        if self.plan.range_panels:
            panels = w.add(self.n, str(self.plan.range_panels * PANEL - 1))
            per_matrix = w.mul(self.strips, w.divide(panels, self.range_columns))
        if self.plan.form == "batches":
            w.loop("%begin", "%end", 1, lambda matrix: self._matrix(matrix, "0", per_matrix))
            return []
        first = w.divide("%begin", per_matrix)
        after = w.add(w.divide(w.add("%end", "-1"), per_matrix), "1")

        def matrix(number: str) -> None:
            start = w.mul(number, per_matrix)
            low = w.larger(w.sub("%begin", start), "0")
            self._matrix(number, low, w.smaller(w.sub("%end", start), per_matrix))

        w.loop(first, after, 1, matrix)
        return []

    def _matrix(self, number: str, low: str, high: str) -> None:
        """The (range, strip) numbers low..high-1 of one batch element."""
        w, product = self.w, self.product
        at = self._coordinates(number)
        a = self._address(product.a.view, self.left, at)
        assert product.b.view is not None
        if product.b_form == "panels":
            b = w.view(product.b.view)
            self._strips(_Matrix(at, a, b), low, high, self._packed(b))
            return
        right = linear_access(product.b)
        b = self._address(product.b.view, right, at)
        packed = w.at("%scratch", w.extent(self.scratch.packed_b))
        matrix = _Matrix(at, a, b)
        if product.b_form != "rows":
            self._pack_b(b, packed, "0")
            self._strips(matrix, low, high, self._packed(packed))
            return
        row, whole = w.extent(right.coefficient(product.k)), w.binary("and", self.n, f"-{PANEL}")

        def shared() -> None:
            self._pack_b(b, packed, "0")
            self._strips(matrix, low, high, self._packed(packed))

        def direct() -> None:
            # Whole panels are read where they lie; the ragged one is packed, so that its loads stay inside.
            self._pack_b(b, packed, w.binary("lshr", whole, "4"))
            tail = w.at(packed, w.mul(w.extent(product.k.extent), whole))
            tail_columns = w.sub(self.n, whole)
            parts = [(b, row, str(PANEL), "0", whole), (tail, str(PANEL), "0", whole, tail_columns)]
            self._strips(matrix, low, high, parts)

        w.either(w.less(w.sub(high, low), str(DIRECT_B_STRIPS + 1)), direct, shared)

    def _packed(self, b: str) -> list[tuple[str, str, str, str, str]]:
        """All columns from one packed B: (base, row stride, panel stride, first column, columns)."""
        k = self.w.extent(self.product.k.extent)
        return [(b, str(PANEL), self.w.mul(k, str(PANEL)), "0", self.n)]

    def _pack_b(self, b: str, packed: str, first: str) -> None:
        self.w.function.do(f"call void @pack_b(ptr %args, ptr {b}, ptr {packed}, i64 {first})")

    def _coordinates(self, number: str) -> dict[Axis, str]:
        """Coordinates of the batch axes: `number` in mixed radix, the last axis fastest."""
        w, rest = self.w, number
        at: dict[Axis, str] = {}
        for axis in reversed(self.product.batch[1:]):
            extent = w.extent(axis.extent)
            at[axis] = "0" if extent == "1" else w.remainder(rest, extent)
            rest = rest if extent == "1" else w.divide(rest, extent)
        if self.product.batch:
            at[self.product.batch[0]] = rest
        return at

    def _address(self, view: View | None, access: LinearAccess, at: dict[Axis, str]) -> str:
        """The address of the element at coordinates `at`, every other coordinate 0."""
        w = self.w
        assert view is not None
        offset = w.extent(access.offset)
        for axis, coefficient in access.coefficients.items():
            if axis in at:
                offset = w.add(offset, w.mul(w.extent(coefficient), at[axis]))
        return w.at(w.view(view), offset)

    def _strips(self, matrix: _Matrix, low: str, high: str, parts: list[tuple[str, str, str, str, str]]) -> None:
        w = self.w

        def strip(number: str) -> None:
            column, columns = "0", None
            if self.plan.range_panels:
                column = w.mul(w.divide(number, self.strips), self.range_columns)
                columns = w.smaller(w.sub(self.n, column), self.range_columns)
                number = w.remainder(number, self.strips)
            first = w.add(w.mul(number, self.rows_each), w.smaller(number, self.longer))
            more = w.function.raw(f"icmp slt i64 {number}, {self.longer}")
            rows = w.add(self.rows_each, w.function.raw(f"zext i1 {more} to i64"))
            a = w.at(matrix.a, w.mul(w.extent(self.form.a_row_stride), first))
            if self.plan.packs_a:
                a = self._pack_a(a, rows)
            pointers = self._streams(matrix, first)
            for base, row, panel, start, count in parts:
                width = columns if columns is not None else count
                offset = w.add(start, column)
                b = w.at(base, w.mul(w.extent(self.product.k.extent), column)) if columns is not None else base
                self._dispatch(rows, (a, b, row, panel, width), [w.at(p, o) for p, o in _shift(pointers, offset)])

        w.loop(low, high, 1, strip)

    def _pack_a(self, a: str, rows: str) -> str:
        """The packed strip; a single row is read in place."""
        w = self.w
        target = w.at("%scratch", w.extent(self.scratch.packed_a))

        def pack() -> list[Reg]:
            w.function.do(f"call void @pack_a(ptr %args, ptr {a}, ptr {target}, i64 {rows})")
            return []

        several = Reg(w.less("1", rows), _BOOL)
        w.function.when(several, [], pack)
        return w.function.raw(f"select i1 {several.text}, ptr {target}, ptr {a}")

    def _streams(self, matrix: _Matrix, first_row: str) -> list[tuple[str, bool]]:
        """Per pointer of the tile function: its address at the strip's first row, and whether it moves with the column."""
        w = self.w
        if self.form.to_strip:
            return [(w.at("%scratch", w.extent(self.scratch.strip)), True)]
        at = {**matrix.coordinates, self.product.m: first_row}
        return [(self._address(s.operation.view, s.access, at), s.spans_columns) for s in streams_of(self.product)]

    def _dispatch(self, rows: str, operands: tuple[str, str, str, str, str], pointers: list[str]) -> None:
        """Calls the tile function of the run-time row count."""
        f = self.w.function
        a, b, row, panel, columns = operands
        ldc = self.w.extent(self.scratch.strip_row) if self.form.to_strip else "0"
        arguments = f"ptr %args, ptr {a}, ptr {b}, i64 {row}, i64 {panel}, i64 {columns}, i64 {ldc}"
        arguments += "".join(f", ptr {p}" for p in pointers)
        labels = [f.fresh("rows") for _ in range(STRIP_ROWS)]
        done = f.fresh("strip_done")
        cases = " ".join(f"i64 {r + 1}, label %{label}" for r, label in enumerate(labels))
        f.do(f"switch i64 {rows}, label %{done} [ {cases} ]")
        for r, label in enumerate(labels):
            f.block(label)
            f.do(f"call void @tile{r + 1}({arguments})")
            f.jump(done)
        f.block(done)


def _shift(pointers: list[tuple[str, bool]], column: str) -> list[tuple[str, str]]:
    return [(pointer, column if moves else "0") for pointer, moves in pointers]
