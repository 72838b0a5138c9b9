"""Chains of two products in one kernel: against the interpreter, against two kernels bit for bit, in any cut."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from test_mma_kernels import GUARD, Kernel, plans_of

from grainline.base.dims import evaluate, symbol
from grainline.base.dtypes import F32
from grainline.plan.mma_chain import FORMS, GROUP_STRIPS, STRIPS_TOGETHER
from grainline.tile.build import ProgramBuilder, Value
from grainline.tile.interp import interpret
from grainline.tile.ir import Axis, TileProgram, View

B, H, Q, L, D, E = (symbol(name) for name in "BHQLDE")
EXTENTS = (1, 2, 5, 16, 17, 33, 128, 300)
Rows = Callable[[ProgramBuilder, Value, Axis], Value]
Last = Callable[[ProgramBuilder, Value, Axis, Axis], Value]


def softmax(p: ProgramBuilder, x: Value, n: Axis) -> Value:
    e = p.exp(x - p.max(x, n))
    return e / p.sum(e, n)


def guarded_softmax(p: ProgramBuilder, x: Value, n: Axis) -> Value:
    y = softmax(p, x * 0.25, n)
    return p.select(p.isnan(y), p.const(0.0), y)


def scaled(p: ProgramBuilder, x: Value, n: Axis) -> Value:
    return x * 0.5


def nothing(p: ProgramBuilder, x: Value, n: Axis) -> Value:
    return x


def plain(p: ProgramBuilder, x: Value, m: Axis, e: Axis) -> Value:
    return x


def shifted(p: ProgramBuilder, x: Value, m: Axis, e: Axis) -> Value:
    return p.relu(x + p.load(p.view("bias", F32, (E,)), (e,)))


def normalised(p: ProgramBuilder, x: Value, m: Axis, e: Axis) -> Value:
    centred = x - p.mean(x, e)
    return centred * p.rsqrt(p.mean(centred * centred, e) + 1e-5)


MASKS = {"none": (), "keys": (B, L), "rows": (Q, L), "full": (B, H, Q, L)}


class Attention:
    """softmax-like rows of q k^T, times v, as one program, and as two programs that meet in memory.

    q, k, v and the result are [batch, length, heads, width] buffers; k and v have one head where `shared`.
    """

    def __init__(self, rows: Rows, last: Last = plain, mask: str = "none", shared: bool = False) -> None:
        self.rows, self.last, self.mask, self.shared = rows, last, mask, shared

    def _axes(self, p: ProgramBuilder) -> tuple[Axis, ...]:
        return p.root("b", B), p.root("h", H), p.root("m", Q), p.axis("n", L), p.axis("d", D), p.axis("e", E)

    def _view(self, p: ProgramBuilder, name: str, length: object, width: object, access: str = "read") -> View:
        heads = 1 if self.shared and name in "kv" else H
        return p.view(name, F32, (B, heads, length, width), (length * heads * width, width, heads * width, 1), access)

    def _right(self, p: ProgramBuilder, name: str, width: object, index: tuple) -> Value:
        b, h, row, column = index
        return p.load(self._view(p, name, L, width), (b, 0 if self.shared else h, row, column))

    def _middle(self, p: ProgramBuilder, axes: tuple[Axis, ...]) -> Value:
        b, h, m, n, d, _ = axes
        x = p.mma(p.load(self._view(p, "q", Q, D), (b, h, m, d)), self._right(p, "k", D, (b, h, n, d)), d)
        shape = MASKS[self.mask]
        if shape:
            of = {B: b, H: h, Q: m, L: n}
            x = x + p.load(p.view("mask", F32, shape), tuple(of[extent] for extent in shape))
        return self.rows(p, x, n)

    def _finish(self, p: ProgramBuilder, left: Value, axes: tuple[Axis, ...]) -> TileProgram:
        b, h, m, n, _, e = axes
        o = self.last(p, p.mma(left, self._right(p, "v", E, (b, h, n, e)), n), m, e)
        p.store(self._view(p, "out", Q, E, "write"), (b, h, m, e), o)
        return p.finish()

    def chain(self) -> TileProgram:
        p = ProgramBuilder("chain")
        axes = self._axes(p)
        return self._finish(p, self._middle(p, axes), axes)

    def first(self) -> TileProgram:
        p = ProgramBuilder("first")
        b, h, m, n, *_ = axes = self._axes(p)
        p.store(p.view("p", F32, (B, H, Q, L), access="write"), (b, h, m, n), self._middle(p, axes))
        return p.finish()

    def second(self) -> TileProgram:
        p = ProgramBuilder("second")
        b, h, m, n, *_ = axes = self._axes(p)
        return self._finish(p, p.load(p.view("p", F32, (B, H, Q, L)), (b, h, m, n)), axes)


CASES = {
    "softmax": Attention(guarded_softmax, mask="keys"),
    "rows mask": Attention(guarded_softmax, mask="rows"),
    "full mask": Attention(guarded_softmax, mask="full", shared=True),
    "shared heads": Attention(softmax, shared=True),
    "elementwise": Attention(scaled, shifted),
    "nothing between": Attention(nothing),
    "rows after": Attention(softmax, normalised),
}


@cache
def compiled(case: str) -> dict[str, Kernel]:
    return {form: Kernel(chosen) for form, chosen in plans_of(CASES[case].chain()).items()}


@cache
def two_kernels(case: str) -> tuple[Kernel, Kernel]:
    first, second = CASES[case].first(), CASES[case].second()
    return Kernel(plans_of(first)["strips"]), Kernel(plans_of(second)["strips"])


def feeds(program: TileProgram, env: dict[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    """Random arrays by view name; a mask has whole rows of -inf and scattered ones."""
    rng = np.random.default_rng(seed)
    found = {}
    for view in program.views:
        if view.access == "read":
            array = rng.standard_normal([evaluate(d, env) for d in view.shape]).astype(np.float32)
            if view.name == "mask":
                array[rng.random(array.shape) < 0.3] = -np.inf
                array[..., 0, :][rng.random() < 0.5] = -np.inf
            found[view.name] = array.reshape(-1)
    return found


def result(
    kernel: Kernel, inputs: dict[str, np.ndarray], env: dict[str, int], cuts: tuple[int, ...] = ()
) -> np.ndarray:
    """The written view, computed between guards that must stay as they were."""
    (view,) = (v for v in kernel.plan.program.views if v.access == "write")
    size = evaluate(view.shape[0] * view.shape[1] * view.shape[2] * view.shape[3], env)
    buffer = np.full(size + 2 * GUARD, 7.0, np.float32)
    buffer[GUARD : GUARD + size] = np.nan
    inside = buffer[GUARD : GUARD + size]
    kernel.run([inside if v is view else inputs[v.name] for v in kernel.plan.program.views], env, cuts)
    assert np.all(buffer[:GUARD] == 7.0) and np.all(buffer[GUARD + size :] == 7.0), "it wrote outside its result"
    return inside.copy()


def shapes(seed: int) -> dict[str, int]:
    rng = np.random.default_rng(seed)
    q, length, d, e = (int(x) for x in rng.choice(EXTENTS, 4))
    small = q * length * max(d, e) < 200_000
    return dict(B=2 if small else 1, H=3 if small else 1, Q=q, L=length, D=d, E=e)


@pytest.mark.parametrize("case", CASES)
def test_a_chain_has_the_bits_of_its_two_products(case: str) -> None:
    """Both products keep their order of k and the rows between them their arithmetic, so nothing may change."""
    first, second = two_kernels(case)
    for seed in range(25):
        env = shapes(seed)
        inputs = feeds(CASES[case].chain(), env, seed)
        middle = result(first, inputs, env)
        wanted = result(second, {**inputs, "p": middle}, env)
        for form in FORMS:
            found = result(compiled(case)[form], inputs, env)
            assert np.array_equal(found, wanted, equal_nan=True), f"{form} {env}"


@pytest.mark.parametrize("case", CASES)
def test_a_chain_means_what_the_interpreter_says(case: str) -> None:
    program = CASES[case].chain()
    for seed, (q, length, d, e) in enumerate(((1, 1, 1, 1), (2, 17, 5, 33), (7, 33, 16, 2), (13, 5, 17, 16))):
        env = dict(B=2, H=2, Q=q, L=length, D=d, E=e)
        inputs = feeds(program, env, seed)
        arrays = [inputs.get(v.name, np.zeros(2 * 2 * q * e, np.float32)) for v in program.views]
        assert interpret(program, arrays, env) == 0
        (wanted,) = (a for a, v in zip(arrays, program.views, strict=True) if v.access == "write")
        found = result(compiled(case)["strips"], inputs, env)
        np.testing.assert_allclose(found, wanted, 5e-5, 5e-5, err_msg=str(env))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", ("softmax", "rows after"))
def test_any_cut_of_the_blocks_gives_the_same_bits(case: str, form: str) -> None:
    kernel = compiled(case)[form]
    env = dict(B=2, H=2, Q=6 * GROUP_STRIPS + 6 * STRIPS_TOGETHER + 5, L=50, D=9, E=20)
    inputs = feeds(kernel.plan.program, env)
    whole = result(kernel, inputs, env)
    blocks = kernel.blocks(env)
    for cuts in ((1,), (blocks - 1,), (blocks // 2,), tuple(range(1, blocks)), (0, blocks)):
        assert np.array_equal(result(kernel, inputs, env, cuts), whole), f"cut at {cuts} of {blocks}"


def test_a_row_keeps_its_bits_in_any_company() -> None:
    kernel = compiled("softmax")["strips"]
    env = dict(B=1, H=1, Q=29, L=70, D=24, E=40)
    inputs = feeds(kernel.plan.program, env)
    whole = result(kernel, inputs, env).reshape(29, 40)
    for rows in (1, 2, 3, 4, 5, 6, 7, 11):
        part = {**inputs, "q": inputs["q"].reshape(29, 24)[29 - rows :].copy()}
        assert np.array_equal(result(kernel, part, {**env, "Q": rows}).reshape(rows, 40), whole[29 - rows :])


def test_no_keys_give_zeros_and_no_rows_give_nothing() -> None:
    for form in FORMS:
        kernel = compiled("nothing between")[form]
        env = dict(B=1, H=2, Q=3, L=0, D=4, E=5)
        assert np.all(result(kernel, feeds(kernel.plan.program, env), env) == 0.0)
        assert result(kernel, feeds(kernel.plan.program, {**env, "Q": 0}), {**env, "Q": 0}).size == 0


def test_the_realisations_of_a_chain_share_one_text() -> None:
    assert len({kernel.emitted.text for kernel in compiled("softmax").values()}) == 1
    assert len({kernel.emitted.words for kernel in compiled("softmax").values()}) == len(FORMS)


def test_constant_extents_give_the_same_bits() -> None:
    env = dict(B=2, H=3, Q=13, L=40, D=32, E=32)
    run_time = CASES["softmax"].chain()
    from grainline.tile.text import rename

    fixed = rename(run_time, {name: env[name] for name in "HLDE"})
    inputs = feeds(run_time, env)
    by_position = {new.name: inputs[old.name] for new, old in zip(fixed.views, run_time.views) if old.name in inputs}
    for form, chosen in plans_of(fixed).items():
        found = result(Kernel(chosen), by_position, env)
        assert np.array_equal(found, result(compiled("softmax")[form], inputs, env))
