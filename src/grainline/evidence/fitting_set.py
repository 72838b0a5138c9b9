"""The fixed set of small kernels that calibration fits its prices to: no operator and no shape of the suites is in it.

Three families: pointwise programs (one per primitive, at near-cache sizes), row programs of reductions and scalars
(what a program, a pass, a fold and a scalar cost), and strided, gathered or broadcast accesses; the `reaching_set` has
the strided and gathered ones again, as far as a farther cache. Held out are all operators of `evidence.operators` and
all shapes of the suites.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from grainline.base.dtypes import F32, I8, I64
from grainline.plan.panels import PANEL
from grainline.plan.reach import LINE_BYTES
from grainline.plan.types import LOCAL, WHOLE
from grainline.tile.build import ProgramBuilder, Value
from grainline.tile.ir import TileProgram

UNARY = ("exp", "log", "log1p", "tanh", "erf", "sigmoid", "softplus", "sin", "cos", "sqrt", "rsqrt", "reciprocal")
BINARY = ("div", "mod", "fmod", "pow")
# What a sample touches fits the smallest first cache there is, 32 KiB: memory is measured apart from arithmetic.
ELEMENTS = 2048
SHORT_ELEMENTS = 640
ADDITIONS = (4, 16)
FAR_BLOCK = 1024
PITCH = 72  # elements from one line to the next: lines of all sets of a cache, and neighbours that share pages


@dataclass(frozen=True)
class Sample:
    """One kernel to time: a program under a forced mapping, its inputs between 0.5 and 1.5; `order` of the roots."""

    program: TileProgram
    mapping: str
    block_size: int = 0
    order: tuple[int, ...] = ()


def fitting_set() -> Iterator[Sample]:
    """Every sample, in a fixed order."""
    for elements in (SHORT_ELEMENTS, ELEMENTS):
        yield Sample(pointwise("copy", elements, lambda p, x: x), WHOLE)
        yield Sample(pointwise("two inputs", elements, lambda p, x: x + p.load(p.other, (p.r,))), WHOLE)
        for count in ADDITIONS:
            yield Sample(pointwise(f"{count} additions", elements, lambda p, x, count=count: _chain(x, count)), WHOLE)
    for op in UNARY:
        yield Sample(pointwise(op, ELEMENTS, lambda p, x, op=op: p.elementwise(op, x)), WHOLE)
    for op in BINARY:
        yield Sample(pointwise(op, ELEMENTS, lambda p, x, op=op: p.elementwise(op, x, p.load(p.other, (p.r,)))), WHOLE)
    yield Sample(pointwise("small blocks", ELEMENTS, lambda p, x: x), WHOLE, 16)
    for rows, n in ((160, 16), (48, 64), (12, 320), (3, 1280)):
        yield from row_samples(rows, n)
    for rows, n in ((16, 96), (48, 64), (128, 24)):
        yield Sample(column_sums(rows, n), WHOLE)
    for order in ((0, 1), (1, 0)):
        yield Sample(transposed(96, 80), WHOLE, order=order)
    yield Sample(gathered(ELEMENTS), WHOLE)


def reaching_set(reach_bytes: int) -> Iterator[tuple[str, Sample]]:
    """(kind of access, sample) whose lines fill `reach_bytes` of a cache before one is touched again."""
    lines = reach_bytes // LINE_BYTES
    yield "strided", Sample(transposed(PITCH, lines), WHOLE, FAR_BLOCK, order=(0, 1))
    yield "scatter", Sample(transposed(lines, PITCH), WHOLE, FAR_BLOCK, order=(1, 0))
    yield "gathered", Sample(gathered(reach_bytes // F32.size_bytes), WHOLE, FAR_BLOCK)


class _Pointwise(ProgramBuilder):
    """x and `other`: f32[elements], one program per element."""

    def __init__(self, name: str, elements: int) -> None:
        super().__init__(name)
        self.elements = elements
        self.r = self.root("i", elements)
        self.x = self.view("x", F32, (elements,))
        self._other = None

    @property
    def other(self):  # type: ignore[no-untyped-def]
        if self._other is None:
            self._other = self.view("other", F32, (self.elements,))
        return self._other


def pointwise(name: str, elements: int, body: Callable[..., Value]) -> TileProgram:
    p = _Pointwise(name, elements)
    value = body(p, p.load(p.x, (p.r,)))
    p.store(p.view("y", F32, (elements,), access="write"), (p.r,), value)
    return p.finish()


def _chain(x: Value, count: int) -> Value:
    for k in range(count):
        x = x * 1.5 if k % 2 else x + 0.25
    return x


def row_samples(rows: int, n: int) -> Iterator[Sample]:
    """Row programs with zero to three passes, and with scalars between them."""
    for name in ROW_BODIES:
        yield Sample(row_program(name, rows, n), LOCAL)


def row_program(name: str, rows: int, n: int) -> TileProgram:
    p = ProgramBuilder(f"{name} of {n}")
    r, a = p.root("rows", rows), p.axis("n", n)
    ROW_BODIES[name](p, r, a, p.load(p.view("x", F32, (rows, n)), (r, a)), rows, n)
    return p.finish()


def _row_copy(p, r, a, x, rows, n) -> None:  # type: ignore[no-untyped-def]
    p.store(p.view("y", F32, (rows, n), access="write"), (r, a), x)


def _row_sum(p, r, a, x, rows, n) -> None:  # type: ignore[no-untyped-def]
    p.store(p.view("y", F32, (rows,), access="write"), (r,), p.sum(x, a))


def _row_scaled(p, r, a, x, rows, n) -> None:  # type: ignore[no-untyped-def]
    p.store(p.view("y", F32, (rows, n), access="write"), (r, a), x * p.max(x, a))


def _row_centred(p, r, a, x, rows, n) -> None:  # type: ignore[no-untyped-def]
    c = x - p.max(x, a)
    p.store(p.view("y", F32, (rows, n), access="write"), (r, a), c * p.sum(c * x, a))


def _row_scalars(p, r, a, x, rows, n) -> None:  # type: ignore[no-untyped-def]
    scalar = p.sum(x, a)
    for _ in range(4):
        scalar = scalar * 1.25 + 0.5
    p.store(p.view("y", F32, (rows, n), access="write"), (r, a), x * scalar)


def _row_roots(p, r, a, x, rows, n) -> None:  # type: ignore[no-untyped-def]
    scalar = p.sqrt(p.sqrt(p.sum(x, a) + 1.0) + 1.0)
    p.store(p.view("y", F32, (rows, n), access="write"), (r, a), x * scalar)


ROW_BODIES = {
    "row copy": _row_copy,
    "row sum": _row_sum,
    "row scaled": _row_scaled,
    "row centred": _row_centred,
    "row scalars": _row_scalars,
    "row roots": _row_roots,
}


def column_sums(rows: int, n: int) -> TileProgram:
    """Whole programs whose lanes run down the rows: every access along n is strided for them."""
    p = ProgramBuilder("strided sums")
    r, a = p.root("rows", rows), p.axis("n", n)
    x = p.load(p.view("x", F32, (rows, n)), (r, a))
    p.store(p.view("y", F32, (rows, n), access="write"), (r, a), x * p.sum(x, a))
    return p.finish()


def transposed(rows: int, columns: int) -> TileProgram:
    p = ProgramBuilder("transposed")
    r, c = p.root("r", rows), p.root("c", columns)
    x, y = p.view("x", F32, (columns, rows)), p.view("y", F32, (rows, columns), access="write")
    p.store(y, (r, c), p.load(x, (c, r)))
    return p.finish()


def gathered(elements: int) -> TileProgram:
    """y[i] = x[index[i]]: lanes whose elements lie anywhere in x."""
    p = ProgramBuilder("gathered")
    i = p.root("i", elements)
    x, index = p.view("x", F32, (elements,)), p.load(p.view("index", I64, (elements,)), (i,))
    p.store(p.view("y", F32, (elements,), access="write"), (i,), p.load(x, (index,)))
    return p.finish()


def matrix_product(m: int, k: int, n: int, in_bytes: bool) -> TileProgram:
    """y = x @ b with b packed ahead, of f32 or of i8 with a scale per column."""
    p = ProgramBuilder("product of bytes" if in_bytes else "product")
    r, c, inner = p.root("m", m), p.axis("n", n), p.axis("k", k)
    x = p.load(p.view("x", F32, (m, k)), (r, inner))
    layout, dtype = ("quads", I8) if in_bytes else ("panels", F32)
    b = p.load(p.view("b", dtype, (k, n), layout=layout, panel=PANEL), (inner, c))
    y = p.mma(x, p.cast(b, F32) if in_bytes else b, inner)
    p.store(p.view("y", F32, (m, n), access="write"), (r, c), y * 0.5 if in_bytes else y)
    return p.finish()


def busy_rows(rows: int, n: int) -> TileProgram:
    """y[r] = sum of cosines of one row that all programs share: arithmetic alone."""
    p = ProgramBuilder("busy rows")
    r, a = p.root("rows", rows), p.axis("n", n)
    x = p.load(p.view("x", F32, (n,)), (a,))
    start = p.load(p.view("start", F32, (rows,)), (r,))
    p.store(p.view("y", F32, (rows,), access="write"), (r,), p.sum(p.cos(x + start), a))
    return p.finish()
