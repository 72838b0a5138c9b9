"""Matrix products: MatMul with NumPy's rules for rank 1, Gemm as transpose, matmul, scale and add; fused forms."""

from __future__ import annotations

from collections.abc import Callable

from grainline.base.dtypes import F32
from grainline.base.errors import ModelError
from grainline.graph.ir import Value
from grainline.importer.builder import Builder
from grainline.importer.call import Call, only
from grainline.importer.elementwise import activated

Rule = Callable[[Builder, Call], list[Value | None]]


def product_of(b: Builder, left: Value, right: Value) -> Value:
    """left: f32[..., M, K], right: f32[..., K, N] -> f32[..., M, N]; leading axes broadcast."""
    left_shape, right_shape = b.shape(left), b.shape(right)
    b.equate(left_shape[-1], right_shape[-2], "the inner extents of a matrix product differ")
    leading = b.broadcast(left_shape[:-2], right_shape[:-2])
    return b.emit("matmul", (left, right), F32, (*leading, left_shape[-2], right_shape[-1]))


def matmul(b: Builder, call: Call) -> list[Value | None]:
    return [numpy_product(b, call, call.input(0), call.input(1))]


def fused_matmul(b: Builder, call: Call) -> list[Value | None]:
    """alpha * A' * B': each operand with its last two axes swapped, or stored with the rows before the batch."""
    left, right = (
        _oriented(
            b, call.input(index), bool(call.integer(f"transBatch{name}", 0)), bool(call.integer(f"trans{name}", 0))
        )
        for index, name in enumerate("AB")
    )
    return [_scaled(b, numpy_product(b, call, left, right), call.real("alpha", 1.0))]


def _oriented(b: Builder, x: Value, is_batch_inside: bool, is_transposed: bool) -> Value:
    rank = b.rank(x)
    order = list(range(rank))
    if is_batch_inside and rank >= 2:
        order = [*order[1:-1], 0, order[-1]]
    if is_transposed and rank >= 2:
        order[-2:] = reversed(order[-2:])
    return b.transpose(x, order)


def numpy_product(b: Builder, call: Call, left: Value, right: Value) -> Value:
    """The product by NumPy's rules: an operand of rank 1 is a row on the left, a column on the right."""
    only(left, F32)
    only(right, F32)
    left_rank, right_rank = b.rank(left), b.rank(right)
    if left_rank == 0 or right_rank == 0:
        raise ModelError("MatMul does not take scalars", node=call.label)
    if left_rank == 1:
        left = b.reshape(left, (1, *b.shape(left)))
    if right_rank == 1:
        right = b.reshape(right, (*b.shape(right), 1))
    product = product_of(b, left, right)
    shape = list(b.shape(product))
    if right_rank == 1:
        del shape[-1]
    if left_rank == 1:
        del shape[-1 if right_rank == 1 else -2]
    return b.reshape(product, shape)


def gemm(b: Builder, call: Call) -> list[Value | None]:
    """alpha * A' * B' + beta * C; alpha = 1 and beta = 1 multiply nothing."""
    left, right, bias = call.input(0), call.input(1), call.optional(2)
    only(left, F32)
    only(right, F32)
    if b.rank(left) != 2 or b.rank(right) != 2:
        raise ModelError("Gemm needs matrices", node=call.label, expected="rank 2", found=(b.rank(left), b.rank(right)))
    if call.integer("transA", 0):
        left = b.transpose(left, (1, 0))
    if call.integer("transB", 0):
        right = b.transpose(right, (1, 0))
    result = _scaled(b, product_of(b, left, right), call.real("alpha", 1.0))
    if bias is None:
        return [result]
    b.fit(bias, b.shape(result))
    total = b.binary("add", result, _scaled(b, bias, call.real("beta", 1.0)))
    if b.shape(total) != b.shape(result):
        raise ModelError(
            "Gemm's C does not broadcast to the product", node=call.label, expected=b.shape(result), found=b.shape(bias)
        )
    return [total]


def fused_gemm(b: Builder, call: Call) -> list[Value | None]:
    """Gemm and the activation that its attributes name."""
    names = {"alpha": "activation_alpha", "beta": "activation_beta"}
    parameters = {name: call.real(given) for name, given in names.items() if call.has(given)}
    return [activated(b, call, value, parameters) for value in gemm(b, call) if value is not None]


def _scaled(b: Builder, x: Value, factor: float) -> Value:
    return x if factor == 1.0 else b.with_scalar("mul", x, factor)


#: (domain, operator) -> rows of (first opset, rule); a row holds until the next one begins
TABLE: dict[tuple[str, str], list[tuple[int, Rule]]] = {
    ("", "MatMul"): [(1, matmul)],
    ("", "Gemm"): [(1, gemm)],
    ("com.microsoft", "FusedMatMul"): [(1, fused_matmul)],
    ("com.microsoft", "FusedGemm"): [(1, fused_gemm)],
}
