"""`grainline trace`: a few runs under the clock, written for a trace viewer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from grainline.session.trace import Trace
from grainline.tools.feeding import make_feeds
from grainline.tools.running import load_with_progress
from grainline.tools.writable import check_file


def trace_model(
    path: Path,
    input_options: Sequence[str],
    shape_options: Sequence[str],
    threads: int | None,
    output: Path,
    runs: int,
    seed: int,
) -> Iterator[str]:
    """Traces `runs` runs behind one that warms up; the lines say where the trace is and what is in it."""
    from grainline import _native

    check_file(output)
    model = load_with_progress(path, threads)
    feeds = make_feeds(model.inputs, input_options, shape_options, seed)
    model.run(feeds)
    trace = Trace()
    _native.start_pool_log()
    for _ in range(runs):
        trace.measure(model.compiled, feeds, None)
    trace.add_pool(_native.stop_pool_log())
    trace.save(str(output))
    tracks = {event["tid"] for event in trace.events if event["ph"] == "X"}
    yield f"{output}: {runs} runs, {len(trace.events)} events on {len(tracks)} tracks"
    yield "open it in https://ui.perfetto.dev or chrome://tracing"
