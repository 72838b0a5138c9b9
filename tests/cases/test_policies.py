"""A model with a cost policy of its own: every launch does what the policy said, and no run calls it."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import grainline
from grainline.base.dims import evaluate
from grainline.base.errors import GrainlineError
from grainline.execgraph.ir import LaunchTable
from grainline.execgraph.text import parse, print_graph
from grainline.plan.policy import AnalyticExecutionCostPolicy, ExecutionCost, ExecutionWork
from grainline.plan.target import host_target
from grainline.runtime.executor import ModelExecutor
from tests.conftest import make_model

SEED = 20_261_130
F = TensorProto.FLOAT
HOMES = host_target().homes


class Spoken(AnalyticExecutionCostPolicy):
    """A policy that counts how often it is asked. `score(work)` is its objective. It keeps to the shipped signature."""

    is_measured = True

    def __init__(self, score: Any) -> None:
        self.score = score
        self.asked = 0

    def evaluate(self, target: Any, candidate: Any, work: ExecutionWork, coefficients: Any) -> ExecutionCost:
        self.asked += 1
        return ExecutionCost(0, 0, 0, 0, 0, 0, self.score(work))


def whole(work: ExecutionWork) -> float:
    return work.active_workers


def finest(work: ExecutionWork) -> float:
    return 1 / work.task_count


def by_size(work: ExecutionWork) -> float:
    return work.packet_count / work.active_workers + (300 if work.active_workers > 1 else 0)


@pytest.fixture(scope="module")
def source() -> bytes:
    """x[M, N] -> softmax -> product with its own transpose -> gelu-like chain; extents are known when it runs."""
    nodes = [
        helper.make_node("Softmax", ["x"], ["s"], axis=-1),
        helper.make_node("Transpose", ["x"], ["t"]),
        helper.make_node("MatMul", ["s", "t"], ["p"]),
        helper.make_node("Tanh", ["p"], ["h"]),
        helper.make_node("NonZero", ["x"], ["z"]),
        helper.make_node("Cast", ["z"], ["f"], to=F),
        helper.make_node("Exp", ["f"], ["late"]),
    ]
    outputs = {"h": (F, ["M", "M"]), "late": (F, [2, "K"])}
    return make_model(nodes, {"x": (F, ["M", "N"])}, outputs).SerializeToString()


def launches(model: grainline.Model, x: np.ndarray) -> list[tuple[LaunchTable, int, dict[str, Any]]]:
    """(table, blocks, what was chosen) of every launch."""
    executor = model.compiled.executor
    _, records = executor.run_profiled({"x": x})
    graph = executor.graph
    tables = {n.outputs[0]: n.attributes["table"] for n in graph.main if n.kernel == "Tiling"}
    of_launch = {n.id: tables[n.inputs[0]] for n in graph.main if n.kernel == "Launch"}
    return [(of_launch[r["node"]], r["blocks"], r) for r in records if r["kernel"] == "Launch"]


def nearest(steps: tuple[int, ...], extent: int) -> int:
    """By ratio, the smaller of equals."""
    return min(steps, key=lambda step: (max(Fraction(step, max(extent, 1)), Fraction(max(extent, 1), step)), step))


def expected(table: LaunchTable, blocks: int, extents: dict[str, int]) -> tuple[int, int, int]:
    """(variant, grain, homes) by the words of `LaunchTable`."""
    points = list(product(*(steps for _, steps in table.axes)))
    point = tuple(nearest(steps, evaluate(extent, extents)) for extent, steps in table.axes)
    alone, variant, at, grain, homes = table.rows[points.index(point)]
    grain = min(max(-(-grain * blocks // at) if at else grain, 1), blocks)
    homes = min(homes, -(-blocks // grain), HOMES)
    return (variant, grain, homes) if homes > 1 else (variant if HOMES > 1 else alone, blocks, 1)


@pytest.mark.parametrize("score", [whole, finest, by_size])
def test_launches_follow_the_table_and_no_run_asks_the_policy(source: bytes, score: Any) -> None:
    policy, chance = Spoken(score), random.Random(SEED)
    model, plain = grainline.load(source, cost_policy=policy), grainline.load(source)
    model.compiled  # noqa: B018  compiled once
    asked = policy.asked
    assert asked > 0
    sizes = [
        (1, 1),
        (4, 64),
        (64, 256),
        (300, 17),
        *((chance.randint(1, 500), chance.randint(1, 700)) for _ in range(6)),
    ]
    for m, n in sizes:
        x = np.random.default_rng(SEED).standard_normal((m, n), np.float32)
        for table, blocks, chosen in launches(model, x):
            extents = {"M": m, "N": n, **dict.fromkeys(symbols_of(table) - {"M", "N"}, m * n)}
            found = (chosen["variant"], chosen["grain"], chosen["homes"])
            assert found == expected(table, blocks, extents), f"seed {SEED}, {m}x{n}"
        ours, default = model.run({"x": x}), plain.run({"x": x})
        assert all(a.tobytes() == b.tobytes() for a, b in zip(ours, default, strict=True)), "a policy changes no bit"
    assert policy.asked == asked


def symbols_of(table: LaunchTable) -> set[str]:
    return {str(extent) for extent, _ in table.axes}


@pytest.mark.skipif(HOMES < 2, reason="needs a second processor")
def test_policies_differ_where_they_say_so(source: bytes) -> None:
    x = np.ones((256, 256), np.float32)
    by_name = {
        score.__name__: [chosen for _, _, chosen in launches(grainline.load(source, cost_policy=Spoken(score)), x)]
        for score in (whole, finest)
    }
    assert {c["homes"] for c in by_name["whole"]} == {1}
    assert max(c["homes"] for c in by_name["finest"]) > 1
    assert all(c["grain"] == 1 for c in by_name["finest"] if c["homes"] > 1)


def test_a_table_is_for_the_threads_of_its_model(source: bytes) -> None:
    model = grainline.load(source, cost_policy=Spoken(finest), threads=1)
    assert {chosen["homes"] for _, _, chosen in launches(model, np.ones((64, 64), np.float32))} == {1}


def test_a_graph_with_tables_reads_back_as_it_was_printed(source: bytes) -> None:
    graph = grainline.load(source, cost_policy=Spoken(by_size)).compiled.executor.graph
    again = parse(print_graph(graph))
    assert [n.attributes for n in again.main if n.kernel == "Tiling"] == [
        n.attributes for n in graph.main if n.kernel == "Tiling"
    ]


@pytest.mark.parametrize(
    "broken",
    [
        lambda row: (9, *row[1:]),
        lambda row: (row[0], 9, *row[2:]),
        lambda row: (*row[:2], -1, *row[3:]),
        lambda row: (*row[:3], 0, row[4]),
    ],
)
def test_a_table_that_does_not_fit_its_launch_is_refused(source: bytes, broken: Any) -> None:
    graph = grainline.load(source, cost_policy=Spoken(by_size)).compiled.executor.graph
    first, *_ = [n for n in graph.main if n.kernel == "Tiling"]
    table = first.attributes["table"]
    wrong = replace(table, rows=(*table.rows[:-1], broken(table.rows[-1])))
    changed = replace(first, attributes={**first.attributes, "table": wrong})
    graph = replace(graph, main=tuple(changed if n is first else n for n in graph.main))
    with pytest.raises(GrainlineError, match="malformed"):
        ModelExecutor(graph, dict.fromkeys((each.key for each in graph.variants()), 1), keep_alive=None).load()


def test_what_is_no_policy_is_refused(source: bytes) -> None:
    with pytest.raises(grainline.OptionError, match="cost_policy"):
        grainline.load(source, cost_policy=3)  # type: ignore[arg-type]


def test_a_model_with_a_policy_is_not_saved_for_others(tmp_path: Any) -> None:
    one = make_model([helper.make_node("Exp", ["x"], ["y"])], {"x": (F, ["M"])}, {"y": (F, ["M"])}).SerializeToString()
    grainline.load(one, cost_policy=Spoken(whole), cache=True, cache_dir=tmp_path)
    assert not list(tmp_path.rglob("model-*"))
    grainline.load(one, cache=True, cache_dir=tmp_path)
    assert list(tmp_path.rglob("model-*")), "and one without is"


@pytest.mark.skipif(HOMES < 2, reason="needs a second processor")
def test_launches_whose_extents_are_known_late_get_threads_too() -> None:
    """Nothing is known when a run starts but the shape of what is looked through."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["z"]),
        helper.make_node("Cast", ["z"], ["f"], to=F),
        helper.make_node("Exp", ["f"], ["late"]),
    ]
    model = grainline.load(make_model(nodes, {"x": (F, ["M"])}, {"late": (F, [1, "K"])}).SerializeToString())
    executor = model.compiled.executor
    for ones in (1_000_000, 0, 1_000_000):
        x = np.zeros(1_000_000, np.float32)
        x[:ones] = 1
        (late,) = (r for r in executor.run_profiled({"x": x})[1] if r["kernel"] == "Launch")
        assert (late["homes"] > 1) == (ones > 0), f"{ones} elements on {late['homes']} threads"
