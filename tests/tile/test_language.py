"""Loops, extracts, folds and stages: the interpreter's meaning against NumPy, the text, the passes, and each rule."""

from __future__ import annotations

import re

import numpy as np
import pytest

from grainline.base.dims import symbol
from grainline.base.dtypes import F32, I64
from grainline.tile import verify as rules
from grainline.tile.build import ProgramBuilder, affine
from grainline.tile.interp import interpret
from grainline.tile.ir import Operation, Region, Tile, TileProgram
from grainline.tile.passes import PASSES, simplify
from grainline.tile.text import canonical, from_text, to_text
from grainline.tile.verify import TileError, verify

N, K = symbol("N"), symbol("K")


def fibonacci():
    """y[k] = the k-th Fibonacci number: two values that change places and grow."""
    p = ProgramBuilder("fibonacci")
    p.parallel(("one", 1))
    k = p.axis("k", K)
    y = p.view("y", I64, (K,), access="write")

    def step(a, b):
        p.store(y, (k,), a)
        return b, a + b

    p.serial(k, (p.const(0, I64), p.const(1, I64)), step)
    return p.finish()


def staged():
    """A pipeline of two stages whose carried tile is read backwards by an extract."""
    p = ProgramBuilder("staged")
    r = p.root("rows", 2)
    k, a = p.axis("k", K), p.axis("n", 5)
    x, y = p.view("x", F32, (2, K, 5)), p.view("y", F32, (2, 5), access="write")

    def step(row):
        t = p.load(x, (r, k, a)) * 1.0
        p.stage("combine")
        return row.at(affine((a, -1), offset=4)) + t

    (row,) = p.pipeline(k, (p.splat(p.const(0.0), (a,)),), step, stages=2)
    p.store(y, (r, a), row)
    return p.finish()


def test_carried_values_change_at_once():
    for count, expected in ((0, []), (1, [0]), (9, [0, 1, 1, 2, 3, 5, 8, 13, 21])):
        found = np.zeros(count, np.int64)
        assert interpret(fibonacci(), [found], {"K": count}) == 0
        assert found.tolist() == expected


def test_a_pipeline_is_an_ordered_loop():
    x = np.random.default_rng(3).normal(size=(2, 4, 5)).astype(np.float32)
    found, want = np.zeros((2, 5), np.float32), np.zeros((2, 5), np.float32)
    for k in range(4):
        want = want[:, ::-1] + x[:, k]
    assert interpret(staged(), [x, found], {"K": 4}) == 0
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("policy", ["fold_left", "fold_right"])
def test_strict_folds_round_in_their_order(policy):
    p = ProgramBuilder("fold")
    p.root("one", 1)
    a = p.axis("n", N)
    x, y = p.view("x", F32, (N,)), p.view("y", F32, (), access="write")
    p.store(y, (), p.reduce("add", p.load(x, (a,)), a, init=1e8, policy=policy))
    data = np.array([4.0, 5.0, -1e8], np.float32)
    found = np.zeros((), np.float32)
    assert interpret(p.finish(), [data, found], {"N": 3}) == 0
    left = ((np.float32(1e8) + data[0]) + data[1]) + data[2]
    right = data[0] + (data[1] + (data[2] + np.float32(1e8)))
    assert left != right and found == (left if policy == "fold_left" else right)


@pytest.mark.parametrize("program", [fibonacci(), staged()], ids=lambda p: p.name)
def test_text_parses_back_and_passes_keep_the_meaning(program):
    again = from_text(to_text(program))
    verify(again)
    assert to_text(again) == to_text(program)
    assert to_text(canonical(canonical(program)[0])[0]) == to_text(canonical(program)[0])
    for rewrite in (*(p for _, p in PASSES), simplify):
        verify(rewrite(program))
        outputs = []
        for version in (program, rewrite(program)):
            random = np.random.default_rng(1)
            arrays = [random.normal(size=(2, 3, 5)).astype(np.float32), np.zeros((2, 5), np.float32)]
            arrays = [np.zeros(3, np.int64)] if program.name == "fibonacci" else arrays
            assert interpret(version, arrays, {"K": 3}) == 0
            outputs.append(arrays[-1].tolist())
        assert outputs[0] == outputs[1], rewrite


def test_nothing_is_merged_over_a_stage_cut_and_dead_loops_go():
    p = ProgramBuilder("cuts")
    r, k = p.root("rows", 3), p.axis("k", 4)
    x, y = p.view("x", F32, (3,)), p.view("y", F32, (3,), access="write")

    def step(total):
        one = p.exp(p.load(x, (r,)))
        p.stage("again")
        return total + one * p.exp(p.load(x, (r,)))

    p.serial(k, (p.const(0.0),), lambda total: total + 1.0)
    (total,) = p.pipeline(k, (p.const(0.0),), step, stages=2)
    p.store(y, (r,), total)
    after = simplify(p.finish())
    assert [o.op for o in after.operations()].count("exp") == 2
    assert not any(o.op == "serial" for o in after.operations())


def program_of(*body, scope="automatic"):
    """A program of the given operations and one store."""
    p = ProgramBuilder("broken", scope)
    r = p.root("r", 4)
    y = p.view("y", F32, (4,), access="write")
    p.store(y, (r,), 1.0)
    done = p._body  # the rules are tested on programs that the builder would not make
    return TileProgram(p.name, tuple(p._views), tuple(p._roots), (*body, *done), scope)


def loop_of(carried, yields, operands=(), results=(), axis=None, op="serial", body=()):
    p = ProgramBuilder("axis")
    axis = axis or p.axis("k", 3)
    return Operation(op, operands, None, None, (), axis, {}, results, Region(carried, body, yields))


ONE, TWO = Tile(100, F32, ()), Tile(101, I64, ())
CONST = Operation("const", (), ONE, attributes={"value": 1.0})
AXIS, HUGE = ProgramBuilder("axis").axis("n", 4), ProgramBuilder("axis").axis("n", 1 << 33)
SPREAD = Tile(102, F32, (AXIS,))


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (program_of(scope="group"), "execution scope"),
        (program_of(Operation("stage", (), None, attributes={"label": "s"})), "outside of a pipeline"),
        (program_of(loop_of((), (), op="pipeline")), "at least one stage"),
        (program_of(CONST, loop_of((), (), operands=(ONE,))), "1 initial values, carries 0"),
        (program_of(CONST, loop_of((TWO,), (TWO,), (ONE,), (Tile(103, F32, ()),))), "carries f32"),
        (program_of(loop_of((), (ONE,))), "which its region lacks"),
        (program_of(CONST, CONST), "again"),
        (program_of(Operation("serial", (), None)), "exactly the loops have a region"),
        (program_of(CONST, Operation("extract", (ONE,), Tile(104, F32, ()), attributes={"bounds": "error"})), "bounds"),
        (program_of(CONST, Operation("extract", (ONE,), Tile(104, I64, ()), attributes={"bounds": "zero"})), "type"),
        (
            program_of(CONST, Operation("splat", (ONE,), SPREAD), Operation("splat", (SPREAD,), Tile(105, F32, ()))),
            "loses the axes",
        ),
        (
            program_of(
                CONST,
                Operation("splat", (ONE,), SPREAD),
                Operation(
                    "reduce", (SPREAD,), Tile(105, F32, ()), axis=AXIS, attributes={"kind": "add", "policy": "any"}
                ),
            ),
            "unknown policy",
        ),
        (
            program_of(loop_of((), (), axis=AXIS), Operation("coord", (), Tile(106, I64, ()), axis=AXIS)),
            "outside of it",
        ),
        (program_of(CONST, Operation("splat", (ONE,), SPREAD), loop_of((), (), axis=AXIS)), "root or loop axis"),
        (program_of(Operation("coord", (), Tile(107, I64, (HUGE,)), axis=HUGE)), "more than 4294967295 elements"),
    ],
)
def test_every_rule_says_what_is_wrong(program, words):
    with pytest.raises(TileError, match=re.escape(words)):
        verify(program)


def test_the_rules_are_a_list_that_verify_runs(monkeypatch):
    seen = []
    watch = lambda rule: lambda place, operation: seen.append(rule.__name__) or rule(place, operation)
    monkeypatch.setattr(rules, "OPERATION_RULES", tuple(watch(rule) for rule in rules.OPERATION_RULES))
    verify(staged())
    assert len(set(seen)) == len(rules.OPERATION_RULES)
