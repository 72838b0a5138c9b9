"""What passes make gets names that no value of the model has, whatever the model calls its own."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from grainline.graph.ir import Graph
from grainline.graph.names import Names
from grainline.graph.passes import run_passes
from grainline.graph.verify import verify
from grainline.importer.model import import_model
from tests.fixtures.models import model
from tests.fixtures.peer import agrees_with_peer

RNG = np.random.default_rng(3)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def busy_model(taken: str | None = None) -> tuple[object, dict[str, np.ndarray]]:
    """Every pass that makes values finds work; one more value, which others read and the model gives, is `taken`."""
    node, name = helper.make_node, taken or "other"
    nodes = [
        node("Conv", ["x", "w"], ["c"]), node("Relu", ["c"], ["r"]), node("Mul", ["r", "s"], ["m"]),
        node("ReduceSum", ["m", "axes"], ["u"], keepdims=1), node("Sub", ["m", "u"], ["d"]),
        node("Reshape", ["d", "flat"], ["v"]), node("Transpose", ["v"], ["t"], perm=[1, 0]), node("Mul", ["t", "two"], ["h"]),
        node("Mul", ["big", "two"], ["table"]), node("Gather", ["table", "ids"], ["rows"], axis=0),
        node("Neg", ["x"], [name]), node("ReduceMax", [name], ["top"], axes=[1, 3], keepdims=1),
    ]  # fmt: skip
    weights = {
        "w": f32(5, 4, 3, 3), "s": f32(5, 1, 1), "axes": np.array([1, 3]), "flat": np.array([2, -1]),
        "two": np.float32(2), "big": f32(600, 128),
    }  # fmt: skip
    feeds = {"x": f32(2, 4, 6, 7), "ids": np.array([3, 599])}
    return model(nodes, feeds, ["d", "h", "rows", "top", name], weights, symbolic=False), feeds


def made_by_passes() -> list[str]:
    """The names that are in the graph behind some pass and not in the imported one."""
    imported = import_model(busy_model()[0])
    found: dict[str, None] = {}

    def look(_: str, graph: Graph) -> None:
        found.update({value.name: None for each in graph.nodes for value in each.outputs})

    run_passes(imported, after=look)
    own = {value.name for each in imported.nodes for value in each.outputs}
    return [name for name in found if name not in own]


def test_passes_make_values_here() -> None:
    made = made_by_passes()
    for suffix in ("__unturned", "__aligned", "__above", "__run", "__rows"):
        assert any(suffix in name for name in made), f"nothing is called {suffix}: {made}"


@pytest.mark.parametrize("taken", made_by_passes())
def test_a_model_may_use_any_name(taken: str) -> None:
    built, feeds = busy_model(taken)
    run_passes(import_model(built), after=lambda _, graph: verify(graph))
    agrees_with_peer(built, feeds)


def test_a_wish_that_is_taken_gets_a_number() -> None:
    names = Names(["a"])
    assert [names.fresh("a"), names.fresh("a"), names.fresh("b")] == ["a.1", "a.2", "b"]
    assert "a.1" in names and "c" not in names
