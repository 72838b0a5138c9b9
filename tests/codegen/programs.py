"""Random tile programs from a seed: a chain of elementwise operations and reductions over one or two tile axes."""

from __future__ import annotations

import numpy as np

from grainline.base.dims import symbol
from grainline.base.dtypes import F32
from grainline.tile.build import ProgramBuilder, Value
from grainline.tile.ir import TileProgram

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
