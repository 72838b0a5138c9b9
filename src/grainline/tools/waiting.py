"""A progress line for work that takes long: on stderr, only on a terminal, only after half a second."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from grainline.base import progress

PATIENCE_S = 0.5


@contextmanager
def progress_on_stderr(title: str) -> Iterator[None]:
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner

    spinner = Spinner("dots", title)
    # what the command prints goes above the line where both are the same terminal, and to a file or pipe unchanged
    line = Live(spinner, console=Console(stderr=True), transient=True, redirect_stdout=sys.stdout.isatty())
    timer = threading.Timer(PATIENCE_S, line.start)
    timer.daemon = True

    def show(step: str, done: int, total: int) -> None:
        spinner.update(text=f"{title}: {step}" + (f" {done}/{total}" if total else ""))

    timer.start()
    try:
        with progress.listening(show):
            yield
    finally:
        timer.cancel()
        timer.join()
        line.stop()
