"""Laws of the executors: every kind gives the bits of the sequential one, whatever fails; states and options are checked."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grainline._native", reason="the native core is not built")

from grainline.base.dims import symbol
from grainline.base.dtypes import I64
from grainline.base.errors import Cancelled, KernelError, OptionError, StateError
from grainline.base.knobs import MAX_BYTES, MAX_THREADS, MAX_WORKERS, Options, chosen_executor, thread_budget
from grainline.execgraph.builder import GraphBuilder, Result
from grainline.execgraph.frames import Frame
from grainline.execgraph.ir import ExecuteGraph, ExecuteNode
from grainline.execgraph.passes.remove_launch_free_edge import RemoveLaunchFreeEdge
from grainline.runtime.executor import ModelExecutor
from grainline.session.inference import _executor_of
from grainline.session.options import ExecutionMode, SessionOptions
from tests.execgraph.toy import feeds_of, machine_code, random_graph
from tests.runtime.company import check_fork, wrong_cases

N = symbol("N")
KINDS = (
    {"executor": "topological"},
    {"executor": "priority-topological"},
    {"executor": "multi-worker", "workers": 2},
    {"executor": "multi-worker", "workers": 3},
    {"executor": "multi-worker", "workers": 5},
)


def loaded(graph: ExecuteGraph, **options: Any) -> ModelExecutor:
    addresses, image = machine_code()
    return ModelExecutor(graph, addresses, keep_alive=image, **options).load()


def host_graph(call: Any) -> ExecuteGraph:
    builder = GraphBuilder("host")
    slot = builder.input("x", I64, (N,))
    (result,) = builder.host_call("call", call, [slot], [Result(I64, (N,), "y")], "the node")
    builder.object_output("y", I64, result)
    return builder.finish()


# ---- same bits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_every_executor_gives_the_bits_of_the_sequential_one(seed: int, options: dict[str, Any]) -> None:
    graph = random_graph(seed, size=25)
    oracle, other = loaded(graph, executor="sequential"), loaded(graph, **options)
    for n in (37, 5, 0, 64, 37):
        feeds = feeds_of(n, seed)
        for one, expected in zip(other.run(feeds), oracle.run(feeds), strict=True):
            np.testing.assert_array_equal(one, expected)


def two_host_results(early_chain: int, late_chain: int) -> ExecuteGraph:
    """Prefixes of x and y whose lengths only the run knows, one behind the other; each comes behind a chain of copies,
    so that either may be known first."""
    a, b = symbol("a"), symbol("b")
    builder = GraphBuilder("two host results")
    ends = []
    for name, length in (("x", early_chain), ("y", late_chain)):
        slot = builder.input(name, I64, (N,))
        for step in range(length):
            copy = builder.memory(I64, (N,), N * 8, f"{name}{step}")
            builder.copy(slot, copy, N * 8)
            slot = copy
        ends.append(slot)
    prefixes = [
        builder.host_call(
            "Prefix", lambda data: (data[: data[0]].copy(),), [end], [Result(I64, (extent,), str(extent))]
        )
        for end, extent in zip(ends, (a, b), strict=True)
    ]
    out = builder.model_output("out", I64, (a + b,))
    builder.copy(prefixes[0][0], out, a * 8)
    builder.copy(prefixes[1][0], out, b * 8, target_offset=a * 8)
    return builder.finish()


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("chains", [(0, 0), (4, 0), (0, 4)])
def test_an_extent_of_two_host_results_is_known_when_both_are(chains: tuple[int, int], options: dict[str, Any]) -> None:
    executor = loaded(two_host_results(*chains), **options)
    for first, second in ((2, 3), (4, 3), (4, 1), (0, 5)):
        (out,) = executor.run({"x": np.full(6, first), "y": np.full(6, second)})
        assert out.tolist() == [first] * first + [second] * second


@pytest.mark.parametrize("workers", [2, 3])
def test_several_threads_may_run_one_multi_worker_model(workers: int) -> None:
    graph = random_graph(7, size=20)
    oracle, other = loaded(graph), loaded(graph, executor="multi-worker", workers=workers)
    cases = [(feeds_of(n, n), oracle.run(feeds_of(n, n))) for n in range(1, 40)]
    assert wrong_cases(other, cases) == []


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_memory_is_used_as_by_the_sequential_executor(options: dict[str, Any]) -> None:
    graph = random_graph(3, size=25, host=False)
    oracle, other = loaded(graph), loaded(graph, **options)
    for executor in (oracle, other):
        executor.run(feeds_of(1000))
    assert other.statistics()["allocations"] == oracle.statistics()["allocations"]
    if options["executor"] == "multi-worker":
        assert other.statistics()["peak_bytes"] == oracle.statistics()["peak_bytes"], "one order of memory operations"


# ---- failures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_the_first_failure_is_raised_and_the_next_run_works(options: dict[str, Any]) -> None:
    def call(x: np.ndarray) -> tuple[np.ndarray]:
        if x[0] < 0:
            raise ArithmeticError("negative")
        return (x + 1,)

    executor = loaded(host_graph(call), **options)
    for _ in range(20):
        with pytest.raises(KernelError, match="negative") as raised:
            executor.run({"x": np.array([-1], np.int64)})
        assert isinstance(raised.value.__cause__, ArithmeticError)
        assert executor.run({"x": np.array([4], np.int64)})[0].tolist() == [5]


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_run_can_be_cancelled_while_others_wait(options: dict[str, Any]) -> None:
    word = np.zeros(1, np.int32)

    def call(x: np.ndarray) -> tuple[np.ndarray]:
        word[0] = 1
        return (x,)

    with pytest.raises(Cancelled):
        loaded(host_graph(call), **options).run({"x": np.zeros(3, np.int64)}, None, word)


# ---- what a run tells ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_the_log_names_the_worker_of_every_node(workers: int) -> None:
    graph = random_graph(5, size=20)
    executor = loaded(graph, executor="multi-worker", workers=workers)
    _, events = executor.run_logged(feeds_of(9))
    names = {number: kernel for number, (_, kernel, _) in enumerate(executor._native.nodes())}
    started = {node: worker for _, node, worker, event in events if event == "node_started"}
    ended = [node for _, node, _, event in events if event == "node_ended"]
    assert sorted(started) == sorted(ended) == list(names)
    for node, worker in started.items():
        if names[node].startswith(("Alloc", "Free")):
            assert worker == 1, "one memory worker"
        elif names[node] in ("Launch", "CopyMemory", "ExtentsTensor") or workers == 2:
            assert worker == 0, "the caller launches"
        else:
            assert worker >= 2


def test_workers_sleep_between_runs() -> None:
    executor = loaded(random_graph(5, size=20), executor="multi-worker", workers=4)
    executor.run(feeds_of(9))
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.2, "nobody spins outside a run"


def test_a_forked_child_starts_workers_of_its_own() -> None:
    executor = loaded(random_graph(5, size=20), executor="multi-worker", workers=3)
    check_fork(executor, feeds_of(9))


# ---- states ----------------------------------------------------------------------------------------------------


def test_calls_that_do_not_fit_the_state_are_refused() -> None:
    addresses, image = machine_code()
    executor = ModelExecutor(random_graph(1), addresses, keep_alive=image)
    calls = (
        lambda: executor.run(feeds_of(3)),
        lambda: executor.run_profiled(feeds_of(3)),
        lambda: executor.run_logged(feeds_of(3)),
        lambda: executor.run_watched(feeds_of(3), ()),
    )
    for _ in range(2):  # before it was loaded, and when it is no more
        for call in calls:
            with pytest.raises(StateError, match="not loaded"):
                call()
        executor.unload()
        assert executor.load().run(feeds_of(3))
        with pytest.raises(StateError, match="loaded already"):
            executor.load()
        executor.unload()


@pytest.mark.parametrize("options", [{}, *KINDS], ids=str)
def test_what_no_executor_can_run_is_refused(options: dict[str, Any]) -> None:
    """A kernel or a key that nobody registered, a relation from one graph to another: by name, and the next works."""
    addresses, image = machine_code()
    graph = RemoveLaunchFreeEdge().run(random_graph(4))
    stranger = ExecuteNode(9999, "Nobody", (), (), (), {}, "", 0)
    free, _ = graph.relations.pairs()[0]
    frame = Frame(3, 0, graph.main[0].id, graph.main[-1].id, 0)
    crossed = tuple(replace(node, owner=3) if node.id == free else node for node in graph.main)
    cases = [
        (replace(graph, main=(*graph.main, stranger)), addresses, "node 9999: no executor knows the kernel 'Nobody'"),
        (replace(graph, main=crossed), addresses, "belongs to graph 3, which has no frame"),
        (replace(graph, main=crossed, frames=(frame,)), addresses, "belong to different graphs"),
        (graph, {}, "have no machine code"),
    ]
    for wrong, known, message in cases:
        with pytest.raises(ValueError, match=message):
            ModelExecutor(wrong, known, keep_alive=image, **options)
        assert ModelExecutor(graph, addresses, keep_alive=image, **options).load().run(feeds_of(3))


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_unload_during_a_run_is_refused(options: dict[str, Any]) -> None:
    found: list[BaseException] = []

    def call(x: np.ndarray) -> tuple[np.ndarray]:
        try:
            executor.unload()
        except StateError as error:
            found.append(error)
        return (x,)

    executor = loaded(host_graph(call), **options)
    executor.run({"x": np.zeros(3, np.int64)})
    assert len(found) == 1 and "running" in str(found[0])
    executor.unload()
    assert not executor.is_loaded


# ---- options ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("executor", "workers", "environ", "expected"),
    [
        (None, None, {}, ("auto", 0)),
        (None, None, {"MAX_RUNTIME_CORE_NUMBER": "1"}, ("auto", 0)),
        (None, None, {"MAX_RUNTIME_CORE_NUMBER": "3"}, ("multi-worker", 3)),
        (None, None, {"MAX_RUNTIME_CORE_NUMBER": "3", "ENABLE_DYNAMIC_SHAPE_MULTI_STREAM": "1"}, ("multi-worker", 3)),
        (None, 4, {"MAX_RUNTIME_CORE_NUMBER": "1"}, ("multi-worker", 4)),
        ("multi-worker", None, {}, ("multi-worker", 3)),
        ("multi-worker", None, {"MAX_RUNTIME_CORE_NUMBER": "2"}, ("multi-worker", 2)),
        ("sequential", None, {"MAX_RUNTIME_CORE_NUMBER": "3"}, ("sequential", 0)),
        (None, None, {"GRAINLINE_EXECUTOR": "topological"}, ("topological", 0)),
    ],
)
def test_options_win_over_the_environment(
    executor: str | None, workers: int | None, environ: dict[str, str], expected: tuple[str, int]
) -> None:
    assert chosen_executor(executor, workers, environ) == expected


@pytest.mark.parametrize(
    ("executor", "workers", "environ"),
    [
        ("multi-worker", 1, {}),
        ("multi-worker", None, {"MAX_RUNTIME_CORE_NUMBER": "1"}),
        ("sequential", 3, {}),
        ("topological", 2, {}),
        (None, None, {"MAX_RUNTIME_CORE_NUMBER": "many"}),
        (None, None, {"MAX_RUNTIME_CORE_NUMBER": "2.5"}),
        (None, None, {"MAX_RUNTIME_CORE_NUMBER": "-5"}),
        (None, None, {"MAX_RUNTIME_CORE_NUMBER": str(MAX_WORKERS + 1)}),
    ],
)
def test_contradictory_options_are_refused(executor: str | None, workers: int | None, environ: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        chosen_executor(executor, workers, environ)


@pytest.mark.parametrize("option", ["threads", "workers", "memory_limit_bytes"])
@pytest.mark.parametrize("number", [-1, 2.5, "3", True])
def test_a_number_is_an_integer_from_0(option: str, number: Any) -> None:
    with pytest.raises(OptionError, match=option):
        Options(**{option: number})


@pytest.mark.parametrize(("option", "most"), [("workers", MAX_WORKERS), ("memory_limit_bytes", MAX_BYTES)])
def test_a_number_has_an_upper_bound(option: str, most: int) -> None:
    assert getattr(Options(**{option: most}), option) == most
    with pytest.raises(OptionError, match=option):
        Options(**{option: most + 1})


@pytest.mark.parametrize("environ", [{}, {"GRAINLINE_NUM_THREADS": str(10**12)}, {"OMP_NUM_THREADS": str(10**12)}])
def test_more_threads_than_can_be_counted_are_as_many_as_can(environ: dict[str, str]) -> None:
    assert thread_budget(None if environ else 10**12, environ) == MAX_THREADS


def test_a_session_asks_for_workers_as_in_onnxruntime() -> None:
    settings = SessionOptions()
    assert _executor_of(settings) == (None, None)
    settings.execution_mode = ExecutionMode.ORT_PARALLEL
    assert _executor_of(settings) == ("multi-worker", None)
    settings.inter_op_num_threads = 2
    assert _executor_of(settings) == ("multi-worker", 2)
    settings.inter_op_num_threads = 1
    with pytest.raises(OptionError, match="inter_op_num_threads"):
        _executor_of(settings)
    settings.add_session_config_entry("grainline.executor", "sequential")
    assert _executor_of(settings) == ("sequential", None)
    settings.add_session_config_entry("grainline.workers", "several")
    with pytest.raises(OptionError, match="entry grainline"):
        _executor_of(settings)


# ---- real models -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 3])
def test_an_encoder_gives_the_same_bits(workers: int, encoder_fp32: str) -> None:
    import grainline

    one = grainline.load(encoder_fp32, executor="sequential")
    other = grainline.load(encoder_fp32, executor="multi-worker", workers=workers)
    random = np.random.default_rng(workers)
    for batch, length in ((1, 8), (3, 17), (2, 64), (1, 8)):
        feeds = {
            info.name: random.integers(0, 2 if "mask" in info.name else 1000, (batch, length)).astype(np.int64)
            for info in one.inputs
        }
        for a, b in zip(one.run(feeds), other.run(feeds), strict=True):
            assert a.tobytes() == b.tobytes()
