"""The strip epilogue: row-wise code over the finished rows of a strip, by the emitter of row programs.

The product becomes a load from the strip in scratch, and what is left is an ordinary program of one row at a time.
Where a block may hold a range of the columns, the row axis is the range, and every index along the columns gets its
start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from grainline.base.dims import Expr, symbol
from grainline.base.dtypes import I64
from grainline.codegen.emit import Reg
from grainline.codegen.evaluate import Evaluator
from grainline.codegen.mma_text import KernelText, Writer
from grainline.codegen.rows import RowBody
from grainline.plan.mma import Product, Realisation, epilogue_program, row_mapping, scratch_layout
from grainline.plan.row_schedule import schedule_rows
from grainline.tile.ir import Affine, Axis, Operation, Tile, TileProgram, View

_RANGE_COLUMNS = symbol("columns of the block")


def rows_function(kernel: KernelText, plan: Realisation) -> None:
    """`i32 @rows(args, scratch, strip, first, count, column, columns, batch coordinates...)`: `count` finished rows."""
    product, scratch = plan.product, scratch_layout(plan)
    fixed = [("ptr", "scratch"), ("ptr", "strip"), *(("i64", n) for n in ("first", "count", "column", "columns"))]
    w = kernel.internal("rows", [*fixed, *(("i64", f"x{i}") for i in range(len(product.batch)))], "i32")
    program, strip, row = epilogue_program(product, scratch.strip_row)
    columns, coordinates = product.n, batch_coordinates(product)
    if product.offers_columns:
        start, columns = Axis("first column", 1), Axis("column", _RANGE_COLUMNS)
        program = _shifted(program, product.n, columns, start)
        coordinates[start] = Reg("%column", I64)
        w.arguments.bind_extent(_RANGE_COLUMNS, Reg("%columns", I64))
    w.arguments.bind(strip, "%strip")
    _each_row(w, program, columns, coordinates, (row, product.m), scratch.spills, strip)


def whole_rows_function(
    kernel: KernelText,
    name: str,
    product: Product,
    rows: tuple[TileProgram, View, Axis],
    spills: int | Expr,
    takes_columns: bool,
) -> None:
    """`i32 @name(args, scratch, strip, first, count, batch coordinates..., columns)`: the program `rows` on whole rows,
    or on their first `columns` elements.

    `rows` is (program of one row, view of the strip, axis of rows in the strip), as `epilogue_program` gives it.
    """
    fixed = [("ptr", "scratch"), ("ptr", "strip"), ("i64", "first"), ("i64", "count")]
    last = [("i64", "columns")] if takes_columns else []
    w = kernel.internal(name, [*fixed, *(("i64", f"x{i}") for i in range(len(product.batch))), *last], "i32")
    program, strip, row = rows
    w.arguments.bind(strip, "%strip")
    count = Reg("%columns", I64) if takes_columns else None
    _each_row(w, program, product.n, batch_coordinates(product), (row, product.m), spills, strip, count)


def batch_coordinates(product: Product) -> dict[Axis, Reg]:
    return {axis: Reg(f"%x{i}", I64) for i, axis in enumerate(product.batch)}


def _each_row(
    w: Writer,
    program: TileProgram,
    columns: Axis,
    coordinates: dict[Axis, Reg],
    rows: tuple[Axis, Axis],
    spills: int | Expr,
    strip: View,
    count: Reg | None = None,
) -> None:
    """The program for rows 0..count-1 of the strip; `rows` are the axes of the strip's and of the matrix' rows.

    `count`: only so many columns.
    """
    evaluator = Evaluator(w.function, program, w.arguments)
    evaluator.roomy = strip
    evaluator.enter(coordinates)
    mapping, place = row_mapping(columns), w.at("%scratch", w.extent(spills))
    body = RowBody(evaluator, schedule_rows(program, columns), mapping.width, mapping.unroll, place)
    body.prepare(count)

    def one(index: str) -> None:
        evaluator.enter({rows[0]: Reg(index, I64), rows[1]: Reg(w.add("%first", index), I64)})
        body.emit()
        evaluator.leave()

    w.loop("0", "%count", 1, one)
    w.function.do("ret i32 0")


def _shifted(program: TileProgram, n: Axis, columns: Axis, start: Axis) -> TileProgram:
    """The program with `columns` + `start` for every coordinate along `n`; `start` is a root axis."""
    body = tuple(each for operation in program.body for each in _shift(operation, n, columns, start))
    return TileProgram(program.name, program.views, (*program.roots, start), body)


def _shift(operation: Operation, n: Axis, columns: Axis, start: Axis) -> Iterator[Operation]:
    if operation.op == "coord" and operation.axis is n:
        assert operation.result is not None
        # Numbers of new tiles: below all others, one pair per coordinate operation.
        inner = Tile(-2 * operation.result.id - 1, I64, (columns,))
        outer = Tile(-2 * operation.result.id - 2, I64, ())
        yield Operation("coord", (), inner, axis=columns)
        yield Operation("coord", (), outer, axis=start)
        yield Operation("add", (inner, outer), operation.result)
        return
    yield replace(operation, index=tuple(_shift_index(item, n, columns, start) for item in operation.index))


def _shift_index(item: Affine | Tile, n: Axis, columns: Axis, start: Axis) -> Affine | Tile:
    if isinstance(item, Tile):
        return item
    terms = []
    for axis, coefficient in item.terms:
        terms += [(columns, coefficient), (start, coefficient)] if axis is n else [(axis, coefficient)]
    return Affine(tuple(terms), item.offset)
