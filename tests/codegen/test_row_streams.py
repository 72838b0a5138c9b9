"""Stores past the caches change no bit, write nothing else, and end in a fence; short results never take them."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Compiled, check, guarded
from test_rows import arguments

from grainline.base.dims import symbol
from grainline.base.dtypes import BF16, F16, F32, F64
from grainline.codegen import row_streams
from grainline.kernels import pointwise, reductions, rows
from grainline.plan.types import PlannerOptions
from grainline.tile.build import ProgramBuilder, affine

M, N = symbol("M"), symbol("N")
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


CLAIM = "i32 1, i32 3, i32 1)"  # a prefetch into the first level, to be written


def test_whole_packets_ask_for_the_lines_that_follow_what_they_write():
    """Two packets of 16 floats at once are two lines, one packet is one; the masked one has nothing behind it."""
    program = pointwise.gelu(symbol("M"), symbol("N"))
    emitted = Compiled(program, PlannerOptions(mapping="whole", packet_width=16)).emitted
    assert emitted.text.count(CLAIM) == 3
    narrow = Compiled(program, PlannerOptions(mapping="whole", packet_width=4)).emitted
    assert CLAIM not in narrow.text, "packets shorter than a line would ask for each several times"


def every_other():
    """y[2 i] = x[i]."""
    p = ProgramBuilder("every_other")
    i = p.root("i", N)
    x, y = p.view("x", F32, (N,)), p.view("y", F32, (2 * N,), access="write")
    p.store(y, (affine((i, 2)),), p.load(x, (i,)))
    return p.finish()


@pytest.mark.parametrize("program", [every_other(), reductions.reduction("add", (M, N), (0,))], ids=lambda p: p.name)
def test_packets_that_write_apart_or_seldom_ask_for_nothing(program):
    assert CLAIM not in Compiled(program, PlannerOptions(mapping="whole")).emitted.text
