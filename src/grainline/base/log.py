"""Messages go through Python's logging, under the name 'grainline', and nowhere else.

Nothing is printed unless the program configures logging or sets GRAINLINE_DEBUG. `warn_once` is for facts that a user
should learn one time per process, such as a cache folder that cannot be written.
"""

from __future__ import annotations

import logging
import warnings

from grainline.base import knobs

logger = logging.getLogger("grainline")
logger.addHandler(logging.NullHandler())

_warned: set[str] = set()


def is_shown(level: int) -> bool:
    """Whether the debug ladder has reached `level`."""
    return knobs.DEBUG.read() >= level


def debug(level: int, text: str) -> None:
    """Logs `text` when GRAINLINE_DEBUG is at least `level`."""
    if is_shown(level):
        logger.log(logging.INFO, text)


def warn_once(key: str, text: str) -> None:
    """One Python warning per key and process."""
    if key not in _warned:
        _warned.add(key)
        warnings.warn(text, RuntimeWarning, stacklevel=3)
