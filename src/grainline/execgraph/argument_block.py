"""The argument block of a launch, and host tensors that travel inside it.

    bytes  [ arguments: 8 each | tiling data | host data ... | padding ]

An embedded tensor needs no block and no copy of its own: its bytes stand in the host data area, and a *record*
(address offset, data offset) per argument position that it feeds says which argument becomes the address of which
bytes once the block lies on the device. Embedded lengths are rounded up to 4; `align` rounds the embedded bytes up to
32 and adds 32. The native kernels write the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

ARGUMENT_BYTES = 8
EMBED_ALIGNMENT = 4
END_ALIGNMENT = 32
EMBED_LIMIT_BYTES = 128


def round_up(size_bytes: int, alignment: int) -> int:
    return -(-size_bytes // alignment) * alignment


def allocation_sizes(merged_bytes: int, tensors: Sequence[tuple[bool, int, int]]) -> list[int]:
    """Bytes to allocate per tensor (is on the host, bytes of its shape, bytes given); 0: embedded, or not copied.

    The budget is greedy: what still fits beside `merged_bytes` is embedded, also behind a tensor that did not fit.
    ValueError when the bytes of a shape are negative.
    """
    total, limit = merged_bytes, EMBED_LIMIT_BYTES + merged_bytes
    sizes = []
    for is_host, shape_bytes, given_bytes in tensors:
        if shape_bytes < 0:
            raise ValueError(f"a tensor of {shape_bytes} bytes")
        length = round_up(shape_bytes, EMBED_ALIGNMENT)
        embeds = is_host and total + length <= limit
        total += length if embeds else 0
        sizes.append(given_bytes if is_host and not embeds else 0)
    return sizes


@dataclass(slots=True)
class ArgumentBlock:
    """`arguments` positions, then `tiling_bytes`, then what was embedded."""

    arguments: int
    tiling_bytes: int = 0
    records: list[tuple[int, int]] = field(default_factory=list)
    host_data: bytearray = field(default_factory=bytearray)
    merged_bytes: int = 0

    @property
    def host_data_offset(self) -> int:
        return self.arguments * ARGUMENT_BYTES + self.tiling_bytes

    def reset(self, tiling_bytes: int) -> None:
        """Forgets the tensors of the run before; the host data area starts behind the tiling data of this one."""
        self.tiling_bytes = tiling_bytes
        self.records.clear()
        self.host_data.clear()
        self.merged_bytes = 0

    def embed(self, data: bytes, positions: Iterable[int]) -> int:
        """Copies `data` into the block, with a record per position; returns its offset in the block."""
        offset = self.host_data_offset + len(self.host_data)
        self.host_data += data.ljust(round_up(len(data), EMBED_ALIGNMENT), b"\0")
        self.records += [(position * ARGUMENT_BYTES, offset) for position in positions]
        self.merged_bytes = len(self.host_data)
        return offset

    def align(self) -> None:
        padded = round_up(len(self.host_data), END_ALIGNMENT) + END_ALIGNMENT
        self.host_data = self.host_data.ljust(padded, b"\0")

    def bytes(self, arguments: Sequence[int], tiling: bytes, device_address: int) -> bytes:
        """The block as it lies at `device_address`: embedded arguments are addresses of their bytes there."""
        assert len(arguments) == self.arguments and len(tiling) == self.tiling_bytes
        addresses = list(arguments)
        for address_offset, data_offset in self.records:
            addresses[address_offset // ARGUMENT_BYTES] = device_address + data_offset
        head = b"".join(address.to_bytes(ARGUMENT_BYTES, "little") for address in addresses)
        return head + tiling + bytes(self.host_data)
