"""From the status of the native core to the exception that the caller sees."""

from __future__ import annotations

from grainline.base.errors import (
    Cancelled,
    EndOfSequence,
    FeedError,
    GrainlineError,
    KernelError,
    OutOfMemory,
    SynchronizationError,
    TimedOut,
)

_CLASSES: dict[str, type[GrainlineError]] = {
    "invalid_argument": FeedError,
    "out_of_memory": OutOfMemory,
    "out_of_bounds": KernelError,
    "divide_by_zero": KernelError,
    "kernel_failed": KernelError,
    "host_failed": KernelError,
    "cancelled": Cancelled,
    "timed_out": TimedOut,
    "missing_synchronization": SynchronizationError,
    "end_of_sequence": EndOfSequence,
}


def failure(code: str, message: str, node: str, cause: BaseException | None) -> BaseException:
    """The exception to raise. `cause` is what a Python callable raised inside the run.

    What is no error of an operator (KeyboardInterrupt, a cancelled inner run) passes through as it is, and so does a
    typed error of an operator on the host, which names its node itself.
    """
    if isinstance(cause, Cancelled) or (cause is not None and not isinstance(cause, Exception)):
        return cause
    if isinstance(cause, GrainlineError) and not isinstance(cause, FeedError) and cause.node is not None:
        return cause
    error = _CLASSES.get(code, GrainlineError)(message, node=None if code == "invalid_argument" else node or None)
    error.__cause__ = cause
    return error
