"""The operators that the suites measure: source, inputs and FP64 meaning, fixed so that records stay comparable.

A row operator has one program per row over a tile (1, n); it takes three inputs x, u, v and gives y, all FP32. Inputs
follow from the flat index i alone. Sines are rounded from double precision, so that no library decides a bit of them.
`oracle` computes in FP64 from the FP32 inputs with the FP32-rounded constants, and shares no code with the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from grainline.base.dtypes import F32
from grainline.base.errors import OptionError
from grainline.kernels.attention import attention
from grainline.plan.panels import PANEL
from grainline.tile.build import ProgramBuilder, Value, affine
from grainline.tile.ir import Axis, TileProgram
from grainline.tile.verify import LARGEST_VOLUME

Array = np.ndarray
Shape = tuple[int, ...]

EPSILON = 1e-5
GELU_SCALE = 0.7978845608
GELU_CUBIC = 0.044715
MASKED = -1e30
ATOL = 5e-5
RTOL = 5e-5


ALIGNMENT = 64  # bytes
Wave = Callable[[Shape], Array]


def aligned(size: int, first_element: int = 0) -> Array:
    """f32[size], not filled, whose element `first_element` lies at a multiple of ALIGNMENT bytes."""
    room = np.empty(size + ALIGNMENT // 4, np.float32)
    at = (-(room.ctypes.data // 4 + first_element)) % (ALIGNMENT // 4)
    return room[at : at + size]


def _angles(shape: Shape, step: float, phase: float = 0.0) -> Array:
    """step * i + phase in f32, widened."""
    index = np.arange(int(np.prod(shape))).astype(np.float32)
    return np.asarray(np.float32(step) * index + np.float32(phase), np.float64).reshape(shape)


def _wave_x(shape: Shape) -> Array:
    return np.float32(1.7) * np.sin(_angles(shape, 0.173)).astype(np.float32)


def _wave_u(shape: Shape) -> Array:
    return np.float32(1) + np.float32(0.2) * np.cos(_angles(shape, 0.113)).astype(np.float32)


def _rope_cos(shape: Shape) -> Array:
    return np.cos(_angles(shape, 0.013)).astype(np.float32)


def _wave_v(shape: Shape) -> Array:
    return np.sin(_angles(shape, 0.013)).astype(np.float32)


def _attention_wave(number: int) -> Wave:
    return lambda shape: np.sin(_angles(shape, 0.117 + 0.031 * number, 0.3 * number)).astype(np.float32)


@dataclass(frozen=True)
class Operator:
    """`program(*dims)` has the views of three inputs and of the output, in this order.

    `input_shapes(*dims)` of x, u, v; `oracle(x, u, v)` in FP64, shaped like the output; `waves` fill the inputs.
    """

    name: str
    program: Callable[..., TileProgram]
    input_shapes: Callable[..., tuple[Shape, Shape, Shape]]
    oracle: Callable[[Array, Array, Array], Array]
    waves: tuple[Wave, Wave, Wave] = (_wave_x, _wave_u, _wave_v)
    output_shape: Callable[[Shape], Shape] = lambda dims: dims

    def inputs(self, dims: Shape) -> dict[str, Array]:
        """x, u and v as f32 arrays, the same bits on every machine, aligned as the engine would have them."""
        found = {}
        for name, wave, shape in zip("xuv", self.waves, self.input_shapes(*dims), strict=True):
            found[name] = aligned(prod(shape)).reshape(shape)
            found[name][...] = wave(shape)
        return found


class _Rows:
    """The views and axes that the row operators share."""

    def __init__(self, name: str, rows: int, n: int, u: Shape, v: Shape, tile: int | None = None) -> None:
        self.p = ProgramBuilder(name)
        self.r: Axis = self.p.root("rows", rows)
        self.a: Axis = self.p.axis("n", n if tile is None else tile)
        self.x, self.u, self.v = (self.p.view(k, F32, s) for k, s in (("x", (rows, n)), ("u", u), ("v", v)))
        self.y = self.p.view("y", F32, (rows, n), access="write")

    def load_x(self) -> Value:
        return self.p.load(self.x, (self.r, self.a))

    def finish(self, result: Value) -> TileProgram:
        self.p.store(self.y, (self.r, self.a), result)
        return self.p.finish()


def _row_vectors(rows: int, n: int) -> tuple[Shape, Shape, Shape]:
    return (rows, n), (1, n), (1, n)


def _matrices(rows: int, n: int) -> tuple[Shape, Shape, Shape]:
    return (rows, n), (rows, n), (rows, n)


def _half_tables(rows: int, n: int) -> tuple[Shape, Shape, Shape]:
    return (rows, n), (rows, n // 2), (rows, n // 2)


def rms_norm(rows: int, n: int) -> TileProgram:
    """x / sqrt(sum(x*x) / n + epsilon) * u."""
    k = _Rows("rms_norm", rows, n, (1, n), (1, n))
    x = k.load_x()
    scale = k.p.sqrt(k.p.sum(x * x, k.a) / float(n) + EPSILON)
    return k.finish(x / scale * k.p.load(k.u, (0, k.a)))


def layer_norm(rows: int, n: int) -> TileProgram:
    """c = x - sum(x) / n; c / sqrt(sum(c*c) / n + epsilon) * u + v."""
    k = _Rows("layer_norm", rows, n, (1, n), (1, n))
    x = k.load_x()
    c = x - k.p.sum(x, k.a) / float(n)
    scale = k.p.sqrt(k.p.sum(c * c, k.a) / float(n) + EPSILON)
    return k.finish(c / scale * k.p.load(k.u, (0, k.a)) + k.p.load(k.v, (0, k.a)))


def rope(rows: int, n: int) -> TileProgram:
    """Split halves l, r of a row: l*u - r*v and l*v + r*u. n is even."""
    half = n // 2
    k = _Rows("rope", rows, n, (rows, half), (rows, half), tile=half)
    right = affine((k.a, 1), offset=half)
    low, high = k.load_x(), k.p.load(k.x, (k.r, right))
    cos, sin = k.p.load(k.u, (k.r, k.a)), k.p.load(k.v, (k.r, k.a))
    k.p.store(k.y, (k.r, right), low * sin + high * cos)
    return k.finish(low * cos - high * sin)


def masked_softmax(rows: int, n: int) -> TileProgram:
    """Softmax of the columns at or left of row mod n, zero elsewhere."""
    k = _Rows("masked_softmax", rows, n, (1, n), (1, n))
    valid = k.p.coord(k.a) <= k.p.mod(k.p.coord(k.r), k.p.extent(n))
    s = k.p.select(valid, k.load_x(), k.p.const(MASKED))
    e = k.p.select(valid, k.p.exp(s - k.p.max(s, k.a)), k.p.const(0.0))
    return k.finish(e / k.p.sum(e, k.a))


def swiglu(rows: int, n: int) -> TileProgram:
    """x / (1 + exp(-x)) * u."""
    k = _Rows("swiglu", rows, n, (rows, n), (rows, n))
    x = k.load_x()
    return k.finish(x / (k.p.exp(-x) + 1.0) * k.p.load(k.u, (k.r, k.a)))


def gelu_residual(rows: int, n: int) -> TileProgram:
    """0.5 * x * (1 + tanh(scale * (x + cubic * x*x*x))) + u."""
    k = _Rows("gelu_residual", rows, n, (rows, n), (rows, n))
    x = k.load_x()
    inner = (x + x * x * x * GELU_CUBIC) * GELU_SCALE
    return k.finish(x * 0.5 * (k.p.tanh(inner) + 1.0) + k.p.load(k.u, (k.r, k.a)))


def attention_of(
    batch: int, heads: int, key_heads: int, queries: int, keys: int, width: int, value_width: int
) -> TileProgram:
    """Causal attention with grouped heads; the last query sees all keys."""
    return attention(batch, key_heads, heads // key_heads, queries, keys, width, value_width)


def matmul(m: int, k: int, n: int) -> TileProgram:
    """x @ u + v with a constant u, packed ahead."""
    return _product("matmul", m, k, n, layout="panels", panel=PANEL)


def matmul_unpacked(m: int, k: int, n: int) -> TileProgram:
    """x @ u + v with a u that every launch brings."""
    return _product("matmul_unpacked", m, k, n)


def _product(name: str, m: int, k: int, n: int, **stored: Any) -> TileProgram:
    p = ProgramBuilder(name)
    row, column, inner = p.root("m", m), p.axis("n", n), p.axis("k", k)
    x = p.load(p.view("x", F32, (m, k)), (row, inner))
    u = p.load(p.view("u", F32, (k, n), **stored), (inner, column))
    v = p.load(p.view("v", F32, (n,)), (column,))
    p.store(p.view("y", F32, (m, n), access="write"), (row, column), p.mma(x, u, inner) + v)
    return p.finish()


def _wave_weights(shape: Shape) -> Array:
    """Such that sums over the first axis stay near 1, as trained weights do."""
    return _wave_v(shape) * np.float32(1 / np.sqrt(shape[0]))


def _attention_inputs(
    batch: int, heads: int, key_heads: int, queries: int, keys: int, width: int, value_width: int
) -> tuple[Shape, Shape, Shape]:
    return (
        (batch, heads, queries, width),
        (batch, key_heads, keys, width),
        (batch, key_heads, keys, value_width),
    )


def _wide(value: float) -> np.float64:
    """An FP32-rounded constant in double precision."""
    return np.float64(np.float32(value))


def _rms_norm_oracle(x: Array, u: Array, v: Array) -> Array:
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).sum(axis=1, keepdims=True) / x.shape[1] + _wide(EPSILON)) * u


def _layer_norm_oracle(x: Array, u: Array, v: Array) -> Array:
    x = x.astype(np.float64)
    c = x - x.sum(axis=1, keepdims=True) / x.shape[1]
    return c / np.sqrt((c * c).sum(axis=1, keepdims=True) / x.shape[1] + _wide(EPSILON)) * u + v


def _rope_oracle(x: Array, u: Array, v: Array) -> Array:
    low, high = np.split(x.astype(np.float64), 2, axis=1)
    return np.concatenate([low * u - high * v, low * v + high * u], axis=1)


def _masked_softmax_oracle(x: Array, u: Array, v: Array) -> Array:
    rows, n = x.shape
    valid = np.arange(n)[None, :] <= (np.arange(rows) % n)[:, None]
    s = np.where(valid, x.astype(np.float64), -np.inf)
    e = np.exp(s - s.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def _swiglu_oracle(x: Array, u: Array, v: Array) -> Array:
    x = x.astype(np.float64)
    return x / (1 + np.exp(-x)) * u


def _gelu_residual_oracle(x: Array, u: Array, v: Array) -> Array:
    x = x.astype(np.float64)
    return 0.5 * x * (1 + np.tanh(_wide(GELU_SCALE) * (x + _wide(GELU_CUBIC) * x * x * x))) + u


def _attention_oracle(q: Array, k: Array, v: Array) -> Array:
    """The full score matrix of every head; no running maximum."""
    group, queries, keys = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    k, v = (np.repeat(t.astype(np.float64), group, axis=1) for t in (k, v))
    score = np.einsum("bhqd,bhkd->bhqk", q.astype(np.float64), k) * _wide(1 / np.sqrt(q.shape[3]))
    valid = np.arange(keys)[None, :] <= np.arange(queries)[:, None] + keys - queries
    score = np.where(valid, score, -np.inf)
    weight = np.exp(score - score.max(axis=3, keepdims=True))
    return np.einsum("bhqk,bhkd->bhqd", weight / weight.sum(axis=3, keepdims=True), v)


def _product_oracle(x: Array, u: Array, v: Array) -> Array:
    return x.astype(np.float64) @ u.astype(np.float64) + v


ROW_OPERATORS: tuple[Operator, ...] = (
    Operator("rms_norm", rms_norm, _row_vectors, _rms_norm_oracle),
    Operator("layer_norm", layer_norm, _row_vectors, _layer_norm_oracle),
    Operator("masked_softmax", masked_softmax, _row_vectors, _masked_softmax_oracle),
    Operator("swiglu", swiglu, _matrices, _swiglu_oracle),
    Operator("gelu_residual", gelu_residual, _matrices, _gelu_residual_oracle),
    Operator("rope", rope, _half_tables, _rope_oracle, (_wave_x, _rope_cos, _wave_v)),
)
ATTENTION = Operator(
    "attention",
    attention_of,
    _attention_inputs,
    _attention_oracle,
    (_attention_wave(0), _attention_wave(1), _attention_wave(2)),
    output_shape=lambda dims: (dims[0], dims[1], dims[3], dims[6]),
)
PRODUCTS: tuple[Operator, ...] = tuple(
    Operator(
        program.__name__,
        program,
        lambda m, k, n: ((m, k), (k, n), (n,)),
        _product_oracle,
        (_wave_x, _wave_weights, _wave_v),
        output_shape=lambda dims: (dims[0], dims[2]),
    )
    for program in (matmul, matmul_unpacked)
)
OPERATORS: Mapping[str, Operator] = {each.name: each for each in (*ROW_OPERATORS, ATTENTION, *PRODUCTS)}


def find(name: str) -> Operator:
    """The operator of that name; `OptionError` lists the names otherwise."""
    if name not in OPERATORS:
        raise OptionError("there is no such operator", expected=" or ".join(OPERATORS), found=repr(name))
    return OPERATORS[name]


def check_dims(operator: Operator, dims: Shape) -> None:
    """`OptionError` when the extents do not fit the operator."""
    if operator is ATTENTION:
        _check_attention(dims)
    elif operator in PRODUCTS:
        if len(dims) != 3 or min(dims) < 1:
            raise OptionError(f"{operator.name} takes three extents, M, K and N, of at least 1", found=dims)
    elif len(dims) != 2 or min(dims) < 1:
        raise OptionError(f"{operator.name} takes two extents, rows and n, of at least 1", found=dims)
    if operator.name == "rope" and dims[1] % 2:
        raise OptionError("rope takes rows of even length", found=dims)
    if max(map(prod, (*operator.input_shapes(*dims), operator.output_shape(dims)))) > LARGEST_VOLUME:
        raise OptionError(f"{operator.name} takes arrays of at most {LARGEST_VOLUME} elements", found=dims)


def _check_attention(dims: Shape) -> None:
    if len(dims) != 7 or min(dims) < 1:
        raise OptionError("attention takes seven extents: B, Hq, Hkv, Q, K, D, Dv", found=dims)
    _, heads, key_heads, queries, keys, _, _ = dims
    if heads % key_heads or keys < queries:
        raise OptionError("attention takes Hq a multiple of Hkv and at least as many keys as queries", found=dims)
