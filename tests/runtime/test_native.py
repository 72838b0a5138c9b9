"""Laws of the native executor: it computes what the interpreter computes, whatever the shape, history or thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grainline._native", reason="the native core is not built")

from grainline.base.dims import floordiv, symbol
from grainline.base.dtypes import BOOL, F32, I64
from grainline.base.errors import Cancelled, FeedError, KernelError, OutOfMemory
from grainline.execgraph.builder import GraphBuilder, Result
from grainline.execgraph.interp import interpret
from grainline.execgraph.ir import ExecuteGraph, Variant, View
from grainline.runtime.executor import ModelExecutor
from tests.execgraph.toy import CALLABLES, feeds_of, machine_code, random_graph, variant

N = symbol("N")


def loaded(graph: ExecuteGraph, **options: Any) -> ModelExecutor:
    addresses, image = machine_code()
    return ModelExecutor(graph, addresses, keep_alive=image, **options).load()


def assert_same(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


def chain(links: int = 4, cost_ps: int | None = None) -> ExecuteGraph:
    builder = GraphBuilder("chain")
    slot = builder.input("x", I64, (N,))
    for link in range(links):
        block = builder.memory(I64, (N,), N * 8, f"m{link}")
        views = [View(slot), View(block, 0, "write")]
        builder.launch("through", [variant("through", N, cost_ps, 8)], views, [N], f"link{link}")
        slot = block
    out = builder.model_output("out", I64, (N,))
    builder.copy(slot, out, N * 8)
    return builder.finish()


# ---- same meaning ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_the_interpreter_agrees(seed: int) -> None:
    graph = random_graph(seed)
    executor = loaded(graph)
    for n in (37, 5, 0, 1, 64, 37):
        feeds = feeds_of(n, seed)
        assert_same(executor.run(feeds), interpret(graph, feeds, CALLABLES))


@pytest.mark.parametrize("seed", range(10))
def test_parallel_launches_give_the_same_bits(seed: int) -> None:
    graph = random_graph(seed, cost_ps=1_000_000_000)
    executor = loaded(graph)
    for n in (1000, 17):
        feeds = feeds_of(n, seed)
        assert_same(executor.run(feeds), interpret(graph, feeds, CALLABLES))


def test_two_threads_may_run_one_model() -> None:
    graph = random_graph(7, size=20)
    executor = loaded(graph)
    wrong: list[int] = []

    def work(seed: int) -> None:
        for turn in range(100):
            n = 1 + (seed * 31 + turn * 7) % 90
            feeds = feeds_of(n, turn)
            expected = cache[n, turn]
            if not all(np.array_equal(a, b) for a, b in zip(executor.run(feeds), expected, strict=True)):
                wrong.append(turn)

    cache = {(1 + (seed * 31 + turn * 7) % 90, turn): None for seed in range(4) for turn in range(100)}
    for n, turn in cache:
        cache[n, turn] = interpret(graph, feeds_of(n, turn), CALLABLES)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# ---- memory ----------------------------------------------------------------------------------------------------


def test_a_warm_run_asks_the_system_for_nothing() -> None:
    from grainline import _native

    executor = loaded(random_graph(11, size=20, host=False))
    sizes = (100, 3, 77, 100, 12)
    for n in sizes * 3:
        executor.run(feeds_of(n))
    growths = executor.statistics()["growths"]
    calls = _native.memory_statistics()["system_calls"]
    for n in sizes * 40:
        executor.run(feeds_of(n))
    assert executor.statistics()["growths"] == growths
    assert _native.memory_statistics()["system_calls"] == calls


def held_falls_below(executor: ModelExecutor, size_bytes: int, within_s: float, step: Callable[[], object]) -> bool:
    """Repeats `step` until little memory is held or the time is over."""
    end = time.monotonic() + within_s
    while executor.statistics()["held_bytes"] >= size_bytes and time.monotonic() < end:
        step()
    return executor.statistics()["held_bytes"] < size_bytes


def test_memory_of_a_spike_comes_back_at_rest() -> None:
    executor = loaded(chain())
    executor.run({"x": np.zeros(8 << 20, np.int64)})
    assert executor.statistics()["held_bytes"] > 100 << 20
    assert held_falls_below(executor, 9 << 20, 60, lambda: time.sleep(0.05))
    assert executor.run({"x": np.zeros(3, np.int64)})[0].tolist() == [4, 4, 4]


def test_memory_of_a_spike_comes_back_while_small_runs_go_on() -> None:
    executor = loaded(chain())
    executor.run({"x": np.zeros(8 << 20, np.int64)})
    assert executor.statistics()["held_bytes"] > 100 << 20
    assert held_falls_below(executor, 20 << 20, 120, lambda: executor.run({"x": np.zeros(100, np.int64)}))


def test_shapes_that_take_turns_keep_their_memory() -> None:
    executor = loaded(chain())
    feeds = [{"x": np.zeros(size, np.int64)} for size in (4 << 20, *[100] * 20)]
    growths = []
    for feed in feeds * 4:
        executor.run(feed)
        growths.append(executor.statistics()["growths"])
    assert growths[len(feeds)] == growths[-1]


def test_trim_gives_everything_back() -> None:
    executor = loaded(chain())
    executor.run({"x": np.zeros(1 << 20, np.int64)})
    assert executor.trim() > 0
    assert executor.statistics()["held_bytes"] == 0
    assert executor.run({"x": np.zeros(3, np.int64)})[0].tolist() == [4, 4, 4]


def test_results_outlive_everything() -> None:
    executor = loaded(chain())
    first = executor.run({"x": np.zeros(5, np.int64)})[0]
    second = executor.run({"x": np.ones(5, np.int64)})[0]
    executor.unload()
    del executor
    assert first.tolist() == [4] * 5 and second.tolist() == [5] * 5
    first[:] = 9  # the caller's own
    assert second.tolist() == [5] * 5


def test_out_of_memory_is_an_error_and_the_next_run_works() -> None:
    from grainline import _native

    executor = loaded(chain())
    _native.set_memory_limit(_native.memory_statistics()["live_bytes"] + (8 << 20))
    try:
        with pytest.raises(OutOfMemory, match="m0"):
            executor.run({"x": np.zeros(8 << 20, np.int64)})
    finally:
        _native.set_memory_limit((1 << 63) - 1)
    assert executor.run({"x": np.zeros(2, np.int64)})[0].tolist() == [4, 4]


# ---- shapes ----------------------------------------------------------------------------------------------------


def two_inputs(second: Any) -> ModelExecutor:
    builder = GraphBuilder("pair")
    x, _ = builder.input("x", I64, (N, 4)), builder.input("y", I64, second)
    builder.copy(x, builder.model_output("out", I64, (N, 4)), N * 32)
    return loaded(builder.finish())


def zeros(*shape: int) -> np.ndarray[Any, Any]:
    return np.zeros(shape, np.int64)


def test_a_mismatch_names_input_axis_expected_found_and_who_fixed_the_symbol() -> None:
    executor = two_inputs((2 * N, N))
    executor.run({"x": zeros(3, 4), "y": zeros(6, 3)})
    with pytest.raises(
        FeedError, match=r"input 'y' axis 0: expected 2\*N = 6 .*N is fixed by input 'x' axis 0.* found 7"
    ):
        executor.run({"x": zeros(3, 4), "y": zeros(7, 3)})
    with pytest.raises(FeedError, match=r"input 'y' axis 1: expected N = 3 .* found 5"):
        executor.run({"x": zeros(3, 4), "y": zeros(6, 5)})
    with pytest.raises(FeedError, match=r"input 'x' axis 1: expected 4, found 2"):
        executor.run({"x": zeros(3, 2), "y": zeros(6, 3)})
    with pytest.raises(FeedError, match=r"input 'y': expected rank 2, found rank 1"):
        executor.run({"x": zeros(3, 4), "y": zeros(6)})
    executor.run({"x": zeros(3, 4), "y": zeros(6, 3)})


def test_a_dimension_that_is_linear_in_one_symbol_is_solved() -> None:
    k = symbol("K")
    builder = GraphBuilder("solve")
    x = builder.input("x", I64, (3 * k + 1,))
    builder.extents_tensor(out := builder.model_output("out", I64, (1,)), [k])
    assert x >= 0 and out >= 0
    executor = loaded(builder.finish())
    assert executor.run({"x": zeros(13)})[0].tolist() == [4]
    with pytest.raises(FeedError, match="expected"):
        executor.run({"x": zeros(12)})
    with pytest.raises(FeedError, match="negative"):
        executor.run({"x": zeros(0)})


def extents(*values: Any) -> ModelExecutor:
    builder = GraphBuilder("extents")
    builder.input("x", I64, (N,))
    builder.extents_tensor(builder.model_output("out", I64, (len(values),)), values)
    return loaded(builder.finish())


def test_extents_round_as_python_does() -> None:
    values = [floordiv(7 - N, 3), (7 - N) % 3, floordiv(N * N, N + 1), (5 - N) * 2]
    executor = extents(*values)
    for n in (0, 6, 9, 40):
        found = executor.run({"x": zeros(n)})[0].tolist()
        assert found == [(7 - n) // 3, (7 - n) % 3, n * n // (n + 1), (5 - n) * 2]


def test_overflow_and_division_by_zero_are_errors() -> None:
    executor = extents(N * N * N * N * N * 1_000_000)
    executor.run({"x": zeros(10)})
    with pytest.raises(FeedError, match="overflow"):
        executor.run({"x": zeros(1_000_000)})
    executor.run({"x": zeros(10)})
    with pytest.raises(FeedError, match="divide by zero"):
        extents(floordiv(10, N)).run({"x": zeros(0)})


def test_a_negative_or_absurd_size_is_an_error() -> None:
    builder = GraphBuilder("size")
    x = builder.input("x", I64, (N,))
    block = builder.memory(I64, (N - 5,), (N - 5) * 8 * 2**40, "block")
    builder.copy(x, block, 0)
    executor = loaded(builder.finish())
    executor.run({"x": zeros(5)})
    with pytest.raises(FeedError, match="the size of 'block' is negative"):
        executor.run({"x": zeros(4)})
    with pytest.raises(OutOfMemory):
        executor.run({"x": zeros(5000)})


# ---- failures --------------------------------------------------------------------------------------------------


def test_every_node_may_fail_and_the_next_run_works() -> None:
    links = 5
    for at in range(links):
        builder = GraphBuilder("fault")
        x, code = builder.input("x", I64, (N,)), symbol("C")
        builder.input("code", I64, (code,))
        slot = x
        for link in range(links):
            block = builder.memory(I64, (N,), N * 8, f"m{link}")
            views = [View(slot), View(block, 0, "write")]
            builder.launch("through", [variant("through", N, scratch_bytes=8)], views, [N], f"link{link}")
            if link == at:
                builder.launch("fault", [Variant("fault", 1)], [View(block)], [code], f"fault{link}")
            slot = block
        builder.copy(slot, builder.model_output("out", I64, (N,)), N * 8)
        executor = loaded(builder.finish())
        for fault, text in ((1, "out_of_bounds|outside|index"), (2, "zero"), (77, "77")):
            with pytest.raises(KernelError, match=text) as caught:
                executor.run({"x": zeros(9), "code": zeros(fault)})
            assert caught.value.node == f"fault{at}"
            assert executor.run({"x": zeros(9), "code": zeros(0)})[0].tolist() == [links] * 9
        assert executor.statistics()["states"] == 1


def test_cancel_ends_a_run() -> None:
    executor = loaded(chain(50))
    word = np.ones(1, np.int32)
    with pytest.raises(Cancelled):
        executor.run({"x": zeros(3)}, cancel=word)
    word[0] = 0
    assert executor.run({"x": zeros(3)}, cancel=word)[0].tolist() == [50] * 3
    timer = threading.Timer(0.05, lambda: word.__setitem__(0, 1))
    timer.start()
    with pytest.raises(Cancelled):
        for _ in range(10_000):
            executor.run({"x": zeros(1 << 18)}, cancel=word)
    timer.join()


def test_cancel_reaches_into_a_host_call() -> None:
    import sys
    import time

    returned = []

    def long(a: Any) -> tuple[Any, ...]:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            (lambda: None)()
        returned.append(a)
        return (a,)

    builder = GraphBuilder("loop")
    x = builder.input("x", I64, (N,))
    (y,) = builder.host_call("Loop", long, [x], [Result(I64, (N,), "y")], "loop")
    builder.object_output("y", I64, y)
    executor = loaded(builder.finish())
    word = np.zeros(1, np.int32)
    timer = threading.Timer(0.1, lambda: word.__setitem__(0, 1))
    timer.start()
    with pytest.raises(Cancelled):
        executor.run({"x": zeros(3)}, None, word)
    assert not returned
    assert sys.getprofile() is None
    timer.join()


def test_the_binding_names_what_is_wrong_with_the_feeds() -> None:
    executor = two_inputs((N,))
    good = {"x": zeros(2, 4), "y": zeros(2)}
    for feeds, text in (
        ({"x": zeros(2, 4)}, "no feed for 'y'"),
        ({**good, "z": zeros(1)}, "no input 'z'"),
        ({**good, "x": zeros(2, 4).astype(np.float32)}, "value 'x'.*expected dtype int64, found dtype float32"),
        ({**good, "y": [1.5, 2.5]}, "value 'y'"),
        ({**good, "y": None}, "value 'y'.*found None"),
    ):
        with pytest.raises(FeedError, match=text):
            executor.run(feeds)
    with pytest.raises(FeedError, match=r"'q'.*expected one of"):
        executor.run(good, ["q"])
    executor.run(good, ["out", "out"])


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24).reshape(4, 6)[::2, 1:5],
        np.arange(12)[::-1].reshape(3, 4),
        np.arange(8, dtype=">i8").reshape(2, 4),
        np.asfortranarray(np.arange(12).reshape(3, 4)),
        np.arange(12).reshape(4, 3).T,
        np.frombuffer(b"\0" + np.arange(8).tobytes(), np.uint8)[1:].view(np.int64).reshape(2, 4),
        [[1, 2, 3, 4]],
        ((1, 2, 3, 4), (5, 6, 7, 8)),
    ],
)
def test_feeds_of_any_layout_are_taken(array: Any) -> None:
    expected = np.asarray(array, dtype=np.int64)
    executor = two_inputs((N,))
    frozen = np.zeros(len(expected), np.int64)
    frozen.flags.writeable = False
    np.testing.assert_array_equal(executor.run({"x": array, "y": frozen})[0], expected)


@pytest.mark.parametrize("value", [3.5, np.float32(3.5), np.array(3.5, np.float32), 7])
def test_scalars_are_taken(value: Any) -> None:
    builder = GraphBuilder("scalar")
    x = builder.input("x", F32, ())
    builder.copy(x, builder.model_output("out", F32, ()), 4)
    (result,) = loaded(builder.finish()).run({"x": value})
    assert result.shape == () and result == np.float32(value)


def test_defaults_stand_in_for_missing_feeds() -> None:
    from grainline.execgraph.ir import Weight

    builder = GraphBuilder("default")
    x = builder.input("x", I64, (N,), default=Weight("x", I64, (2,), load=lambda: np.array([7, 8])))
    builder.copy(x, builder.model_output("out", I64, (N,)), N * 8)
    executor = loaded(builder.finish())
    assert executor.run({})[0].tolist() == [7, 8]
    assert executor.run({"x": np.arange(3)})[0].tolist() == [0, 1, 2]


# ---- host calls ------------------------------------------------------------------------------------------------


def test_a_host_result_binds_symbols_and_is_checked() -> None:
    k = symbol("K")
    builder = GraphBuilder("host")
    x = builder.input("x", I64, (N,))
    (found,) = builder.host_call("NonZero", lambda a: (a[a != 0],), [x], [Result(I64, (k,), "found")], "nonzero")
    out = builder.model_output("out", I64, (k,))
    builder.launch("through", [variant("through", k, scratch_bytes=8)], [View(found), View(out, 0, "write")], [k])
    executor = loaded(builder.finish())
    for values in ([3, 0, 4], [0, 0], [1, 2, 3, 4, 5], [0, 9]):
        assert executor.run({"x": np.array(values)})[0].tolist() == [v + 1 for v in values if v]


def test_a_host_result_that_does_not_fit_is_an_error() -> None:
    for result, text in ((lambda a: (a[:1],), "expected N = 3"), (lambda a: ([1],), "no tensor"), (lambda a: (), "0")):
        builder = GraphBuilder("host")
        x = builder.input("x", I64, (N,))
        (y,) = builder.host_call("Bad", result, [x], [Result(I64, (N,), "y")], "bad")
        builder.copy(y, builder.model_output("out", I64, (N,)), N * 8)
        with pytest.raises(KernelError, match=text):
            loaded(builder.finish()).run({"x": zeros(3)})


def test_an_exception_in_a_host_call_becomes_a_kernel_error_with_its_cause() -> None:
    problem = ArithmeticError("a reason")

    def call(a: Any) -> tuple[Any, ...]:
        if a[0]:
            raise problem
        return (a,)

    builder = GraphBuilder("host")
    x = builder.input("x", I64, (N,))
    (y,) = builder.host_call("Raise", call, [x], [Result(I64, (N,), "y")], "the node")
    builder.object_output("y", I64, y)
    executor = loaded(builder.finish())
    with pytest.raises(KernelError, match="a reason") as caught:
        executor.run({"x": np.ones(2, np.int64)})
    assert caught.value.node == "the node" and caught.value.__cause__ is problem
    problem.with_traceback(None)
    assert executor.run({"x": zeros(2)})[0].tolist() == [0, 0]


def test_a_host_result_never_shares_memory_with_a_block() -> None:
    builder = GraphBuilder("share")
    x = builder.input("x", I64, (N,))
    block = builder.memory(I64, (N,), N * 8, "block")
    builder.copy(x, block, N * 8)
    (same,) = builder.host_call("Identity", lambda a: (a[::-1],), [block], [Result(I64, (N,), "same")])
    builder.object_output("y", I64, same)
    executor = loaded(builder.finish())
    first = executor.run({"x": np.arange(300)})[0]
    executor.run({"x": np.zeros(300, np.int64)})
    assert first.tolist() == list(range(299, -1, -1))


def test_objects_pass_between_host_calls() -> None:
    builder = GraphBuilder("sequence")
    x = builder.input("x", I64, (N,))
    (pair,) = builder.host_call("Make", lambda a: ([a, a + 1],), [x], [Result(None, None, "pair")])
    (second,) = builder.host_call("At", lambda s: (s[1],), [pair], [Result(I64, (N,), "second")])
    builder.object_output("y", I64, second)
    builder.object_output("pair", I64, pair, "sequence")
    result, sequence = loaded(builder.finish()).run({"x": np.arange(3)})
    assert result.tolist() == [1, 2, 3] and [part.tolist() for part in sequence] == [[0, 1, 2], [1, 2, 3]]


def test_nothing_is_kept_after_a_run() -> None:
    import gc
    import sys

    builder = GraphBuilder("keep")
    x = builder.input("x", I64, (N,))
    (y,) = builder.host_call("Add", lambda a: (a + 1,), [x], [Result(I64, (N,), "y")])
    builder.object_output("y", I64, y)
    executor = loaded(builder.finish())
    feed = np.arange(4)
    before = sys.getrefcount(feed)
    for _ in range(20):
        executor.run({"x": feed})
        with pytest.raises(FeedError):
            executor.run({"x": feed, "z": feed})
    gc.collect()
    assert sys.getrefcount(feed) == before


def test_odd_element_types() -> None:
    import ml_dtypes

    from grainline.base.dtypes import BF16, F16, STRING

    for dtype, array in (
        (BOOL, np.array([True, False])),
        (F16, np.array([1, 2], np.float16)),
        (BF16, np.array([1, 2], ml_dtypes.bfloat16)),
        (STRING, np.array(["a", "ü"], object)),
    ):
        builder = GraphBuilder("types")
        x = builder.input("x", dtype, (N,))
        if dtype is STRING:
            builder.object_output("out", dtype, x)
        else:
            builder.copy(x, builder.model_output("out", dtype, (N,)), N * dtype.size_bytes)
        (result,) = loaded(builder.finish()).run({"x": array})
        assert result.dtype == array.dtype and result.tolist() == array.tolist() and result is not array


# ---- profile ---------------------------------------------------------------------------------------------------


def test_a_profile_names_every_node() -> None:
    results, records = loaded(chain(2)).run_profiled({"x": zeros(3)})
    assert results[0].tolist() == [2, 2, 2]
    names = [record["name"] for record in records if record["kernel"] == "Launch"]
    assert names == ["link0", "link1"]
    assert all(record["elapsed_ns"] >= 0 for record in records)
