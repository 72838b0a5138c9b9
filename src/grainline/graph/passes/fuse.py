"""Which nodes become one kernel.

`fuse(graph)` partitions the compute nodes into `Group`s; views belong to no group, they are addressing. A group has one
iteration space (a shape) and at most one reduced axis; every value inside has the shape of the space, or that shape
with 1 at the reduced axis. The rules know operator *families*, no operator patterns:

* `pointwise`: elementwise work, gathers, iotas and padding over one space.
* `row`: the same with reductions over the last axis; values from before and after a reduction may mix.
* `column`: reductions over another axis; only reduced values may leave the group.
* `matmul`: one matrix product, and row work over its result (its strip epilogue). A second product whose left operand
  is that result may follow, with row work of its own: the group is then a chain of two stages, see `_chain`.
* `scan`: one running sum, its axis serial inside each program.
* `single`: a node that stands alone (host, concat, extents).

A node joins the latest group that makes one of its inputs. Joining is legal when nothing it reads depends on that
group from outside; groups stay acyclic. A value that someone outside reads leaves the group as a further result, so
fusion never changes or removes a graph output.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field

from grainline.graph.ir import Graph, Node, Shape, Value
from grainline.graph.ops import is_pointwise, is_view

#: bounds the size of one kernel, hence its compile time and its number of arguments
MAX_NODES = 96

#: operators that read elements of their operands other than the one they make: those lie in a buffer, outside the group
WHOLE_OPERANDS = frozenset({"gather", "gather_nd", "pad", "matmul", "cumsum"})
ALONE = frozenset({"host", "concat"})


@dataclass(eq=False)
class Group:
    """Nodes of one kernel in topological order. `axis` is the reduced axis of `space`, or None.

    `second` is the second stage of a chain: those of `nodes` that work over a space of their own, which differs from
    `space` in the last axis.
    """

    id: int
    kind: str
    space: Shape
    nodes: list[Node] = field(default_factory=list)
    axis: int | None = None
    second: Group | None = None

    def stages(self) -> tuple[Group, ...]:
        """The group as groups of one space each, in order."""
        if self.second is None:
            return (self,)
        later = {id(node) for node in self.second.nodes}
        first = [node for node in self.nodes if id(node) not in later]
        return Group(self.id, self.kind, self.space, first, self.axis), self.second

    def reduced_space(self) -> Shape | None:
        if self.axis is None:
            return None
        return tuple(1 if a == self.axis else d for a, d in enumerate(self.space))

    def values(self) -> set[str]:
        return {v.name for node in self.nodes for v in node.outputs}


def fuse(graph: Graph) -> tuple[Group, ...]:
    """The groups in an order that respects every dependence, close to the order of the graph."""
    return _Partition(graph).build()


class _Partition:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.readers = graph.consumers()
        self.outputs = graph.output_names()
        self.producers = graph.producers()
        self.order = {id(node): i for i, node in enumerate(graph.nodes)}
        self.owner: dict[str, Group] = {}
        self.groups: dict[int, Group] = {}
        self.ids = itertools.count()

    def build(self) -> tuple[Group, ...]:
        for node in self.graph.nodes:
            if is_view(node.op):
                continue
            group = self._host_group(node) or self._new_group(node)
            self._absorb_producers(group, node)
            if node.op == "reduce":
                for member in tuple(group.nodes):
                    self._absorb_producers(group, member)
        for group in tuple(self.groups.values()):
            self._chain(group)
        return self._sorted()

    def _new_group(self, node: Node) -> Group:
        kind, axis = "pointwise", None
        space: Shape = node.output.shape or ()
        if node.op in ALONE or (node.op == "extents" and node.output.shape != ()):
            kind = "single"
        elif node.op == "matmul":
            kind = "matmul"
        elif node.op == "cumsum":
            kind, axis = "scan", node.attributes["axis"]
        elif node.op == "reduce":
            space = node.inputs[0].shape or ()
            axis = node.attributes["axes"][0]
            kind = "row" if axis == len(space) - 1 else "column"
        group = Group(next(self.ids), kind, space, axis=axis)
        self.groups[group.id] = group
        self._add(group, node)
        return group

    def _add(self, group: Group, node: Node) -> None:
        group.nodes.append(node)
        for value in node.outputs:
            self.owner[value.name] = group

    def _host_group(self, node: Node) -> Group | None:
        """Joins `node` to a group that makes one of its inputs, the latest that is legal."""
        if node.op in ALONE or node.op in ("matmul", "cumsum", "extents", "iota", "pad"):
            return None
        made = {g.id: g for v in node.inputs if (g := self.owner.get(v.name)) is not None}
        for group in sorted(made.values(), key=self._last, reverse=True):
            if self._fits(group, node) and self._independent(group, node):
                if node.op == "reduce" and group.axis is None:
                    group.axis = node.attributes["axes"][0]
                    if group.kind == "pointwise":
                        group.kind = "row" if group.axis == len(group.space) - 1 else "column"
                self._add(group, node)
                return group
        return None

    def _last(self, group: Group) -> int:
        return self.order[id(group.nodes[-1])]

    def _fits(self, group: Group, node: Node) -> bool:
        if group.kind in ("single", "scan") or len(group.nodes) >= MAX_NODES:
            return False
        if node.op == "reduce":
            return self._reduce_fits(group, node)
        if node.op in ("gather", "gather_nd"):
            return False
        if not is_pointwise(node.op):
            return False
        if node.output.shape == group.reduced_space():
            return True
        return node.output.shape == group.space and group.kind != "column"

    def _reduce_fits(self, group: Group, node: Node) -> bool:
        (axis,) = node.attributes["axes"]
        if node.inputs[0].shape != group.space or self.owner.get(node.inputs[0].name) is not group:
            return False
        if group.axis is not None:
            return axis == group.axis
        if axis == len(group.space) - 1:
            return True
        return group.kind == "pointwise" and self._stays_inside(group, (node,))

    def _stays_inside(self, group: Group, extra: tuple[Node, ...]) -> bool:
        """Whether nobody but the group and `extra` reads the group's values."""
        inside = {id(n) for n in (*group.nodes, *extra)}
        return all(
            name not in self.outputs and all(id(n) in inside for n in self.readers.get(name, ()))
            for name in group.values()
        )

    def _independent(self, group: Group, node: Node) -> bool:
        """Whether no input of `node` from another group depends on `group`."""
        others = {g.id: g for v in node.inputs if (g := self._source(v)) not in (None, group)}
        viewed = any(self._source(v) is group and self.owner.get(v.name) is not group for v in node.inputs)
        return not viewed and not any(self._depends(g, group) for g in others.values() if g)

    def _source(self, value: Value) -> Group | None:
        """The group whose result `value` shows, through views."""
        node = self.producers.get(value.name)
        while node is not None and is_view(node.op):
            value = node.inputs[0]
            node = self.producers.get(value.name)
        return self.owner.get(value.name)

    def _inputs(self, group: Group) -> dict[int, Group]:
        found: dict[int, Group] = {}
        for node in group.nodes:
            for value in node.inputs:
                source = self._source(value)
                if source is not None and source is not group:
                    found[source.id] = source
        return found

    def _depends(self, group: Group, on: Group) -> bool:
        """Whether `group` needs a result of `on`, directly or not."""
        seen: set[int] = set()
        stack = [group]
        while stack:
            current = stack.pop()
            if current is on:
                return True
            for source in self._inputs(current).values():
                if source.id not in seen:
                    seen.add(source.id)
                    stack.append(source)
        return False

    def _absorb_producers(self, group: Group, node: Node) -> None:
        """Merges pointwise groups that feed `node` over the same space, or one value per row, into its group."""
        spaces = [group.space]
        if group.kind == "row" and group.reduced_space() != group.space:
            spaces.append(group.reduced_space() or ())
        for value in node.inputs:
            other = self.owner.get(value.name)
            if other is None or other is group or other.kind != "pointwise":
                continue
            if other.space in spaces and self._mergeable(group, other):
                self._merge(group, other)

    def _mergeable(self, group: Group, other: Group) -> bool:
        if group.kind == "single" or len(group.nodes) + len(other.nodes) > MAX_NODES:
            return False
        if any(v.name in other.values() for n in group.nodes if n.op in WHOLE_OPERANDS for v in n.inputs):
            return False
        if group.kind == "column" and not self._stays_inside(other, tuple(group.nodes)):
            return False
        if any(self._source(v) is other and self.owner.get(v.name) is not other for n in group.nodes for v in n.inputs):
            return False
        between = [g for g in self._inputs(group).values() if g is not other]
        return not any(self._depends(g, other) for g in between)

    def _merge(self, group: Group, other: Group) -> None:
        nodes = sorted((*group.nodes, *other.nodes), key=lambda n: self.order[id(n)])
        group.nodes = nodes
        for name in other.values():
            self.owner[name] = group
        del self.groups[other.id]

    def _chain(self, second: Group) -> None:
        """matmul(left, b), where only it reads left = rows of matmul(x, a)  ->  one group of two stages."""
        product = next((n for n in second.nodes if n.op == "matmul"), None)
        if product is None:
            return
        first = self.owner.get(product.inputs[0].name)
        if first is None or first is second or not self._chains(first, second, product):
            return
        first.nodes = [*first.nodes, *second.nodes]
        first.second = second
        for name in second.values():
            self.owner[name] = first
        del self.groups[second.id]

    def _chains(self, first: Group, second: Group, product: Node) -> bool:
        left = product.inputs[0]
        if first.kind != "matmul" or first.second is not None or second.second is not None:
            return False
        if first.space[:-1] != second.space[:-1] or left.shape != first.space:
            return False
        if left.name in self.outputs or len(self.readers[left.name]) != 1 or product.inputs[1] == left:
            return False
        if len(first.nodes) + len(second.nodes) > MAX_NODES:
            return False
        # Nothing but the left operand may pass from the first stage to the second, directly or around.
        if any(self._source(v) is first and v.name != left.name for n in second.nodes for v in n.inputs):
            return False
        others = [g for g in self._inputs(second).values() if g is not first]
        if any(self._depends(g, first) for g in others):
            return False
        products = [n for g in (first, second) for n in g.nodes if n.op == "matmul"]
        return len(products) == 2 and all(self._moves_with_batch(n) for n in products)

    def _moves_with_batch(self, product: Node) -> bool:
        """Whether the right operand has the batch axes of the result and is no weight: weights are worth many rows."""
        right, batch = product.inputs[1], (product.output.shape or ())[:-2]
        source = right
        while (node := self.producers.get(source.name)) is not None and is_view(node.op):
            source = node.inputs[0]
        return (right.shape or ())[:-2] == batch and source.name not in self.graph.constants

    def _sorted(self) -> tuple[Group, ...]:
        waiting = {g.id: set(self._inputs(g)) for g in self.groups.values()}
        users: dict[int, list[int]] = {}
        for gid, sources in waiting.items():
            for source in sources:
                users.setdefault(source, []).append(gid)
        ready = [(self._last(self.groups[g]), g) for g, w in waiting.items() if not w]
        heapq.heapify(ready)
        ordered: list[Group] = []
        while ready:
            _, gid = heapq.heappop(ready)
            ordered.append(self.groups[gid])
            for user in users.get(gid, ()):
                waiting[user].discard(gid)
                if not waiting[user]:
                    heapq.heappush(ready, (self._last(self.groups[user]), user))
        assert len(ordered) == len(self.groups), "fusion made a cycle"
        return tuple(ordered)
