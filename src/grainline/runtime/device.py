"""Where a model may run, and what a run is given: `Device`, `Stream`, `Event`, `Allocator`.

`Device("cpu")` is the host itself: unified memory, and streams that do everything at once, or in a thread of their own
where that is asked for. `Device("discrete")` is a stand-in accelerator on the host, with memory of its own and work
that completes later than it was submitted; it exists to exercise copies, recycling and order, and can be disturbed.

An allocator serves one stream. Calls on one allocator come from one thread at a time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from grainline.base.errors import OptionError
from grainline.base.knobs import DEVICES, Options

#: the longest wait that fits into 64 bits of nanoseconds
LONGEST_TIMEOUT_S = 9e9
NO_TIMEOUT_NS = -1


class Device:
    """A place with memory. `name`: "cpu" or "discrete".

    Of `discrete` only: `capacity_bytes` of memory, in pieces that never cross a border between fragments of
    `fragment_bytes` (0: one fragment); `is_checked` makes it refuse work whose order against another stream is missing.
    """

    def __init__(
        self,
        name: str = "cpu",
        *,
        capacity_bytes: int | None = None,
        fragment_bytes: int | None = None,
        is_checked: bool | None = None,
    ) -> None:
        from grainline import _native

        if name not in DEVICES:
            raise OptionError("there is no such device", expected="'cpu' or 'discrete'", found=repr(name))
        self._given: tuple[Any, ...] = (name, capacity_bytes, fragment_bytes, is_checked)
        given = {"capacity_bytes": capacity_bytes, "fragment_bytes": fragment_bytes, "is_checked": is_checked}
        if name == "cpu":
            if refused := [option for option, value in given.items() if value is not None]:
                raise OptionError(f"the option {refused[0]} belongs to the device 'discrete'", found="'cpu'")
            self.native: Any = _native.CpuDevice()
            return
        capacity = _count("capacity_bytes", capacity_bytes, 256 << 20, least=1)
        fragment = _count("fragment_bytes", fragment_bytes, 0, least=0)
        self.native = _native.DiscreteDevice(capacity, fragment, bool(is_checked))

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is another device of the same kind, with memory of its own."""
        return _device, self._given

    @property
    def name(self) -> str:
        return str(self.native.name)

    @property
    def is_unified(self) -> bool:
        """Whether host memory is device memory, so that nothing needs to be copied."""
        return bool(self.native.is_unified)

    def statistics(self) -> dict[str, int]:
        """Of `discrete`: capacity_bytes, live_bytes, peak_bytes, largest_free_bytes."""
        return dict(self._discrete().statistics())

    def set_delay(self, seconds: float) -> None:
        """Of `discrete`: every command takes this much longer."""
        self._discrete().set_delay(_nanoseconds(seconds))

    def hold(self) -> None:
        """Of `discrete`: nothing completes until `resume`; submitting goes on."""
        self._discrete().hold()

    def resume(self) -> None:
        self._discrete().resume()

    def inject(self, moment: str, *, after: int = 0, end_of_sequence: bool = False) -> None:
        """Of `discrete`: the command after `after` more of them fails, once, at "submission" or at "completion"."""
        if moment not in ("submission", "completion"):
            raise OptionError("there is no such moment", expected="'submission' or 'completion'", found=repr(moment))
        self._discrete().inject(moment == "completion", _count("after", after, 0, least=0), end_of_sequence)

    def _discrete(self) -> Any:
        if self.name != "discrete":
            raise OptionError("only the device 'discrete' can do that", found=repr(self.name))
        return self.native


def device_of(options: Options) -> Device | None:
    """The device that options name, made where only its name is given; None: the host."""
    if isinstance(options.device, Device):
        return options.device
    return None if options.device in (None, "cpu") else Device(options.device)


def _device(name: str, capacity_bytes: int | None, fragment_bytes: int | None, is_checked: bool | None) -> Device:
    return Device(name, capacity_bytes=capacity_bytes, fragment_bytes=fragment_bytes, is_checked=is_checked)


class Stream:
    """An ordered queue of work on `device`.

    `asynchronous`: whether submitting and completing are two moments. Always so on `discrete`; on `cpu` a stream does
    everything at once unless True is given.
    """

    def __init__(self, device: Device, *, asynchronous: bool = False) -> None:
        self.device = device
        has_choice = asynchronous and device.name == "cpu"
        self.native: Any = device.native.create_asynchronous_stream() if has_choice else device.native.create_stream()
        self._borrowed: list[np.ndarray[Any, Any]] = []  # host memory that submitted copies still use

    @property
    def is_inline(self) -> bool:
        return bool(self.native.is_inline)

    def copy_in(self, block: Any, array: np.ndarray[Any, Any], *, buffered: bool = True) -> None:
        """Submits a copy of a C-contiguous array to a memory block. Not `buffered`: it is read when the copy runs."""
        self.native.copy_in(block, array, buffered)
        if not buffered:
            self._borrowed.append(array)

    def copy_out(self, array: np.ndarray[Any, Any], block: Any) -> None:
        """Submits a copy of the first bytes of a block into a C-contiguous array; it is there after `synchronize`."""
        self.native.copy_out(array, block)
        self._borrowed.append(array)

    def fill(self, block: Any, value: int) -> None:
        """Submits writing one byte value over a block."""
        self.native.fill(block, value)

    def record(self, event: Event) -> None:
        """The event is complete when all work submitted so far is. An event belongs to the stream that records it."""
        self.native.record(event.native)

    def wait(self, event: Event) -> None:
        """Work submitted from now on runs after the newest record of the event."""
        self.native.wait(event.native)

    def synchronize(self, timeout_s: float | None = None) -> None:
        """Waits for submitted work. Raises TimeoutError, or what the first command that failed met."""
        self.native.synchronize(_nanoseconds(timeout_s))
        self._borrowed.clear()


class Event:
    """A mark in a stream that other streams, or the host, can wait for."""

    def __init__(self) -> None:
        from grainline import _native

        self.native: Any = _native.Event()

    def synchronize(self, timeout_s: float | None = None) -> None:
        """Waits for the newest record; returns at once when there is none. Raises TimeoutError."""
        self.native.synchronize(_nanoseconds(timeout_s))


class Allocator:
    """The memory of one stream: a pool that keeps what was freed for the next request.

    `limit_bytes`: never holds more than that (None: as much as the device has). `timeout_s` bounds the wait for the
    stream before memory is given back.
    """

    def __init__(self, stream: Stream, *, limit_bytes: int | None = None, timeout_s: float | None = None) -> None:
        from grainline import _native

        self.stream = stream
        limit = 0 if limit_bytes is None else _count("limit_bytes", limit_bytes, 0, least=1)
        self.native: Any = _native.Allocator(stream.device.native, stream.native, limit, _nanoseconds(timeout_s))

    def allocate(self, size_bytes: int) -> Any:
        """A memory block (address, size_bytes, capacity_bytes, uses) with one use. Raises OutOfMemory."""
        return self.native.allocate(_count("size_bytes", size_bytes, 0, least=0))

    def share(self, block: Any) -> None:
        """One more use of a block. ValueError as `free`."""
        self.native.share(block)

    def free(self, block: Any) -> None:
        """One use less; the memory goes back to the pool with the last. ValueError for a block that was freed,
        or that belongs to another allocator."""
        self.native.free(block)

    def trim(self) -> int:
        """Waits for the stream, then gives idle memory back to the device; returns the bytes."""
        return int(self.native.trim())

    def finalize(self) -> None:
        """Gives everything back. GrainlineError, with a list, when blocks are still in use."""
        self.native.finalize()

    def statistics(self) -> dict[str, int]:
        """held, occupied, idle and live bytes with their peaks; live_blocks; allocations, growths, recycles, waits.

        peak_live_bytes is what no allocator could do without; growths and recycles count pieces taken from the device
        and given back; waits counts the times that gate and stream were waited for.
        """
        return dict(self.native.statistics())


def _count(option: str, value: int | None, default: int, least: int) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 63:
        raise OptionError(f"the option {option} cannot be used", expected=f"an integer >= {least}", found=repr(value))
    return value


def _nanoseconds(seconds: float | None) -> int:
    if seconds is None:
        return NO_TIMEOUT_NS
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or math.isnan(seconds) or seconds < 0:
        raise OptionError("this time cannot be used", expected="seconds >= 0, or None", found=repr(seconds))
    return int(min(seconds, LONGEST_TIMEOUT_S) * 1e9)
