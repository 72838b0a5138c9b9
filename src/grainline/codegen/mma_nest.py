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
    """The rows of a matrix, spread evenly over its strips.

    In units of one row or, where not every number of rows has a tile of its own, of four: strip i begins at unit
    ceil(i * units / strips), so that any run of strips has about its share. What is left belongs to the last strip.
    `share` is units / strips in 32 binary places, rounded down: strips end where they would, or at most a unit earlier.
    """

    rows: str
    share: str
    strips: str
    unit: int

    @staticmethod
    def of(w: Writer, product: Product, strips: str) -> StripRows:
        unit, m = 1 if product.strip_rows <= STRIP_ROWS else 4, w.extent(product.m.extent)
        units = w.binary("shl", w.divide(m, str(unit)), "32")
        return StripRows(m, w.divide(units, strips), strips, unit)

    def _start(self, w: Writer, strip: str) -> str:
        units = w.binary("lshr", w.add(w.mul(strip, self.share), str(2**32 - 1)), "32")
        return w.mul(units, str(self.unit))

    def at(self, w: Writer, strip: str) -> tuple[str, str]:
        """(first row, rows) of a strip."""
        first, following = self._start(w, strip), w.add(strip, "1")
        after = self._start(w, following)
        if self.unit > 1:
            after = w.choose(w.less(following, self.strips), after, self.rows)
        return first, w.sub(after, first)

    def has_three(self, w: Writer) -> str:
        """Whether some strip may have three rows or fewer, as i1."""
        return w.less(w.binary("lshr", self.share, "32"), str(4 // self.unit))


@dataclass(frozen=True, slots=True)
class LeftRows:
    """The left rows of strips, at %a in rows `row_stride` apart, and packed in slots of %scratch (floats).

    pack: the function that packs, "" where all rows are read in place. keeps_single: so is a single row.
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

    def at(self, w: Writer, first: str, rows: str, slot: str) -> str:
        """The rows of a strip that begins at row `first`: packed, or in place."""
        in_place = self.in_place(w, first)
        return w.choose(self.is_packed(w, rows), self.slot(w, slot), in_place, "ptr") if self.pack else in_place

    def fill(self, w: Writer, strip: str, slot: str) -> None:
        """Packs the rows of a strip into its slot."""
        first, rows = self.rows.at(w, strip)

        def pack() -> list[Reg]:
            operands = f"ptr {self.in_place(w, first)}, ptr {self.slot(w, slot)}, i64 {rows}"
            w.function.do(f"call void @{self.pack}(ptr %args, {operands})")
            return []

        w.function.when(Reg(self.is_packed(w, rows), BOOL), [], pack)


def call_tile(w: Writer, prefix: str, rows: str, arguments: str) -> None:
    """Calls the tile function for a strip of `rows` rows; nothing for 0 rows."""

    def call() -> list[Reg]:
        w.function.do(f"call void @{prefix}tile({arguments})")
        return []

    w.function.when(Reg(w.less("0", rows), BOOL), [], call)
