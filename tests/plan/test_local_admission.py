"""Which programs a packet may run as one instance: each refusal has its reason, forced or searched; the rest runs."""

from __future__ import annotations

import numpy as np
import pytest

from grainline.base.dims import symbol
from grainline.base.dtypes import F32
from grainline.plan.legal import legal_mappings, refuse_local
from grainline.plan.planner import plan
from grainline.plan.target import host_target
from grainline.plan.types import DEFAULT_OPTIONS, LOCAL, PlanError, PlannerOptions
from grainline.tile.build import ProgramBuilder, affine
from grainline.tile.ir import FOLD_LEFT, FOLD_RIGHT, UNORDERED, TileProgram

M, N = symbol("M"), symbol("N")


def row_program(body, scope: str = "automatic", extents=(N,)) -> TileProgram:
    """y[m, n] = body(builder, x[m, n], axes)"""
    p = ProgramBuilder("candidate", scope)
    r, axes = p.root("rows", M), [p.axis("n", extent) for extent in extents]
    x, y = p.view("x", F32, (M, *extents)), p.view("y", F32, (M, *extents), access="write")
    p.store(y, (r, *axes), body(p, p.load(x, (r, *axes)), *axes))
    return p.finish()


def centred(policy):
    return lambda p, t, a: t - p.reduce("add", t, a, policy=policy)


def with_another_axis(p, t, a):
    other = p.axis("other", N)
    return t + p.sum(p.cast(p.coord(other), F32), other)


def with_a_loop(p, t, a):
    k = p.axis("k", 3)
    (total,) = p.serial(k, (p.const(0.0),), lambda total: total + p.sum(t * total, a))
    return t + total


REJECTED = {
    "reversed extract": (row_program(lambda p, t, a: t.at(affine((a, -1), offset=N - 1))), "other lanes own"),
    "left fold": (row_program(centred(FOLD_LEFT)), "policy fold_left"),
    "right fold": (row_program(centred(FOLD_RIGHT)), "policy fold_right"),
    "another dimension of equal extent": (row_program(with_another_axis), "2 tile axes"),
    "explicit worker scope": (row_program(centred(UNORDERED), scope="worker"), "execution scope 'worker'"),
    "nested reduction": (row_program(with_a_loop), "a serial loop"),
    "two axes": (row_program(lambda p, t, a, b: t - p.sum(t, a), extents=(N, 3)), "2 tile axes"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_what_lanes_do_not_realise_is_refused_with_its_reason(name):
    program, reason = REJECTED[name]
    assert reason in (refuse_local(program) or "")
    mappings, refusals = legal_mappings(program, host_target(), DEFAULT_OPTIONS)
    assert all(mapping.kind != LOCAL for mapping in mappings) and any(reason in r.reason for r in refusals)
    with pytest.raises(PlanError, match="no legal mapping"):
        plan(program, host_target(), PlannerOptions(mapping="local"))
    assert plan(program, host_target()).variants[0].mapping.kind == "whole"


@pytest.mark.parametrize(
    "body",
    [
        centred(UNORDERED),
        lambda p, t, a: t.at(a) * p.max(t.at(a), a),
        lambda p, t, a: t + p.cast(p.map((a,), lambda i: i * 2), F32),
        lambda p, t, a: t - p.sum(p.splat(p.const(1.0), (a,)), a),
    ],
    ids=["reduction", "extract of own elements", "map of coordinates", "sum of a constant"],
)
def test_what_lanes_realise_is_admitted(body):
    assert refuse_local(row_program(body)) is None


@pytest.mark.parametrize("n", [1, 2, 3, 15])
def test_rows_shorter_than_a_packet_are_legal(n):
    assert refuse_local(row_program(centred(UNORDERED), extents=(n,))) is None


def test_seven_programs_are_rejected():
    assert len(REJECTED) == 7
    assert np.all([refuse_local(program) for program, _ in REJECTED.values()])
