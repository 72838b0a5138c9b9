"""Laws that need a process of their own: signals, forks, and an interpreter that goes away."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grainline._native", reason="the native core is not built")

ROOT = Path(__file__).parents[2]

_PREPARE = """
import sys, os, time, threading, signal
sys.path[:0] = [{root!r}, {source!r}]
import numpy as np
from tests.runtime.test_native import chain, loaded, random_graph, feeds_of, CALLABLES, interpret
"""


def run_python(text: str, timeout_s: int = 60) -> str:
    program = _PREPARE.format(root=str(ROOT), source=str(ROOT / "src")) + text
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_ctrl_c_ends_a_long_run_promptly() -> None:
    output = run_python("""
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell has none
executor, tenth = loaded(chain(3000)), loaded(chain(300))
feed = {"x": np.zeros(1 << 20, np.int64)}
sent, begin = [], time.monotonic()
tenth.run(feed)
tenth_s = time.monotonic() - begin
def send():
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
threading.Timer(0.3, send).start()
try:
    executor.run(feed)
    print("finished")
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - sent[0] < 5 * tenth_s)  # half of what the whole run takes
print(executor.run({"x": np.zeros(2, np.int64)})[0].tolist())
""")
    assert output.split("\n")[:2] == ["interrupted True", "[3000, 3000]"]


def test_a_forked_child_runs_and_drops_the_model() -> None:
    output = run_python("""
executor = loaded(chain(4, cost_ps=10**9))
feed = {"x": np.arange(100000)}
expected = executor.run(feed)[0]
child = os.fork()
if child == 0:
    ok = np.array_equal(executor.run(feed)[0], expected)
    executor.unload()
    del executor
    again = loaded(chain(4))
    ok = ok and np.array_equal(again.run(feed)[0], expected)
    os._exit(0 if ok else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), np.array_equal(executor.run(feed)[0], expected))
""")
    assert output.strip() == "0 True"


def test_a_fork_while_other_threads_run_does_not_hang_the_child() -> None:
    output = run_python("""
executor = loaded(chain(20))
feed = {"x": np.arange(20000)}
expected = executor.run(feed)[0]
stop = []
def work():
    while not stop:
        executor.run(feed)
    ended.append(True)
ended = []
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
codes = []
for _ in range(10):
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(executor.run(feed)[0], expected) else 1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop.append(1)
for thread in threads: thread.join()
print(set(codes), len(ended))
""")
    assert output.strip() == "{0} 3"


def test_large_work_uses_more_than_one_thread_where_allowed() -> None:
    output = run_python("""
from grainline import _native
executor = loaded(chain(4, cost_ps=10**10))
for _ in range(3):
    executor.run({"x": np.zeros(1 << 20, np.int64)})
print(_native.processors() > 1, _native.threads_started() > 0)
limited = loaded(chain(4, cost_ps=10**10), threads=1)
limited.run({"x": np.zeros(1 << 10, np.int64)})
""")
    several, started = output.split()
    assert several == started


def test_dropping_models_gives_memory_back() -> None:
    output = run_python("""
import resource, gc
def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096
def once(seed):
    executor = loaded(random_graph(seed % 5))
    executor.run(feeds_of(5000))
for seed in range(50): once(seed)
gc.collect()
before = resident()
for seed in range(300): once(seed)
gc.collect()
print(resident() - before)
""")
    assert int(output) < 4 << 20


def test_a_run_whose_workers_cannot_start_fails_and_the_next_one_works() -> None:
    output = run_python("""
import resource
from grainline.base.errors import OutOfMemory
import grainline.runtime.failures  # what reports it needs no room then
graph = random_graph(3)
executor = loaded(graph, executor="multi-worker", workers=8)
feeds = feeds_of(50)
expected = interpret(graph, feeds, CALLABLES)
before = resource.getrlimit(resource.RLIMIT_AS)
with open("/proc/self/statm") as f:
    size = int(f.read().split()[0]) * resource.getpagesize()
refused = 0
for room_mib in (4, 20):
    resource.setrlimit(resource.RLIMIT_AS, (size + (room_mib << 20), before[1]))
    try:
        executor.run(feeds)
    except OutOfMemory:
        refused += 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
found = executor.run(feeds)
print(refused, all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True)))
""")
    assert output.split() == ["2", "True"]


def test_a_native_module_of_other_sources_is_refused_at_every_import() -> None:
    output = run_python("""
import grainline
grainline._BINDING_VERSION += 1
del grainline._native  # as in a process that did not import it yet
for _ in range(2):
    try:
        from grainline import _native
    except grainline.BuildError as error:
        print("make" in error.remedy, error.found == grainline._BINDING_VERSION - 1)
""")
    assert output.split() == ["True"] * 4
