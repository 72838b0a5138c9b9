"""Streaming of packed weights: how many columns strips share at a time, and the way of the next ones into cache.

The weights of a model do not stay in cache from one run to the next, so the strip that reads a chunk of B first would
wait for memory and the strips after it would not. Instead every strip computes with one chunk and fetches its share of
the next, no line twice: a prefetch takes as much of the way to the second level as a load.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from grainline.base.dims import Expr
from grainline.base.dtypes import I64
from grainline.codegen.emit import FAR, Reg, i64
from grainline.codegen.mma_text import Writer
from grainline.plan.mma import CHUNK_PANELS, Product

LINE_BYTES = 64
# A chunk has at least so many rows of panels (k times panels): a call of a tile function is then cheap beside its work.
# A short chunk keeps what nobody fetched ahead, the first chunk of a call, short as well.
CHUNK_STEPS = 768
# Panels of a chunk for strips of few rows: a multiple of all that their tiles read together.
FEW_ROWS_PANELS = 6
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
    """What a call of a tile function fetches of the lines at `start`, which are as many as it reads of B: those of
    every `period`-th turn of its loops over k, from the turn `first` of each on."""

    start: str
    first: str
    period: str

    def arguments(self) -> str:
        return f", ptr {self.start}, i64 {self.first}, i64 {self.period}"


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
    period = w.sub(after, first)
    # After the last chunk the next group of strips starts again, or the next run follows.
    behind = w.choose(w.less(after, high), "0", run.count)

    def share(slot: str, at: str) -> Share:
        following = w.add(at, step)
        target = w.choose(w.less(following, run.count), following, behind)
        wanted = w.less(target, run.reach)
        chunk = w.at(run.b, w.mul(target, w.extent(product.k.extent)))
        return Share(w.choose(wanted, chunk, run.b, "ptr"), w.choose(wanted, slot, str(NEVER)), period)

    return share


def group_share(w: Writer, k_extent: int | Expr, column: str) -> Share:
    """Inside a tile function: what the group of panels at `column` fetches."""
    lines = w.mul(w.extent(k_extent), w.binary("lshr", column, "4"))
    return Share(w.function.pointer("%ahead", Reg(lines, I64), LINE_BYTES), "%first", "%period")


def fetch(w: Writer, share: Share, turn: tuple[Reg, Reg], panels: int, steps: int) -> Reg:
    """Fetches, if it is due, what a turn of `steps` steps for a group of `panels` has to; `turn` is (k, turns to go).

    Returns the turns to go at the next one. Far from the first level: that one holds the rows of A.
    """
    k, to_go = turn
    is_due = w.function.compare("icmp eq", to_go, i64(0))

    def lines() -> list[Reg]:
        place = w.function.pointer(share.start, Reg(w.mul(k.text, str(panels)), I64), LINE_BYTES)
        for number in range(panels * steps):
            w.function.prefetch(w.at(place, str(number * LINE_BYTES // 4)), FAR)
        return [Reg(share.period, I64)]

    (to_go,) = w.function.when(is_due, [to_go], lines)
    return Reg(w.add(to_go.text, "-1"), I64)
