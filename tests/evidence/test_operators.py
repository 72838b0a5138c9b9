"""The suites' operators: compiled code, interpreter and FP64 oracle say the same, and nothing is written beside."""

from __future__ import annotations

import numpy as np
import pytest

from grainline.evidence import operators
from grainline.evidence.choice import choose
from grainline.evidence.operators import ATTENTION, PRODUCTS, ROW_OPERATORS, Operator
from grainline.evidence.realise import GUARD, Bound, OracleError, bind, effective_grain, realise
from grainline.evidence.suites import JOINT_LEGACY, JOINT_TASKS, PACKET, Settings
from grainline.plan.planner import plan
from grainline.plan.target import host_target
from grainline.tile.interp import interpret


@pytest.mark.parametrize("operator", ROW_OPERATORS, ids=lambda o: o.name)
@pytest.mark.parametrize("dims", [(5, 6), (3, 32), (4, 66)], ids=str)
def test_oracle_is_the_meaning_of_the_program(operator: Operator, dims: tuple[int, int]) -> None:
    inputs = operator.inputs(dims)
    reference = operator.oracle(*inputs.values())
    y = np.full(operator.output_shape(dims), np.nan, np.float32)
    assert interpret(operator.program(*dims), [*inputs.values(), y], {}) == 0
    assert reference.dtype == np.float64
    np.testing.assert_allclose(y, reference, atol=operators.ATOL, rtol=operators.RTOL)


@pytest.mark.parametrize("operator", ROW_OPERATORS, ids=lambda o: o.name)
@pytest.mark.parametrize("local_lanes", [1, PACKET])
def test_every_grain_and_start_gives_the_same_bits(operator: Operator, local_lanes: int) -> None:
    dims = (37, 70)
    reference = operator.oracle(*operator.inputs(dims).values())
    choice = choose(operator.program(*dims), Settings(local_lanes=local_lanes, block_size=32), 2)
    bound = bind(realise(choice.plan), operator, dims)
    seen = set()
    for grain, homes, start in ((0, 1, "hot"), (1, 2, "hot"), (3, 2, "parked"), (2**32 - 1, 2, "hot")):
        bound.reset()
        assert bound.time(1, grain, homes, start) > 0
        bound.max_error(reference)
        seen.add(bound.output.tobytes())
    bound.reset()
    bound.time_entry()
    assert seen == {bound.output.tobytes()}, "threads, grain and start may not change a bit"


ATTENTION_DIMS = ((1, 2, 2, 4, 5, 4, 3), (2, 4, 2, 7, 11, 8, 7), (2, 4, 2, 1, 17, 8, 7), (1, 2, 1, 7, 11, 8, 7))


@pytest.mark.parametrize("dims", ATTENTION_DIMS, ids=str)
def test_attention_is_its_oracle_interpreted_and_compiled(dims: tuple[int, ...]) -> None:
    inputs = ATTENTION.inputs(dims)
    reference = ATTENTION.oracle(*inputs.values())
    program = ATTENTION.program(*dims)
    y = np.full(ATTENTION.output_shape(dims), np.nan, np.float32)
    assert interpret(program, [*inputs.values(), y], {}) == 0
    np.testing.assert_allclose(y, reference, atol=operators.ATOL, rtol=operators.RTOL)
    choice = choose(program, JOINT_TASKS.settings, 2)
    bound = bind(realise(choice.plan), ATTENTION, dims)
    for grain in (choice.blocks_per_task, 1):
        bound.reset()
        bound.time(1, grain, 2, "hot")
        bound.max_error(reference)


@pytest.mark.parametrize("operator", PRODUCTS, ids=lambda o: o.name)
@pytest.mark.parametrize("dims", [(1, 1, 1), (5, 7, 33), (19, 96, 50), (40, 64, 700)], ids=str)
def test_products_are_their_oracle_interpreted_and_in_every_variant(operator: Operator, dims: tuple[int, ...]) -> None:
    inputs = operator.inputs(dims)
    reference = operator.oracle(*inputs.values())
    program, seen = operator.program(*dims), set()
    for variant in plan(program, host_target()).variants:
        bound = bind(realise(variant), operator, dims)
        for grain, homes in ((1, 2), (2**32 - 1, 1)):
            bound.reset()
            bound.time(1, grain, homes, "hot")
            bound.max_error(reference)
            seen.add(bound.output.tobytes())
    assert len(seen) == 1, "variants, threads and grain may not change a bit"
    y = np.full(operator.output_shape(dims), np.nan, np.float32)
    assert interpret(program, [*(array.reshape(-1) for array in bound.arrays), y], {}) == 0
    np.testing.assert_allclose(y, reference, atol=operators.ATOL, rtol=operators.RTOL)


def test_attention_chooses_its_grain_by_the_prior() -> None:
    program = ATTENTION.program(1, 4, 2, 16, 32, 16, 16)
    legacy, tasks = (choose(program, variant.settings, 2) for variant in (JOINT_LEGACY, JOINT_TASKS))
    assert legacy.blocks_per_task == 0 and legacy.candidates == 1
    assert tasks.candidates > 1 and tasks.picked.work.active_workers == 1, "an activation of 1e6 is not worth it"


def test_inputs_are_the_same_bits_every_time() -> None:
    for operator in ROW_OPERATORS:
        first, second = operator.inputs((3, 8)), operator.inputs((3, 8))
        assert all(first[k].dtype == np.float32 and first[k].tobytes() == second[k].tobytes() for k in "xuv")
        assert len({first[k].tobytes() for k in "xuv"}) == 3


@pytest.fixture
def bound() -> Bound:
    operator = operators.find("swiglu")
    launch = bind(realise(choose(operator.program(2, 8), Settings(), 1).plan), operator, (2, 8))
    launch.time_entry()
    return launch


@pytest.mark.parametrize("where", [GUARD - 1, GUARD + 16])
def test_a_touched_guard_is_found(bound: Bound, where: int) -> None:
    reference = operators.find("swiglu").oracle(*bound.inputs.values())
    bound.max_error(reference)
    bound._memory[where] = 0
    with pytest.raises(OracleError, match="outside its output"):
        bound.max_error(reference)


def test_a_wrong_or_unwritten_element_is_found(bound: Bound) -> None:
    reference = operators.find("swiglu").oracle(*bound.inputs.values())
    bound.output[1, 3] += np.float32(2e-4)
    with pytest.raises(OracleError, match="1 of 16 elements"):
        bound.max_error(reference)
    bound.output[1, 3] = np.nan
    with pytest.raises(OracleError, match="not finite"):
        bound.max_error(reference)


def test_payload_is_aligned_and_guards_touch_it(bound: Bound) -> None:
    assert bound.output.ctypes.data % 64 == 0
    assert bound.output.ctypes.data - bound._memory.ctypes.data == 4 * GUARD


def test_effective_grain_is_the_pools() -> None:
    for blocks in range(1, 300):
        for homes in (1, 2, 8):
            assert effective_grain(blocks, 0, homes) == min(blocks, (blocks - 1) // (32 * homes) + 1)
            assert effective_grain(blocks, 2**32 - 1, homes) == blocks
