"""Which elements start:end:step picks: the clamping of ONNX's Slice, for bounds that are known numbers."""

from __future__ import annotations


def picked(extent: int, start: int, end: int, step: int) -> slice:
    """The Python slice of the same elements. Backward, a start below the first element is the first element, where
    Python picks nothing; all else is Python's.
    """
    begin, stop, step = slice(start, end, step).indices(extent)
    if step < 0 and extent > 0:
        begin = max(begin, 0)
    return slice(begin, stop if stop >= 0 else None, step)
