"""Who wants to know how far a long job is.

The parts that work call `report`; it costs a context lookup when nobody listens. The command line installs a listener
with `listening`; the library never prints by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, int, int], None]

_listener: ContextVar[Listener | None] = ContextVar("grainline_progress", default=None)


def report(step: str, done: int = 0, total: int = 0) -> None:
    """Says that `done` of `total` units of `step` are finished; total 0 means that the size is not known."""
    listener = _listener.get()
    if listener is not None:
        listener(step, done, total)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within the block, `listener(step, done, total)` receives every report of this context."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
