"""Private arrays: tiles of one packet in scratch, [slot][lane].

A slot holds a vector, or a scalar for a tile that is the same in all lanes. Scratch has room for whole packets, so no
access is masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grainline.base.dtypes import BOOL, I64
from grainline.codegen import memory
from grainline.codegen.emit import FunctionText, Reg, constant
from grainline.tile.ir import Tile


@dataclass(frozen=True, slots=True)
class Array:
    """`tile` at address `base`, with the extents of its space; `lanes` 0 stores scalars."""

    f: FunctionText
    tile: Tile
    base: str
    extents: tuple[Reg, ...]
    lanes: int

    def read(self, coordinates: Sequence[Reg], inside: Reg | None = None) -> Reg:
        """The element at the coordinates: a vector of a slot, or lane by lane where a coordinate varies over the lanes.

        Where `inside` is false the element is 0 and no memory is touched.
        """
        f, dtype = self.f, self.tile.dtype
        slot = self._slot(coordinates)
        if slot.lanes or (inside is not None and inside.lanes):
            lanes = max(slot.lanes, inside.lanes if inside is not None else 0)
            offsets = f.mul(f.splat(slot, lanes), max(self.lanes, 1))
            offsets = f.binary("add", offsets, f.iota(lanes)) if self.lanes else offsets
            return memory.gather(f, self.base, offsets, dtype, inside)
        place = self._place(slot)
        if inside is None:
            return memory.load(f, place, dtype, self.lanes, is_private=True)
        zero = constant(0, dtype, self.lanes)
        return f.when(inside, [zero], lambda: [memory.load(f, place, dtype, self.lanes, is_private=True)])[0]

    def write(self, coordinates: Sequence[Reg], value: Reg) -> None:
        place = self._place(self._slot(coordinates))
        memory.store(self.f, place, self.f.splat(value, self.lanes), is_private=True)

    def inside(self, coordinates: Sequence[Reg]) -> Reg:
        """Whether each coordinate lies in the tile."""
        f, joined = self.f, Reg("true", BOOL)
        for coordinate, extent in zip(coordinates, self.extents, strict=True):
            found = f.compare("icmp ult", coordinate, f.splat(extent, coordinate.lanes))
            lanes = max(found.lanes, joined.lanes)
            joined = found if joined.text == "true" else f.binary("and", f.splat(joined, lanes), f.splat(found, lanes))
        return joined

    def _slot(self, coordinates: Sequence[Reg]) -> Reg:
        """The row-major number of an element."""
        f, slot = self.f, Reg("0", I64)
        for coordinate, extent in zip(coordinates, self.extents, strict=True):
            lanes = max(slot.lanes, coordinate.lanes)
            scaled = f.splat(f.mul(slot, extent), lanes)
            slot = f.add(f.splat(coordinate, lanes), scaled)
        return slot

    def _place(self, slot: Reg) -> str:
        return self.f.pointer(self.base, slot, max(self.lanes, 1) * self.tile.dtype.size_bytes)
