"""Random valid graphs of primitives over two symbols, made with the importer's own builder, and feeds for them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

from grainline.base.dims import symbol
from grainline.base.dtypes import BOOL, F32, I64
from grainline.base.errors import ModelError
from grainline.graph.ir import Graph, Value
from grainline.importer.builder import Builder, Decline

B, L = symbol("b"), symbol("l")
INPUTS = (Value("x", F32, (B, L, 4)), Value("w", F32, (L, 4)), Value("i", I64, (B, L)))

Step = Callable[[Builder, list[Value], Callable[[int], int]], Value]


def _floats(values: list[Value]) -> list[Value]:
    return [value for value in values if value.dtype == F32]


def _pick(values: list[Value], choose: Callable[[int], int]) -> Value:
    return values[choose(len(values))]


def unary(b: Builder, values: list[Value], choose: Callable[[int], int]) -> Value:
    op = ("neg", "abs", "tanh", "relu", "sigmoid", "exp")[choose(6)]
    return b.unary(op, _pick(_floats(values), choose))


def binary(b: Builder, values: list[Value], choose: Callable[[int], int]) -> Value:
    op = ("add", "sub", "mul", "min", "max", "div")[choose(6)]
    return b.binary(op, _pick(_floats(values), choose), _pick(_floats(values), choose))


def with_literal(b: Builder, values: list[Value], choose: Callable[[int], int]) -> Value:
    op = ("add", "sub", "mul", "div", "max")[choose(5)]
    return b.with_scalar(op, _pick(_floats(values), choose), (0.0, -0.0, 1.0, 0.5, -2.0)[choose(5)])


def choice(b: Builder, values: list[Value], choose: Callable[[int], int]) -> Value:
    a, c = _pick(_floats(values), choose), _pick(_floats(values), choose)
    condition = b.literal(bool(choose(2)), BOOL) if choose(3) == 0 else b.binary("lt", a, c)
    return b.where(condition, a, c)


def transposed(b: Builder, values: list[Value], choose: Callable[[int], int]) -> Value:
    x = _pick(_floats(values), choose)
    axes = list(range(b.rank(x)))
    perm = [axes.pop(choose(len(axes))) for _ in range(len(axes))]
    return b.emit("transpose", (x,), x.dtype, [b.shape(x)[axis] for axis in perm], perm=tuple(perm))


def merged(b: Builder, values: list[Value], choose: Callable[[int], int]) -> Value:
    x = _pick(_floats(values), choose)
    shape = b.shape(x)
    if len(shape) < 2:
        return b.reshape(x, (1, *shape))
    cut = choose(len(shape) - 1)
    return b.reshape(x, (*shape[:cut], shape[cut] * shape[cut + 1], *shape[cut + 2 :]))


def reduced(b: Builder, values: list[Value], choose: Callable[[int], int]) -> Value:
    x = _pick(_floats(values), choose)
    return b.reduce(("sum", "max", "min")[choose(3)], x, [choose(b.rank(x))]) if b.rank(x) else x


def sliced(b: Builder, values: list[Value], choose: Callable[[int], int]) -> Value:
    x = _pick(_floats(values), choose)
    shape = b.shape(x)
    fixed = [axis for axis, extent in enumerate(shape) if isinstance(extent, int) and extent > 1]
    if not fixed:
        return x
    axis = fixed[choose(len(fixed))]
    starts, lengths = [0] * len(shape), list(shape)
    starts[axis], lengths[axis] = 1, shape[axis] - 1
    return b.slice(x, starts, lengths, [1] * len(shape))


def windowed(b: Builder, values: list[Value], choose: Callable[[int], int]) -> Value:
    x = _pick(_floats(values), choose)
    shape = b.shape(x)
    fixed = [axis for axis, extent in enumerate(shape) if isinstance(extent, int) and extent >= 4]
    if not fixed or len(shape) > 4:
        return x
    axis, (step, dilation) = fixed[choose(len(fixed))], ((1, 1), (2, 1), (1, 3))[choose(3)]
    steps = (int(shape[axis]) - 1 - dilation) // step + 1
    new = (*shape[:axis], steps, 2, *shape[axis + 1 :])
    return b.emit("windows", (x,), x.dtype, new, axis=axis, step=step, dilation=dilation)


def joined(b: Builder, values: list[Value], choose: Callable[[int], int]) -> Value:
    x = _pick(_floats(values), choose)
    shape = list(b.shape(x))
    if not shape:
        return x
    axis = choose(len(shape))
    shape[axis] = shape[axis] * 2
    both = b.emit("concat", (x, x), x.dtype, shape, axis=axis)
    if choose(2):
        return both
    return b.slice(both, [0] * len(shape), b.shape(x), [1] * len(shape))


def converted(b: Builder, values: list[Value], choose: Callable[[int], int]) -> Value:
    return b.cast(b.cast(values[2], BOOL), F32) if choose(2) else b.cast(values[2], F32)


def folded(b: Builder, values: list[Value], choose: Callable[[int], int]) -> Value:
    weight = b.literal(np.linspace(-1, 1, 4), F32)
    return b.binary("mul", b.with_scalar("add", weight, 1.5), b.unary("exp", weight))


STEPS: tuple[Step, ...] = (
    unary, binary, with_literal, choice, transposed, merged, reduced, sliced, windowed, joined, converted, folded,
)  # fmt: skip


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A graph of up to 14 steps; its outputs are the last values."""

    def choose(count: int) -> int:
        return draw(st.integers(0, count - 1))

    b = Builder()
    for value in INPUTS:
        b.names.fresh(value.name)
    values = list(INPUTS)
    for _ in range(draw(st.integers(1, 14))):
        b.stem = f"s{len(values)}"
        try:
            values.append(STEPS[choose(len(STEPS))](b, values, choose))
        except (Decline, ModelError):
            continue
    outputs = tuple((f"out{index}", value) for index, value in enumerate(values[-3:]))
    return Graph("random", INPUTS, outputs, tuple(b.nodes), b.constants, guards=tuple(b.guards))


def feeds(batch: int, length: int) -> dict[str, np.ndarray]:
    """Feeds with infinities, NaN and both zeros among ordinary numbers."""
    rng = np.random.default_rng(batch * 100 + length)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0], np.float32)
    x = rng.standard_normal((batch, length, 4), np.float32)
    mask = rng.random(x.shape) < 0.2
    x[mask] = rng.choice(special, int(mask.sum()))
    return {
        "x": x,
        "w": rng.standard_normal((length, 4), np.float32),
        "i": rng.integers(-2, 3, (batch, length)),
    }
