"""Lets long host work end early: whoever starts a run says how to ask, whoever loops asks.

    with cancelled_by(lambda: flag[0] != 0):
        ...                     # raise_if_cancelled() raises Cancelled once the flag is set

The question belongs to the context of the calling thread; outside of every `with` nobody cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from grainline.base.errors import Cancelled

_question: ContextVar[Callable[[], bool] | None] = ContextVar("grainline_cancelled", default=None)


@contextmanager
def cancelled_by(question: Callable[[], bool]) -> Iterator[None]:
    """Within the block, work of this thread ends with `Cancelled` soon after `question()` becomes true."""
    token = _question.set(question)
    try:
        yield
    finally:
        _question.reset(token)


def raise_if_cancelled() -> None:
    """Asks the innermost question, if there is one."""
    question = _question.get()
    if question is not None and question():
        raise Cancelled("the run was cancelled")
