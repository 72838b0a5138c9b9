"""Host operators of our own, one file per family: (domain, operator) -> function of a HostCall giving the outputs.

A function may return NotImplemented to hand the call to the reference implementation.
"""

from __future__ import annotations

from typing import Any

TABLE: dict[tuple[str, str], Any] = {}
