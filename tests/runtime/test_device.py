"""Devices, streams, events and allocators from Python: what they do, and what they refuse."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from grainline.base.errors import GrainlineError, KernelError, OptionError, OutOfMemory, SynchronizationError, TimedOut
from grainline.runtime.device import Allocator, Device, Event, Stream

MIB = 1 << 20


def fetched(stream: Stream, block: object, count: int) -> np.ndarray:
    array = np.empty(count, np.float32)
    stream.copy_out(array, block)
    stream.synchronize()
    return array


@pytest.mark.parametrize("name, asynchronous", [("cpu", False), ("cpu", True), ("discrete", False)])
def test_a_round_trip_through_the_device(name: str, asynchronous: bool) -> None:
    device = Device(name)
    assert device.is_unified == (name == "cpu")
    stream = Stream(device, asynchronous=asynchronous)
    assert stream.is_inline == (name == "cpu" and not asynchronous)
    allocator = Allocator(stream)
    data = np.arange(1000, dtype=np.float32)
    block = allocator.allocate(data.nbytes)
    stream.copy_in(block, data)
    assert np.array_equal(fetched(stream, block, 1000), data)
    allocator.free(block)
    allocator.finalize()
    assert allocator.statistics()["held_bytes"] == 0


def test_R23_a_buffered_copy_does_not_see_what_happens_to_the_array_afterwards() -> None:
    device = Device("discrete")
    stream = Stream(device)
    allocator = Allocator(stream)
    blocks = [allocator.allocate(4000) for _ in range(2)]
    arrays = [np.ones(1000, np.float32) for _ in range(2)]
    device.hold()
    for block, array, buffered in zip(blocks, arrays, (True, False), strict=True):
        stream.copy_in(block, array, buffered=buffered)
        array[:] = 2
    with pytest.raises(TimedOut):
        stream.synchronize(0.01)
    device.resume()
    assert fetched(stream, blocks[0], 1000).max() == 1
    assert fetched(stream, blocks[1], 1000).min() == 2


def test_R01_a_checked_device_refuses_what_is_not_ordered() -> None:
    device = Device("discrete", is_checked=True)
    load, run = Stream(device), Stream(device)
    weights = Allocator(load).allocate(4000)
    load.fill(weights, 1)
    with pytest.raises(SynchronizationError, match=r"stream 0 used the memory .* stream 1"):
        run.fill(weights, 2)
    event = Event()
    load.record(event)
    run.wait(event)
    run.fill(weights, 2)
    run.synchronize()
    load.synchronize()
    with pytest.raises(ValueError, match="belongs to another stream"):
        run.record(event)


def test_faults_are_reported_and_forgotten() -> None:
    device = Device("discrete")
    stream = Stream(device)
    block = Allocator(stream).allocate(4)
    device.inject("submission", after=1)
    stream.fill(block, 1)
    with pytest.raises(KernelError, match="injected"):
        stream.fill(block, 2)
    device.inject("completion")
    stream.fill(block, 3)
    with pytest.raises(KernelError, match="injected"):
        stream.synchronize()
    stream.fill(block, 4)
    stream.synchronize()


def test_capacity_fragments_and_trim() -> None:
    device = Device("discrete", capacity_bytes=4 * MIB, fragment_bytes=2 * MIB)
    allocator = Allocator(Stream(device))
    with pytest.raises(OutOfMemory, match="no memory for"):
        allocator.allocate(3 * MIB)
    blocks = [allocator.allocate(2 * MIB) for _ in range(2)]
    with pytest.raises(OutOfMemory, match="4194304 bytes held"):
        allocator.allocate(1)
    for block in blocks:
        allocator.free(block)
    assert device.statistics()["live_bytes"] == 4 * MIB, "freed memory stays with the allocator"
    assert allocator.trim() == 4 * MIB
    assert device.statistics()["live_bytes"] == 0
    small = Allocator(Stream(device), limit_bytes=MIB)
    with pytest.raises(OutOfMemory):
        small.allocate(MIB + 1)


def test_leaks_and_double_frees_are_found() -> None:
    allocator = Allocator(Stream(Device()))
    block = allocator.allocate(5000)
    allocator.share(block)
    allocator.free(block)
    assert block.uses == 1
    with pytest.raises(GrainlineError, match="1 memory blocks still in use"):
        allocator.finalize()
    allocator.free(block)
    with pytest.raises(ValueError, match="was freed"):
        allocator.free(block)
    allocator.finalize()


def test_two_streams_share_no_allocator() -> None:
    """An allocator is made for one stream; another one's refuses its blocks, and both go on."""
    device = Device("discrete", is_checked=True)
    one, other = (Allocator(Stream(device)) for _ in range(2))
    block = one.allocate(5000)
    one.stream.fill(block, 1)
    for call in (other.free, other.share):
        with pytest.raises(ValueError, match="belongs to another allocator"):
            call(block)
    with pytest.raises(SynchronizationError):
        other.stream.fill(block, 2)
    assert set(fetched(one.stream, block, 1000).tobytes()) == {1}
    other.free(other.allocate(5000))
    one.free(block)
    for allocator in (one, other):
        allocator.finalize()
    assert device.statistics()["live_bytes"] == 0


def test_a_block_keeps_what_it_needs() -> None:
    block = Allocator(Stream(Device("discrete"))).allocate(100)
    gc.collect()
    assert block.address % 64 == 0 and block.size_bytes == 100


@pytest.mark.parametrize(
    "make",
    [
        lambda: Device("gpu"),
        lambda: Device("cpu", capacity_bytes=MIB),
        lambda: Device("discrete", capacity_bytes=0),
        lambda: Device("discrete", fragment_bytes=-1),
        lambda: Device().hold(),
        lambda: Device("discrete").set_delay(float("nan")),
        lambda: Device("discrete").inject("sometimes"),
        lambda: Stream(Device()).synchronize(-1),
        lambda: Allocator(Stream(Device()), limit_bytes=0),
        lambda: Allocator(Stream(Device())).allocate(-1),
    ],
)
def test_what_cannot_be_used_is_named(make: object) -> None:
    with pytest.raises(OptionError):
        make()


def test_arrays_that_do_not_fit_are_refused() -> None:
    stream = Stream(Device("discrete"))
    block = Allocator(stream).allocate(64)
    with pytest.raises(ValueError, match="larger than the memory block"):
        stream.copy_in(block, np.zeros(1000, np.float32))
    with pytest.raises(TypeError, match="C-contiguous"):
        stream.copy_in(block, np.zeros((4, 4), np.float32).T)
    frozen = np.zeros(4, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(TypeError, match="read-only"):
        stream.copy_out(frozen, block)
