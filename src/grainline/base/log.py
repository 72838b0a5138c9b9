"""Messages go through Python's logging, under the name 'grainline', and nowhere else.

Nothing is printed unless the program configures logging or sets GRAINLINE_DEBUG. `warn_once` is for facts that a user
should learn one time per process, such as a cache folder that cannot be written.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import TYPE_CHECKING

from grainline.base import knobs

if TYPE_CHECKING:  # logging is imported with the first message, not with the package
    from logging import Logger

_warned: set[str] = set()


@cache
def logger() -> Logger:
    """The logger 'grainline'; silent until the program configures logging."""
    import logging

    made = logging.getLogger("grainline")
    made.addHandler(logging.NullHandler())
    return made


def is_shown(level: int) -> bool:
    """Whether the debug ladder has reached `level`."""
    return knobs.DEBUG.read() >= level


def debug(level: int, text: str) -> None:
    """Logs `text` when GRAINLINE_DEBUG is at least `level`."""
    if is_shown(level):
        logger().info(text)


def warn_once(text: str) -> None:
    """One Python warning per distinct text and process."""
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def warn_in_one_line() -> None:
    """For programs, not for libraries: from now on warnings name no source line, which says nothing to their users."""
    warnings.formatwarning = lambda message, *_: f"grainline: warning: {message}\n"
