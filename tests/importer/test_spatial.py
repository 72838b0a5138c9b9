"""Closed forms of convolutions and pools are the shapes that the operators give."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from grainline.graph import interp
from grainline.graph.passes import run_passes
from grainline.importer.model import import_model
from tests.fixtures.models import model

IMAGE = np.random.default_rng(3).standard_normal((1, 2, 9, 11)).astype(np.float32)
WEIGHTS = np.random.default_rng(4).standard_normal((4, 2, 3, 3)).astype(np.float32)

FORMS = [
    {}, {"strides": [2, 2]}, {"pads": [1, 1, 1, 1]}, {"pads": [0, 1, 2, 0], "strides": [2, 3]}, {"dilations": [2, 2]},
    {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, {"auto_pad": "VALID"},
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", ["Conv", "MaxPool"])
def test_the_run_agrees(op: str, form: dict[str, object]) -> None:
    if op == "Conv":
        node = helper.make_node("Conv", ["x", "w"], ["y"], **form)
    else:
        node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], **form)
    graph = import_model(model([node], {"x": IMAGE}, ["y"], {"w": WEIGHTS}))
    for height, width in ((9, 11), (7, 8)):
        interp.run(graph, {"x": IMAGE[:, :, :height, :width]})


def test_branches_that_pool_alike_on_the_host_are_joined_by_compiled_code() -> None:
    nodes = [
        helper.make_node("LpPool", ["x"], ["a"], kernel_shape=[3, 3], strides=[2, 2]),
        helper.make_node("LpPool", ["x"], ["b"], kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 0, 0]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    graph = run_passes(import_model(model(nodes, {"x": IMAGE}, ["y"])))
    assert [n.op for n in graph.nodes] == ["host", "host", "add"]
