"""What several workers and a device with memory of its own cost, and what they hide.

    python benchmarks/executor_workers.py [--rounds N]

Three tables. *Host*: what one worker does of a run beside its launches, from the begin of the first node to the end of
the last one. The clock that is read twice a node lies between the nodes and counts as the host's, so the share without
it is below; that of the host's nodes by themselves stands beside. The arguments of a launch are the launch's.
*Workers*: an encoder run by one worker and by several, on the host and on `discrete`. *Latency*: every
command of the device takes longer by a given time; the host's own work should disappear behind it, so a run should take
what the critical path says: the submissions as they were made, then each command behind its submission and behind the
command before it.

All arms run in one process, one after the other, in an order that changes every round; a ratio is taken within a
round. `again` is the first arm once more: how much two equal things differ here and now. No thread spins between runs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from common import ENCODERS, encoder_feeds, machine, model_path, print_table, verdict

import grainline
from grainline.execgraph.registry import KERNELS, LAUNCH

SEVERAL: dict[str, dict[str, Any]] = {
    "2 workers": {"executor": "multi-worker", "workers": 2},
    "3 workers": {"executor": "multi-worker", "workers": 3},
}
ARMS: dict[str, dict[str, Any]] = {
    "cpu, sequential": {},
    "again": {},
    **{f"cpu, {name}": options for name, options in SEVERAL.items()},
    "discrete, sequential": {"device": "discrete"},
    **{f"discrete, {name}": {"device": "discrete", **options} for name, options in SEVERAL.items()},
}
HOST_PERCENT = 3.0
DELAYS_S = (0.0, 20e-6, 100e-6, 500e-6)


def rounds_of(arms: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Microseconds of each arm, by round; the first call of a turn is not counted."""
    found: dict[str, list[float]] = {name: [] for name in arms}
    names = list(arms)
    for number in range(rounds):
        at = number % len(names)
        for name in names[at:] + names[:at]:
            arms[name]()
            begin_ns = time.perf_counter_ns()
            arms[name]()
            found[name].append((time.perf_counter_ns() - begin_ns) / 1e3)
    return found


def ratio(times: list[float], base: list[float]) -> str:
    """Median of the ratios within a round, and their quartiles."""
    low, middle, high = statistics.quantiles([a / b for a, b in zip(times, base)], n=4)
    return f"{middle:.2f} [{low:.2f} {high:.2f}]"


def host_shares(records: list[dict[str, Any]]) -> tuple[float, float]:
    """Of one run: the part of its time in which no launch ran, and the part of the nodes that are no launches."""
    end_ns = max(record["start_ns"] + record["elapsed_ns"] for record in records)
    span_ns = end_ns - min(record["start_ns"] for record in records)
    launches_ns = sum(record["elapsed_ns"] for record in records if record["kernel"] == "Launch")
    nodes_ns = sum(record["elapsed_ns"] for record in records)
    return 1 - launches_ns / span_ns, (nodes_ns - launches_ns) / span_ns


def host_table(path: str, name: str, shape: tuple[int, int], rounds: int) -> None:
    models = {threads: grainline.load(path, threads=threads) for threads in (1, 2)}
    feeds = encoder_feeds([info.name for info in models[1].inputs], *shape)
    found: dict[int, list[tuple[float, float]]] = {threads: [] for threads in models}
    for number in range(rounds + 5):
        for threads, model in models.items():
            shares = host_shares(model.compiled.executor.run_profiled(feeds)[1])
            if number >= 5:  # warm
                found[threads].append(shares)
    rows = []
    for threads, pairs in found.items():
        beside, nodes = zip(*pairs)
        low, middle, high = (f"{100 * share:.1f}" for share in statistics.quantiles(beside, n=4))
        nodes_percent = f"{100 * statistics.median(nodes):.1f}"
        rows.append((threads, f"{middle} [{low} {high}]", nodes_percent, verdict(float(middle), HOST_PERCENT)))
    head = ("threads", "% of the run, median [quartiles]", "% in nodes", f"<= {HOST_PERCENT:.0f} %")
    print_table(f"{name} at {shape}: everything but launches", head, rows)


def workers_table(path: str, name: str, shape: tuple[int, int], rounds: int) -> None:
    models = {arm: grainline.load(path, **options) for arm, options in ARMS.items()}
    feeds = encoder_feeds([info.name for info in next(iter(models.values())).inputs], *shape)
    times = rounds_of({arm: (lambda m=m: m.run(feeds)) for arm, m in models.items()}, rounds)
    base = times["cpu, sequential"]
    mean_us = statistics.mean(launch_times(models["cpu, sequential"], feeds)) / 1e3
    rows = [
        (arm, f"{statistics.median(t):.0f}", ratio(t, base), f"{min(t) / min(base):.2f}") for arm, t in times.items()
    ]
    title = f"{name} at {shape}, launches of {mean_us:.0f} us on average"
    print_table(title, ("arm", "us", "ratio, median [quartiles]", "ratio of minima"), rows)


def launch_times(model: grainline.Model, feeds: Any) -> list[float]:
    """Nanoseconds of every launch, each the median of several runs."""
    runs = [model.compiled.executor.run_profiled(feeds)[1] for _ in range(15)]
    kept = [[r["elapsed_ns"] for r in run if r["kernel"] == "Launch"] for run in runs]
    return [statistics.median(column) for column in zip(*kept)]


def latency_table(path: str, name: str, shape: tuple[int, int], rounds: int) -> None:
    host = grainline.load(path)
    feeds = encoder_feeds([info.name for info in host.inputs], *shape)
    kernels_ns = launch_times(host, feeds)
    rows = []
    for delay_s in DELAYS_S:
        device = grainline.Device("discrete")
        arms = {
            "sequential": grainline.load(path, device=device),
            "3 workers": grainline.load(path, device=device, **SEVERAL["3 workers"]),
        }
        device.set_delay(delay_s)
        times = rounds_of({arm: (lambda m=m: m.run(feeds)) for arm, m in arms.items()}, rounds)
        command_ns = command_time(device) if delay_s else 0.0  # else it is the submission's time
        for arm, model in arms.items():
            predicted_us, host_us = critical_path(model, feeds, kernels_ns, command_ns)
            measured = statistics.median(times[arm])
            numbers = [delay_s * 1e6, command_ns / 1e3, host_us, predicted_us, measured]
            rows.append((arm, *(f"{number:.0f}" for number in numbers), f"{measured / predicted_us:.2f}"))
    head = ("arm", "delay, us", "a command, us", "host work, us", "critical path, us", "measured, us", "ratio")
    print_table(f"{name} at {shape}: latency of the device", head, rows)


def command_time(device: grainline.Device, commands: int = 100) -> float:
    """Nanoseconds that an empty command takes: a delay that sleeps takes longer than it was asked to."""
    stream = grainline.Stream(device)
    block = grainline.Allocator(stream).allocate(64)
    begin_ns = time.perf_counter_ns()
    for _ in range(commands):
        stream.fill(block, 0)
    stream.synchronize()
    return (time.perf_counter_ns() - begin_ns) / commands


def critical_path(
    model: grainline.Model, feeds: Any, kernels_ns: list[float], command_ns: float
) -> tuple[float, float]:
    """Microseconds of a run as its submissions say, and of all nodes on the host."""
    _, records = model.compiled.executor.run_profiled(feeds)
    begin_ns = min(record["start_ns"] for record in records)
    kernels = iter(kernels_ns)
    done_ns = 0.0
    submits = ("EnsureTensorAtOutMemory", "CopyH2D")
    for record in records:
        if KERNELS[record["kernel"]].section != LAUNCH and record["kernel"] not in submits:
            continue
        work_ns = next(kernels) if record["kernel"] == "Launch" else 0.0
        submitted_ns = record["start_ns"] - begin_ns
        is_copy_without_command = record["kernel"] == "LaunchCopyFlowH2D"  # what is embedded needs none
        done_ns = max(done_ns, submitted_ns) + (0 if is_copy_without_command else work_ns + command_ns)
    return done_ns / 1e3, sum(record["elapsed_ns"] for record in records) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    print(machine())
    name = "MiniLM-L6 int8"
    path = model_path(ENCODERS[name])
    host_table(path, name, (1, 8), rounds * 4)
    for shape in ((1, 8), (1, 64)):
        workers_table(path, name, shape, rounds if shape == (1, 8) else rounds // 3)
    latency_table(path, name, (1, 8), rounds // 3)


if __name__ == "__main__":
    main()
