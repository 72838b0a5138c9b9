"""Events in the format that trace viewers read (Chrome, Perfetto), on one track per worker, stream and pool thread.

Times are nanoseconds of the monotonic clock; a file has microseconds since the trace began. Kinds of events (`ph`): X a
span, s and f the two ends of an arrow, C a counter, M the name of a track. A track is a thread of the file: the calling
thread has its system's number, all others a number of ours.
"""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Mapping
from typing import Any

#: first track of each kind; system thread numbers are smaller
_WORKERS, _STREAMS, _POOL = 1 << 24, 2 << 24, 3 << 24


def worker_track(worker: int, caller: int) -> int:
    """Worker 0 is the thread that calls; it also holds the span of the whole run."""
    return _WORKERS + worker if worker else caller


def stream_track(stream: int) -> int:
    return _STREAMS + stream


def pool_track(home: int) -> int:
    return _POOL + home


class Timeline:
    """Collects events; may be filled from several threads. `events` is what a file holds."""

    def __init__(self, start_ns: int) -> None:
        self.start_ns = start_ns
        self.events: list[dict[str, Any]] = []
        self._arrows = itertools.count(1)
        self._named: set[int] = set()
        self._spans: dict[int, list[tuple[int, int]]] = {}  # by stream track, as begin and end

    def name_track(self, track: int, name: str) -> None:
        if track not in self._named:
            self._named.add(track)
            self._add("M", "thread_name", track, self.start_ns, args={"name": name})

    def span(self, track: int, name: str, kind: str, begin_ns: int, elapsed_ns: int, facts: Mapping[str, Any]) -> None:
        self._add("X", name, track, begin_ns, cat=kind, dur=elapsed_ns / 1e3, args=dict(facts))

    def stream_span(self, track: int, name: str, begin_ns: int, elapsed_ns: int, facts: Mapping[str, Any]) -> None:
        bisect.insort(self._spans.setdefault(track, []), (begin_ns, begin_ns + elapsed_ns))
        self.span(track, name, "Stream", begin_ns, elapsed_ns, facts)

    def stream_at(self, begin_ns: int, end_ns: int) -> int | None:
        """The stream track with a span around this time."""
        for track, spans in self._spans.items():
            at = bisect.bisect_right(spans, begin_ns, key=lambda span: span[0]) - 1
            if at >= 0 and end_ns <= spans[at][1]:
                return track
        return None

    def arrow(self, name: str, source: tuple[int, int], target: tuple[int, int]) -> None:
        """From one (track, time) to another; each end lies in the span that is open there."""
        number = next(self._arrows)
        self._add("s", name, *source, cat="flow", id=number)
        self._add("f", name, *target, cat="flow", id=number, bp="e")

    def counter(self, name: str, at_ns: int, value: int) -> None:
        self._add("C", name, 0, at_ns, args={"bytes": value})

    def _add(self, phase: str, name: str, track: int, at_ns: int, **more: Any) -> None:
        at_us = (at_ns - self.start_ns) / 1e3
        self.events.append({"name": name, "ph": phase, "ts": at_us, "pid": os.getpid(), "tid": track, **more})
