"""The discrete device: placement, the copy passes, and the chains node by node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from grainline.base.dims import symbol
from grainline.base.dtypes import F32, I8, I64
from grainline.execgraph import interp_copies
from grainline.execgraph.builder import GraphBuilder, Result
from grainline.execgraph.draft import Draft
from grainline.execgraph.interp import InterpError, Interpreter, interpret
from grainline.execgraph.ir import RELEASE_INDEX, ExecuteGraph, ExecuteNode, View
from grainline.execgraph.memory_model import DEVICE, HOST
from grainline.execgraph.order import execution_order, predecessors
from grainline.execgraph.passes import PassOptions, optimise
from grainline.execgraph.passes.constant_expression_motion import ConstantExpressionMotion
from grainline.execgraph.passes.copy_flow_launch_fuse import CopyFlowLaunchFuse
from grainline.execgraph.passes.remove_launch_free_edge import RemoveLaunchFreeEdge
from grainline.execgraph.passes.split_mixed_launch_memory import SplitMixedLaunchMemory
from grainline.execgraph.placement import place_on_discrete
from grainline.execgraph.registry import worker_of
from grainline.execgraph.verify import verify
from tests.execgraph.toy import CALLABLES, feeds_of, random_graph, variant
from tests.execgraph.workers import interleaving

SEEDS = range(20)
N = symbol("N")
MULTI = PassOptions(is_multi_worker=True)
H2D = ("CalcDeviceCopySizes", "AllocMemHbm", "ShareH2DCopyResult", "LaunchH2DCopy")
FLOW = ("CalcCopyFlowAllocSizes", "AllocCopyFlowHbm", "PrepareCopyFlowResult", "LaunchCopyFlowH2D")


def agree(expected: list, found: list, note: str) -> None:
    for left, right in zip(expected, found, strict=True):
        np.testing.assert_array_equal(left, right, err_msg=note)


def sum_of_inputs(count: int) -> ExecuteGraph:
    """`count` inputs of 4 elements that one launch after the other adds up."""
    builder = GraphBuilder("sum")
    inputs = [builder.input(f"x{i}", I64, (4,)) for i in range(count)]
    total = inputs[0]
    for i, one in enumerate(inputs[1:]):
        target = builder.model_output("sum", I64, (4,)) if i == count - 2 else builder.memory(I64, (4,), 32, f"t{i}")
        builder.launch("mix", [variant("mix", 4)], [View(total), View(one), View(target, 0, "write")], [4], f"add{i}")
        total = target
    return builder.finish()


def pair() -> ExecuteGraph:
    """out = 3 x + y: one launch, two inputs of N elements."""
    builder = GraphBuilder("pair")
    x, y = builder.input("x", I64, (N,)), builder.input("y", I64, (N,))
    out = builder.model_output("out", I64, (N,))
    builder.launch("mix", [variant("mix", N)], [View(x), View(y), View(out, 0, "write")], [N], "add")
    return builder.finish()


def of(graph: ExecuteGraph, kernel: str) -> list[ExecuteNode]:
    return [node for node in graph.main if node.kernel == kernel]


def only(graph: ExecuteGraph, kernel: str) -> ExecuteNode:
    (found,) = of(graph, kernel)
    return found


def data_edges(graph: ExecuteGraph, kernels: tuple[str, ...]) -> set[tuple[str, str]]:
    producer = {slot: node.kernel for node in graph.main for slot in node.outputs}
    return {
        (producer[slot], node.kernel)
        for node in graph.main
        for slot in node.inputs
        if producer.get(slot) in kernels and node.kernel in kernels
    }


def ancestors(graph: ExecuteGraph, node_id: int) -> set[int]:
    before, found, todo = predecessors(graph.main), set(), [node_id]
    while todo:
        for earlier in before[todo.pop()]:
            if earlier not in found:
                found.add(earlier)
                todo.append(earlier)
    return found


# ---- placement ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_placement_keeps_the_meaning_and_every_kernel_reaches_its_memory(seed: int) -> None:
    graph = random_graph(seed, size=16)
    placed = place_on_discrete(graph)
    assert verify(placed) == []
    expected = interpret(graph, feeds_of(21), CALLABLES)
    agree(expected, interpret(placed, feeds_of(21), CALLABLES, device="discrete"), f"seed {seed}")


def test_the_interpreter_finds_memory_at_the_wrong_place() -> None:
    with pytest.raises(AssertionError, match="needs 'x' on the device"):
        interpret(pair(), feeds_of(5), CALLABLES, device="discrete")


@pytest.mark.parametrize("threads", [2, 3, 4])
@pytest.mark.parametrize("seed", SEEDS)
def test_every_pass_keeps_the_meaning_on_the_discrete_device(seed: int, threads: int) -> None:
    graph = random_graph(seed, size=16)
    expected = interpret(graph, feeds_of(21), CALLABLES)
    stages: list[tuple[str, ExecuteGraph]] = []
    optimise(place_on_discrete(graph), MULTI, lambda name, after: stages.append((name, after)))
    for name, after in stages:
        note = f"seed {seed}, threads {threads}, after {name}"
        assert verify(after) == [], note
        agree(expected, interpret(after, feeds_of(21), CALLABLES, device="discrete"), note)
        order = interleaving(after, threads, seed)
        agree(expected, interpret(after, feeds_of(21), CALLABLES, order, device="discrete"), note)
    assert {"split_mixed_launch_memory", "remove_launch_free_edge"} <= {name for name, _ in stages}


def test_weights_are_copied_once_at_load() -> None:
    builder = GraphBuilder("weighted")
    x = builder.input("x", I64, (4,))
    w = builder.weight("w", I64, (4,), lambda: np.arange(4))
    out = builder.model_output("out", I64, (4,))
    builder.launch("mix", [variant("mix", 4)], [View(x), View(w), View(out, 0, "write")], [4], "add")
    placed = place_on_discrete(builder.finish())
    assert len(of(placed, "CopyH2D")) == 2
    moved = ConstantExpressionMotion().run(placed)
    assert verify(moved) == []
    assert [node.kernel for node in moved.init] == ["LoadWeight", "CopyH2D"]
    assert [node.kernel for node in moved.deinit] == ["ReleaseWeight", "ReleaseWeight"]
    assert len(of(moved, "CopyH2D")) == 1
    assert ConstantExpressionMotion().run(moved) is moved
    feeds = {"x": np.arange(4) * 10}
    agree(
        interpret(placed, feeds, CALLABLES, device="discrete"),
        interpret(moved, feeds, CALLABLES, device="discrete"),
        "moved",
    )


# ---- the H2D chain -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["CopyH2D", "MakeSureTensorAtDevice"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_R09_a_copy_becomes_four_nodes_per_tensor(kernel: str, outputs: int) -> None:
    placed = place_on_discrete(sum_of_inputs(outputs + 1))
    draft = Draft(placed)
    copies = of(placed, "CopyH2D")
    sources, results = [c.inputs[0] for c in copies[:outputs]], [c.outputs[0] for c in copies[:outputs]]
    for copy in copies[:outputs]:
        draft.remove(copy.id)
    merged = draft.add(kernel, sources, results, copies[0].controls, {"sizes": (32,) * outputs}, compute_node="copy")
    split = SplitMixedLaunchMemory().run(draft.finish())
    assert verify(split) == []
    chains = [node for node in split.main if node.kernel in H2D]
    assert sorted(node.kernel for node in chains) == sorted(H2D * (outputs + 1)), "the untouched copy is split too"
    assert data_edges(split, H2D) == {
        ("CalcDeviceCopySizes", "AllocMemHbm"),
        ("CalcDeviceCopySizes", "ShareH2DCopyResult"),
        ("CalcDeviceCopySizes", "LaunchH2DCopy"),
        ("AllocMemHbm", "ShareH2DCopyResult"),
        ("AllocMemHbm", "LaunchH2DCopy"),
    }
    for launch in of(split, "LaunchH2DCopy"):
        (share,) = (n for n in of(split, "ShareH2DCopyResult") if n.inputs == launch.inputs)
        assert share.id in launch.controls and len(share.outputs) == 1
    assert merged not in {node.id for node in split.main} and not of(split, kernel)


def chain_run(
    array: Any, dtype: Any = I64, original_bytes: int = 100, place: str = HOST
) -> tuple[Interpreter, ExecuteGraph]:
    """One chain, run, over a host array (or the same array on the device)."""
    builder = GraphBuilder("chain")
    slot = builder.input("x", dtype, np.shape(array))
    graph = builder.finish()
    draft = Draft(graph)
    result = draft.slot("memory", draft.slots[slot])
    draft.add("CopyH2D", (slot,), (result,), (0,), {"sizes": (original_bytes,)})
    split = SplitMixedLaunchMemory().run(draft.finish())
    run = Interpreter(split, {"x": array}, {}, device="discrete")
    run.place[slot] = place
    run.walk(sorted((n for n in split.main if n.kernel in H2D), key=lambda n: H2D.index(n.kernel)))
    return run, split


def sizes_of(run: Interpreter, graph: ExecuteGraph) -> tuple[int, int]:
    allocated, copied = only(graph, "CalcDeviceCopySizes").outputs
    return run.sizes[allocated], run.sizes[copied]


def test_R10_R11_the_allocation_follows_the_original_size_and_the_copy_the_contents() -> None:
    assert sizes_of(*chain_run(np.zeros(5, np.int64), original_bytes=100)) == (128 + 64, 40)
    for dtype, item in ((F32, 4), (I8, 1), (I64, 8)):
        for shape in ((3,), (2, 5), (1, 1, 7), ()):
            count = int(np.prod(shape))
            found = sizes_of(*chain_run(np.zeros(shape, dtype.numpy), dtype, count * item))
            assert found == (-(-count * item // 64) * 64 + 64, count * item)


@pytest.mark.parametrize("array", [np.zeros(0, np.int64), np.zeros((3, 0, 2), np.int64)])
def test_R12_an_empty_tensor_has_no_block_and_no_copy(array: np.ndarray) -> None:
    run, graph = chain_run(array)
    assert sizes_of(run, graph) == (0, 0)
    assert run.copied == [] and run.device_pool.live_bytes == 0


def test_R12_what_lies_on_the_device_is_shared_and_not_copied() -> None:
    run, graph = chain_run(np.arange(5), place=DEVICE)
    assert sizes_of(run, graph) == (0, 0)
    assert run.copied == []
    (source,), (result,) = only(graph, "CalcDeviceCopySizes").inputs, only(graph, "ShareH2DCopyResult").outputs
    assert run.bytes[result] is run.bytes[source]


def test_R13_strings_are_measured_only_when_a_copy_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    words = np.array(["ab", "", "größe"], dtype=object)
    measured: list[int] = []
    real = interp_copies.tensor_bytes
    monkeypatch.setattr(interp_copies, "tensor_bytes", lambda run, source: measured.append(source) or real(run, source))
    run, graph = chain_run(words, place=DEVICE)
    assert sizes_of(run, graph) == (0, 0) and measured == []
    builder = GraphBuilder("words")
    builder.input("x", I64, (3,))
    host = Interpreter(builder.finish(), {"x": words}, {}, device="discrete")
    expected = 3 * 16 + (2 + 1) + (0 + 1) + (7 + 1)
    assert interp_copies.device_copy_sizes(host, 0, 100) == (128 + 64, expected) and measured == [0]


def test_R14_the_result_owns_and_consumers_frees_and_launches_read_it() -> None:
    run, graph = chain_run(np.arange(5))
    (result,) = only(graph, "ShareH2DCopyResult").outputs
    (block,) = only(graph, "AllocMemHbm").outputs
    assert run.owned[result].users == 1 and block not in run.owned, "the ownership moved"
    assert run.bytes[result][:40].tobytes() == np.arange(5).tobytes()
    for threads in (2, 3, 4):
        assert worker_of("ShareH2DCopyResult", threads) == worker_of("AllocMemHbm", threads) == "memory"
        assert worker_of("CalcDeviceCopySizes", threads) == "normal"
        assert worker_of("LaunchH2DCopy", threads) == "launch"


def test_R15_the_submission_has_no_outputs_and_copies_once() -> None:
    run, graph = chain_run(np.arange(5))
    assert only(graph, "LaunchH2DCopy").outputs == ()
    assert run.copied == [("LaunchH2DCopy", 40)]


# ---- who waits ---------------------------------------------------------------------------------------------------


def consumers(kernel: str) -> ExecuteGraph:
    """A copied input, and one more node of `kernel` that reads the copy."""
    placed = place_on_discrete(pair())
    draft = Draft(placed)
    copy = of(placed, "CopyH2D")[0]
    tiling = only(placed, "Launch").inputs[0]
    inputs = (tiling, copy.outputs[0]) if "Launch" in kernel or "Execute" in kernel else (copy.outputs[0],)
    inputs = copy.outputs if kernel in ("BuildRefTensor", "ExecuteOpPrepare") else inputs
    made = {"BuildRefTensor": "memory", "ExecuteOpPrepare": "tiling"}
    outputs = (draft.slot(made[kernel]),) if kernel in made else ()
    draft.add(kernel, inputs, outputs, (0,), {"views": (), "words": (), "workspace": 0, "key": "", "variants": ()})
    return SplitMixedLaunchMemory().run(draft.finish())


@pytest.mark.parametrize("kernel", ["LaunchHcom", "ExecuteOpLaunch", "ExecuteOpFunc", "ExecuteCustomOp"])
def test_R24_launches_wait_for_the_copy_of_what_they_read(kernel: str) -> None:
    split = consumers(kernel)
    node = only(split, kernel)
    (share,) = (n for n in of(split, "ShareH2DCopyResult") if n.outputs[0] in node.inputs)
    (launch,) = (n for n in of(split, "LaunchH2DCopy") if n.inputs == share.inputs)
    assert launch.id in node.controls
    assert all(n.id in only(split, "Launch").controls for n in of(split, "LaunchH2DCopy"))


@pytest.mark.parametrize("kernel", ["BuildRefTensor", "ExecuteOpPrepare"])
def test_R25_who_needs_the_address_alone_does_not_wait(kernel: str) -> None:
    split = consumers(kernel)
    node = only(split, kernel)
    assert ancestors(split, node.id).isdisjoint(n.id for n in of(split, "LaunchH2DCopy"))
    assert not ancestors(split, node.id).isdisjoint(n.id for n in of(split, "ShareH2DCopyResult"))


@pytest.mark.parametrize("kernel", ["ExecuteOpLaunch", "ExecuteOpFunc", "ExecuteCustomOp"])
def test_R26_R27_a_launch_behind_a_reference_waits_and_holds_the_free(kernel: str) -> None:
    placed = place_on_discrete(pair())
    draft = Draft(placed)
    copy = of(placed, "CopyH2D")[0]
    reference = draft.slot("memory")
    draft.add("BuildRefTensor", copy.outputs, (reference,), (0,))
    behind = draft.add(kernel, (only(placed, "Launch").inputs[0], reference), (), (0,))
    split = SplitMixedLaunchMemory().run(draft.finish())
    (share,) = (n for n in of(split, "ShareH2DCopyResult") if n.outputs == copy.outputs)
    (launch,) = (n for n in of(split, "LaunchH2DCopy") if n.inputs == share.inputs)
    nodes = {node.id: node for node in split.main}
    (free,) = (n for n in of(split, "FreeMemory") if n.released_slot == copy.outputs[0])
    assert launch.id in nodes[behind].controls
    assert behind in free.controls, "the launch behind the reference holds the Free before edges go"
    after = {node.id: node for node in RemoveLaunchFreeEdge().run(split).main}
    is_registered = kernel == "ExecuteOpLaunch"
    assert (behind not in after[free.id].controls) == is_registered
    pairs = RemoveLaunchFreeEdge().run(split).relations.pairs()
    assert ((free.id, behind) in pairs) == is_registered


def test_R28_frees_and_consumers_hang_on_the_result_and_never_on_the_allocation() -> None:
    split = optimise(place_on_discrete(random_graph(7, size=16)), MULTI)
    blocks = {
        slot for node in split.main if node.kernel in ("AllocMemHbm", "AllocCopyFlowHbm") for slot in node.outputs
    }
    assert blocks
    for node in split.main:
        if not blocks.isdisjoint(node.inputs):
            assert node.kernel in (*H2D, *FLOW), f"{node.kernel} reads from the allocation"


def test_the_block_of_a_copy_lives_as_long_as_its_result() -> None:
    """Ownership moves into Share: after the last Free nothing is live, and the copy's submission is related to it."""
    split = RemoveLaunchFreeEdge().run(SplitMixedLaunchMemory().run(place_on_discrete(sum_of_inputs(6))))
    feeds = {f"x{i}": np.arange(4) + i for i in range(6)}
    related = {(free, launch) for free, launch in split.relations.pairs()}
    nodes = {node.id: node for node in split.main}
    shares = {n.outputs[0]: n for n in of(split, "ShareH2DCopyResult")}
    for launch in of(split, "LaunchH2DCopy"):
        (result,) = (slot for slot, share in shares.items() if share.inputs == launch.inputs)
        (free,) = (n for n in split.main if n.is_guarder and n.released_slot == result)
        assert (free.id, launch.id) in related and nodes[free.id].kernel == "FreeMemoryHoldAddr"
    one = Interpreter(split, feeds, CALLABLES, device="discrete")
    one.run(interleaving(split, 3, 0))
    assert one.device_pool.curve[-1] == 0 and one.device_pool.live_bytes == 0
    in_order = Interpreter(split, feeds, CALLABLES, device="discrete")
    in_order.run(execution_order(split.main))
    block = 64 + 64
    # The widest moment: two operands and the result of one launch, while the next operand is on its way.
    assert max(in_order.device_pool.curve) <= 3 * block + 2 * 32


# ---- CopyFlow ----------------------------------------------------------------------------------------------------


def test_R04_R06_one_worker_keeps_the_fused_node() -> None:
    single = optimise(place_on_discrete(pair()))
    fused = only(single, "CopyFlowLaunch")
    assert not any(node.kernel in (*H2D, *FLOW) for node in single.main)
    launch = only(single, "Launch")
    assert fused.compute_node == launch.compute_node and fused.attributes["copy_flow_count"] == 2
    assert fused.attributes["table"] == ((0,), (1,))
    assert not of(single, "CopyH2D"), "the copies have no other reader left"
    assert all(slot in launch.inputs for slot in fused.outputs)


def test_R16_R17_the_fused_node_becomes_four_with_one_count() -> None:
    split = SplitMixedLaunchMemory().run(optimise(place_on_discrete(pair())))
    assert verify(split) == []
    parts = [only(split, kernel) for kernel in FLOW]
    assert [node.attributes["copy_flow_count"] for node in parts] == [2, 2, 2, 2]
    assert data_edges(split, FLOW) == {
        ("CalcCopyFlowAllocSizes", "AllocCopyFlowHbm"),
        ("AllocCopyFlowHbm", "PrepareCopyFlowResult"),
        ("AllocCopyFlowHbm", "LaunchCopyFlowH2D"),
    }
    calc, _, prepare, submit = parts
    assert submit.controls == (prepare.id,) and submit.outputs == ()
    assert calc.controls == only(optimise(place_on_discrete(pair())), "CopyFlowLaunch").controls
    assert submit.id in only(split, "Launch").controls
    assert prepare.id == only(optimise(place_on_discrete(pair())), "CopyFlowLaunch").id


@pytest.mark.parametrize("count", [None, 0, -1, 1, 3])
def test_R17_a_wrong_count_is_refused(count: int | None) -> None:
    fused = optimise(place_on_discrete(pair()))
    node = only(fused, "CopyFlowLaunch")
    broken = {k: v for k, v in node.attributes.items() if k != "copy_flow_count"}
    broken |= {} if count is None else {"copy_flow_count": count}
    main = tuple(replace(n, attributes=broken) if n.id == node.id else n for n in fused.main)
    graph = replace(fused, main=main)
    assert any("copy_flow_count" in p or "table entries" in p for p in verify(graph))
    with pytest.raises(ValueError, match="copy_flow_count"):
        SplitMixedLaunchMemory().run(graph)


@pytest.mark.parametrize("field", ["inputs", "outputs", "blocks", "table"])
def test_R18_cardinalities_that_differ_end_the_run(field: str) -> None:
    split = SplitMixedLaunchMemory().run(optimise(place_on_discrete(pair())))
    prepare = only(split, "PrepareCopyFlowResult")
    shorter: dict[str, Any] = {
        "inputs": {"inputs": prepare.inputs[:-1]},
        "outputs": {"outputs": prepare.outputs[:-1]},
        "table": {"attributes": {**prepare.attributes, "table": prepare.attributes["table"][:-1]}},
        "blocks": {},
    }[field]
    main = tuple(replace(n, **shorter) if n.id == prepare.id else n for n in split.main)
    graph = replace(split, main=main)
    run = Interpreter(graph, feeds_of(50), CALLABLES, device="discrete")
    order = [n for n in interleaving(split, 3, 0) if n.id != prepare.id]
    at = next(i for i, n in enumerate(order) if n.kernel == "AllocCopyFlowHbm") + 1
    run.walk(order[:at])
    if field == "blocks":
        run.vectors[prepare.inputs[1]].pop()
    with pytest.raises(InterpError, match="expected 2"):
        run.walk([n for n in graph.main if n.id == prepare.id])


@pytest.mark.parametrize("count", [3, 200])
def test_R19_R21_prepare_owns_every_result_and_only_allocated_ones_are_submitted(count: int) -> None:
    """3 elements of i64 are embedded (24 bytes each), 200 are not."""
    split = SplitMixedLaunchMemory().run(optimise(place_on_discrete(pair())))
    run = Interpreter(split, feeds_of(count), CALLABLES, device="discrete")
    order = interleaving(split, 3, 0)
    at = next(i for i, n in enumerate(order) if n.kernel == "PrepareCopyFlowResult") + 1
    run.walk(order[:at])
    prepare = only(split, "PrepareCopyFlowResult")
    assert run.copied == [], "Prepare submits nothing"
    arguments = run.argument_blocks[prepare.inputs[0]]
    if count == 3:
        assert arguments.records == [(0, 24 + 8), (8, 24 + 8 + 24)] and len(arguments.host_data) == 64 + 32
    else:
        assert arguments.records == []
        assert all(run.owned[slot].users == 1 for slot in prepare.outputs)
        assert run.vectors[prepare.inputs[1]] == []
    found = run.run(order[at:])
    expected = [] if count == 3 else [("LaunchCopyFlowH2D", 1600)] * 2
    assert run.copied == expected
    agree(interpret(pair(), feeds_of(count), CALLABLES), found, "chain")


def test_R22_more_than_sixteen_outputs_and_nothing_leaks() -> None:
    """17 outputs of one fused node, over several runs of the same graph."""
    builder = GraphBuilder("seventeen")
    inputs = [builder.input(f"x{i}", I64, (N,)) for i in range(17)]
    out = builder.model_output("out", I64, (N,))
    views = [View(inputs[0]), View(inputs[1]), View(out, 0, "write"), *(View(slot) for slot in inputs[2:])]
    builder.launch("mix17", [variant("mix17", N)], views, [N], "add")
    graph = optimise(place_on_discrete(builder.finish()), MULTI)
    assert only(graph, "PrepareCopyFlowResult").attributes["copy_flow_count"] == 17
    kernels = {"mix17": lambda args, b, e, s: CALLABLES["mix"]([*args[:3], args[-1]], b, e, s)}
    for count in (1, 40, 3):
        feeds = {f"x{i}": np.arange(count) * i for i in range(17)}
        run = Interpreter(graph, feeds, kernels, device="discrete")
        (found,) = run.run(interleaving(graph, 3, count))
        np.testing.assert_array_equal(found, np.arange(count) * 1)
        assert run.device_pool.live_bytes == 0


def test_R29_each_launch_gets_its_own_guarders() -> None:
    """Two launches that share two small copies: two fused nodes, and one Free per output."""
    builder = GraphBuilder("twice")
    x, y = builder.input("x", I64, (4,)), builder.input("y", I64, (4,))
    for name in ("a", "b"):
        out = builder.model_output(name, I64, (4,))
        builder.launch("mix", [variant("mix", 4)], [View(x), View(y), View(out, 0, "write")], [4], name)
    fused = CopyFlowLaunchFuse().run(place_on_discrete(builder.finish()))
    assert verify(fused) == []
    nodes = of(fused, "CopyFlowLaunch")
    assert [node.compute_node for node in nodes] == ["a", "b"]
    launches = {n.compute_node: n.id for n in of(fused, "Launch")}
    for node in nodes:
        for slot in node.outputs:
            (free,) = (n for n in fused.main if n.is_guarder and n.released_slot == slot)
            assert free.controls == (launches[node.compute_node],)
    assert not of(fused, "CopyH2D")


def test_a_large_copy_that_several_launches_share_is_not_repeated() -> None:
    builder = GraphBuilder("shared")
    x = builder.input("x", I64, (N,))
    for name in ("a", "b"):
        out = builder.model_output(name, I64, (N,))
        builder.launch("mix", [variant("mix", N)], [View(x), View(x), View(out, 0, "write")], [N], name)
    placed = place_on_discrete(builder.finish())
    assert CopyFlowLaunchFuse().run(placed) is placed


def test_a_copy_with_another_reader_is_not_fused() -> None:
    placed = place_on_discrete(pair())
    draft = Draft(placed)
    copy = of(placed, "CopyH2D")[0]
    result = draft.slot("memory")
    draft.add("IdentityAddr", copy.outputs, (result,), (0,))
    draft.add("FreeMemory", (result,), (), (), {RELEASE_INDEX: 0})
    fused = CopyFlowLaunchFuse().run(draft.finish())
    assert copy.id in {node.id for node in fused.main}
    assert only(fused, "CopyFlowLaunch").attributes["copy_flow_count"] == 1


# ---- names and order ---------------------------------------------------------------------------------------------


def test_R64_submissions_inherit_the_compute_node_and_the_others_do_not() -> None:
    split = SplitMixedLaunchMemory().run(place_on_discrete(pair()))
    assert {n.compute_node for n in of(split, "LaunchH2DCopy")} == {"add"}
    for kernel in H2D[:3]:
        assert {n.compute_node for n in of(split, kernel)} == {""}
    flow = SplitMixedLaunchMemory().run(optimise(place_on_discrete(pair())))
    assert [only(flow, kernel).compute_node for kernel in FLOW] == ["", "", "add", "add"]


def test_host_results_reach_the_device_checked() -> None:
    """The copy of a host result waits for the InferShape that checks it."""
    k = symbol("K")
    builder = GraphBuilder("nonzero")
    x = builder.input("x", I64, (N,))
    (found,) = builder.host_call("NonZero", lambda a: (a[a != 0],), [x], [Result(I64, (k,), "found")])
    out = builder.model_output("out", I64, (k,))
    builder.launch("through", [variant("through", k, scratch_bytes=8)], [View(found), View(out, 0, "write")], [k])
    graph = builder.finish()
    placed = place_on_discrete(graph)
    assert verify(placed) == []
    (result,) = interpret(placed, {"x": np.array([3, 0, 4, 0])}, CALLABLES, device="discrete")
    assert result.tolist() == [4, 5]
