"""What is done to a graph between lowering and a run grows as the graph does: lines are counted, and nothing is timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from grainline.execgraph.ir import ExecuteGraph
from grainline.execgraph.order import execution_order
from grainline.execgraph.pack import pack
from grainline.execgraph.passes import ONCE, REPEATED
from grainline.execgraph.passes.assign_streams import AssignStreams
from grainline.execgraph.passes.remove_launch_free_edge import RemoveLaunchFreeEdge
from grainline.execgraph.placement import place_on_discrete
from grainline.execgraph.schedule import build_schedule
from tests.execgraph.lines import lines_of
from tests.execgraph.toy import random_graph

SMALL, LARGE = 50, 200  # operators
#: What looks at every node for every launch, in one line of a large function, has 1.2.
MOST_GROWTH = 1.1


def growth(work: Callable[[ExecuteGraph], object], make: Callable[[int], ExecuteGraph]) -> float:
    """Lines per node of the large graph, as a multiple of those of the small one."""
    small, large = (
        (lines_of(lambda graph=graph: work(graph)) + 100) / len(graph.main) for graph in (make(SMALL), make(LARGE))
    )
    return large / small


def early(size: int) -> ExecuteGraph:
    graph = RemoveLaunchFreeEdge().run(random_graph(1, size=size))
    assert len(graph.relations) >= size // 2, "a relation for every other launch"
    return graph


def schedule(graph: ExecuteGraph) -> object:
    return build_schedule(graph, [node for node in execution_order(graph.main) if node.kernel != "Tiling"])


def test_work_that_grows_faster_than_the_graph_is_seen() -> None:
    def looks_everywhere(graph: ExecuteGraph) -> object:
        return [sum(other.id > node.id for other in graph.main) for node in graph.main]

    assert growth(looks_everywhere, early) > MOST_GROWTH


@pytest.mark.parametrize("work", [schedule, pack])
def test_R56_relations_and_their_columns_grow_with_the_graph(work: Callable[[ExecuteGraph], object]) -> None:
    assert growth(work, early) < MOST_GROWTH


@pytest.mark.parametrize("device", ["cpu", "discrete"])
@pytest.mark.parametrize("one", [*REPEATED, *ONCE, AssignStreams(2)], ids=lambda one: one.name)
def test_a_pass_grows_with_the_graph(one: Any, device: str) -> None:
    def make(size: int) -> ExecuteGraph:
        graph = random_graph(1, size=size)
        return graph if device == "cpu" else place_on_discrete(graph)

    assert growth(one.run, make) < MOST_GROWTH


def test_placement_grows_with_the_graph() -> None:
    assert growth(place_on_discrete, lambda size: random_graph(1, size=size)) < MOST_GROWTH
