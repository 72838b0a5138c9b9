"""What the executors need beside the nodes themselves: workers, edges and relations as integer columns.

An execution id is the position of a node in the static order of the packed nodes. Columns are built with NumPy from
the graph once it is final; no Python object exists per edge of a relation. `build_schedule` refuses relations that no
executor may run: across owner graphs, of the wrong kinds, with ids that are not mapped, and a Free that keeps its
address although no relation protects it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from grainline.execgraph.ir import ExecuteGraph, ExecuteNode, Relations, distinct
from grainline.execgraph.order import predecessors
from grainline.execgraph.registry import KERNELS, LAUNCH, WORKERS, worker_of

Ids = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """i64 columns over N execution ids: node_workers [N, 2], watcher_offsets [N + 1], watchers [E],
    relation_offsets [N + 1], relation_launches [R]. Offsets start at 0, never fall, and end at E and R."""

    COLUMNS: ClassVar = ("node_workers", "watcher_offsets", "watchers", "relation_offsets", "relation_launches")

    node_workers: Ids
    watcher_offsets: Ids
    watchers: Ids
    relation_offsets: Ids
    relation_launches: Ids


@dataclass(frozen=True, slots=True, eq=False)
class NodeColumns:
    """Facts about mapped nodes, by execution id: node id, owner graph, and what the kernel may do in a relation."""

    ids: Ids
    owners: Ids
    holds_address: np.ndarray[Any, np.dtype[np.bool_]]
    is_launch: np.ndarray[Any, np.dtype[np.bool_]]

    @staticmethod
    def of(nodes: Sequence[ExecuteNode]) -> NodeColumns:
        holds = {name: kernel.holds_address for name, kernel in KERNELS.items()}
        launches = {name: kernel.section == LAUNCH for name, kernel in KERNELS.items()}
        count = len(nodes)
        return NodeColumns(
            np.fromiter((node.id for node in nodes), np.int64, count),
            np.fromiter((node.owner for node in nodes), np.int64, count),
            np.fromiter((holds[node.kernel] for node in nodes), np.bool_, count),
            np.fromiter((launches[node.kernel] for node in nodes), np.bool_, count),
        )


def build_schedule(graph: ExecuteGraph, nodes: Sequence[ExecuteNode]) -> Schedule:
    """The columns of `nodes`, which stand in static order. ValueError names the relation that is wrong."""
    watcher_offsets, watchers = _watchers(graph, nodes)
    columns = NodeColumns.of(nodes)
    relation_offsets, relation_launches = relation_rows(mapped_relations(graph, columns), columns)
    return Schedule(_workers(nodes), watcher_offsets, watchers, relation_offsets, relation_launches)


def _workers(nodes: Sequence[ExecuteNode]) -> Ids:
    row = {
        name: tuple(WORKERS.index(worker_of(name, threads)) for threads in (4, 3))
        for name in {node.kernel for node in nodes}
    }
    return np.array([row[node.kernel] for node in nodes], np.int64).reshape(-1, 2)


def _watchers(graph: ExecuteGraph, nodes: Sequence[ExecuteNode]) -> tuple[Ids, Ids]:
    """Who waits for whom among the mapped nodes. The join of a loop waits for the end of a turn too (`again`); no order
    of the nodes has that edge."""
    before = {
        node.id: (*found, *node.attributes.get("again", ()))
        for node, found in zip(graph.main, predecessors(graph.main).values(), strict=True)
    }
    position = {node.id: number for number, node in enumerate(nodes)}
    edges = [
        (earlier, number)
        for number, node in enumerate(nodes)
        for earlier in set().union(*(_mapped(other, position, before) for other in before[node.id]))
    ]
    ends = np.array(sorted(edges), np.int64).reshape(-1, 2)
    return _offsets(ends[:, 0], len(nodes)), np.ascontiguousarray(ends[:, 1])


def _mapped(node_id: int, position: dict[int, int], before: dict[int, tuple[int, ...]]) -> set[int]:
    """Where a node is mapped; one that is not passes its predecessors on."""
    if node_id in position:
        return {position[node_id]}
    return set().union(*(_mapped(other, position, before) for other in before[node_id]))


def mapped_relations(graph: ExecuteGraph, columns: NodeColumns) -> Relations:
    """The relations of owner graphs that have mapped nodes; those of Init, DeInit and siblings are none of ours."""
    relations, owners = graph.relations, set(columns.owners.tolist())
    strangers = [node.id for node in (*graph.init, *graph.deinit)]
    strangers += [node.id for node in graph.main if node.owner not in owners]
    mapped = np.isin(relations.free_ids, np.array(strangers, np.int64), invert=True)
    return Relations(relations.free_ids[mapped], relations.launch_ids[mapped])


def relation_rows(relations: Relations, columns: NodeColumns) -> tuple[Ids, Ids]:
    """CSR of the relations over execution ids: offsets i64[N + 1] and launches i64[R], rows in ascending order."""
    count = len(columns.ids)
    frees = _positions(columns.ids, relations.free_ids, "Free")
    launches = _positions(columns.ids, relations.launch_ids, "launch")
    _refuse(~columns.holds_address[frees], relations, "the first node is no Free that keeps its address")
    _refuse(~columns.is_launch[launches], relations, "the second node is not registered as a launch")
    _refuse(columns.owners[frees] != columns.owners[launches], relations, "the nodes belong to different graphs")
    keys = distinct(frees * max(count, 1) + launches)
    offsets = _offsets(keys // max(count, 1), count)
    bare = columns.holds_address & (np.diff(offsets) == 0)
    if bare.any():
        raise ValueError(f"Free {columns.ids[bare.argmax()]} keeps its address and no relation protects it")
    return offsets, keys % max(count, 1)


def _positions(ids: Ids, wanted: Ids, role: str) -> Ids:
    """Execution ids of node ids, by a table over all ids."""
    table = np.full(max(int(ids.max(initial=-1)), int(wanted.max(initial=-1))) + 1, -1, np.int64)
    table[ids] = np.arange(len(ids))
    found = table[wanted]
    if (found < 0).any():
        raise ValueError(f"the {role} {wanted[(found < 0).argmax()]} of a relation is not a mapped node")
    return found


def _refuse(wrong: np.ndarray[Any, np.dtype[np.bool_]], relations: Relations, why: str) -> None:
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(f"relation ({relations.free_ids[first]}, {relations.launch_ids[first]}): {why}")


def _offsets(rows: Ids, count: int) -> Ids:
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=count), out=offsets[1:])
    return offsets
