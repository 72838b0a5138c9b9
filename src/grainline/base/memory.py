"""How much memory there is to plan with."""

from __future__ import annotations

import os
import resource


def memory_bytes() -> int:
    """What the process may address: physical memory, or its own limit if that is lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    own, _ = resource.getrlimit(resource.RLIMIT_AS)
    return total if own == resource.RLIM_INFINITY else min(total, own)
