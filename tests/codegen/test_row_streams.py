"""Stores past the caches change no bit, write nothing else, and end in a fence; short results never take them."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Compiled, check, guarded
from test_rows import arguments

from grainline.base.dims import symbol
from grainline.base.dtypes import BF16, F16, F32, F64
from grainline.codegen import row_streams
from grainline.kernels import rows
from grainline.plan.types import PlannerOptions

LOCAL = PlannerOptions(mapping="local")
STREAMED = (rows.rms_norm, rows.layer_norm)


@pytest.fixture
def always_streamed(monkeypatch):
    monkeypatch.setattr(row_streams, "STREAMED_BYTES", 0)


@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16], ids=str)
@pytest.mark.parametrize("kernel", STREAMED, ids=lambda k: k.__name__)
def test_streamed_rows_have_the_same_bits_at_any_alignment(kernel, dtype, monkeypatch):
    program = kernel(symbol("M"), symbol("N"), dtype=dtype)
    plain = Compiled(program, LOCAL)
    monkeypatch.setattr(row_streams, "STREAMED_BYTES", 0)
    streamed = Compiled(program, LOCAL)
    assert "nontemporal" in streamed.emitted.text and "fence" in streamed.emitted.text
    for n in (1, 15, 16, 63, 64, 65, 77, 150, 513):
        env = {"M": 5, "N": n}
        data = arguments(program, env, seed=n)
        want, _ = guarded(data[-1])
        assert plain.launch([*data[:-1], want], env) == 0
        found, outer = guarded(data[-1])
        before = outer.copy()
        assert streamed.launch([*data[:-1], found], env) == 0
        assert found.tobytes() == want.tobytes(), f"{kernel.__name__} {dtype} n={n}: other bits past the caches"
        found[...] = before[17:-17].reshape(found.shape)
        assert outer.tobytes() == before.tobytes(), f"{kernel.__name__} {dtype} n={n}: wrote outside its rows"


def test_static_rows_take_the_form_of_their_size(always_streamed):
    check(rows.rms_norm(4, 100), arguments(rows.rms_norm(4, 100), {}), {}, LOCAL)


def test_small_static_results_have_one_form_only():
    assert "nontemporal" not in Compiled(rows.rms_norm(64, 256), LOCAL).emitted.text


def test_a_result_that_keeps_values_between_passes_is_not_streamed(always_streamed):
    assert "nontemporal" not in Compiled(rows.softmax(symbol("M"), symbol("N")), LOCAL).emitted.text


def test_elements_that_cross_lines_are_stored_plainly(always_streamed):
    program = rows.rms_norm(symbol("M"), symbol("N"))
    env = {"M": 3, "N": 200}
    x, gamma, y = arguments(program, env)
    raw = np.zeros(y.nbytes + 1, np.uint8)
    crooked = raw[1:].view(np.float32).reshape(y.shape)
    compiled = Compiled(program, LOCAL)
    assert compiled.launch([x, gamma, y], env) == 0 and compiled.launch([x, gamma, crooked], env) == 0
    assert crooked.tobytes() == y.tobytes()
