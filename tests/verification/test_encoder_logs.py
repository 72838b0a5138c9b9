"""Runs of real models on several workers, their event logs replayed on the protocol."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

import grainline
from grainline.execgraph.ir import ExecuteGraph
from grainline.execgraph.order import predecessors
from grainline.execgraph.registry import WORKERS, worker_of
from tests.test_faults import feeds_of
from tests.verification.replay import Replay
from tests.verification.tasks import Task, Tasks

LETTERS = {"node_started": "s", "node_ended": "e", "node_parked": "p", "node_resumed": "r", "node_failed": "f"}


def tasks_of(graph: ExecuteGraph, order: list[int], workers: int) -> Tasks:
    """The nodes in their static order; a node that is not run stands for those that it waits for."""
    place = {node_id: at for at, node_id in enumerate(order)}
    before = predecessors(graph.main)
    nodes = {node.id: node for node in graph.main}
    related = defaultdict(set)
    for free, launch in graph.relations.pairs():
        related[free].add(place[launch])

    def run_before(node_id: int) -> set[int]:
        found: set[int] = set()
        for other in before[node_id]:
            found |= {place[other]} if other in place else run_before(other)
        return found

    return tuple(
        Task(
            worker_of(nodes[i].kernel, workers),
            frozenset(run_before(i)),
            units=int(nodes[i].kernel.startswith("Alloc")),
            related=frozenset(related[i]),
        )
        for i in order
    )


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("encoder", ["encoder_int8", "encoder_fp32"])
def test_the_log_of_an_encoder_is_legal(encoder: str, workers: int, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(encoder)
    model = grainline.load(path, threads=1, executor="multi-worker", workers=workers)
    feeds = feeds_of(model)
    executor = model.compiled.executor
    order = [node_id for node_id, _, _ in executor._native.nodes()]
    tasks = tasks_of(executor.graph, order, workers)
    assert set(WORKERS) >= {task.worker for task in tasks}
    expected = grainline.load(path, threads=1).run(feeds)[0]
    for _ in range(3):
        results, events = executor.run_logged(feeds)
        np.testing.assert_array_equal(results[0], expected)
        replay = Replay(tasks, range(len(tasks)), workers)
        replay.replay([(LETTERS[kind], node, worker) for _, node, worker, kind in events])
        replay.end()
