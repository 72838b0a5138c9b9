"""Chains of two products: (chain, plan) -> the LLVM IR of one kernel. The middle never leaves a home's scratch.

Per batch element of a call both right operands are made ready once. Then groups of strips run: the first product into
the strips of the scratch, the row-wise code on them in place, the second product from them to the results. Meanwhile
the operands of the next batch element are on their way. The rows of a matrix are spread evenly over its strips.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from grainline.base.dims import Expr
from grainline.base.dtypes import BOOL, F32, I64
from grainline.codegen.emit import ModuleText, Reg
from grainline.codegen.evaluate import Evaluator
from grainline.codegen.kernel import PLACEHOLDER, EmittedKernel, finished, math_form
from grainline.codegen.mma import BLOCK_STRIPS, STRIPS, emit_mma, strip_words
from grainline.codegen.mma_ahead import Runs, ahead_function, claim, fetches, left_runs, right_runs
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
from grainline.codegen.mma_strip import whole_rows_function
from grainline.codegen.mma_text import KernelText, Writer
from grainline.codegen.mma_tile import TileForm, edge_function, float_tile, tile_function
from grainline.plan.mma import CHUNK_PANELS, Product
from grainline.plan.mma_chain import Chain, ChainRealisation, ChainScratch, chain_scratch, stage_rows, strip_row
from grainline.plan.panels import PANEL, STRIP_ROWS
from grainline.plan.types import Plan
from grainline.tile.access import linear_access
from grainline.tile.ir import Axis

# Leaving out whole multiples of the widest packets leaves the partial sums of the others as they were.
SEEN_STEP = 64


@dataclass(frozen=True, slots=True)
class _Stage:
    """One product of the chain and where its parts lie: offsets in floats of the scratch."""

    number: int
    product: Product
    form: TileForm
    packed_b: int | Expr
    strips: int | Expr
    spills: int | Expr
    has_rows: bool

    @property
    def row(self) -> int | Expr:
        """Distance of the finished rows."""
        return strip_row(self.product.n)

    def right(self) -> Right:
        """The right operand as parameters of @strips."""
        names = ("b", "brow", "bpanel", "columns", "tail")
        return Right(*(f"%{name}{self.number}" for name in names))


def emit_products(plans: Sequence[Plan]) -> tuple[EmittedKernel, ...]:
    """The kernels of plans of one program with products: one, or a chain of two. Only their words differ."""
    plan, chosen = plans[0], plans[0].mapping.details
    if not isinstance(chosen, ChainRealisation):
        return emit_mma(plans)
    chain, scratch = chosen.chain, chain_scratch(chosen)
    kernel = KernelText(ModuleText(math_form(plan)), chain.program.views, 16 if plan.target.has_avx512 else 8, {})
    stages = _stages(chain, scratch)
    _entry(kernel.entry(PLACEHOLDER), stages)
    _Strips(kernel, chosen, stages, scratch).emit()
    pack_a_function(kernel, stages[0].form)
    ahead_function(kernel, _operands(stages))
    for stage in stages:
        _stage_functions(kernel, chain, stage)
    return tuple(finished(kernel.module, _words(kernel, each), each) for each in plans)


def _words(kernel: KernelText, plan: Plan) -> tuple[Expr, ...]:
    chosen = plan.mapping.details
    assert isinstance(chosen, ChainRealisation)
    return kernel.words(strip_words(chosen))


def _stages(chain: Chain, scratch: ChainScratch) -> tuple[_Stage, _Stage]:
    first, second = (_stage(chain, scratch, number) for number in (0, 1))
    return first, second


def _stage(chain: Chain, scratch: ChainScratch, number: int) -> _Stage:
    product = chain.stages[number]
    to_strip = product.epilogue_form == "strip"
    stride = linear_access(product.a).coefficient(product.m)
    takes_depth = number == 1 and chain.seen is not None
    form = TileForm(product, number == 0, to_strip, stride, f"p{number}_", takes_depth=takes_depth)
    assert product.mma.result is not None
    has_rows = to_strip and not (number == 0 and chain.between.id == product.mma.result.id)
    packed_b, strips, spills = scratch.packed_b[number], scratch.strips[number], scratch.spills[number]
    return _Stage(number, product, form, packed_b, strips, spills, has_rows)


def _stage_functions(kernel: KernelText, chain: Chain, stage: _Stage) -> None:
    tile_function(kernel, stage.form, lambda w, rows: float_tile(w, stage.form, rows))
    pack_b_function(kernel, stage.form)
    if not stage.form.to_strip:
        edge_function(kernel, stage.form)
    if stage.has_rows:
        program = stage_rows(chain, stage.product)
        takes_columns = stage.number == 0 and chain.seen is not None
        whole_rows_function(kernel, f"{stage.form.prefix}rows", stage.product, program, stage.spills, takes_columns)


def _operands(stages: tuple[_Stage, _Stage]) -> tuple[Runs, ...]:
    """What a batch element reads: the left operand of the first product and both right ones."""
    first, second = (stage.product for stage in stages)
    return left_runs(first), right_runs(first), right_runs(second)


def _sources(w: Writer, stages: tuple[_Stage, _Stage], at: dict[Axis, str]) -> list[str]:
    """Where the operands of a batch element begin."""
    first, second = (stage.product for stage in stages)
    return [address(w, o.view, linear_access(o), at) for o in (first.a, first.b, second.b)]


def _entry(w: Writer, stages: tuple[_Stage, _Stage]) -> None:
    """The entry function: the matrices of the range, each with its right operands ready to be read by strips."""
    w.function.when(Reg(w.less("%begin", "%end"), BOOL), [], lambda: _matrices(w, stages))
    w.function.do("ret i32 0")


def _matrices(w: Writer, stages: tuple[_Stage, _Stage]) -> list[Reg]:
    strips, unit = w.own_word(STRIPS), w.own_word(BLOCK_STRIPS)
    blocks = w.divide(w.add(strips, w.sub(unit, "1")), unit)
    after = w.add(w.divide(w.add("%end", "-1"), blocks), "1")

    def matrix(number: str) -> None:
        start = w.mul(number, blocks)
        low = w.larger(w.sub("%begin", start), "0")
        high = w.smaller(w.sub("%end", start), blocks)
        following = w.add(number, "1")
        following = w.choose(w.less(following, after), following, "-1")
        _matrix(w, stages, (number, following), w.mul(low, unit), w.smaller(w.mul(high, unit), strips))

    w.loop(w.divide("%begin", blocks), after, 1, matrix)
    return []


def _matrix(w: Writer, stages: tuple[_Stage, _Stage], numbers: tuple[str, str], low: str, high: str) -> None:
    """The strips low..high-1 of one batch element, `numbers` are its own and that of the next one or -1."""
    first = stages[0].product
    at, following = (coordinates(w, first.batch, w.larger(number, "0")) for number in numbers)
    operands = ["ptr %args", "ptr %scratch", f"ptr {address(w, first.a.view, linear_access(first.a), at)}"]
    operands += [f"ptr {source}" for source in _sources(w, stages, following)]
    for stage in stages:
        right = pack_right(w, stage.product, stage.form.prefix, stage.packed_b, at, w.sub(high, low))
        operands += right.arguments()
    operands += [f"i64 {low}", f"i64 {high}", f"i64 {numbers[1]}", *(f"i64 {at[axis]}" for axis in first.batch)]
    w.call_or_leave("strips", operands)


class _Strips:
    """Emits `i32 @strips(args, scratch, a, first right operand, second right operand, low, high, coordinates...)`."""

    def __init__(
        self, kernel: KernelText, plan: ChainRealisation, stages: tuple[_Stage, _Stage], scratch: ChainScratch
    ) -> None:
        self.together = plan.strips_together
        self.chain = plan.chain
        self.stages = stages
        self.scratch = scratch
        batch = plan.chain.first.batch
        parameters = [("ptr", name) for name in ("scratch", "a", "n0", "n1", "n2")]
        parameters += [tuple(each.replace("%", "").split()) for s in stages for each in s.right().arguments()]  # type: ignore[misc]
        parameters += [("i64", name) for name in ("low", "high", "following")]
        parameters += [("i64", f"x{i}") for i in range(len(batch))]
        self.w = kernel.internal("strips", parameters, "i32")
        self.batch: dict[Axis, str] = {axis: f"%x{i}" for i, axis in enumerate(batch)}
        self.rows = StripRows.of(self.w, plan.chain.first, self.w.own_word(STRIPS))
        form = stages[0].form
        places = scratch.packed_a, scratch.packed_a_size
        self.left = LeftRows(self.rows, form.a_row_stride, *places, f"{form.prefix}pack_a", keeps_single=True)
        if self.chain.seen is not None:
            self.seen_slots = self.w.function.prologue(f"alloca [{self.together} x i64], align 8")

    def emit(self) -> None:
        w = self.w
        self.shares = w.divide(w.add(w.sub("%high", "%low"), str(self.together - 1)), str(self.together))
        wanted = fetches(w, _operands(self.stages), self.stages[0].product.matrices)
        self.fetches = w.function.raw(f"and i1 {wanted}, {w.less('-1', '%following')}")
        w.loop("%low", "%high", self.together, self._group)
        w.function.do("ret i32 0")

    def _group(self, first: str) -> None:
        """Strips that share the chunks of both right operands."""
        w = self.w
        after = w.smaller(w.add(first, str(self.together)), "%high")
        each = partial(each_strip, w, first, after)
        w.function.when(Reg(self.fetches, BOOL), [], lambda: self._ahead(first))
        each(self._claim)
        each(partial(self.left.fill, w))
        seen = self._seen(first, after)
        for stage in self.stages:
            self._product(stage, each, w.less(w.sub(after, first), "2"), seen)
            if stage.has_rows:
                each(partial(self._finish_rows, stage))

    def _seen(self, first: str, after: str) -> str:
        """How many columns the rows of the strips first..after-1 see at most. The number of each strip is kept."""
        w, chain = self.w, self.chain
        n = w.extent(chain.first.n.extent)
        if chain.seen is None:
            return n

        def strip(index: Reg, most: list[Reg]) -> list[Reg]:
            rows = self._seen_by_rows(index.text, w.add(index.text, "1"))
            here = w.smaller(w.round_down(w.add(rows, str(PANEL - 1)), PANEL), n)
            w.function.do(f"store i64 {here}, ptr {self._seen_slot(w.sub(index.text, first))}, align 8")
            return [Reg(w.larger(most[0].text, here), I64)]

        return w.function.loop(Reg(first, I64), Reg(after, I64), 1, [Reg("0", I64)], strip)[0].text

    def _seen_by_rows(self, first: str, after: str) -> str:
        """The columns that one of the rows of the strips first..after-1 sees, counted from the left."""
        w, chain = self.w, self.chain
        evaluator = Evaluator(w.function, chain.first.program, w.arguments)
        evaluator.enter({axis: Reg(name, I64) for axis, name in self.batch.items()})

        def row(index: Reg, most: list[Reg]) -> list[Reg]:
            assert chain.seen is not None
            evaluator.enter({chain.first.m: index})
            seen = w.add(evaluator.value(chain.seen).text, "1")
            evaluator.leave()
            return [Reg(w.larger(most[0].text, seen), I64)]

        start, stop = (Reg(self.rows.at(w, strip)[0], I64) for strip in (first, after))
        return w.function.loop(start, stop, 1, [Reg("0", I64)], row)[0].text

    def _seen_slot(self, slot: str) -> str:
        return self.w.function.pointer(self.seen_slots, Reg(slot, I64), 8)

    def _seen_by(self, slot: str) -> str:
        return self.w.function.raw(f"load i64, ptr {self._seen_slot(slot)}, align 8")

    def _ahead(self, first: str) -> list[Reg]:
        """Fetches the share of this group in the next batch element."""
        w = self.w
        share = w.divide(w.sub(first, "%low"), str(self.together))
        operands = f"ptr %n0, ptr %n1, ptr %n2, i64 {share}, i64 {self.shares}"
        w.function.do(f"call void @ahead(ptr %args, {operands})")
        return []

    def _claim(self, strip: str, slot: str) -> None:
        """Asks for the lines of a strip's results while both products are still to be computed."""
        w, product = self.w, self.stages[1].product
        first, rows = self.rows.at(w, strip)
        for store in (o for o in product.epilogue if o.op == "store"):
            access = linear_access(store)
            if access.coefficient(product.n) == 1 and store.view is not None and store.view.dtype == F32:
                start = address(w, store.view, access, {**self.batch, product.m: first})
                claim(w, start, rows, store, product)

    def _product(
        self, stage: _Stage, each: Callable[[Callable[[str, str], None]], None], alone: str, seen: str
    ) -> None:
        """One product of all strips of the group, chunk by chunk of its columns; of the first one those `seen`."""
        w, right = self.w, stage.right()
        columns, end = right.columns, w.extent(stage.product.n.extent)
        if stage.number == 0:
            columns, end = w.smaller(columns, seen), seen
        # A strip alone takes all columns at once: only then may it have one or two rows, with wide groups.
        step = w.choose(alone, w.larger(columns, "1"), str(CHUNK_PANELS * PANEL))

        def chunk(at: str) -> None:
            width = w.smaller(w.sub(columns, at), step)
            start = w.at(right.base, w.mul(w.binary("lshr", at, "4"), right.panel_stride))
            b = (start, right.row_stride, right.panel_stride)
            each(lambda strip, slot: self._multiply(stage, strip, slot, b, at, width))

        w.loop_by("0", columns, step, chunk)
        if stage.product.b_form == "rows":
            rest = w.sub(end, right.columns)
            tail = (right.tail, str(PANEL), "0")
            each(lambda strip, slot: self._multiply(stage, strip, slot, tail, right.columns, rest))

    def _multiply(
        self, stage: _Stage, strip: str, slot: str, b: tuple[str, str, str], column: str, columns: str
    ) -> None:
        """Calls the tile function for `columns` columns from `column` on.

        Of the first product only the columns that the strip sees, of the second as many k.
        """
        w, depth = self.w, ""
        if self.chain.seen is not None and stage.number == 0:
            columns = w.smaller(columns, w.sub(self._seen_by(slot), column))
        elif stage.form.takes_depth:
            depth = f", i64 {self._seen_by(slot)}"
        first, rows = self.rows.at(w, strip)
        ldc = w.extent(stage.row) if stage.form.to_strip else "0"
        # The first product reads its rows packed or in place, the second the finished strip of the first.
        left = self._strip_slot(self.stages[0], slot) if stage.number else self.left.at(w, first, rows, slot)
        arguments = f"ptr %args, ptr {left}, i64 {rows}, ptr {b[0]}, i64 {b[1]}, i64 {b[2]}, i64 {columns}, i64 {ldc}"
        arguments += "".join(f", ptr {p}" for p in self._outputs(stage, first, slot, column)) + depth
        call_tile(w, stage.form.prefix, rows, arguments)

    def _outputs(self, stage: _Stage, first: str, slot: str, column: str) -> list[str]:
        """The pointers of the tile function at the strip's first row and `column`."""
        w = self.w
        if stage.form.to_strip:
            return [w.at(self._strip_slot(stage, slot), column)]
        at = {**self.batch, stage.product.m: first}
        starts = [(s, address(w, s.operation.view, s.access, at)) for s in streams_of(stage.product)]
        return [w.at(start, column) if s.spans_columns else start for s, start in starts]

    def _strip_slot(self, stage: _Stage, slot: str) -> str:
        w = self.w
        start = w.at("%scratch", w.extent(stage.strips))
        return w.at(start, w.mul(w.mul(w.extent(stage.row), str(STRIP_ROWS)), slot))

    def _finish_rows(self, stage: _Stage, strip: str, slot: str) -> None:
        """Runs the row-wise code on the finished rows of a strip; after the first product on what they see.

        Whole steps of SEEN_STEP: columns that were not computed hold anything, and a `select` drops them.
        """
        w = self.w
        first, rows = self.rows.at(w, strip)
        operands = ["ptr %args", "ptr %scratch", f"ptr {self._strip_slot(stage, slot)}", f"i64 {first}", f"i64 {rows}"]
        operands += [f"i64 {name}" for name in self.batch.values()]
        if stage.number == 0 and self.chain.seen is not None:
            steps = w.round_down(w.add(self._seen_by(slot), str(SEEN_STEP - 1)), SEEN_STEP)
            operands.append(f"i64 {w.smaller(steps, w.extent(stage.product.n.extent))}")
        w.call_or_leave(f"{stage.form.prefix}rows", operands)
