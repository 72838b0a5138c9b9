"""What makes an ExecuteGraph valid, as a readable list: each check yields sentences about what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from grainline.base import dims
from grainline.base.dims import Extent
from grainline.execgraph.frames import lifted, path
from grainline.execgraph.gate import unproven
from grainline.execgraph.ir import RELEASE_INDEX, ExecuteGraph, ExecuteNode
from grainline.execgraph.order import execution_order, predecessors
from grainline.execgraph.registry import KERNELS, LAUNCH, SLOT_KINDS, KernelType, Kinds, Traits


def verify(graph: ExecuteGraph) -> list[str]:
    """Every violation found, one sentence each; empty = valid. A graph whose nodes lack their frames means nothing: no
    more is said of it."""
    return list(_owners(graph)) or [problem for check in CHECKS for problem in check(graph)]


def require_valid(graph: ExecuteGraph) -> ExecuteGraph:
    """`graph` itself; ValueError lists what is wrong (a mistake of ours, never of the model)."""
    problems = verify(graph)
    if problems:
        raise ValueError(f"invalid execution graph {graph.name!r}:\n  " + "\n  ".join(problems))
    return graph


def _nodes(graph: ExecuteGraph) -> Iterator[ExecuteNode]:
    yield from (*graph.init, *graph.main, *graph.deinit)


def _ids(graph: ExecuteGraph) -> Iterator[str]:
    """Slots are numbered by position; node ids are unique; kinds and kernels are known."""
    for position, slot in enumerate(graph.slots):
        if slot.id != position:
            yield f"slot {slot.id} stands at position {position}"
        if slot.kind not in SLOT_KINDS:
            yield f"slot {slot.id} has the unknown kind {slot.kind!r}"
    seen: set[int] = set()
    for node in _nodes(graph):
        if node.id in seen:
            yield f"node id {node.id} appears twice"
        seen.add(node.id)
    for name, container in (("init", graph.init), ("main", graph.main), ("deinit", graph.deinit)):
        for node in container:
            if node.kernel not in KERNELS:
                yield f"node {node.id} runs the unknown kernel {node.kernel!r}"
            elif name not in KERNELS[node.kernel].containers:
                yield f"node {node.id} ({node.kernel}) does not belong into {name}"


def _signatures(graph: ExecuteGraph) -> Iterator[str]:
    """Slots exist and have the kinds that the kernel works on."""
    for node in _nodes(graph):
        unknown = [slot for slot in (*node.inputs, *node.outputs) if not 0 <= slot < len(graph.slots)]
        if unknown:
            yield f"node {node.id} ({node.kernel}) uses the unknown slots {unknown}"
            continue
        kernel = KERNELS.get(node.kernel)
        if kernel is None:
            continue  # `_ids` reports it
        found_in = tuple(graph.slots[slot].kind for slot in node.inputs)
        found_out = tuple(graph.slots[slot].kind for slot in node.outputs)
        if kernel.outputs is not None and found_out != kernel.outputs:
            yield f"node {node.id} ({node.kernel}) produces {found_out}, expected {kernel.outputs}"
        if not _accepts(kernel, found_in):
            yield f"node {node.id} ({node.kernel}) reads {found_in}, expected {kernel.inputs}"


def _accepts(kernel: KernelType, found: Kinds) -> bool:
    expected = kernel.inputs
    if expected is None:
        return True
    if kernel.repeats and expected:
        expected = (*expected, *[expected[-1]] * (len(found) - len(expected)))
    return len(expected) == len(found) and all(kind in kinds for kind, kinds in zip(found, expected))


def _producers(graph: ExecuteGraph) -> Iterator[str]:
    """Every slot that is used has exactly one producer, inputs have none."""
    count = [0] * len(graph.slots)
    for node in _nodes(graph):
        for produced in node.outputs:
            count[produced] += 1
    used = _used(graph)
    for slot in graph.slots:
        if slot.id not in used:
            continue
        expected = 0 if slot.kind == "input" else 1
        if count[slot.id] != expected:
            yield f"slot {slot.id} ({slot.kind} {slot.label!r}) has {count[slot.id]} producers, expected {expected}"


def _used(graph: ExecuteGraph) -> set[int]:
    """Slots that some node or output refers to; passes leave the numbers of others unused."""
    nodes = {slot for node in _nodes(graph) for slot in (*node.inputs, *node.outputs)}
    return nodes | {output.slot for output in graph.outputs}


def _edges(graph: ExecuteGraph) -> Iterator[str]:
    """Controls name nodes of the same container; the edges form no cycle."""
    for container in (graph.init, graph.main, graph.deinit):
        ids = {node.id for node in container}
        for node in container:
            missing = [control for control in node.controls if control not in ids]
            if missing:
                yield f"node {node.id} ({node.kernel}) waits for {missing}, which are not in its container"
        if all(control in ids for node in container for control in node.controls):
            try:
                execution_order(container)
            except ValueError as problem:
                yield str(problem)


def _owners(graph: ExecuteGraph) -> Iterator[str]:
    """Where there are sub-graphs, every owner but 0 has a frame, which lies in another or in the graph itself."""
    frames = {frame.owner: frame for frame in graph.frames}
    controlled = any(Traits.CONTROL in KERNELS[node.kernel].traits for node in graph.main if node.kernel in KERNELS)
    for node in graph.main if controlled else ():
        if node.owner and node.owner not in frames:
            yield f"node {node.id} ({node.kernel}) belongs to graph {node.owner}, which has no frame"
    for frame in graph.frames:
        if path(frames, frame.owner)[-1] != 0:
            yield f"frame {frame.owner} lies in the unknown frame {frame.parent}"


def _frames(graph: ExecuteGraph) -> Iterator[str]:
    """An edge that crosses the border of a frame is one of the frame itself, and whoever crosses by data is waited for
    by the entry."""
    nodes = {node.id: node for node in graph.main}
    if not graph.frames:
        return
    producer = {slot: node for node in graph.main for slot in node.outputs}
    order = Order(graph)
    for frame in graph.frames:
        if frame.entry not in nodes or frame.exit not in nodes:
            yield f"frame {frame.owner} has an entry or an exit that does not exist"
    for node in graph.main:
        for control in node.controls:
            if control in nodes and nodes[control].owner != node.owner and not _is_of_frame(nodes[control], node):
                yield f"node {node.id} ({node.kernel}) waits for node {control} of another frame"
        for slot in node.inputs:
            if slot in producer and not order.has(producer[slot], node):
                yield f"node {node.id} ({node.kernel}) reads slot {slot}, and nothing orders it behind the producer"


def _is_of_frame(earlier: ExecuteNode, later: ExecuteNode) -> bool:
    """Whether an edge across a border belongs to a control frame."""
    return (earlier.kernel, later.kernel) in (
        ("SwitchNotify", "BranchPivot"),
        ("SwitchTurn", "BranchPivot"),
        ("BranchDone", "WaitAnyone"),
        ("Enter", "WaitAnyone"),
        ("BranchPivot", "Exit"),
    )


class Order:
    """What the edges of Main order, over the borders of frames."""

    def __init__(self, graph: ExecuteGraph) -> None:
        self.frames = {frame.owner: frame for frame in graph.frames}
        before = predecessors(graph.main)
        self.ancestors: dict[int, set[int]] = {}
        for node in execution_order(graph.main):
            self.ancestors[node.id] = set().union(*(self.ancestors[i] | {i} for i in before[node.id]))

    def has(self, earlier: ExecuteNode, later: ExecuteNode) -> bool:
        """Whether `earlier` comes first whenever both run, or they never both run."""
        if earlier.id in self.ancestors[later.id]:
            return True
        edge = lifted(self.frames, (earlier.id, earlier.owner), (later.id, later.owner))
        return edge is None or edge[0] in self.ancestors[edge[1]]


def _guarders(graph: ExecuteGraph) -> Iterator[str]:
    """Every memory, workspace and object slot that is no output has one guarder, which waits for all its users or is
    related to them."""
    try:
        order = Order(graph)
    except (ValueError, KeyError):
        return  # `_edges` reports it
    outputs = {output.slot for output in graph.outputs}
    guarders: dict[int, list[ExecuteNode]] = {}
    related = set(graph.relations.pairs())
    for node in graph.main:
        if node.kernel in KERNELS and node.is_guarder:
            if RELEASE_INDEX not in node.attributes:
                yield f"guarder {node.id} does not say what it releases"
                continue
            guarders.setdefault(node.released_slot, []).append(node)
    used = _used(graph)
    for slot in graph.slots:
        if slot.kind not in ("memory", "workspace", "object") or slot.id not in used:
            continue
        found = guarders.get(slot.id, [])
        expected = 0 if slot.id in outputs else 1
        if len(found) != expected:
            yield f"slot {slot.id} ({slot.kind} {slot.label!r}) has {len(found)} guarders, expected {expected}"
            continue
        for guarder in found:
            users = [n for n in graph.main if slot.id in n.inputs and n.id != guarder.id]
            missing = [
                user.id
                for user in users
                if user.id not in guarder.controls
                and (guarder.id, user.id) not in related
                and (user.owner == guarder.owner or not order.has(user, guarder))
            ]
            if missing:
                yield f"guarder {guarder.id} of slot {slot.id} does not wait for its users {missing}"


def _contents(graph: ExecuteGraph) -> Iterator[str]:
    """Two nodes that touch the contents of one slot, one of them writing, are ordered."""
    try:
        order = Order(graph)
    except (ValueError, KeyError):
        return  # `_edges` reports it
    touched: dict[int, list[tuple[ExecuteNode, bool]]] = {}
    for node in execution_order(graph.main):
        for slot, writes in touches(node).items():
            for other, other_writes in touched.get(slot, ()):
                if (writes or other_writes) and not (order.has(other, node) or order.has(node, other)):
                    yield f"nodes {other.id} and {node.id} touch slot {slot}, one writes, and no edge orders them"
            touched.setdefault(slot, []).append((node, writes))


def touches(node: ExecuteNode) -> dict[int, bool]:
    """slot -> whether the node writes its contents."""
    if node.kernel == "Launch":
        touched: dict[int, bool] = {}
        for view in node.attributes["views"]:
            touched[view.slot] = touched.get(view.slot, False) or "write" in view.access
        return touched
    if node.kernel in ("CopyMemory", "EnsureTensorAtOutMemory"):
        return {node.inputs[0]: False, node.inputs[1]: True}
    if node.kernel in ("ExtentsTensor", "GrowMemory"):
        return {node.inputs[0]: True}
    if node.kernel == "MoveSlot":
        return dict.fromkeys(node.inputs, True)
    if node.kernel in ("HostCall", "SwitchNotify", "SwitchTurn") or node.kernel in _READERS:
        return dict.fromkeys(node.inputs, False)
    return {}


def _places(graph: ExecuteGraph) -> Iterator[str]:
    """What is moved into a slot lies at one place."""
    try:
        on_host = host_slots(execution_order(graph.main))
    except ValueError:
        return  # `_edges` reports it
    for node in graph.main:
        if node.kernel == "MoveSlot" and (node.inputs[0] in on_host) != (node.inputs[1] in on_host):
            yield f"node {node.id} ({node.kernel}) moves memory from one place to the other"


def host_slots(order: tuple[ExecuteNode, ...]) -> set[int]:
    """The slots whose memory lies on the host, from the nodes in execution order: it stays there when it is moved, and
    when another stream uses it."""
    found: set[int] = set()
    for node in order:
        is_host_path = node.kernel in KERNELS and Traits.HOST_PATH in KERNELS[node.kernel].traits
        if is_host_path or (node.kernel == "AccessMemCrossStream" and node.inputs[0] in found):
            found.update(node.outputs)
        elif node.kernel == "MoveSlot" and node.inputs[0] in found:
            found.add(node.inputs[1])
    return found


#: Copies that read every tensor they list; what they make has no other writer before it.
_READERS = frozenset(
    ("CopyH2D", "MakeSureTensorAtDevice", "CopyFlowLaunch", "PrepareCopyFlowResult", "LaunchH2DCopy", "CopyD2H")
)


def _launches(graph: ExecuteGraph) -> Iterator[str]:
    """A launch lists the slots of its views, behind its tiling and its workspace."""
    for node in graph.launches():
        fixed = 1 + node.attributes["workspace"]
        kinds = [graph.slots[slot].kind for slot in node.inputs[:fixed]]
        if kinds != ["tiling", "workspace"][:fixed]:
            yield f"launch {node.id} starts with slots of kinds {kinds}"
        if set(node.inputs[fixed:]) != {view.slot for view in node.attributes["views"]}:
            yield f"launch {node.id} does not list exactly the slots of its views"
        for view in node.attributes["views"]:
            if view.access not in ("read", "write", "readwrite"):
                yield f"launch {node.id} has a view with the access {view.access!r}"
            if "write" in view.access and graph.slots[view.slot].kind not in ("memory", "output"):
                yield f"launch {node.id} writes to slot {view.slot}, which is a {graph.slots[view.slot].kind}"


def _relations(graph: ExecuteGraph) -> Iterator[str]:
    """A relation joins a Free of the graph itself that holds the address with a launch of it, without an edge and
    proven."""
    nodes = {node.id: node for node in graph.main}
    pairs = graph.relations.pairs()
    for free, launch in pairs:
        if free not in nodes or launch not in nodes:
            yield f"the relation ({free}, {launch}) names a node that does not exist"
        elif not KERNELS[nodes[free].kernel].holds_address or nodes[launch].section != LAUNCH:
            yield f"the relation ({free}, {launch}) joins {nodes[free].kernel} and {nodes[launch].kernel}"
        elif nodes[free].owner != nodes[launch].owner:
            yield f"the relation ({free}, {launch}) crosses from graph {nodes[free].owner} to {nodes[launch].owner}"
        elif nodes[free].owner != 0:
            yield f"the relation ({free}, {launch}) lies inside of graph {nodes[free].owner}, which may run many times"
    related = {free for free, _ in pairs}
    for node in graph.main:
        if node.kernel in KERNELS and KERNELS[node.kernel].holds_address and node.id not in related:
            yield f"Free {node.id} holds the address and no relation protects it"
    try:
        for free, launch, task in unproven(
            graph.main, [pair for pair in pairs if set(pair) <= set(nodes)], graph.frames
        ):
            yield f"launch {launch} may still need node {task.id} ({task.kernel}) when Free {free} runs"
    except (ValueError, KeyError):
        return  # `_edges` reports it


def _extents(graph: ExecuteGraph) -> Iterator[str]:
    """InferShape groups are numbered 0, 1, ..., later ones behind earlier ones; a node waits for the groups of its
    symbols."""
    try:
        order = Order(graph)
    except (ValueError, KeyError):
        return  # `_edges` reports it
    infers = infer_shapes(graph)
    if [node.attributes["group"] for node in infers] != list(range(len(infers))) or not infers:
        yield f"the InferShape groups are {[node.attributes['group'] for node in infers]}"
    for earlier, later in zip(infers, infers[1:]):
        if not order.has(earlier, later):
            yield f"nothing orders InferShape {later.id} behind {earlier.id}, which has the group before"
    born = binders(infers)
    words = {node.inputs[0]: node.attributes["words"] for node in graph.main if node.kernel == "Launch" and node.inputs}
    for node in graph.main:
        tiled = words.get(node.outputs[0], ()) if node.kernel == "Tiling" and node.outputs else ()
        for symbol in sorted({s for extent in (*_extents_of(graph, node), *tiled) for s in dims.symbols(extent)}):
            if symbol not in born:
                yield f"node {node.id} ({node.kernel}) uses the symbol {symbol!r}, which nothing binds"
                continue
            binder = born[symbol]
            is_waited_for = binder.id in node.controls or (node.owner != binder.owner and order.has(binder, node))
            if not is_waited_for:
                yield f"node {node.id} ({node.kernel}) does not wait for node {binder.id}, which binds {symbol!r}"


def infer_shapes(graph: ExecuteGraph) -> list[ExecuteNode]:
    """By group."""
    return sorted((n for n in graph.main if n.kernel == "InferShape"), key=lambda n: n.attributes["group"])


def binders(infers: list[ExecuteNode]) -> dict[str, ExecuteNode]:
    """The node that makes each symbol known: the first InferShape that sees it."""
    born: dict[str, ExecuteNode] = {}
    for node in infers:
        for shape in (*node.attributes["shapes"], node.attributes.get("passed", ())):
            for extent in shape or ():
                for symbol in dims.symbols(extent):
                    born.setdefault(symbol, node)
    return born


def _extents_of(graph: ExecuteGraph, node: ExecuteNode) -> list[Extent]:
    attributes = node.attributes
    if node.kernel == "AllocModelOutput":
        return list(graph.slots[node.outputs[0]].shape or ())
    if node.kernel == "Launch":
        return [*attributes["words"], *(view.offset_bytes for view in attributes["views"])]
    if node.kernel == "ExtentsTensor":
        return [*attributes["values"], attributes["offset_bytes"]]
    if node.kernel == "CopyMemory":
        return [attributes["size_bytes"], attributes["source_offset"], attributes["target_offset"]]
    if node.kernel == "PassExtents":
        return [*node.attributes["extents"], node.attributes["turn"]]
    if node.kernel in ("SwitchTurn", "GrowMemory"):
        return [attributes[name] for name in ("size_bytes", "turn", "limit") if name in attributes]
    if node.kernel == "Tiling":
        axes = attributes["table"].axes if "table" in attributes else ()
        return [*(extent for variant in attributes["variants"] for extent in variant.extents), *(e for e, _ in axes)]
    return [*attributes.get("sizes", ()), attributes.get("size_bytes", 0)]


def _copy_flows(graph: ExecuteGraph) -> Iterator[str]:
    """The parts of a copy flow carry the number of its outputs, which is not zero and the length of its tables."""
    for node in graph.main:
        if "CopyFlow" not in node.kernel:
            continue
        count = node.attributes.get("copy_flow_count")
        if not isinstance(count, int) or count <= 0:
            yield f"node {node.id} ({node.kernel}) has the copy_flow_count {count!r}"
            continue
        tables = [node.attributes[name] for name in ("table", "sizes") if name in node.attributes]
        if any(len(table) != count for table in tables) or (node.kernel in _OWNING and len(node.outputs) != count):
            yield f"node {node.id} ({node.kernel}) does not have {count} outputs, table entries and sizes"


_OWNING = frozenset(("CopyFlowLaunch", "PrepareCopyFlowResult"))


def _tables(graph: ExecuteGraph) -> Iterator[str]:
    """Weights, host operations and outputs are referred to by valid numbers; output slots can be returned."""
    for node in _nodes(graph):
        for key, table in (("weight", graph.weights), ("host_op", graph.host_ops), ("output", graph.outputs)):
            if key in node.attributes and not 0 <= node.attributes[key] < len(table):
                yield f"node {node.id} ({node.kernel}) refers to {key} {node.attributes[key]} of {len(table)}"
    for output in graph.outputs:
        if graph.slots[output.slot].kind not in ("output", "object", "input", "weight"):
            yield f"output {output.name!r} lies in slot {output.slot}, which is a {graph.slots[output.slot].kind}"
    if len({output.name for output in graph.outputs}) != len(graph.outputs):
        yield "two outputs have the same name"
    if len({graph_input.name for graph_input in graph.inputs}) != len(graph.inputs):
        yield "two inputs have the same name"


CHECKS: tuple[Callable[[ExecuteGraph], Iterator[str]], ...] = (
    _ids,
    _signatures,
    _producers,
    _edges,
    _frames,
    _guarders,
    _contents,
    _places,
    _launches,
    _relations,
    _extents,
    _copy_flows,
    _tables,
)
