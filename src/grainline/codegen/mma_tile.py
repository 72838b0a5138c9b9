"""The register tile: for a row count the code that multiplies a strip with a run of column panels.

`rows` x 16*`panels` accumulators stay in registers over the whole of k; each is one FMA chain in increasing k from 0.
Few rows read several panels at once, so that enough independent chains exist to hide the FMA latency and enough streams
to hide that of memory. A group that reaches past the last column reads its last valid panel again and drops the copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grainline.base.dims import Expr
from grainline.base.dtypes import F32, I64
from grainline.codegen.emit import FIRST_LEVEL, Reg, constant
from grainline.codegen.mma_epilogue import RegisterEpilogue, rewrites, streams_of
from grainline.codegen.mma_stream import FETCHING_ROWS, fetch, group_fetching
from grainline.codegen.mma_text import KernelText, Writer
from grainline.plan.mma import Product
from grainline.plan.panels import PANEL, STRIP_ROWS, WIDE_STRIP_ROWS

# By floats of a vector and row count, the panels read together: enough independent chains to hide the FMA latency,
# few enough to leave registers for B and A. All divide the panels of a chunk and of a column range.
PANELS_TOGETHER = {
    8: {1: 6, 2: 3, 3: 2, 4: 1, 5: 1, 6: 1},
    16: {1: 6, 2: 6, 3: 3, 4: 2, 5: 2, 6: 2, 8: 2, 12: 2},
}
# By the most rows of a strip, the row counts that have a tile. A strip of another count is the beginning of the next
# larger one: B passes once, and there is less to compile than with a tile for each.
TILE_ROWS = {STRIP_ROWS: (1, 2, 3, 4, 5, 6), WIDE_STRIP_ROWS: (1, 2, 3, 4, 6, 8, 12)}


@dataclass(frozen=True, slots=True)
class TileForm:
    """What the register tile of one kernel looks like.

    packs_a: A arrives as [k][strip_rows], else as rows (one row is always read in place). to_strip: finished columns
    go to a strip in scratch whose rows are padded to whole panels; else the register epilogue runs. prefix: starts the
    names of the functions of this product, where a kernel has two. fetches_ahead: the functions take the lines that
    they fetch for later. takes_depth: they take how many k they contract, which may be fewer than B has.
    """

    product: Product
    packs_a: bool
    to_strip: bool
    a_row_stride: int | Expr
    prefix: str = ""
    fetches_ahead: bool = False
    takes_depth: bool = False

    def pointers(self) -> tuple[str, ...]:
        count = 1 if self.to_strip else len(streams_of(self.product))
        return tuple(f"%s{i}" for i in range(count))

    def b_row(self) -> str:
        """Distance between consecutive k of B: known unless a B of rows may be read in place."""
        return "%brow" if self.product.b_form == "rows" else str(PANEL)

    def b_panel(self, w: Writer) -> str:
        """Distance between panels of B."""
        return "%bpanel" if self.product.b_form == "rows" else w.extent(self.product.k.extent * PANEL)

    def parameters(self) -> list[tuple[str, str]]:
        fixed = [("ptr", "a"), ("i64", "rows"), ("ptr", "b"), ("i64", "brow"), ("i64", "bpanel")]
        fixed += [("i64", "cols"), ("i64", "ldc")]
        ahead = [("ptr", "ahead"), ("i64", "lines"), ("i64", "period")] if self.fetches_ahead else []
        depth = [("i64", "depth")] if self.takes_depth else []
        return fixed + [("ptr", name[1:]) for name in self.pointers()] + ahead + depth


def fewest_rows(rows: int, strip_rows: int) -> int:
    """The fewest rows of a strip that the tile of `rows` rows computes."""
    return max((each for each in TILE_ROWS[strip_rows] if each < rows), default=0) + 1


def tile_function(kernel: KernelText, form: TileForm, tile: Callable[[Writer, int], None]) -> None:
    """`void @tile(args, a, rows, b, brow, bpanel, cols, ldc, streams..., ahead, lines, period)`: rows x cols, by the
    smallest tile that has room for the rows; `tile` emits the one of a row count.

    One function for all: one each takes a tenth more time to compile.
    """
    w = kernel.internal(f"{form.prefix}tile", form.parameters())
    _smallest_tile(w, TILE_ROWS[form.product.strip_rows], tile)
    w.function.do("ret void")


def _smallest_tile(w: Writer, sizes: Sequence[int], tile: Callable[[Writer, int], None]) -> None:
    if len(sizes) == 1:
        tile(w, sizes[0])
        return
    fits = w.less("%rows", str(sizes[0] + 1))
    w.either(fits, lambda: tile(w, sizes[0]), lambda: _smallest_tile(w, sizes[1:], tile))


def float_tile(w: Writer, form: TileForm, rows: int) -> None:
    """The tile of `rows` rows. The strip may have fewer: those that are left repeat its last one, to its end."""
    a_rows = _row_bases(w, form, rows)
    each_group(w, form, (rows, PANELS_TOGETHER[w.lanes][rows]), lambda *reads: _contract(w, form, a_rows, *reads))


def each_group(
    w: Writer, form: TileForm, size: tuple[int, int], contract: Callable[[list[str], list[Reg]], list[Reg]]
) -> None:
    """Computes and finishes all groups of (rows, panels) of a tile, and fetches for later.

    `contract` takes where the panels of a group begin, and what is carried to fetch (see `fetch`); it gives the
    accumulators as `_finish_group` takes them.
    """
    rows, panels = size
    last = w.binary("ashr", w.add("%cols", "-1"), "4")

    def group(column: str) -> None:
        numbers, bases = _panel_bases(w, form, panels, column, last)
        fetching: list[Reg] = []
        if form.fetches_ahead and rows >= FETCHING_ROWS:
            fetching = group_fetching(w, column)
            _touch_results(w, form, size, column)
        _finish_group(w, form, rows, (column, numbers), contract(bases, fetching))

    w.loop("0", "%cols", PANEL * panels, group)


def _touch_results(w: Writer, form: TileForm, size: tuple[int, int], column: str) -> None:
    """Brings near what the epilogue reads and writes in a group of (rows, panels), while the group is computed.

    Only for whole strips: a product of many rows, whose result does not stay near, has hardly any others.
    """
    rows, panels = size
    if form.to_strip or rows < form.product.strip_rows:
        return
    epilogue = RegisterEpilogue(w, form.product, form.pointers())
    for row in range(rows):
        for stream, pointer in zip(epilogue.streams, epilogue.row_pointers(str(row))):
            if not stream.spans_columns or stream.row_stride == 0:
                continue
            start, is_written = w.at(pointer, column), stream.operation.op == "store"
            for panel in range(panels):
                w.function.prefetch(w.at(start, str(panel * PANEL)), FIRST_LEVEL, is_written)


def _row_bases(w: Writer, form: TileForm, rows: int) -> list[str]:
    """For each row the address of A at k = 0."""
    if rows == 1:
        return ["%a"]
    if form.packs_a:
        return [w.at("%a", str(r)) for r in range(rows)]
    stride = w.extent(form.a_row_stride)
    return [w.at("%a", w.mul(stride, number)) for number in _row_numbers(w, form, rows)]


def _row_numbers(w: Writer, form: TileForm, rows: int) -> list[str]:
    """The row of the strip that each row of a tile computes: those that the strip may lack repeat its last one."""
    fewest = fewest_rows(rows, form.product.strip_rows)
    last = w.add("%rows", "-1") if fewest < rows else ""
    return [str(r) if r < fewest else w.smaller(str(r), last) for r in range(rows)]


def _panel_bases(w: Writer, form: TileForm, panels: int, column: str, last: str) -> tuple[list[str], list[str]]:
    """Numbers and addresses of the panels of one group."""
    first, distance = w.binary("lshr", column, "4"), form.b_panel(w)
    numbers = [first] + [w.smaller(w.add(first, str(j)), last) for j in range(1, panels)]
    return numbers, [w.at("%b", w.mul(distance, number)) for number in numbers]


def _contract(w: Writer, form: TileForm, a_rows: list[str], bases: list[str], fetching: list[Reg]) -> list[Reg]:
    """Emits the contraction and returns the accumulators, numbered [panel][row][vector of the panel]."""
    extent, reads = form.product.k.extent, (a_rows, bases)
    accumulators = [constant(0.0, F32, w.lanes)] * (len(a_rows) * w.parts * len(bases))
    strides = _strides(form, a_rows)

    def run(start: str, stop: str, unroll: int, initial: list[Reg]) -> list[Reg]:
        # Where the operands are is added up beside k: a step would multiply for each of them.
        paces = [Reg(w.mul(stride, str(unroll)), I64) for stride in strides]

        def steps(_k: Reg, carried: list[Reg]) -> list[Reg]:
            places, sums = carried[: len(strides)], carried[len(strides) : fixed]
            ahead = fetch(w, carried[fixed:], len(bases) * unroll)
            sums = _k_steps(w, form, reads, sums, [place.text for place in places], unroll)
            return [*map(w.function.moved, places, paces), *sums, *ahead]

        first, fixed = [Reg(w.mul(start, stride), I64) for stride in strides], len(strides) + len(initial)
        carried = [*first, *initial, *(fetching if unroll > 1 else [])]
        return w.function.loop(Reg(start, I64), Reg(stop, I64), unroll, carried, steps)[len(strides) : fixed]

    # Steps that share a turn of the loop share its counting. Few rows that read several panels wait for B instead.
    unroll = 2 if len(bases) > 1 and len(accumulators) < 12 else 4
    depth = "%depth" if form.takes_depth else w.extent(extent)
    whole = w.round_down(depth, unroll)
    accumulators = run("0", whole, unroll, accumulators)
    if isinstance(extent, int) and not form.takes_depth:
        places = [w.mul(whole, stride) for stride in strides]
        return _k_steps(w, form, reads, accumulators, places, extent % unroll)
    return run(whole, depth, 1, accumulators)


def _strides(form: TileForm, a_rows: list[str]) -> list[str]:
    """How far one k moves on in a row of A and in a panel of B, in floats."""
    return [str(form.product.strip_rows) if form.packs_a and len(a_rows) > 1 else "1", form.b_row()]


def _k_steps(
    w: Writer,
    form: TileForm,
    reads: tuple[list[str], list[str]],
    accumulators: Sequence[Reg],
    places: list[str],
    count: int,
) -> list[Reg]:
    """`count` consecutive steps of k, straight-line; `reads` are rows of A and panels of B.

    `places` are how far into each of them the first step is, as `_strides` counts.
    """
    current, (a_rows, bases) = list(accumulators), reads
    if count == 0:
        return current
    a_step, b_row = _strides(form, a_rows)
    a_starts = _row_starts(w, form, a_rows, places[0], len(bases))
    b_starts = [w.at(base, places[1]) for base in bases]
    for step in range(count):
        rows_of_b = [w.at(start, w.mul(b_row, str(step))) for start in b_starts]
        rows_of_a = [[w.at(start, w.mul(a_step, str(step))) for start in starts] for starts in a_starts]
        _one_k(w, rows_of_a, rows_of_b, current)
    return current


def _row_starts(w: Writer, form: TileForm, a_rows: list[str], place: str, panels: int) -> list[list[str]]:
    """For each row the addresses of A at `place`: one, or one for each panel.

    A scalar that a single FMA reads is part of its instruction (AVX-512), one that serves several panels is loaded by
    an instruction before them. Every other row of a packed strip is read by each panel for itself: a sixth of all
    instructions less, which a core whose other thread is busy would have no time to issue; more of them, and loads set
    the pace.
    """
    if not form.packs_a or w.lanes < 16 or len(a_rows) <= panels:
        return [[w.at(row, place)] for row in a_rows]
    starts = [w.function.unmerged(w.at(a_rows[0], place)) for _ in range(panels)]
    return [[w.at(start, str(row)) for start in (starts[:1] if row % 2 else starts)] for row in range(len(a_rows))]


def _one_k(w: Writer, a: list[list[str]], b: list[str], accumulators: list[Reg]) -> None:
    """One step of k, from the addresses of a scalar per row (for all panels, or for each) and of a row per panel.

    What there is less of stays in registers, the rest comes one by one: the accumulators leave few registers.
    """

    def scalars(row: int) -> list[Reg]:
        return [w.function.splat(w.load_scalar(address), w.lanes) for address in a[row]]

    def vectors(panel: int) -> list[Reg]:
        return [w.load_vector(w.at(b[panel], str(part * w.lanes))) for part in range(w.parts)]

    def multiply(row: int, panel: int, left: Reg, right: list[Reg]) -> None:
        for part, vector in enumerate(right):
            slot = (panel * len(a) + row) * w.parts + part
            accumulators[slot] = w.function.fma(left, vector, accumulators[slot])

    if len(a) <= len(b) * w.parts:
        column = [scalars(row)[0] for row in range(len(a))]
        for panel in range(len(b)):
            right = vectors(panel)
            for row, left in enumerate(column):
                multiply(row, panel, left, right)
        return
    panels = [vectors(panel) for panel in range(len(b))]
    for row in range(len(a)):
        lefts = scalars(row)
        for panel, right in enumerate(panels):
            multiply(row, panel, lefts[panel % len(lefts)], right)


def _finish_group(w: Writer, form: TileForm, rows: int, place: tuple[str, list[str]], accumulators: list[Reg]) -> None:
    """Brings accumulators [panel][row][vector] at `place`, (column, numbers of the panels), to where they belong."""
    column, numbers = place
    if form.to_strip:
        _store_to_strip(w, rows, numbers, accumulators)
    else:
        _finish(w, form, rows, column, accumulators)


def _store_to_strip(w: Writer, rows: int, numbers: list[str], accumulators: list[Reg]) -> None:
    for j, number in enumerate(numbers):
        corner = w.at("%s0", w.binary("shl", number, "4"))
        for r in range(rows):
            row = w.at(corner, w.mul("%ldc", str(r)))
            for part in range(w.parts):
                w.store(accumulators[(j * rows + r) * w.parts + part], w.at(row, str(part * w.lanes)))


def _finish(w: Writer, form: TileForm, rows: int, column: str, accumulators: list[Reg]) -> None:
    group = len(accumulators) // rows * w.lanes
    n = form.product.n.extent
    conditions = []
    if not isinstance(n, int) or n % group != 0:
        conditions.append(w.less("%cols", w.add(column, str(group))))
    if fewest_rows(rows, form.product.strip_rows) < rows and rewrites(form.product):
        conditions.append(w.less("%rows", str(rows)))
    if not conditions:
        _whole_group(w, form, rows, column, accumulators)
        return
    w.either(
        conditions[0] if len(conditions) == 1 else w.function.raw(f"or i1 {conditions[0]}, {conditions[1]}"),
        lambda: _ragged_group(w, form, rows, column, accumulators),
        lambda: _whole_group(w, form, rows, column, accumulators),
    )


def _whole_group(w: Writer, form: TileForm, rows: int, column: str, accumulators: list[Reg]) -> None:
    epilogue = RegisterEpilogue(w, form.product, form.pointers())
    row_pointers = [epilogue.row_pointers(number) for number in _row_numbers(w, form, rows)]
    for j in range(len(accumulators) // (rows * w.parts)):
        for part in range(w.parts):
            at = w.add(column, str(j * PANEL + part * w.lanes))
            epilogue.start_vector()
            for r in range(rows):
                epilogue.run(accumulators[(j * rows + r) * w.parts + part], row_pointers[r], at)


def _ragged_group(w: Writer, form: TileForm, rows: int, column: str, accumulators: list[Reg]) -> None:
    """Spills the group and lets `@edge` finish the rows of the strip in each of its valid panels."""
    spill = w.function.prologue(f"alloca [{len(accumulators) * w.lanes} x float], align 32")
    # Spilled as [panel][row][16], which is the order of the accumulators.
    for slot, value in enumerate(accumulators):
        w.store(value, w.at(spill, str(slot * w.lanes)))
    streams = "".join(f", ptr {name}" for name in form.pointers())

    def panel(at: str) -> None:
        tile = w.at(spill, w.mul(w.sub(at, column), str(rows)))
        w.function.do(f"call void @{form.prefix}edge(ptr %args, ptr {tile}, i64 %rows, i64 {at}, i64 %cols{streams})")

    after = w.add(column, str(len(accumulators) // rows * w.lanes))
    w.loop(column, w.smaller(after, "%cols"), PANEL, panel)


def edge_function(kernel: KernelText, form: TileForm) -> None:
    """`void @edge(args, tile, rows, column, cols, streams...)`: the epilogue of one spilled panel, masked to `cols`.

    Nothing where no tile calls it.
    """
    if not kernel.module.calls(f"{form.prefix}edge"):
        return
    streams = [("ptr", name[1:]) for name in form.pointers()]
    fixed = [("ptr", "tile"), ("i64", "rows"), ("i64", "column"), ("i64", "cols")]
    w = kernel.internal(f"{form.prefix}edge", fixed + streams)
    epilogue = RegisterEpilogue(w, form.product, form.pointers())
    left = w.sub("%cols", "%column")
    masks = [w.first_lanes(w.sub(left, str(part * w.lanes))) for part in range(w.parts)]

    def row(index: str) -> None:
        pointers = epilogue.row_pointers(index)
        for part in range(w.parts):
            epilogue.start_vector(masks[part])
            value = w.load_vector(w.at("%tile", w.add(w.mul(index, str(PANEL)), str(part * w.lanes))))
            epilogue.run(value, pointers, w.add("%column", str(part * w.lanes)))

    w.loop("0", "%rows", 1, row)
    w.function.do("ret void")
