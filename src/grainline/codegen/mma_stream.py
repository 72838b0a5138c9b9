"""Streaming of packed weights: how many columns strips share at a time, and the way of the next ones into cache.

The weights of a model do not stay in cache from one run to the next, so the strip that reads a chunk of B first would
wait for memory and the strips after it would not. Instead every strip computes with one chunk and fetches its share of
the next, no line twice: a prefetch takes as much of the way to the second level as a load.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from grainline.base.dtypes import I64
from grainline.codegen.emit import FAR, Reg, i64
from grainline.codegen.mma_text import Writer
from grainline.plan.mma import CHUNK_PANELS, Product

LINE_BYTES = 64
# A chunk has at least so many rows of panels (k times panels): a call of a tile function is then cheap beside its work.
# A short chunk keeps what nobody fetched ahead, the first chunk of a call, short as well.
CHUNK_STEPS = 768
# Panels of a chunk for strips of three rows, whose tiles read three panels together.
THREE_ROW_PANELS = 6
# Tiles of fewer rows do so little per line that fetching costs more than it saves; they read many streams at once.
FETCHING_ROWS = 3
# More turns than a loop has.
NEVER = 1 << 62


def chunk_panels(product: Product) -> int:
    """Panels of B that strips share at a time, an even number."""
    k = product.k.extent
    if product.b_form != "panels" or not isinstance(k, int):
        return CHUNK_PANELS
    return min(CHUNK_PANELS, max(2, -(-CHUNK_STEPS // max(k, 1) // 2) * 2))


def fetches_ahead(product: Product) -> bool:
    """Whether B comes from memory: a B packed by the call itself is near already."""
    return product.b_form == "panels"


@dataclass(frozen=True, slots=True)
class Share:
    """What a call of a tile function fetches: `lines` for each of its panels, from `start` on, one after the other, in
    every `period`-th turn of its loops over k. No lines: nothing."""

    start: str
    lines: str
    period: str

    def arguments(self) -> str:
        return f", ptr {self.start}, i64 {self.lines}, i64 {self.period}"


@dataclass(frozen=True, slots=True)
class Columns:
    """A run of columns of B at `b`, which are the columns start..start+count-1 of the result.

    `reach` columns of B from `b` on belong to this call: what follows the run is read next.
    """

    b: str
    start: str
    count: str
    reach: str


def shares(
    w: Writer, product: Product, run: Columns, strips: tuple[str, str, str], step: str
) -> Callable[[str, str], Share]:
    """Gives the share of the strip in a slot while the chunk at a column of the run is computed.

    `strips` are the first strip of the group, the one after its last and the one after the last of the run.
    """
    first, after, high = strips
    k, period = w.extent(product.k.extent), w.sub(after, first)
    lines = w.divide(w.add(k, w.sub(period, "1")), period)
    size = w.mul(w.mul(lines, str(LINE_BYTES)), w.binary("lshr", step, "4"))
    # After the last chunk the next group of strips starts again, or the next run follows.
    behind = w.choose(w.less(after, high), "0", run.count)

    def share(slot: str, at: str) -> Share:
        following = w.add(at, step)
        target = w.choose(w.less(following, run.count), following, behind)
        wanted = w.less(target, run.reach)
        mine = w.function.pointer(w.at(run.b, w.mul(target, k)), Reg(w.mul(size, slot), I64), 1)
        return Share(w.choose(wanted, mine, run.b, "ptr"), w.choose(wanted, lines, "0"), period)

    return share


def group_fetching(w: Writer, column: str) -> list[Reg]:
    """Inside a tile function, where the group of panels at `column` begins: the next line of its share and how many
    turns of the loop over k until that is due."""
    before = w.mul("%lines", w.binary("lshr", column, "4"))
    start = w.function.pointer("%ahead", Reg(before, I64), LINE_BYTES)
    is_idle = w.function.compare("icmp eq", Reg("%lines", I64), i64(0))
    return [Reg(w.function.raw(f"ptrtoint ptr {start} to i64"), I64), w.function.select(is_idle, i64(NEVER), i64(0))]


def fetch(w: Writer, fetching: list[Reg], count: int) -> list[Reg]:
    """Fetches the next `count` lines if they are due, and gives `fetching` of the next turn. Of nothing: nothing.

    Far from the first level: that one holds the rows of A.
    """
    if not fetching:
        return []
    line, to_go = fetching

    def lines() -> list[Reg]:
        place = w.function.raw(f"inttoptr i64 {line.text} to ptr")
        for number in range(count):
            w.function.prefetch(w.at(place, str(number * LINE_BYTES // 4)), FAR)
        return [Reg(w.add(line.text, str(count * LINE_BYTES)), I64), Reg("%period", I64)]

    following, to_go = w.function.when(w.function.compare("icmp eq", to_go, i64(0)), fetching, lines)
    return [following, Reg(w.add(to_go.text, "-1"), I64)]
