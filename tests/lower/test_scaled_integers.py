"""Constants that are integers times a scale: what counts as one, and that models with them compute the same."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import grainline
from grainline.base.dtypes import BY_NAME
from grainline.graph.ir import Constant, Graph, Held, Node, Value
from grainline.graph.passes.fold_constants import FoldConstants
from grainline.graph.scaled import scaled_integers
from grainline.plan.target import host_target

K, N = 96, 40
RNG = np.random.default_rng(11)
Q = RNG.integers(-128, 128, (K, N)).astype(np.int8)


def folded(scale: np.ndarray, q: np.ndarray = Q, swapped: bool = False, zero: int | None = None) -> Constant:
    """The constant that q times a scale folds to; with a zero point as DequantizeLinear is written out."""
    f32, i32 = BY_NAME["f32"], BY_NAME["i32"]
    value = {"q": Value("q", BY_NAME["i8"], q.shape), "s": Value("s", f32, scale.shape)}
    arrays, nodes, last = {"q": q, "s": scale}, [], value["q"]
    if zero is not None:
        arrays["z"] = np.full((), zero, np.int32)
        nodes.append(Node("cast", (last,), (Value("w", i32, q.shape),), {"to": "i32"}))
        nodes.append(Node("sub", (nodes[-1].output, Value("z", i32, ())), (Value("d", i32, q.shape),)))
        last = nodes[-1].output
    nodes.append(Node("cast", (last,), (Value("f", f32, q.shape),), {"to": "f32"}))
    factors = (value["s"], nodes[-1].output) if swapped else (nodes[-1].output, value["s"])
    shape = np.broadcast_shapes(q.shape, scale.shape)
    nodes.append(Node("mul", factors, (Value("b", f32, shape),)))
    constants = {name: Constant(Held(array), name) for name, array in arrays.items()}
    graph = Graph("g", (), (("b", nodes[-1].output),), tuple(nodes), constants)
    return FoldConstants().run(graph).constants["b"]


def column_scale(*shape: int) -> np.ndarray:
    return RNG.random(shape).astype(np.float32) + 0.5


@pytest.mark.parametrize("shape", ((), (1,), (N,), (1, N), (1, 1)))
@pytest.mark.parametrize("swapped", (False, True))
@pytest.mark.parametrize("zero", (None, 0))
def test_integers_with_a_scale_per_column_are_found(shape: tuple[int, ...], swapped: bool, zero: int | None) -> None:
    scale = column_scale(*shape)
    found = scaled_integers(folded(scale, swapped=swapped, zero=zero))
    assert found is not None and found.scale_shape == shape
    assert np.array_equal(found.integers.load(), Q) and np.array_equal(found.scale.load(), scale)


@pytest.mark.parametrize(
    "constant",
    (
        pytest.param(folded(column_scale(K, 1)), id="a scale per row"),
        pytest.param(folded(column_scale(K, N)), id="a scale per element"),
        pytest.param(folded(column_scale(3, 1, 1)), id="a stack of matrices"),
        pytest.param(folded(column_scale(N), zero=3), id="a zero point"),
        pytest.param(folded(column_scale(N), Q.astype(np.int8)[:0]), id="no rows"),
        pytest.param(Constant(Held(Q.astype(np.float32))), id="floats"),
    ),
)
def test_other_constants_are_not(constant: Constant) -> None:
    assert scaled_integers(constant) is None


def model(scale: np.ndarray, dequantize: bool) -> bytes:
    """y = x @ (q * scale) + bias, the weights written as a cast and a product, or as DequantizeLinear."""
    tensors = {"q": Q, "s": scale, "bias": column_scale(N)}
    if dequantize:
        tensors["z"] = np.zeros(scale.shape, np.int8)
        nodes = [helper.make_node("DequantizeLinear", ["q", "s", "z"], ["b"], axis=1)]
    else:
        nodes = [helper.make_node("Cast", ["q"], ["f"], to=TensorProto.FLOAT)]
        nodes.append(helper.make_node("Mul", ["f", "s"], ["b"]))
    nodes += [helper.make_node("MatMul", ["x", "b"], ["p"]), helper.make_node("Add", ["p", "bias"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "rows", K])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "rows", N])
    held = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


@pytest.mark.parametrize("dequantize", (False, True))
@pytest.mark.parametrize("shape", ((), (N,)))
def test_a_model_computes_the_product(shape: tuple[int, ...], dequantize: bool) -> None:
    scale = column_scale(*shape)
    data = model(scale, dequantize)
    compiled, bias = grainline.load(data, threads=1), numpy_helper.to_array(_initializer(data, "bias"))
    assert ("B quads" in compiled.explain()) == host_target().has_byte_products
    for batch, rows in ((1, 1), (2, 3), (1, 13)):
        x = RNG.standard_normal((batch, rows, K)).astype(np.float32)
        (found,) = compiled.run({"x": x})
        want = x.astype(np.float64) @ (Q.astype(np.float64) * scale) + bias
        assert np.abs(found - want).max() <= 2e-6 * np.abs(x).max() * np.sqrt(K) * 128 * scale.max()


def _initializer(data: bytes, name: str) -> object:
    import onnx

    return next(t for t in onnx.load_from_string(data).graph.initializer if t.name == name)
