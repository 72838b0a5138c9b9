"""The argument block of a launch, byte for byte."""

from __future__ import annotations

import random
import struct

import pytest

from grainline.execgraph.argument_block import ArgumentBlock, allocation_sizes

HOST, DEVICE = True, False


def test_R20_the_block_is_arguments_tiling_data_and_embedded_bytes() -> None:
    block = ArgumentBlock(3)
    block.reset(tiling_bytes=16)
    assert block.embed(b"\x01\x02\x03\x04\x05", [0, 2]) == 40  # 3 * 8 + 16
    assert block.embed(b"\x06\x07", [1]) == 48  # 5 bytes take 8
    block.align()
    found = block.bytes([111, 222, 333], b"t" * 16, device_address=0x1000)
    expected = struct.pack("<3Q", 0x1000 + 40, 0x1000 + 48, 0x1000 + 40) + b"t" * 16
    expected += b"\x01\x02\x03\x04\x05\0\0\0" + b"\x06\x07\0\0"
    expected += b"\0" * (64 - 12)  # 12 bytes round up to 32, and 32 more
    assert found == expected


def test_R20_the_host_data_moves_with_the_tiling_data() -> None:
    block = ArgumentBlock(1)
    for tiling_bytes in (0, 8, 24, 0):
        block.reset(tiling_bytes)
        offset = block.embed(b"abcd", [0])
        assert offset == 8 + tiling_bytes
        assert block.records == [(0, offset)]
        assert block.bytes([0], b"x" * tiling_bytes, 0)[offset : offset + 4] == b"abcd"


def test_a_tensor_that_no_argument_uses_is_embedded_without_a_record() -> None:
    block = ArgumentBlock(1)
    block.embed(b"abcd", [])
    assert (block.records, block.merged_bytes) == ([], 4)


def test_the_budget_is_greedy_and_large_tensors_do_not_stop_small_ones() -> None:
    tensors = [(HOST, 100, 112), (HOST, 29, 64), (HOST, 28, 64), (DEVICE, 4, 64), (HOST, 0, 0), (HOST, 1, 64)]
    # 100 fit; 29 take 32 and do not; 28 do, which is all of 128; a device tensor needs nothing; nothing fits behind.
    assert allocation_sizes(0, tensors) == [0, 64, 0, 0, 0, 64]
    assert allocation_sizes(512, tensors) == [0, 64, 0, 0, 0, 64], "the limit moves with what is merged already"


@pytest.mark.parametrize("seed", range(20))
def test_what_is_embedded_never_exceeds_the_limit(seed: int) -> None:
    rng = random.Random(seed)
    tensors = [(rng.random() < 0.8, rng.randrange(0, 90), rng.randrange(64, 200)) for _ in range(17)]
    sizes = allocation_sizes(0, tensors)
    embedded = [-(-shape // 4) * 4 for (host, shape, _), size in zip(tensors, sizes, strict=True) if host and size == 0]
    assert sum(embedded) <= 128
    assert all(size in (0, given) for (_, _, given), size in zip(tensors, sizes, strict=True))
    for (host, shape, _), size in zip(tensors, sizes, strict=True):
        assert not (host and size and sum(embedded) + -(-shape // 4) * 4 <= 128), (
            f"seed {seed}: this one would have fitted"
        )


def test_R18_a_negative_size_is_an_error() -> None:
    with pytest.raises(ValueError, match="-4 bytes"):
        allocation_sizes(0, [(HOST, -4, 64)])
