"""Free-to-Launch relations at load: columns of nodes and the rows of a million relations.

    python benchmarks/relations.py

100,000 nodes, every other one a Free with 20 launches, in a random static order. "columns" reads the nodes, "mapped"
leaves out what is not part of the schedule, "rows" validates, sorts and deduplicates; best and median of nine.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
from common import machine, print_table, verdict

from grainline.execgraph.ir import ExecuteGraph, ExecuteNode, Relations
from grainline.execgraph.schedule import NodeColumns, mapped_relations, relation_rows

NODES, EACH, REPEATS = 100_000, 20, 9
BOUND_MS = 300.0


def graph_with_relations() -> ExecuteGraph:
    kinds = ("Launch", "FreeMemoryHoldAddr")
    order = np.random.default_rng(0).permutation(NODES).tolist()
    main = tuple(ExecuteNode(i, kinds[i % 2], attributes={"ReleaseResourceIndex": 0}) for i in order)
    frees = np.repeat(np.arange(1, NODES, 2), EACH)
    launches = (frees - 1 - 2 * np.tile(np.arange(EACH), NODES // 2)) % NODES
    return ExecuteGraph("relations", (), (), (), (), main, (), relations=Relations.of(frees, launches))


def main() -> None:
    graph = graph_with_relations()
    samples: dict[str, list[float]] = {"columns": [], "mapped": [], "rows": [], "all": []}
    for _ in range(REPEATS):
        stamps = [time.perf_counter_ns()]
        columns = NodeColumns.of(graph.main)
        stamps.append(time.perf_counter_ns())
        relations = mapped_relations(graph, columns)
        stamps.append(time.perf_counter_ns())
        offsets, launches = relation_rows(relations, columns)
        stamps.append(time.perf_counter_ns())
        for name, begin, end in zip(("columns", "mapped", "rows"), stamps, stamps[1:]):
            samples[name].append((end - begin) / 1e6)
        samples["all"].append((stamps[-1] - stamps[0]) / 1e6)
    rows = [[name, f"{min(s):.1f}", f"{statistics.median(s):.1f}"] for name, s in samples.items()]
    print_table(f"Relations at load: {NODES} nodes, {len(launches)} relations", ("step", "best ms", "median ms"), rows)
    bound = verdict(statistics.median(samples["all"]), BOUND_MS)
    print(f"\n<= {BOUND_MS:.0f} ms: {bound}; rows take {offsets.nbytes + launches.nbytes} bytes")
    print(f"\n{machine()}")


if __name__ == "__main__":
    main()
