"""Streaming of packed weights: how many columns strips share at a time, and the way of the next ones into cache.

The weights of a model do not stay in cache from one run to the next, so the strip that reads a chunk of B first would
wait for memory and the strips after it would not. Instead every strip computes with one chunk and fetches its share of
the next: the lines of a share are spread evenly over the steps of its tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from grainline.base.dims import Expr
from grainline.base.dtypes import I64
from grainline.codegen.emit import FAR, Reg
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
# The largest multiple that an address takes.
SCALED_PACES = 8


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
    """What a call of a tile function fetches: `pace` bytes per panel and step of k, from `start` on. 0: nothing.

    `odd` are 1, 3, 5 and 7 paces, for those who step through it: an address may add 1, 2, 4 or 8 times a number.
    """

    start: str
    pace: str
    odd: tuple[str, ...] = ()

    def arguments(self) -> str:
        return f", ptr {self.start}, i64 {self.pace}"


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
    count = w.sub(after, first)
    pace = w.divide(w.add(w.sub(count, "1"), str(LINE_BYTES)), count)
    k = w.extent(product.k.extent)
    size = w.mul(w.mul(pace, w.binary("lshr", step, "4")), k)
    # After the last chunk the next group of strips starts again, or the next run follows.
    behind = w.choose(w.less(after, high), "0", run.count)

    def share(slot: str, at: str) -> Share:
        following = w.add(at, step)
        target = w.choose(w.less(following, run.count), following, behind)
        wanted = w.less(target, run.reach)
        chunk = w.at(run.b, w.mul(target, k))
        mine = w.function.pointer(chunk, Reg(w.mul(size, slot), I64), 1)
        return Share(w.choose(wanted, mine, run.b, "ptr"), w.choose(wanted, pace, "0"))

    return share


def group_share(w: Writer, k_extent: int | Expr, column: str) -> Share:
    """Inside a tile function: what the group of panels at `column` fetches."""
    lines = w.mul(w.extent(k_extent), w.binary("lshr", column, "4"))
    start = w.function.pointer("%ahead", Reg(w.mul(lines, "%pace"), I64), 1)
    return Share(start, "%pace", tuple(w.mul("%pace", str(number)) for number in range(1, SCALED_PACES, 2)))


def fetch(w: Writer, share: Share, place: str, paces: int) -> None:
    """Fetches `paces` paces of a share, from byte `place` on.

    Far from the first level: that one holds the rows of A.
    """
    address = w.function.pointer(share.start, Reg(place, I64), 1)
    for number in range(paces):
        rest = number % SCALED_PACES
        if rest == 0:
            address = w.function.pointer(address, Reg(share.pace, I64), SCALED_PACES) if number else address
            w.function.prefetch(address, FAR)
            continue
        scale = rest & -rest
        w.function.prefetch(w.function.pointer(address, Reg(share.odd[rest // scale // 2], I64), scale), FAR)
