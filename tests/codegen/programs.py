"""Random tile programs from a seed: a chain of elementwise operations and reductions over one or two tile axes."""

from __future__ import annotations

import numpy as np

from grainline.base.dims import symbol
from grainline.base.dtypes import F32, I64
from grainline.tile.build import ProgramBuilder, Value, affine
from grainline.tile.ir import POLICIES, Axis, TileProgram

UNARY = ("neg", "abs", "relu", "tanh", "erf", "sigmoid", "floor", "exp_small", "sqrt_abs")
BINARY = ("add", "sub", "mul", "min", "max", "div_safe")


def random_row_program(seed: int) -> TileProgram:
    """Values over (), (n); loads of full rows, shared rows and per-row scalars; one to three stores."""
    random = np.random.default_rng(seed)
    p = ProgramBuilder(f"random_{seed}")
    m, n = symbol("M"), symbol("N")
    r, a = p.root("r", m), p.axis("n", n)
    wide: list[Value] = [p.load(p.view(f"x{k}", F32, (m, n)), (r, a)) for k in range(random.integers(1, 3))]
    narrow: list[Value] = [p.load(p.view("s", F32, (m,)), (r,))]
    if random.random() < 0.5:
        wide.append(p.load(p.view("g", F32, (n,)), (a,)))
    for _ in range(random.integers(3, 12)):
        kind = random.random()
        if kind < 0.25:
            operand = wide[random.integers(len(wide))]
            narrow.append(_reduction(p, random, operand, a))
        elif kind < 0.5:
            pool = wide if random.random() < 0.7 else narrow
            pool.append(_unary(p, str(random.choice(UNARY)), pool[random.integers(len(pool))]))
        else:
            left = wide[random.integers(len(wide))]
            pool = wide if random.random() < 0.6 else narrow
            wide.append(_binary(p, str(random.choice(BINARY)), left, pool[random.integers(len(pool))]))
    for k in range(random.integers(1, 4)):
        if random.random() < 0.25:
            p.store(p.view(f"z{k}", F32, (m,), access="write"), (r,), narrow[-1 - random.integers(min(2, len(narrow)))])
        else:
            p.store(p.view(f"y{k}", F32, (m, n), access="write"), (r, a), wide[-1 - random.integers(min(3, len(wide)))])
    return p.finish()


def _reduction(p: ProgramBuilder, random: np.random.Generator, value: Value, axis: object) -> Value:
    kind = str(random.choice(("add", "max", "min")))
    if kind == "add":
        return p.mean(value, axis) if random.random() < 0.7 else p.tanh(p.sum(value, axis) * 0.01)
    return p.reduce(kind, value, axis, init=0.25)


def _unary(p: ProgramBuilder, op: str, value: Value) -> Value:
    if op == "exp_small":
        return p.exp(p.min(value, 2.0))
    if op == "sqrt_abs":
        return p.sqrt(p.abs(value) + 0.5)
    return p.elementwise(op, value)


def _binary(p: ProgramBuilder, op: str, a: Value, b: Value) -> Value:
    if op == "div_safe":
        return a / (p.abs(b) + 1.0)
    return p.elementwise(op, a, b)


def random_region_program(seed: int) -> TileProgram:
    """Tiles over (n) and scalars with a serial loop or a pipeline: carries, extracts, folds, stores in and after it."""
    random = np.random.default_rng(seed)
    p = ProgramBuilder(f"regions_{seed}")
    m, n = symbol("M"), symbol("N")
    r, a, k = p.root("r", m), p.axis("n", n), p.axis("k", int(random.integers(0, 4)))
    x = p.view("x", F32, (m, n), access="readwrite")
    y, z = p.view("y", F32, (m, n), access="write"), p.view("z", F32, (m,), access="write")
    pool = [p.load(x, (r, a)), p.exp(p.min(p.load(p.view("u", F32, (m, n)), (r, a)), 1.0))]

    def grow(values: list[Value], steps: int) -> None:
        for _ in range(steps):
            values.append(_region_step(p, random, values[random.integers(len(values))], values[-1], a))

    def step(total: Value, row: Value) -> tuple[Value, Value]:
        inside = [*pool, row, p.load(x, (r, a))]
        grow(inside, int(random.integers(1, 4)))
        if is_pipeline and random.random() < 0.5:
            p.stage("next")
        if random.random() < 0.5:
            p.store(x, (r, a), inside[-1] * 0.5)
        grow(inside, 1)
        return p.max(inside[-1], a) * 0.5 + total * 0.25, inside[-1] * 0.5 + row * 0.25

    is_pipeline = bool(random.random() < 0.5)
    grow(pool, int(random.integers(0, 3)))
    start = (p.const(0.5), pool[-1])
    loop = p.serial if not is_pipeline else lambda *parts: p.pipeline(*parts, stages=2)
    total, row = loop(k, start, step)
    pool.append(row + total)
    grow(pool, 2)
    p.store(y, (r, a), pool[-1])
    p.store(z, (r,), total + p.reduce("add", pool[-1], a, policy=str(random.choice(POLICIES))))
    return p.finish()


def _region_step(p: ProgramBuilder, random: np.random.Generator, left: Value, right: Value, a: Axis) -> Value:
    kind = random.random()
    if kind < 0.2:
        return left.at(affine((a, -1), offset=a.extent - 1)) * 0.5
    if kind < 0.4:
        return left - p.reduce("max", right, a, policy=str(random.choice(POLICIES)))
    if kind < 0.5:
        return p.scan(left * 0.125, a) + right
    if kind < 0.6:
        return p.gather(left, a, p.cast(p.abs(right) * 3.0, I64), fallback=0.25)
    return _binary(p, str(random.choice(("add", "sub", "min", "max", "div_safe"))), left, right)
