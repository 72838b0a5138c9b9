"""The list of passes, when each runs, that a failure changes nothing, and the passes that have no file of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from grainline.base.dims import symbol
from grainline.base.dtypes import F32, I64
from grainline.base.knobs import is_multi_worker
from grainline.execgraph import passes
from grainline.execgraph.builder import GraphBuilder, Result
from grainline.execgraph.interp import interpret
from grainline.execgraph.ir import ExecuteGraph, View
from grainline.execgraph.passes import ONCE, REPEATED, PassOptions, optimise, passes_of
from grainline.execgraph.passes.assign_streams import AssignStreams
from grainline.execgraph.passes.output_zero_copy import OutputZeroCopy
from grainline.execgraph.passes.trust_out_tensor import TrustOutTensor
from grainline.execgraph.placement import place_on_discrete
from grainline.execgraph.text import print_graph
from grainline.execgraph.verify import require_valid, verify
from tests.execgraph.lines import lines_of
from tests.execgraph.toy import CALLABLES, feeds_of, random_graph, variant

SEEDS = range(20)
N = symbol("N")
MULTI = PassOptions(is_multi_worker=True)


def environment(cores: str | None, streams: str | None) -> dict[str, str]:
    found = {"MAX_RUNTIME_CORE_NUMBER": cores, "ENABLE_DYNAMIC_SHAPE_MULTI_STREAM": streams}
    return {name: value for name, value in found.items() if value is not None}


def names(options: PassOptions) -> tuple[list[str], list[str]]:
    repeated, once = passes_of(options)
    return [one.name for one in repeated], [one.name for one in once]


@pytest.mark.parametrize("cores", [None, "1", "2", "3"])
@pytest.mark.parametrize("streams", [None, "0", "1", "yes"])
def test_R04_R05_R07_which_passes_are_registered(cores: str | None, streams: str | None) -> None:
    several = is_multi_worker(environment(cores, streams))
    assert several == (cores in ("2", "3") and streams != "1")
    repeated, once = names(PassOptions(is_multi_worker=several))
    assert "copy_flow_launch_fuse" in repeated
    assert once == (["split_mixed_launch_memory", "remove_launch_free_edge"] if several else [])


def test_the_order_of_the_passes() -> None:
    repeated, _ = names(PassOptions(trust_shape_on_out_tensor=True))
    assert repeated == [
        "drop_dead_nodes",
        "output_zero_copy",
        "constant_expression_motion",
        "copy_flow_launch_fuse",
        "trust_out_tensor",
    ]
    assert "trust_out_tensor" not in names(PassOptions())[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_R08_one_worker_or_several_streams_split_nothing_and_keep_every_edge(seed: int) -> None:
    after = optimise(place_on_discrete(random_graph(seed)), PassOptions(is_multi_worker=False))
    assert not len(after.relations)
    assert not any(
        "HoldAddr" in node.kernel or node.kernel.startswith(("Calc", "Share", "Prepare")) for node in after.main
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_R35_several_workers_change_nothing_outside_of_main(seed: int) -> None:
    graph = place_on_discrete(random_graph(seed))
    one, several = (optimise(graph, PassOptions(is_multi_worker=is_several)) for is_several in (False, True))
    assert (one.init, one.deinit) == (several.init, several.deinit)
    assert (one.inputs, one.outputs) == (several.inputs, several.outputs)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("one", [*REPEATED, *ONCE], ids=lambda one: one.name)
def test_a_pass_keeps_the_meaning_and_settles(one: passes.Pass, seed: int) -> None:
    for graph, device in ((random_graph(seed), "cpu"), (place_on_discrete(random_graph(seed)), "discrete")):
        after = one.run(graph)
        assert verify(after) == [], f"seed {seed}"
        assert one.run(after) is after, f"seed {seed}: a second run changes something"
        expected = interpret(graph, feeds_of(19), CALLABLES, device=device)
        for left, right in zip(expected, interpret(after, feeds_of(19), CALLABLES, device=device), strict=True):
            np.testing.assert_array_equal(left, right, err_msg=f"seed {seed}")


@dataclass
class Failing:
    """Injected behind `count` other passes."""

    name: str = "failing"

    def run(self, graph: ExecuteGraph) -> ExecuteGraph:
        raise MemoryError("injected")


@pytest.mark.parametrize("at", range(len(REPEATED) + len(ONCE)))
def test_a_failure_at_any_pass_leaves_the_graph_as_it_was(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = place_on_discrete(random_graph(3))
    text = print_graph(graph)
    split = min(at, len(REPEATED))
    monkeypatch.setattr(
        passes, "REPEATED", (*REPEATED[:split], *([Failing()] if at < len(REPEATED) else []), *REPEATED[split:])
    )
    late = at - len(REPEATED)
    if late >= 0:
        monkeypatch.setattr(passes, "ONCE", (*ONCE[:late], Failing(), *ONCE[late:]))
    with pytest.raises(MemoryError, match="injected"):
        optimise(graph, MULTI)
    assert print_graph(graph) == text


@pytest.mark.parametrize("device", ["cpu", "discrete"])
@pytest.mark.parametrize("one", [*REPEATED, *ONCE, AssignStreams(2)], ids=lambda one: one.name)
def test_a_failure_at_any_line_of_any_pass_leaves_the_graph_as_it_was(one: passes.Pass, device: str) -> None:
    graph = random_graph(3) if device == "cpu" else place_on_discrete(random_graph(3))
    text, after = print_graph(graph), print_graph(one.run(graph))
    count = lines_of(lambda: one.run(graph))
    places = sorted({1, count, *np.random.default_rng(3).integers(1, count + 1, 40).tolist()})
    for place in places:
        with pytest.raises(MemoryError, match="injected"):
            lines_of(lambda: one.run(graph), fail_at=place)
        assert print_graph(graph) == text, f"line {place} of {count}"
    assert print_graph(one.run(graph)) == after, "and nothing of it is kept for the next run"


def test_whoever_watches_sees_the_graph_behind_every_change() -> None:
    seen: list[tuple[str, ExecuteGraph]] = []
    graph = place_on_discrete(random_graph(2))
    after = optimise(graph, MULTI, lambda name, changed: seen.append((name, changed)))
    assert seen[-1][1] is after
    assert [name for name, _ in seen][-2:] == ["split_mixed_launch_memory", "remove_launch_free_edge"]


def test_passes_that_never_settle_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Restless:
        name: str = "restless"

        def run(self, graph: ExecuteGraph) -> ExecuteGraph:
            return replace(graph)

    monkeypatch.setattr(passes, "REPEATED", (Restless(),))
    with pytest.warns(RuntimeWarning, match="did not settle in 10 turns"):
        optimise(random_graph(0))


# ---- output zero copy --------------------------------------------------------------------------------------------


def copied_output(*, size: object = N * 8, offset: int = 0, behind: str = "") -> ExecuteGraph:
    """out = copy(t), t = x + 3 x, and maybe something behind the copy."""
    builder = GraphBuilder("copied")
    x = builder.input("x", I64, (N,))
    t = builder.memory(I64, (N,), N * 8 + offset, "t")
    builder.launch("mix", [variant("mix", N)], [View(x), View(x), View(t, 0, "write")], [N], "add")
    out = builder.model_output("out", I64, (N,))
    builder.copy(t, out, size, source_offset=offset, compute_node="copy")  # type: ignore[arg-type]
    if behind == "write":
        builder.launch("update", [variant("update", N)], [View(t, 0, "readwrite"), View(x)], [N], "late")
    if behind == "read":
        other = builder.model_output("other", I64, (N,))
        builder.launch("mix", [variant("mix", N)], [View(t), View(x), View(other, 0, "write")], [N], "late")
    return require_valid(builder.finish())


@pytest.mark.parametrize("behind", ["", "read"])
def test_a_result_is_produced_in_the_returned_array(behind: str) -> None:
    graph = copied_output(behind=behind)
    after = OutputZeroCopy().run(graph)
    assert verify(after) == []
    kernels = [node.kernel for node in after.main]
    assert not {"AllocMemory", "CopyMemory", "FreeMemory"} & set(kernels)
    feeds = {"x": np.arange(9)}
    for left, right in zip(interpret(graph, feeds, CALLABLES), interpret(after, feeds, CALLABLES), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("change", [{"behind": "write"}, {"offset": 8}])
def test_a_block_that_is_not_the_output_stays_a_block(change: dict[str, object]) -> None:
    graph = copied_output(**change)  # type: ignore[arg-type]
    assert OutputZeroCopy().run(graph) is graph


def test_R68_zero_copy_comes_before_frees_are_retyped() -> None:
    graph = copied_output()
    assert not any(node.kernel == "CopyMemory" for node in optimise(graph, MULTI).main)
    assert not any(
        label == "t"
        for label in (graph.slots[n.released_slot].label for n in optimise(graph, MULTI).main if n.is_guarder)
    )


# ---- trust out tensor --------------------------------------------------------------------------------------------


def returned(shape: tuple[object, ...], *, is_read: bool = False) -> ExecuteGraph:
    builder = GraphBuilder("returned")
    x = builder.input("x", F32, (N,))
    (slot,) = builder.host_call("Abs", lambda a: (np.abs(a),), [x], [Result(F32, shape, "r")])  # type: ignore[arg-type]
    if is_read:
        builder.host_call("Neg", lambda a: (-a,), [slot], [Result(F32, (N,), "s")])
    builder.object_output("out", F32, slot)
    return require_valid(builder.finish())


def test_a_shape_that_is_known_already_is_trusted_on_request() -> None:
    graph = returned((N,))
    assert sum(node.kernel == "InferShape" for node in graph.main) == 2
    after = optimise(graph, PassOptions(trust_shape_on_out_tensor=True))
    assert verify(after) == [] and sum(node.kernel == "InferShape" for node in after.main) == 1
    np.testing.assert_array_equal(interpret(after, {"x": np.float32([-1, 2])}, {})[0], [1, 2])
    assert optimise(graph) is graph


@pytest.mark.parametrize("graph", [returned((symbol("K"),)), returned((N,), is_read=True)], ids=["binds", "is read"])
def test_a_check_that_something_relies_on_stays(graph: ExecuteGraph) -> None:
    assert TrustOutTensor().run(graph) is graph
