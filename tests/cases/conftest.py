"""`run_node`: one operator as a model, run through grainline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper

import grainline

Run = Callable[..., list[np.ndarray]]


@pytest.fixture
def run_node() -> Run:
    """`run_node("Add", {"a": x, "b": y})`: feeds in order of the operator's inputs, None leaves one out.

    `constants` become initializers instead of feeds; `outputs` is the number of outputs.
    """

    def run(
        op: str,
        feeds: dict[str, np.ndarray | None],
        *,
        constants: dict[str, np.ndarray] | None = None,
        outputs: int = 1,
        opset: int = 18,
        **attributes: Any,
    ) -> list[np.ndarray]:
        named = {name: array for name, array in feeds.items() if array is not None}
        every = [name if array is not None else "" for name, array in feeds.items()] + list(constants or {})
        results = [f"y{i}" for i in range(outputs)]
        return run_graph([helper.make_node(op, every, results, **attributes)], named, results, constants or {}, opset)

    return run


def run_graph(
    nodes: list[Any],
    feeds: dict[str, np.ndarray],
    results: list[str],
    constants: dict[str, np.ndarray] | None = None,
    opset: int = 18,
) -> list[np.ndarray]:
    """Runs nodes on feeds; every feed extent becomes a symbol of its own, so that nothing is folded from shapes."""
    inputs = [
        helper.make_tensor_value_info(name, _element(array), [f"{name}_{i}" for i in range(array.ndim)])
        for name, array in feeds.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in results]
    weights = [_tensor(name, array) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "case", inputs, outputs, weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return grainline.load(proto.SerializeToString()).run(feeds)


def _element(array: np.ndarray) -> int:
    return 8 if array.dtype == object else helper.np_dtype_to_tensor_dtype(array.dtype)


def _tensor(name: str, array: np.ndarray) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(np.asarray(array), name)
