"""The memory of the interpreter: places, blocks with use counts, and a pool that hands freed blocks out again.

It is as unkind as a real pool may be. A freed block keeps its bytes and goes to the next request that it is large
enough for, so whoever still reads it sees what the new owner writes. What leaves the pool is poisoned.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

HOST, DEVICE = "host", "device"
FRESH, POISON = 0xA5, 0x5A


class OutOfCapacity(Exception):
    """No block, even after idle ones were given back."""


@dataclass(slots=True, eq=False)
class Block:
    """Bytes at a place, with the number of slots that own them."""

    data: Bytes
    users: int = 1


@dataclass(slots=True)
class Pool:
    """Blocks of one place. `curve` holds the live bytes behind every allocation and every free."""

    capacity_bytes: int | None = None
    idle: list[Block] = field(default_factory=list)
    live_bytes: int = 0
    held_bytes: int = 0
    curve: list[int] = field(default_factory=list)

    def allocate(self, size_bytes: int) -> Block:
        fitting = [block for block in self.idle if len(block.data) >= size_bytes]
        if fitting:
            block = min(fitting, key=lambda one: len(one.data))
            self.idle.remove(block)
            block.users = 1
        else:
            block = self._grow(size_bytes)
        self.live_bytes += len(block.data)
        self.curve.append(self.live_bytes)
        return block

    def _grow(self, size_bytes: int) -> Block:
        if self.capacity_bytes is not None and self.held_bytes + size_bytes > self.capacity_bytes:
            self.recycle()
            if self.held_bytes + size_bytes > self.capacity_bytes:
                raise OutOfCapacity(f"no room for {size_bytes} bytes beside {self.held_bytes}")
        self.held_bytes += size_bytes
        return Block(np.full(size_bytes, FRESH, np.uint8))

    def free(self, block: Block) -> None:
        """Takes one user away; the last one returns the block to the pool."""
        assert block.users > 0, "a block is freed more often than it is owned"
        block.users -= 1
        if block.users == 0:
            self.live_bytes -= len(block.data)
            self.curve.append(self.live_bytes)
            self.idle.append(block)

    def recycle(self) -> None:
        """Gives idle blocks back to the system: their bytes are gone."""
        for block in self.idle:
            block.data[:] = POISON
            self.held_bytes -= len(block.data)
        self.idle.clear()
