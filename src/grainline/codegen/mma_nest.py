"""What the loop nests of single products and of chains share: addresses, coordinates, strips, and how B is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from grainline.base.dims import Expr
from grainline.base.dtypes import BOOL
from grainline.codegen.emit import Reg
from grainline.codegen.mma_text import Writer
from grainline.plan.mma import DIRECT_B_STRIPS, Product
from grainline.plan.panels import PANEL, STRIP_ROWS
from grainline.tile.access import LinearAccess, linear_access
from grainline.tile.ir import Axis, View


def address(w: Writer, view: View | None, access: LinearAccess, at: Mapping[Axis, str]) -> str:
    """The address of the element at coordinates `at`, every other coordinate 0."""
    assert view is not None
    offset = w.extent(access.offset)
    for axis, coefficient in access.coefficients.items():
        if axis in at:
            offset = w.add(offset, w.mul(w.extent(coefficient), at[axis]))
    return w.at(w.view(view), offset)


def strip_count(w: Writer, product: Product) -> str:
    """Strips of one matrix, at least 1."""
    m = w.extent(product.m.extent)
    return w.larger(w.divide(w.add(m, str(STRIP_ROWS - 1)), str(STRIP_ROWS)), "1")


def each_strip(w: Writer, first: str, after: str, body: Callable[[str, str], None]) -> None:
    """`body` of every strip first..after-1 and of its slot, counted from 0."""
    w.loop(first, after, 1, lambda strip: body(strip, w.sub(strip, first)))


def coordinates(w: Writer, batch: tuple[Axis, ...], number: str) -> dict[Axis, str]:
    """Coordinates of the batch axes: `number` in mixed radix, the last axis fastest."""
    at: dict[Axis, str] = {}
    for axis in reversed(batch[1:]):
        extent = w.extent(axis.extent)
        at[axis] = "0" if extent == "1" else w.remainder(number, extent)
        number = number if extent == "1" else w.divide(number, extent)
    if batch:
        at[batch[0]] = number
    return at


@dataclass(frozen=True, slots=True)
class Right:
    """How strips read B: `columns` of it at base with these strides; the `rest` up to n packed at `tail`."""

    base: str
    row_stride: str
    panel_stride: str
    columns: str
    tail: str

    def arguments(self) -> list[str]:
        return [f"ptr {self.base}", f"i64 {self.row_stride}", f"i64 {self.panel_stride}", f"i64 {self.columns}",
                f"ptr {self.tail}"]  # fmt: skip


def pack_right(
    w: Writer, product: Product, prefix: str, place: int | Expr, at: Mapping[Axis, str], strips: str
) -> Right:
    """Makes the strided B at coordinates `at` ready for `strips` strips, packed at `place` of the scratch."""
    access, n, k = linear_access(product.b), w.extent(product.n.extent), w.extent(product.k.extent)
    panel = w.mul(k, str(PANEL))
    b, packed = address(w, product.b.view, access, at), w.at("%scratch", w.extent(place))
    first, whole = "0", w.round_down(n, PANEL)
    if product.b_form == "rows":
        # Few strips read whole panels where they lie; the ragged one is packed, so that its loads stay inside.
        few = w.less(strips, str(DIRECT_B_STRIPS + 1))
        first = w.choose(few, w.binary("lshr", whole, "4"), "0")
    w.function.do(f"call void @{prefix}pack_b(ptr %args, ptr {b}, ptr {packed}, i64 {first})")
    if product.b_form != "rows":
        return Right(packed, str(PANEL), panel, n, packed)
    return Right(
        w.choose(few, b, packed, "ptr"),
        w.choose(few, w.extent(access.coefficient(product.k)), str(PANEL)),
        w.choose(few, str(PANEL), panel),
        w.choose(few, whole, n),
        w.at(packed, w.mul(k, whole)),
    )


@dataclass(frozen=True, slots=True)
class StripRows:
    """The rows of a matrix, spread evenly over its strips: the first `longer` strips have one row more."""

    each: str
    longer: str

    @staticmethod
    def of(w: Writer, product: Product) -> StripRows:
        strips, m = strip_count(w, product), w.extent(product.m.extent)
        return StripRows(w.divide(m, strips), w.remainder(m, strips))

    def at(self, w: Writer, strip: str) -> tuple[str, str]:
        """(first row, rows) of a strip."""
        first = w.add(w.mul(strip, self.each), w.smaller(strip, self.longer))
        more = w.function.raw(f"icmp slt i64 {strip}, {self.longer}")
        return first, w.add(self.each, w.function.raw(f"zext i1 {more} to i64"))


@dataclass(frozen=True, slots=True)
class LeftRows:
    """The left rows of strips, at %a in rows `row_stride` apart, and packed in slots of %scratch (floats).

    pack: the function that packs. keeps_single: a single row is never packed, it is read in place.
    """

    rows: StripRows
    row_stride: int | Expr
    slots: int | Expr
    slot_size: int | Expr
    pack: str
    keeps_single: bool

    def in_place(self, w: Writer, first: str) -> str:
        return w.at("%a", w.mul(w.extent(self.row_stride), first))

    def slot(self, w: Writer, slot: str) -> str:
        start = w.at("%scratch", w.extent(self.slots))
        return w.at(start, w.mul(w.extent(self.slot_size), slot))

    def is_packed(self, w: Writer, rows: str) -> str:
        """Whether a strip of `rows` rows is packed, as i1."""
        return w.less("1", rows) if self.keeps_single else "true"

    def fill(self, w: Writer, strip: str, slot: str) -> None:
        """Packs the rows of a strip into its slot."""
        first, rows = self.rows.at(w, strip)

        def pack() -> list[Reg]:
            operands = f"ptr {self.in_place(w, first)}, ptr {self.slot(w, slot)}, i64 {rows}"
            w.function.do(f"call void @{self.pack}(ptr %args, {operands})")
            return []

        w.function.when(Reg(self.is_packed(w, rows), BOOL), [], pack)


def call_tile(w: Writer, prefix: str, rows: str, arguments: str) -> None:
    """Calls the tile function of `rows` rows; nothing for 0 rows."""
    f = w.function
    labels = [f.fresh("rows") for _ in range(STRIP_ROWS)]
    done = f.fresh("strip_done")
    cases = " ".join(f"i64 {r + 1}, label %{label}" for r, label in enumerate(labels))
    f.do(f"switch i64 {rows}, label %{done} [ {cases} ]")
    for r, label in enumerate(labels):
        f.block(label)
        f.do(f"call void @{prefix}tile{r + 1}({arguments})")
        f.jump(done)
    f.block(done)
