"""Laws of execution graphs: what the builder makes is valid, prints and parses back, and is ordered by edges alone."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from grainline.base.dims import floordiv, symbol
from grainline.base.dtypes import F32, I64, STRING
from grainline.base.errors import UnsupportedError
from grainline.execgraph.builder import ABSENT, GraphBuilder, Result
from grainline.execgraph.interp import InterpError, interpret
from grainline.execgraph.ir import ExecuteGraph, View
from grainline.execgraph.order import execution_order, predecessors
from grainline.execgraph.pack import pack
from grainline.execgraph.passes import optimise
from grainline.execgraph.text import parse, print_graph
from grainline.execgraph.verify import require_valid, verify
from tests.execgraph.toy import CALLABLES, feeds_of, random_graph, variant

SEEDS = range(25)


@pytest.mark.parametrize("seed", SEEDS)
def test_built_graphs_are_valid_and_stay_so(seed: int) -> None:
    graph = random_graph(seed)
    assert verify(graph) == []
    assert verify(optimise(graph)) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_text_parses_back(seed: int) -> None:
    graph = random_graph(seed)
    assert parse(print_graph(graph)) == graph


@pytest.mark.parametrize("seed", SEEDS)
def test_any_order_that_respects_the_edges_gives_the_same_result(seed: int) -> None:
    graph = random_graph(seed)
    expected = interpret(graph, feeds_of(37), CALLABLES)
    for shuffle in range(3):
        found = interpret(graph, feeds_of(37), CALLABLES, random_linear_extension(graph, shuffle))
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("seed", SEEDS)
def test_passes_keep_the_meaning(seed: int) -> None:
    graph = random_graph(seed)
    for one, other in zip(
        interpret(graph, feeds_of(20), CALLABLES), interpret(optimise(graph), feeds_of(20), CALLABLES), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def random_linear_extension(graph: ExecuteGraph, seed: int) -> list:
    rng = random.Random(seed)
    before = predecessors(graph.main)
    waiting = {node.id: node for node in graph.main}
    done: set[int] = set()
    order = []
    while waiting:
        ready = [node for node in waiting.values() if all(i in done for i in before[node.id])]
        node = rng.choice(ready)
        order.append(node)
        done.add(node.id)
        del waiting[node.id]
    return order


@pytest.mark.parametrize("seed", SEEDS)
def test_R03_the_place_of_a_node_in_its_container_says_nothing(seed: int) -> None:
    graph = random_graph(seed)
    main = list(graph.main)
    random.Random(seed).shuffle(main)
    shuffled = replace(graph, main=tuple(main))
    assert execution_order(shuffled.main) == execution_order(graph.main)
    assert pack(shuffled).blob == pack(graph).blob


def test_memory_is_allocated_just_before_its_first_use_and_freed_just_behind_its_last() -> None:
    n = symbol("N")
    builder = GraphBuilder("chain")
    slot = builder.input("x", I64, (n,))
    # All memory is asked for early; the order must still keep two blocks alive at most.
    blocks = [builder.memory(I64, (n,), n * 8, f"m{i}") for i in range(6)]
    for block in blocks:
        builder.launch("through", [variant("through", n)], [View(slot), View(block, 0, "write")], [n])
        slot = block
    out = builder.model_output("out", I64, (n,))
    builder.copy(slot, out, n * 8)
    live = peak = 0
    for node in execution_order(builder.finish().main):
        live += {"AllocMemory": 1, "FreeMemory": -1}.get(node.kernel, 0)
        peak = max(peak, live)
    assert (live, peak) == (0, 2)


def test_a_cycle_is_reported() -> None:
    graph = random_graph(0)
    first, *rest = graph.main
    broken = replace(graph, main=(replace(first, controls=(rest[-1].id,)), *rest))
    assert any("cycle" in problem for problem in verify(broken))


@pytest.mark.parametrize("kernel", ["FreeMemory", "Launch", "AllocMemory"])
def test_a_missing_edge_is_reported(kernel: str) -> None:
    graph = random_graph(3)
    reports = 0
    for node in graph.main:
        if node.kernel != kernel:
            continue
        for control in node.controls:
            cut = replace(node, controls=tuple(c for c in node.controls if c != control))
            broken = replace(graph, main=tuple(cut if n.id == node.id else n for n in graph.main))
            reports += bool(verify(broken))
    assert reports > 0


def test_a_tiling_that_does_not_wait_for_the_words_of_its_launch_is_reported() -> None:
    n = symbol("N")
    builder = GraphBuilder("words")
    slot, out = builder.input("x", I64, (n,)), builder.model_output("out", I64, (n,))
    builder.launch("through", [variant("through", 4)], [View(slot), View(out, 0, "write")], [n])
    graph = builder.finish()
    require_valid(graph)
    cut = tuple(replace(node, controls=()) if node.kernel == "Tiling" else node for node in graph.main)
    assert any("(Tiling) does not wait for node 0" in problem for problem in verify(replace(graph, main=cut)))


def test_an_unbound_symbol_is_reported() -> None:
    builder = GraphBuilder("unbound")
    builder.input("x", I64, (symbol("N"),))
    builder.memory(I64, (symbol("M"),), symbol("M") * 8, "m")
    with pytest.raises(ValueError, match="'M', which nothing binds"):
        require_valid(builder.finish())


def test_symbols_of_host_results_are_bound_behind_the_call() -> None:
    n, k = symbol("N"), symbol("K")
    builder = GraphBuilder("nonzero")
    x = builder.input("x", I64, (n,))
    (found,) = builder.host_call("NonZero", lambda a: (a[a != 0],), [x], [Result(I64, (k,), "found")])
    out = builder.model_output("out", I64, (k,))
    builder.launch("through", [variant("through", k, scratch_bytes=8)], [View(found), View(out, 0, "write")], [k])
    graph = require_valid(builder.finish())
    (result,) = interpret(graph, {"x": np.array([3, 0, 4, 0])}, CALLABLES)
    assert result.tolist() == [4, 5]


def test_the_interpreter_refuses_what_does_not_fit() -> None:
    n = symbol("N")
    builder = GraphBuilder("pair")
    builder.input("x", I64, (n,))
    builder.input("y", I64, (2 * n,))
    graph = builder.finish()
    interpret(graph, {"x": np.zeros(3), "y": np.zeros(6)}, {})
    with pytest.raises(InterpError, match="expected"):
        interpret(graph, {"x": np.zeros(3), "y": np.zeros(5)}, {})


def test_outputs_come_in_the_order_that_was_asked_for() -> None:
    builder = GraphBuilder("order")
    x = builder.input("x", I64, (2,))
    for name in "abc":
        builder.copy(x, builder.model_output(name, I64, (2,)), 16)
    graph = require_valid(builder.finish("cab"))
    assert [output.name for output in graph.outputs] == ["c", "a", "b"]
    for node in graph.main:
        if node.kernel == "AllocModelOutput":
            assert graph.outputs[node.attributes["output"]].slot == node.outputs[0]


def test_strings_and_absent_arguments_have_text() -> None:
    builder = GraphBuilder('quotes " and \n lines')
    x = builder.input("x", STRING, (symbol("N"), floordiv(symbol("N"), 2)))
    (slot,) = builder.host_call("Any", lambda *a: a[:1], [x, ABSENT], [Result(F32, None, "r")])
    builder.object_output("out", F32, slot)
    graph = require_valid(builder.finish())
    assert parse(print_graph(graph)) == graph


def test_a_constant_that_is_too_large_or_negative_cannot_be_packed() -> None:
    builder = GraphBuilder("large")
    builder.memory(I64, (1,), 1 << 70, "m")
    with pytest.raises(UnsupportedError, match=str(1 << 70)):
        pack(builder.finish())
    builder = GraphBuilder("negative")
    builder.memory(I64, (1,), -8, "m")
    with pytest.raises(ValueError, match="negative"):
        pack(builder.finish())
