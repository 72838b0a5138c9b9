"""Packing into scratch: a strip of A as [k][strip_rows], and a strided B as column panels [ceil(n/16)][k][16].

Both use one primitive: four consecutive k of eight rows, transposed in registers with lane-local shuffles. Places past
the last row or column repeat the last one or hold 0, so nothing outside the operands is read; what is computed from
them is never stored outside scratch.
"""

from __future__ import annotations

from grainline.base.dims import Expr
from grainline.base.dtypes import F32
from grainline.codegen.emit import Reg
from grainline.codegen.mma_text import KernelText, Writer
from grainline.codegen.mma_tile import TileForm
from grainline.plan.mma import PANEL
from grainline.tile.access import linear_access

_STEP = 4


def pack_a_function(kernel: KernelText, form: TileForm) -> None:
    """`void @pack_a(args, source, target, rows)`: target[k][strip_rows] = source rows, in vectors of eight.

    Writes up to 7 floats after the end.
    """
    count = form.product.strip_rows
    w = kernel.internal(f"{form.prefix}pack_a", [("ptr", "source"), ("ptr", "target"), ("i64", "rows")])
    last, k = w.add("%rows", "-1"), w.extent(form.product.k.extent)
    stride = w.extent(form.a_row_stride)
    rows = [w.at("%source", w.mul(stride, w.smaller(str(r), last))) for r in range(count)]
    whole = w.round_down(k, _STEP)

    def four(at: str) -> None:
        target = w.at("%target", w.mul(at, str(count)))
        starts = [w.at(row, at) for row in rows]
        groups = []
        for first in range(0, count, 8):
            eight = starts[first : first + 8]
            groups.append(_transposed(w, eight + [starts[-1]] * (8 - len(eight))))
        for step in range(_STEP):
            for number, vectors in enumerate(groups):
                # Of the last eight lanes some belong to no row; the next k overwrites them.
                w.store(vectors[step], w.at(target, str(step * count + number * 8)))

    def one(at: str) -> None:
        target = w.at("%target", w.mul(at, str(count)))
        for r, row in enumerate(rows):
            w.store(w.load_scalar(w.at(row, at)), w.at(target, str(r)))

    w.loop("0", whole, _STEP, four)
    w.loop(whole, k, 1, one)
    w.function.do("ret void")


def _transposed(w: Writer, addresses: list[str]) -> list[Reg]:
    """Four vectors: vector i holds element i of each of the eight addresses, in order."""
    f = w.function
    rows = []
    for low, high in zip(addresses[:4], addresses[4:]):
        parts = [f.reg(f"load <4 x float>, ptr {address}, align 4", F32, 4) for address in (low, high)]
        rows.append(f.shuffle(parts[0], range(8), parts[1]))
    t0 = f.shuffle(rows[0], (0, 8, 1, 9, 4, 12, 5, 13), rows[1])
    t1 = f.shuffle(rows[0], (2, 10, 3, 11, 6, 14, 7, 15), rows[1])
    t2 = f.shuffle(rows[2], (0, 8, 1, 9, 4, 12, 5, 13), rows[3])
    t3 = f.shuffle(rows[2], (2, 10, 3, 11, 6, 14, 7, 15), rows[3])
    even, odd = (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)
    return [f.shuffle(t0, even, t2), f.shuffle(t0, odd, t2), f.shuffle(t1, even, t3), f.shuffle(t1, odd, t3)]


def pack_b_function(kernel: KernelText, form: TileForm) -> None:
    """`void @pack_b(args, source, target, first)`: target[panel][k][16] for the panels from `first` on."""
    w = kernel.internal(f"{form.prefix}pack_b", [("ptr", "source"), ("ptr", "target"), ("i64", "first")])
    product = form.product
    access = linear_access(product.b)
    n, k = w.extent(product.n.extent), w.extent(product.k.extent)

    def panel(number: str) -> None:
        target = w.at("%target", w.mul(number, w.mul(k, str(PANEL))))
        column = w.binary("shl", number, "4")
        if product.b_form == "rows":
            _copy_panel(w, column, n, k, w.extent(access.coefficient(product.k)), target)
        elif product.b_form == "columns":
            _transpose_panel(w, column, n, k, w.extent(access.coefficient(product.n)), target)
        else:
            _gather_panel(w, column, n, k, (access.coefficient(product.k), access.coefficient(product.n)), target)

    w.loop("%first", w.round_up_to_panel(n), 1, panel)
    w.function.do("ret void")


def _copy_panel(w: Writer, column: str, n: str, k: str, stride: str, target: str) -> None:
    """Columns lie next to each other: whole vectors, masked in the last panel."""
    source, parts = w.at("%source", column), range(0, PANEL, w.lanes)

    def copy(masks: list[Reg]) -> None:
        def row(at: str) -> None:
            start, place = w.at(source, w.mul(stride, at)), w.at(target, w.mul(at, str(PANEL)))
            for i, part in enumerate(parts):
                address = w.at(start, str(part))
                value = w.load_vector(address, masks[i] if masks else None)
                w.store(value, w.at(place, str(part)))

        w.loop("0", k, 1, row)

    def ragged() -> None:
        left = w.sub(n, column)
        copy([w.first_lanes(w.sub(left, str(part))) for part in parts])

    w.either(w.less(n, w.add(column, str(PANEL))), ragged, lambda: copy([]))


def _transpose_panel(w: Writer, column: str, n: str, k: str, stride: str, target: str) -> None:
    """Consecutive k lie next to each other: eight columns by four k at a time."""
    last, whole = w.add(n, "-1"), w.round_down(k, _STEP)
    for half in range(0, PANEL, 8):
        columns = [w.at("%source", w.mul(stride, w.smaller(w.add(column, str(half + i)), last))) for i in range(8)]
        corner = w.at(target, str(half))

        def four(at: str, columns: list[str] = columns, corner: str = corner) -> None:
            place = w.at(corner, w.mul(at, str(PANEL)))
            for step, vector in enumerate(_transposed(w, [w.at(c, at) for c in columns])):
                w.store(vector, w.at(place, str(step * PANEL)))

        def one(at: str, columns: list[str] = columns, corner: str = corner) -> None:
            place = w.at(corner, w.mul(at, str(PANEL)))
            for i, c in enumerate(columns):
                w.store(w.load_scalar(w.at(c, at)), w.at(place, str(i)))

        w.loop("0", whole, _STEP, four)
        w.loop(whole, k, 1, one)


def _gather_panel(w: Writer, column: str, n: str, k: str, strides: tuple[int | Expr, int | Expr], target: str) -> None:
    """Any strides, one element at a time."""
    last, row_stride, column_stride = w.add(n, "-1"), w.extent(strides[0]), w.extent(strides[1])

    def row(at: str) -> None:
        start, place = w.at("%source", w.mul(row_stride, at)), w.at(target, w.mul(at, str(PANEL)))

        def element(i: str) -> None:
            number = w.smaller(w.add(column, i), last)
            w.store(w.load_scalar(w.at(start, w.mul(column_stride, number))), w.at(place, i))

        w.loop("0", str(PANEL), 1, element)

    w.loop("0", k, 1, row)
