"""Several streams: independent branches, events between them, and memory that crosses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from grainline.base.dims import symbol
from grainline.base.dtypes import I64
from grainline.execgraph.builder import GraphBuilder
from grainline.execgraph.interp import interpret
from grainline.execgraph.interp_streams import StreamInterpreter
from grainline.execgraph.ir import ExecuteGraph, View
from grainline.execgraph.order import execution_order
from grainline.execgraph.passes import PassOptions, optimise, passes_of
from grainline.execgraph.passes.assign_streams import AssignStreams, submits
from grainline.execgraph.placement import place_on_discrete
from grainline.execgraph.verify import verify
from tests.execgraph.test_execgraph import random_linear_extension
from tests.execgraph.toy import CALLABLES, feeds_of, random_graph, variant

SEEDS = range(15)
N = symbol("N")


def branches(width: int, depth: int = 3) -> ExecuteGraph:
    """`width` chains of `depth` launches over one input, added up at the end."""
    builder = GraphBuilder("branches")
    x = builder.input("x", I64, (N,))
    ends = []
    for branch in range(width):
        slot = x
        for step in range(depth):
            target = builder.memory(I64, (N,), N * 8, f"b{branch}s{step}")
            builder.launch(
                "mix", [variant("mix", N)], [View(slot), View(x), View(target, 0, "write")], [N], f"b{branch}s{step}"
            )
            slot = target
        ends.append(slot)
    total = ends[0]
    for number, one in enumerate(ends[1:]):
        is_last = number == width - 2
        target = builder.model_output("out", I64, (N,)) if is_last else builder.memory(I64, (N,), N * 8, f"sum{number}")
        builder.launch(
            "mix", [variant("mix", N)], [View(total), View(one), View(target, 0, "write")], [N], f"sum{number}"
        )
        total = target
    return builder.finish()


def ladder(depth: int) -> ExecuteGraph:
    """Two chains; every step of the first reads the step before of the second, which goes on without it."""
    builder = GraphBuilder("ladder")
    a = b = x = builder.input("x", I64, (N,))
    for step in range(depth):
        following = builder.memory(I64, (N,), N * 8, f"b{step}")
        builder.launch("mix", [variant("mix", N)], [View(b), View(x), View(following, 0, "write")], [N], f"b{step}")
        is_last = step == depth - 1
        target = builder.model_output("out", I64, (N,)) if is_last else builder.memory(I64, (N,), N * 8, f"a{step}")
        builder.launch("mix", [variant("mix", N)], [View(a), View(b), View(target, 0, "write")], [N], f"a{step}")
        a, b = target, following
    return builder.finish()


def run(graph: ExecuteGraph, seed: int, device: str, order: list | None = None, **options: bool) -> list:
    feeds = feeds_of(21)
    return StreamInterpreter(graph, feeds, CALLABLES, seed, device=device, **options).run(
        order or execution_order(graph.main)
    )


def test_independent_branches_lie_on_different_streams() -> None:
    graph = AssignStreams(2).run(branches(2))
    assert verify(graph) == []
    streams = {n.compute_node: n.attributes["stream"] for n in graph.main if n.kernel == "Launch"}
    assert {streams[f"b0s{i}"] for i in range(3)} == {0} and {streams[f"b1s{i}"] for i in range(3)} == {1}
    kernels = [node.kernel for node in graph.main]
    # the fork, and the join of the second branch; at the end nothing new is known of stream 1, but it is waited for
    assert kernels.count("SendEvents") == 2
    assert kernels.count("AccessMemCrossStream") == 1


def test_a_chain_stays_on_the_callers_stream() -> None:
    builder = GraphBuilder("chain")
    slot = builder.input("x", I64, (N,))
    for step in range(4):
        target = builder.model_output("out", I64, (N,)) if step == 3 else builder.memory(I64, (N,), N * 8, f"m{step}")
        builder.launch("mix", [variant("mix", N)], [View(slot), View(slot), View(target, 0, "write")], [N], f"s{step}")
        slot = target
    graph = builder.finish()
    assert AssignStreams(2).run(graph) is graph


@pytest.mark.parametrize("device", ["cpu", "discrete"])
@pytest.mark.parametrize("streams", [2, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_streams_that_complete_at_random_give_the_same_result(seed: int, streams: int, device: str) -> None:
    place: Callable[[ExecuteGraph], ExecuteGraph] = place_on_discrete if device == "discrete" else (lambda g: g)
    graph = random_graph(seed, size=16)
    after = optimise(place(graph), PassOptions(streams=streams))
    assert verify(after) == []
    expected = interpret(graph, feeds_of(21), CALLABLES)
    for shuffle in range(3):
        order = random_linear_extension(after, shuffle)
        for left, right in zip(expected, run(after, shuffle, device, order), strict=True):
            np.testing.assert_array_equal(left, right, err_msg=f"seed {seed}, streams {streams}, shuffle {shuffle}")


def without_waits(graph: ExecuteGraph) -> ExecuteGraph:
    """The same submissions, but nobody waits for an event."""
    main = (
        replace(n, attributes={**n.attributes, "events": ()}) if n.kernel == "WaitEvents" else n for n in graph.main
    )
    return replace(graph, main=tuple(main))


def goes_wrong(change: Callable[[ExecuteGraph], ExecuteGraph], **options: bool) -> int:
    found = 0
    for seed in SEEDS:
        graph = ladder(8)
        after = change(AssignStreams(2).run(graph))
        expected = interpret(graph, feeds_of(21), CALLABLES)
        for shuffle in range(4):
            results = run(after, 100 * seed + shuffle, "cpu", **options)
            found += any((left != right).any() for left, right in zip(expected, results, strict=True))
    return found


def test_without_events_or_shared_blocks_the_result_is_wrong_sometimes() -> None:
    """The search can fail: it finds what events and the tracking of users are for."""
    assert goes_wrong(lambda graph: graph) == 0
    assert goes_wrong(without_waits) > 0
    assert goes_wrong(lambda graph: graph, tracks_users=False) > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_R08_with_several_streams_nothing_is_split_and_every_edge_stays(seed: int) -> None:
    graph = place_on_discrete(random_graph(seed))
    single = optimise(graph)
    after = optimise(graph, PassOptions(streams=2))
    assert not len(after.relations)
    kernels = {node.kernel for node in after.main}
    assert not any("HoldAddr" in k or k in ("LaunchH2DCopy", "LaunchCopyFlowH2D") for k in kernels)
    crossed = {n.id for n in after.main if n.kernel == "AccessMemCrossStream"}
    by_id = {n.id: n for n in after.main}
    for node in single.main:
        if node.is_guarder:
            gone = set(node.controls) - set(by_id[node.id].controls)
            assert not gone or crossed & set(by_id[node.id].controls), "an edge went without an access in its place"


def test_R07_several_streams_and_several_workers_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="exclude"):
        PassOptions(is_multi_worker=True, streams=2)
    assert [one.name for one in passes_of(PassOptions(streams=2))[1]] == ["assign_streams"]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_block_is_born_and_freed_on_the_stream_that_uses_it(seed: int) -> None:
    after = optimise(place_on_discrete(random_graph(seed)), PassOptions(streams=2))
    producer = {slot: node for node in after.main for slot in node.outputs}
    for node in after.main:
        if node.kernel in ("SendEvents", "WaitEvents") or not submits(node):
            continue
        for slot in node.inputs:
            made = producer.get(slot)
            if made is not None and after.slots[slot].kind in ("memory", "workspace") and "stream" in made.attributes:
                assert made.attributes["stream"] == node.attributes["stream"], (
                    f"seed {seed}: slot {slot} was not announced"
                )
