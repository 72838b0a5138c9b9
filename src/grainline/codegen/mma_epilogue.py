"""The register epilogue: elementwise code of a product's program on vectors of finished accumulators.

A `Stream` is one memory access of that code with its own base pointer, set to the strip's first row and the block's
first column by the caller. The same emitter serves full vectors and, through a mask, the ragged right edge.
"""

from __future__ import annotations

from dataclasses import dataclass

from grainline.base.dims import Expr
from grainline.base.dtypes import F32
from grainline.codegen.elementwise import apply
from grainline.codegen.emit import Reg, constant
from grainline.codegen.mma_text import Writer
from grainline.plan.mma import Product
from grainline.tile.access import LinearAccess, linear_access
from grainline.tile.ir import Operation, Tile


@dataclass(frozen=True, slots=True)
class Stream:
    """A load or store of the epilogue; `row_stride` in elements; it spans the columns or is one scalar per row."""

    operation: Operation
    access: LinearAccess
    row_stride: int | Expr
    spans_columns: bool


def streams_of(product: Product) -> tuple[Stream, ...]:
    """The memory accesses of a register epilogue in program order."""
    found = []
    for operation in product.epilogue:
        if operation.op not in ("load", "store"):
            continue
        access = linear_access(operation)
        spans = access.coefficient(product.n) != 0
        found.append(Stream(operation, access, access.coefficient(product.m), spans))
    return tuple(found)


def rewrites(product: Product) -> bool:
    """Whether a register epilogue reads what it writes, so that no row may pass twice."""
    views = [{o.view for o in product.epilogue if o.op == op} for op in ("load", "store")]
    return not views[0].isdisjoint(views[1])


class RegisterEpilogue:
    """Emits the epilogue of `product` for single vectors.

    `pointers[i]` is the address of stream i at (row 0, column 0 of this block); tiles that do not depend on the row are
    evaluated once per column vector.
    """

    def __init__(self, w: Writer, product: Product, pointers: tuple[str, ...]) -> None:
        self.w = w
        self.product = product
        self.streams = streams_of(product)
        self.pointers = pointers
        self.stream_of = {id(s.operation): i for i, s in enumerate(self.streams)}
        self.per_column: dict[Tile, Reg] = {}
        self.mask: Reg | None = None

    def start_vector(self, mask: Reg | None = None) -> None:
        """Begins a new vector of columns; `mask` limits every access along the columns."""
        self.per_column = {}
        self.mask = mask

    def row_pointers(self, row: str) -> tuple[str, ...]:
        """Stream addresses at `row` of the strip."""
        w = self.w
        return tuple(w.at(p, w.mul(w.extent(s.row_stride), row)) for p, s in zip(self.pointers, self.streams))

    def run(self, accumulator: Reg, rows: tuple[str, ...], column: str) -> None:
        """Evaluates the program on `accumulator`, the vector at the row of `rows` and column offset `column`."""
        assert self.product.mma.result is not None
        values: dict[Tile, Reg] = {self.product.mma.result: accumulator}
        for operation in self.product.epilogue:
            if operation.op == "store":
                self._store(operation, values[operation.operands[0]], rows, column)
                continue
            assert operation.result is not None
            known = self.per_column.get(operation.result)
            values[operation.result] = known or self._value(operation, values, rows, column)
            if known is None and self._is_row_invariant(operation):
                self.per_column[operation.result] = values[operation.result]

    def _is_row_invariant(self, operation: Operation) -> bool:
        if operation.op == "load":
            return self.streams[self.stream_of[id(operation)]].row_stride == 0
        return all(o in self.per_column for o in operation.operands)

    def _value(self, operation: Operation, values: dict[Tile, Reg], rows: tuple[str, ...], column: str) -> Reg:
        if operation.op == "const":
            return constant(operation.attributes["value"], F32, self.w.lanes)
        if operation.op == "load":
            return self._load(operation, rows, column)
        return apply(self.w.function, operation.op, tuple(values[o] for o in operation.operands))

    def _load(self, operation: Operation, rows: tuple[str, ...], column: str) -> Reg:
        w, index = self.w, self.stream_of[id(operation)]
        if not self.streams[index].spans_columns:
            return w.function.splat(w.load_scalar(rows[index]), w.lanes)
        return w.load_vector(w.at(rows[index], column), self.mask)

    def _store(self, operation: Operation, value: Reg, rows: tuple[str, ...], column: str) -> None:
        w, index = self.w, self.stream_of[id(operation)]
        w.store(value, w.at(rows[index], column), self.mask)
