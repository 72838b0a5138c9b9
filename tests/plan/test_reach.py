"""How far accesses reach, against a cache of lines that is walked through element by element."""

from __future__ import annotations

import random
from itertools import pairwise, product

import pytest

from grainline.base.dims import evaluate, symbol
from grainline.base.dtypes import F32
from grainline.evidence.fitting_set import Sample, column_sums, gathered, reaching_set, transposed
from grainline.plan.cost import launch_cost
from grainline.plan.machine import REFERENCE
from grainline.plan.planner import plan
from grainline.plan.reach import LINE_BYTES, reach_bytes, walk_of
from grainline.plan.target import host_target
from grainline.plan.types import LOCAL, WHOLE, Mapping, PlannerOptions
from grainline.plan.work import realised_work, whole_packets
from grainline.tile.access import linear_access
from grainline.tile.build import ProgramBuilder
from grainline.tile.ir import Operation, TileProgram

TARGET = host_target()
SEED = 5
LANES = 4


def lines_between(operation: Operation, loops: list[tuple[object, range]]) -> int:
    """The most distinct lines from one touch of a line to the next one, for a line in the middle of the walk."""
    form = linear_access(operation)
    touched: list[int] = []
    for point in product(*(steps for _, steps in loops)):
        at = sum(form.coefficient(axis) * k for (axis, _), k in zip(loops, point, strict=True))
        touched.append(at * 4 // LINE_BYTES)
    middle = touched[len(touched) // 2]
    times = [time for time, line in enumerate(touched) if line == middle]
    return max(len({*touched[begin:end]}) for begin, end in pairwise(times))


def copy_of(extents: list[int], source: list[int]) -> tuple[TileProgram, Operation]:
    """y[a, b, ...] = x[permuted], with axes of x in the order `source`."""
    p = ProgramBuilder("copy")
    axes = [p.root(f"a{k}", extent) for k, extent in enumerate(extents)]
    x = p.view("x", F32, [extents[k] for k in source])
    y = p.view("y", F32, extents, access="write")
    p.store(y, axes, p.load(x, [axes[k] for k in source]))
    program = p.finish()
    return program, next(o for o in program.body if o.op == "load")


def test_reach_is_what_a_walk_over_the_lines_finds() -> None:
    """Rows of whole lines that no other row shares, so that every line has sixteen elements of one axis."""
    seeded = random.Random(SEED)
    strided = 0
    for _ in range(60):
        rank = seeded.choice((2, 3))
        extents = [16 * seeded.choice((1, 2, 3)) for _ in range(rank)]
        source = seeded.sample(range(rank), rank)
        program, load = copy_of(extents, source)
        lane = seeded.choice(program.roots)
        form = linear_access(load)
        if form.coefficient(lane) == 1:
            continue
        strided += 1
        mapping = Mapping(WHOLE, lane, LANES, 1)
        outer = [axis for axis in program.roots if axis is not lane]
        loops = [(axis, range(axis.extent)) for axis in (*outer, lane)]
        found = reach_bytes(load, form, walk_of(program, mapping, form))
        wanted = lines_between(load, loops) * LINE_BYTES
        assert found % wanted == 0 and found >= wanted > 0, (extents, source, lane.label, SEED)
        steps = [form.coefficient(axis) * 4 for axis in (*outer, lane)]
        if all(step % (2 * LINE_BYTES) or step < LINE_BYTES for step in steps):
            assert found == wanted, (extents, source, lane.label, SEED)
    assert strided > 20


@pytest.mark.parametrize(("pitch", "wide"), [(72, 64), (64, 256), (1024, 4096), (1000, 64), (3072, 4096)])
def test_strides_that_leave_sets_unused_fill_more(pitch: int, wide: int) -> None:
    program = transposed(pitch, 40)
    (load, store) = (o for o in program.body if o.view is not None)
    mapping = Mapping(WHOLE, program.roots[1], LANES, 1)
    form = linear_access(load)
    assert reach_bytes(load, form, walk_of(program, mapping, form)) == 40 * wide
    assert linear_access(store).coefficient(program.roots[1]) == 1


def test_lanes_of_whole_programs_reach_no_farther_than_their_packet_when_rows_are_read_through() -> None:
    program = column_sums(4096, 72)
    mapping = Mapping(WHOLE, program.roots[0], LANES, 2)
    reached = {reach for _, reach in realised_work(program, mapping).reach}
    assert reached == {2 * LANES * LINE_BYTES}
    assert not realised_work(program, Mapping(LOCAL, next(iter(program.body)).result.space[0], LANES, 2)).reach


def test_gathers_reach_over_their_whole_view() -> None:
    program = gathered(1000)
    work = realised_work(program, Mapping(WHOLE, program.roots[0], LANES, 1))
    assert work.reach == {(1, 4000): {"gathered": 1}}
    assert sum(amounts["gathered"] for amounts in work.terms.values()) == 1


def test_prices_rise_by_level_where_caches_end() -> None:
    rows = symbol("R")
    program = transposed(rows, 72)
    cost = launch_cost(program, Mapping(WHOLE, program.roots[0], 16, 1), 0, REFERENCE)

    def per_element(count: int) -> float:
        return evaluate(cost, {"R": count}) / (72 * whole_packets(count, 16))

    near, private = (int(size) // LINE_BYTES for size in (REFERENCE.nearest_bytes, REFERENCE.private_bytes))
    steps = [per_element(count) for count in (near - 1, near, near + 1, private, private + 1)]
    prices = REFERENCE.picoseconds
    assert steps[0] == pytest.approx(steps[1], rel=0.01) and steps[2] == pytest.approx(steps[3], rel=0.01)
    assert steps[2] - steps[1] == pytest.approx(prices["scatter_private"], rel=0.01)
    assert steps[4] - steps[3] == pytest.approx(prices["scatter_shared"], rel=0.01)


def test_a_transpose_turns_where_one_side_no_longer_fits_its_cache() -> None:
    """Reading across memory is cheaper than writing across it, unless what is read reaches much farther."""

    def lanes_of(rows: int, columns: int) -> str:
        program = transposed(rows, columns)
        axis = plan(program, TARGET, PlannerOptions(), machine=REFERENCE).variants[0].mapping.lane_axis
        assert axis is not None
        return axis.label

    assert lanes_of(96, 80) == "c", "both near: loads are strided"
    far = int(2 * REFERENCE.private_bytes) // LINE_BYTES
    assert lanes_of(64, far) == "r", "a load of every column would come back for its lines from the shared cache"
    assert lanes_of(far, 64) == "c"


@pytest.mark.parametrize("size", [100_000, 3_000_000])
def test_the_reaching_set_reaches_as_far_as_it_says(size: int) -> None:
    for kind, sample in reaching_set(size):
        assert isinstance(sample, Sample)
        options = PlannerOptions(mapping=sample.mapping, root_axis_order=sample.order, search_task_grain=False)
        chosen = plan(sample.program, TARGET, options, machine=REFERENCE).variants[0]
        reached = {
            found: reach
            for (_, reach), kinds in realised_work(chosen.program, chosen.mapping).reach.items()
            for found in kinds
        }
        assert list(reached) == [kind]
        assert size - LINE_BYTES < reached[kind] <= size
