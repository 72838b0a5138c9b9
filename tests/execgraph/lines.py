"""Lines as a measure of work, and as places where it may fail."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def lines_of(work: Callable[[], object], fail_at: int = 0) -> int:
    """The lines that `work` runs; every turn of a comprehension is one too. MemoryError from line `fail_at`, from 1."""
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        if event == "line":
            count += 1
            if count == fail_at:
                raise MemoryError("injected")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
