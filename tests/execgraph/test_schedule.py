"""Edges and relations as columns: what a schedule holds, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from grainline.execgraph.ir import NO_RELATIONS, ExecuteGraph, ExecuteNode, Relations
from grainline.execgraph.order import execution_order, predecessors
from grainline.execgraph.pack import pack
from grainline.execgraph.schedule import NodeColumns, build_schedule, mapped_relations, relation_rows
from tests.execgraph.toy import random_graph

SEEDS = range(15)


def node(node_id: int, kernel: str, *, owner: int = 0, controls: tuple[int, ...] = ()) -> ExecuteNode:
    inputs = (0,) if "Free" in kernel else ()
    return ExecuteNode(node_id, kernel, inputs, (), controls, {"ReleaseResourceIndex": 0}, "", owner)


def graph_of(
    *main: ExecuteNode, relations: Relations = NO_RELATIONS, **containers: tuple[ExecuteNode, ...]
) -> ExecuteGraph:
    return ExecuteGraph("hand-made", (), (), (), containers.get("init", ()), main, (), relations=relations)


@pytest.mark.parametrize("seed", SEEDS)
def test_watchers_mirror_the_edges_and_pass_tilings_on(seed: int) -> None:
    graph = random_graph(seed)
    order = [n for n in execution_order(graph.main) if n.kernel != "Tiling"]
    schedule = build_schedule(graph, order)
    before = predecessors(graph.main)
    by_id = {n.id: n for n in graph.main}
    expected = set()
    for number, one in enumerate(order):
        reached = list(before[one.id])
        while reached:
            earlier = by_id[reached.pop()]
            if earlier.kernel == "Tiling":
                reached += before[earlier.id]
            else:
                expected.add((order.index(earlier), number))
    rows = np.repeat(np.arange(len(order)), np.diff(schedule.watcher_offsets))
    found = list(zip(rows.tolist(), schedule.watchers.tolist(), strict=True))
    assert sorted(found) == sorted(expected)
    assert all(earlier < later for earlier, later in found), "an edge points against the static order"


def test_R52_columns_are_the_same_bytes_every_time_and_follow_execution_ids() -> None:
    graph = graph_of(
        node(7, "Launch"), node(3, "FreeMemoryHoldAddr"), node(5, "Launch"), node(4, "FreeMemoryHoldAddr"),
        relations=Relations.of([4, 3, 3, 4, 3], [5, 7, 5, 5, 7]),
    )  # fmt: skip
    columns = NodeColumns.of(graph.main)
    offsets, launches = relation_rows(graph.relations, columns)
    assert offsets.tolist() == [0, 0, 2, 2, 3]
    assert launches.tolist() == [0, 2, 2]
    again = relation_rows(graph.relations, NodeColumns.of(graph.main))
    assert (offsets.tobytes(), launches.tobytes()) == (again[0].tobytes(), again[1].tobytes())


def test_R50_relations_are_deduplicated_and_ordered() -> None:
    relations = NO_RELATIONS.merged([(9, 2), (1, 5)]).merged([(1, 5), (1, 4)])
    assert relations.pairs() == [(1, 4), (1, 5), (9, 2)]
    assert relations.merged([]) == relations and hash(relations.merged([])) == hash(relations)


def test_R36_a_relation_may_not_cross_owner_graphs() -> None:
    for crossing in ((1, 0), (0, 1)):
        main = (node(1, "FreeMemoryHoldAddr", owner=crossing[0]), node(2, "Launch", owner=crossing[1]))
        graph = graph_of(*main, relations=Relations.of([1], [2]))
        with pytest.raises(ValueError, match="belong to different graphs"):
            build_schedule(graph, graph.main)


def test_R53_relations_of_unmapped_graphs_are_ignored() -> None:
    mapped = (node(1, "FreeMemoryHoldAddr"), node(2, "Launch"))
    sibling = (node(11, "FreeMemoryHoldAddr", owner=4), node(12, "Launch", owner=4))
    init = (node(21, "FreeMemoryHoldAddr"), node(22, "Launch"))
    graph = graph_of(*mapped, *sibling, init=init, relations=Relations.of([1, 11, 21], [2, 12, 22]))
    assert mapped_relations(graph, NodeColumns.of(mapped)).pairs() == [(1, 2)]
    nested = mapped_relations(graph, NodeColumns.of(graph.main))
    assert nested.pairs() == [(1, 2), (11, 12)]


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ((3, 2), "the first node is no Free that keeps its address"),
        ((2, 2), "the first node is no Free that keeps its address"),
        ((1, 3), "the second node is not registered as a launch"),
        ((1, 4), "the second node is not registered as a launch"),
        ((1, 99), "the launch 99 of a relation is not a mapped node"),
        ((99, 2), "the Free 99 of a relation is not a mapped node"),
    ],
)
def test_R54_types_and_ids_are_validated(pair: tuple[int, int], message: str) -> None:
    main = (node(1, "FreeMemoryHoldAddr"), node(2, "Launch"), node(3, "FreeMemory"), node(4, "LaunchHcom"))
    graph = graph_of(*main, relations=Relations.of([1, pair[0]], [2, pair[1]]))
    with pytest.raises(ValueError, match=message):
        build_schedule(graph, graph.main)


def test_R55_a_free_that_keeps_its_address_needs_a_relation() -> None:
    graph = graph_of(node(1, "FreeMemoryHoldAddr"), node(2, "Launch"))
    with pytest.raises(ValueError, match="no relation protects it"):
        build_schedule(graph, graph.main)


def test_R08_without_relations_the_rows_are_empty() -> None:
    graph = random_graph(1)
    order = [n for n in execution_order(graph.main) if n.kernel != "Tiling"]
    schedule = build_schedule(graph, order)
    assert schedule.relation_offsets.tolist() == [0] * (len(order) + 1)
    assert len(schedule.relation_launches) == 0


def test_a_hundred_thousand_nodes_and_a_million_relations_stay_columns() -> None:
    count, each = 100_000, 20
    main = [node(i, "FreeMemoryHoldAddr" if i % 2 else "Launch") for i in range(count)]
    frees = np.repeat(np.arange(1, count, 2), each)
    launches = (frees - 1 - 2 * np.tile(np.arange(each), count // 2)) % count
    graph = graph_of(*main, relations=Relations.of(frees, launches))
    offsets, found = relation_rows(mapped_relations(graph, NodeColumns.of(main)), NodeColumns.of(main))
    assert (len(offsets), len(found)) == (count + 1, 1_000_000)
    assert offsets.nbytes + found.nbytes == 8 * (count + 1) + 8 * 1_000_000
    assert np.array_equal(np.diff(offsets), np.arange(count) % 2 * each)


def test_packed_workers_are_those_of_the_registry() -> None:
    packed = pack(random_graph(2))
    assert packed.blob == pack(random_graph(2)).blob
    graph = replace(random_graph(2), relations=Relations.of([10_000], [10_001]))
    with pytest.raises(ValueError, match="not a mapped node"):
        pack(graph)
