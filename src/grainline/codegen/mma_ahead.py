"""The way of the next batch element into cache: each group of strips fetches its share of the operands that follow.

The rows of one head lie far apart in memory, a line or two each, so that no hardware prefetcher follows them; packing
them would wait for every one. Where operands are large, the time of packing does not count and they are left alone;
where all of them are small they are near already, and fetching would only cost.
"""

from __future__ import annotations

from dataclasses import dataclass

from grainline.base.dims import Expr
from grainline.codegen.emit import FIRST_LEVEL, SECOND_LEVEL
from grainline.codegen.mma_text import KernelText, Writer
from grainline.plan.mma import Product
from grainline.tile.access import linear_access
from grainline.tile.ir import Operation

LINE_FLOATS = 16
# More floats in the operands of one batch element would push each other out of the second level of cache.
FEW_FLOATS = 1 << 16
# Operands of all batch elements up to here still lie in the second level, where the kernels before left them.
NEAR_FLOATS = 1 << 17


@dataclass(frozen=True, slots=True)
class Runs:
    """An operand of one batch element as `count` runs of `length` floats, `step` apart."""

    count: int | Expr
    length: int | Expr
    step: int | Expr


def left_runs(product: Product) -> Runs:
    return Runs(product.m.extent, product.k.extent, linear_access(product.a).coefficient(product.m))


def right_runs(product: Product) -> Runs:
    """Scattered operands have runs of one float."""
    access, n, k = linear_access(product.b), product.n, product.k
    if product.b_form == "columns":
        return Runs(n.extent, k.extent, access.coefficient(n))
    return Runs(k.extent, n.extent if product.b_form == "rows" else 1, access.coefficient(k))


def ahead_function(kernel: KernelText, operands: tuple[Runs, ...]) -> None:
    """`void @ahead(args, sources..., share, shares)`: fetches share `share` of `shares` of every operand."""
    sources = [("ptr", f"s{i}") for i in range(len(operands))]
    w = kernel.internal("ahead", [*sources, ("i64", "share"), ("i64", "shares")])
    for i, runs in enumerate(operands):
        _fetch(w, runs, f"%s{i}")
    w.function.do("ret void")


def _fetch(w: Writer, runs: Runs, source: str) -> None:
    count, step = w.extent(runs.count), w.extent(runs.step)
    size = w.divide(w.add(count, w.sub("%shares", "1")), "%shares")
    first = w.mul("%share", size)

    def run(index: str) -> None:
        start = w.at(source, w.mul(step, index))
        w.loop("0", w.extent(runs.length), LINE_FLOATS, lambda at: w.function.prefetch(w.at(start, at), SECOND_LEVEL))

    w.loop(first, w.smaller(w.add(first, size), count), 1, run)


def claim(w: Writer, start: str, rows: str, store: Operation, product: Product) -> None:
    """Asks for the lines that `store` will write to `rows` rows: a store that waits holds up all those behind it."""
    step, length = w.extent(linear_access(store).coefficient(product.m)), w.extent(product.n.extent)

    def row(index: str) -> None:
        first = w.at(start, w.mul(step, index))
        w.loop("0", length, LINE_FLOATS, lambda at: w.function.prefetch(w.at(first, at), FIRST_LEVEL, True))

    w.loop("0", rows, 1, row)


def fetches(w: Writer, operands: tuple[Runs, ...], matrices: int | Expr) -> str:
    """Whether to fetch ahead: one batch element fits beside the one at work, and all of them are not near anyway."""
    each: int | Expr = 0
    for runs in operands:
        each = each + runs.count * runs.length
    return w.function.raw(
        f"and i1 {w.less(w.extent(each), str(FEW_FLOATS))}, {w.less(str(NEAR_FLOATS), w.extent(each * matrices))}"
    )
