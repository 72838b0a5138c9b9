"""What a process sees: threads, processor time, memory, bits, Ctrl-C. Each case runs in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grainline.plan.machine import machine_text, shipped_machine
from grainline.plan.target import host_target

PRELUDE = """
import json, os, resource, sys, threading, time
import numpy as np, onnx
from onnx import TensorProto, helper, numpy_helper
import grainline

def products(count, width):
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array((rng.standard_normal((width, width)) / width**0.5).astype(np.float32), f"w{i}")
               for i in range(count)]
    names = ["x", *(f"h{i}" for i in range(count - 1)), "y"]
    nodes = [helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(count)]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", width]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "products", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()

def through_host(model):
    # A host operator behind it, which lets everything through.
    proto = onnx.load_from_string(model)
    width = proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value
    proto.graph.node[-1].output[0] = "all"
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(width, bool), "those"))
    proto.graph.node.append(helper.make_node("Compress", ["all", "those"], ["y"], axis=1))
    return proto.SerializeToString()

def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20

def thread_count():
    return len(os.listdir("/proc/self/task"))

x = np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32)
"""


def fresh(code: str, timeout: float = 120, **environ: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_nothing_runs_between_calls() -> None:
    used_s = fresh("""
model = grainline.load(products(4, 256))
for _ in range(20): model(x=x)
time.sleep(0.05); begin = time.process_time(); time.sleep(1.0)
print(json.dumps(time.process_time() - begin))
""")
    assert used_s < 0.1, f"an idle process used {used_s * 1e3:.1f} ms of a second; one that spins would use all of it"


@pytest.mark.parametrize("variable", ["OMP_NUM_THREADS", "GRAINLINE_NUM_THREADS"])
def test_one_thread_means_no_thread_more(variable: str) -> None:
    more = fresh(
        "before = thread_count(); grainline.load(products(4, 256))(x=x); print(json.dumps(thread_count() - before))",
        **{variable: "1"},
    )
    assert more == 0


def test_threads_follow_affinity() -> None:
    more = fresh("""
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
before = thread_count(); grainline.load(products(4, 256))(x=x); print(json.dumps(thread_count() - before))
""")
    assert more == 0


def test_threads_that_may_not_spin_give_the_same_bits() -> None:
    found = [
        fresh(
            """
import hashlib
wide = np.linspace(-1, 1, 512 * 1024, dtype=np.float32).reshape(512, 1024)
model = grainline.load(products(4, 1024))
outputs = [model(x=wide) for _ in range(5)]
print(json.dumps([len({o.tobytes() for o in outputs}), hashlib.sha256(outputs[0].tobytes()).hexdigest()]))
""",
            GRAINLINE_HOT_THREADS=flag,
        )
        for flag in ("1", "0")
    ]
    assert found[0] == found[1] and found[0][0] == 1


def test_launches_know_what_waking_costs_when_no_thread_is_hot(tmp_path: Path) -> None:
    """The same launch on one thread or on all, by the price of a wake-up; awake threads do not care."""
    shipped = shipped_machine(host_target())
    homes = {}
    for name, price in (("free", 0.0), ("dear", 1e12)):
        path = tmp_path / f"{name}.json"
        path.write_text(machine_text(replace(shipped, condvar_paid_ps=price, condvar_delay_ps=price), {}))
        for flag in ("0", "1"):
            homes[name, flag] = fresh(
                """
wide = np.linspace(-1, 1, 512 * 1024, dtype=np.float32).reshape(512, 1024)
executor = grainline.load(products(1, 1024)).compiled.executor
print(json.dumps([r["homes"] for r in executor.run_profiled({"x": wide})[1] if r["kernel"] == "Launch"]))
""",
                GRAINLINE_HOT_THREADS=flag,
                GRAINLINE_MACHINE_FILE=str(path),
                GRAINLINE_CACHE_DIR=str(tmp_path),
            )
    most = host_target().homes
    assert homes == {("free", "0"): [most], ("free", "1"): [most], ("dear", "1"): [most], ("dear", "0"): [1]}


def test_many_models_share_one_pool_and_their_weights() -> None:
    more, each_mib = fresh("""
import tempfile
with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
    file.write(products(8, 1024)); file.flush()
    wide = np.ones((4, 1024), np.float32)
    models = [grainline.load(file.name)]; models[0](x=wide)
    threads, begin = thread_count(), resident_mib()
    for _ in range(7):
        models.append(grainline.load(file.name)); models[-1](x=wide)
    print(json.dumps([thread_count() - threads, (resident_mib() - begin) / 7]))
""")
    assert more == 0, f"{more} threads more for 7 models"
    assert each_mib < 8, f"a further model over the same 32 MiB file costs {each_mib:.1f} MiB"


def test_a_fork_while_another_thread_compiles() -> None:
    ended = fresh("""
import signal
from grainline.codegen import llvm
compile_object, inside = llvm.compile_object, threading.Event()
def slowly(*arguments):
    inside.set(); time.sleep(0.3)
    return compile_object(*arguments)
llvm.compile_object = slowly
thread = threading.Thread(target=grainline.load, args=(products(1, 64),), kwargs={"cache": False}); thread.start()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    llvm.compile_object = compile_object
    y = grainline.load(products(2, 128), cache=False)(x=x[:, :128])
    os._exit(0 if y.shape == (64, 128) else 1)
thread.join()
print(json.dumps(os.waitpid(child, 0)[1]))
""")
    assert ended == 0, f"the child ended with {ended}; 14 is the alarm: it waited for a thread that it does not have"


def test_a_table_that_is_looked_up_stays_pages_of_its_file() -> None:
    private_mib, dirty_kib, mapped_kib = fresh("""
import tempfile
def private_mib():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) / 1024
def pages(path, kind):
    with open("/proc/self/smaps") as file:
        lines = [line.split() for line in file]
    return sum(int(next(line[1] for line in lines[at:] if line[0] == kind))
               for at, first in enumerate(lines) if first[-1] == path)
table = numpy_helper.from_array(np.arange(1 << 23, dtype=np.float32).reshape(-1, 256), "t")
ends = [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 256])]
graph = helper.make_graph([helper.make_node("Gather", ["t", "ids"], ["y"])], "table", ends[:1], ends[1:], [table])
texts = [helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
                           producer_name="p" * pad).SerializeToString() for pad in range(4)]
with tempfile.NamedTemporaryFile(suffix=".onnx") as file:  # where it lies at a multiple of an element
    file.write(next(text for text in texts if text.find(table.raw_data) % 4 == 0)); file.flush(); os.fsync(file.fileno())
    del texts, graph, table
    model = grainline.load(file.name)
    model(ids=np.arange(64)); before = private_mib()
    for first in range(0, 1 << 15, 64):
        assert model(ids=np.arange(first, first + 64))[0, 0] == first * 256
    print(json.dumps([private_mib() - before, pages(file.name, "Private_Dirty:"), pages(file.name, "Rss:")]))
""")
    assert private_mib < 4, f"reading a table of 32 MiB in the model's file made {private_mib:.1f} MiB of memory ours"
    assert dirty_kib == 0, "pages of the file are shared and clean"
    assert mapped_kib > 32000, "the table was read through the mapping"


def test_dropped_models_give_their_memory_back() -> None:
    grown = fresh("""
import gc
def once():
    grainline.load(products(4, 512))(x=np.ones((8, 512), np.float32)); gc.collect()
for _ in range(4): once()
begin = resident_mib()
for _ in range(20): once()
print(json.dumps(resident_mib() - begin))
""")
    assert grown < 24, f"20 models of 4 MiB made and dropped left {grown:.0f} MiB"


def test_a_spike_comes_back_after_trim() -> None:
    kept = fresh("""
model = grainline.load(products(4, 256)); model(x=x)
begin = resident_mib()
model(x=np.ones((60000, 256), np.float32)); model(x=x); model.trim()
print(json.dumps(resident_mib() - begin))
""")
    assert kept < 24, f"{kept:.0f} MiB kept after a 60 MiB request and trim"


def test_the_same_bits_for_any_number_of_threads_and_any_company() -> None:
    assert fresh("""
data, one, same = products(5, 256), None, True
for threads in (1, 2, 3, 8):
    model = grainline.load(data, threads=threads)
    for _ in range(3):
        y = model(x=x)
        one = y if one is None else one
        same &= y.tobytes() == one.tobytes()
    for rows in (1, 2, 5, 7, 33):
        same &= model(x=x[:rows]).tobytes() == one[:rows].tobytes()
print(json.dumps(bool(same)))
""")


def test_many_threads_of_one_model_agree_with_one() -> None:
    assert fresh("""
model = grainline.load(products(4, 256)); feeds = [x[:n] for n in (1, 3, 17, 64)]
want, wrong, done = [model(x=f).tobytes() for f in feeds], [], []
def work(k):
    for j in range(60):
        i = (k + j) % 4
        if model(x=feeds[i]).tobytes() != want[i]: wrong.append((k, j))
    done.append(k)
threads = [threading.Thread(target=work, args=(k,)) for k in range(12)]
[t.start() for t in threads]; [t.join(60) for t in threads]
print(json.dumps(not wrong and len(done) == 12))
""")


def test_terminate_ends_a_long_run_and_the_session_goes_on() -> None:
    lag, right = fresh("""
session = grainline.InferenceSession(products(200, 512))
wide, options, set_at = np.ones((6000, 512), np.float32), grainline.RunOptions(), []
begin = time.monotonic(); session.run(None, {"x": wide[:600]}); tenth_s = time.monotonic() - begin
def stop(): set_at.append(time.monotonic()); options.terminate = True
threading.Timer(0.3, stop).start()
try:
    session.run(None, {"x": wide}, options); lag = None
except grainline.Cancelled:
    lag = (time.monotonic() - set_at[0]) / tenth_s
print(json.dumps([lag, session.run(None, {"x": wide[:1]})[0].shape == (1, 512)]))
""")
    assert right and lag is not None and lag < 5, f"the run ended {lag} tenths of its whole time after the flag"


def test_ctrl_c_ends_a_long_run() -> None:
    late = fresh("""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell has none
model = grainline.load(products(200, 512)); wide = np.ones((6000, 512), np.float32)
begin = time.monotonic(); model(x=wide[:600]); tenth_s = time.monotonic() - begin
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
begin = time.monotonic()
try:
    model(x=wide); late = None
except KeyboardInterrupt:
    late = (time.monotonic() - begin - 0.3) / tenth_s
print(json.dumps(late))
""")
    assert late is not None and late < 5, (
        f"KeyboardInterrupt came {late} tenths of the run's whole time after the signal"
    )


#: Who runs it, and what ends it. A product of 4096 columns is one launch, which takes seconds.
LONG_LAUNCHES = [
    ("threads=1", "signal"), ("threads=2", "signal"), ("workers=2, executor='multi-worker'", "signal"),
    ("device=device", "signal"), ("workers=3, executor='multi-worker', device=device", "signal"),
    ("threads=1", "flag"), ("device=device", "flag"),
]  # fmt: skip
#: The host waits for the launch in the middle of the run.
LONG_LAUNCHES_BEFORE_HOST = [
    ("device=device", "signal"), ("workers=2, executor='multi-worker', device=device", "signal"),
    ("workers=3, executor='multi-worker', device=device", "signal"), ("device=device", "flag"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "options", "by"),
    [("products(1, 4096)", *case) for case in LONG_LAUNCHES]
    + [("through_host(products(1, 4096))", *case) for case in LONG_LAUNCHES_BEFORE_HOST],
)
def test_what_ends_a_run_ends_a_long_launch_in_the_middle(model: str, options: str, by: str) -> None:
    late, held, right = fresh(f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell has none
device = grainline.Device("discrete", capacity_bytes=1 << 30)
model = grainline.load({model}, cache=False, {options})
executor = model.compiled.executor
few = np.random.default_rng(1).standard_normal((2, 4096)).astype(np.float32)
wide, cancel, sent = np.tile(few, (3000, 1)), np.zeros(1, np.int32), []
expected = model(x=few)
assert sum(node.kernel == "Launch" for node in executor.graph.main) == 1
model.trim(); at_rest = device.statistics()["live_bytes"]
begin = time.monotonic(); tenth = model(x=wide[:600]); tenth_s = time.monotonic() - begin
right = np.array_equal(tenth, np.tile(expected, (300, 1)))  # looks in between change no bits
def end():
    sent.append(time.monotonic())
    if {by!r} == "signal": os.kill(os.getpid(), signal.SIGINT)
    else: cancel[0] = 1
threading.Timer(2 * tenth_s, end).start()
try:
    executor.run({{"x": wide}}, None, cancel); late = None
except (KeyboardInterrupt, grainline.Cancelled) as error:
    assert isinstance(error, KeyboardInterrupt) == ({by!r} == "signal"), error
    late = (time.monotonic() - sent[0]) / tenth_s
model.trim()
held = executor.statistics()["held_bytes"] + device.statistics()["live_bytes"] - at_rest
print(json.dumps([late, held, right and np.array_equal(model(x=few), expected)]))
""")
    assert late is not None and late < 3, f"the run ended {late} tenths of its whole time after the {by}"
    assert held == 0 and right
