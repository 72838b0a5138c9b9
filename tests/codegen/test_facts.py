"""What the planner counts before there is code is what the code does."""

from __future__ import annotations

import pytest
from harness import Compiled
from test_loops import attention, horner

from grainline.base.dims import evaluate, symbol
from grainline.evidence.operators import ROW_OPERATORS
from grainline.kernels import pointwise, rows
from grainline.plan.facts import ACCESS_KINDS
from grainline.plan.row_schedule import DEAR
from grainline.plan.types import PlannerOptions
from grainline.plan.work import realised_work

M = symbol("M")
PROGRAMS = [
    *(operator.program(17, 66) for operator in ROW_OPERATORS),
    pointwise.gelu(M, 65),
    rows.softmax(M, 20),
    attention(),
    horner(),
]


@pytest.mark.parametrize("mapping", ["local", "whole"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_primitives_that_are_predicted_are_realised(program, mapping):
    from grainline.plan.types import PlanError

    try:
        compiled = Compiled(program, PlannerOptions(mapping=mapping))
    except PlanError:
        assert mapping == "local"
        return
    facts, work = compiled.emitted.facts, realised_work(compiled.plan.program, compiled.plan.mapping)
    predicted = {kind for counts in work.terms.values() for kind in counts} & set(DEAR)
    assert predicted <= set(facts.math_calls), "every dear primitive of the prediction is in the code"
    assert {name.split()[1] for name in facts.accesses} <= set(ACCESS_KINDS)
    has_private = any(name.endswith("private") for name in facts.accesses)
    assert has_private == (evaluate(compiled.plan.scratch_bytes, {"M": 9, "N": 9, "K": 9}) > 0)
    assert facts.workspace_bytes == compiled.plan.scratch_bytes
    assert compiled.kernel.code_bytes > 100 and "direct control flow" in str(facts)


def test_a_kept_value_is_predicted_once():
    """softmax along 20 elements keeps its exponentials in whole programs; a row of unknown length computes them twice."""
    counts = []
    for n in (20, symbol("N")):
        plan = Compiled(rows.softmax(M, n), PlannerOptions(mapping="whole")).plan
        work = realised_work(plan.program, plan.mapping)
        counts.append(sum(found["exp"] for found in work.terms.values()))
    assert counts == [1, 2]


def test_loops_multiply_what_they_run():
    plan = Compiled(attention(), PlannerOptions(mapping="whole")).plan
    work = realised_work(plan.program, plan.mapping)
    extents = [times for times, counts in work.terms.items() if counts["exp"]]
    assert extents and all("K" in str(times) for times in extents), "exp runs once per block of keys"
