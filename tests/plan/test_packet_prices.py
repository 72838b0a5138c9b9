"""A packet costs the same however few of its lanes have something to do: prices count packets as the code runs them."""

from random import Random

import pytest

from grainline.base.dims import evaluate, symbol
from grainline.base.dtypes import F32
from grainline.kernels import pointwise, rows
from grainline.plan import row_workspace
from grainline.plan.cost import launch_cost
from grainline.plan.legal import legal_mappings
from grainline.plan.machine import REFERENCE
from grainline.plan.planner import plan
from grainline.plan.target import host_target
from grainline.plan.types import DEFAULT_OPTIONS, LOCAL, WHOLE, Mapping
from grainline.tile.access import tile_axes
from grainline.tile.build import ProgramBuilder, affine
from grainline.tile.passes import simplify

SEED = 20261130
M, N = symbol("M"), symbol("N")
BUDGET = 4096
FAMILIES = {
    "gelu": pointwise.gelu,
    "softmax": rows.softmax,
    "layer norm": rows.layer_norm,
    "rms norm": rows.rms_norm,
}


def price(program, mapping, extents, blocks=1):
    return evaluate(launch_cost(program, mapping, blocks, REFERENCE), extents)


def like(program, mapping):
    """The mapping of `program` whose lanes run along the axis of the same label."""
    found = legal_mappings(program, host_target(), DEFAULT_OPTIONS)[0]
    return next(each for each in found if each.kind == mapping.kind and each.lane_axis.label == mapping.lane_axis.label)


def along_memory(program):
    """Mappings whose lanes step by one element, so that symbolic and static strides are known alike."""
    inner = {program.roots[-1].label, *(axis.label for axis in tile_axes(program))}
    found = legal_mappings(program, host_target(), DEFAULT_OPTIONS)[0]
    return [each for each in found if each.lane_axis.label in inner and (each.is_local or not tile_axes(program))]


@pytest.mark.parametrize("name", FAMILIES)
def test_known_extents_and_symbols_of_the_same_value_cost_the_same(name):
    random = Random(SEED)
    symbolic = FAMILIES[name](M, N)
    checked = 0
    for _ in range(40):
        m, n = (random.choice((2, 3, 15, 16, 17, random.randint(2, 4000))) for _ in range(2))
        known = FAMILIES[name](m, n)
        for mapping in along_memory(symbolic):
            found = price(symbolic, mapping, {"M": m, "N": n})
            assert found == price(known, like(known, mapping), {}), (name, str(mapping), m, n, SEED)
            checked += 1
    assert checked >= 40


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("is_known", [True, False])
def test_a_packet_of_one_element_costs_what_a_full_one_does(name, is_known):
    random = Random(SEED + 1)
    width = legal_mappings(FAMILIES[name](M, N), host_target(), DEFAULT_OPTIONS)[0][0].width

    def at(mapping, m, n):
        program = FAMILIES[name](m, n) if is_known else FAMILIES[name](M, N)
        return price(program, like(program, mapping), {"M": m, "N": n})

    for mapping in along_memory(FAMILIES[name](M, N)):
        for _ in range(12):
            m, packets = random.randint(1, 300), random.randint(0, 30)
            one, full = (at(mapping, m, packets * width + lanes) for lanes in (1, width))
            assert one == full, (name, str(mapping), m, packets, SEED)
            assert at(mapping, m, (packets + 1) * width + 1) > full


def reversed_rows(m, n):
    """y[m, n] = exp(x)[m, n - 1 - a]: whole programs with a private array of 4 n bytes a lane."""
    p = ProgramBuilder("reversed")
    r, a = p.root("rows", m), p.axis("n", n)
    x, y = p.view("x", F32, (m, n)), p.view("y", F32, (m, n), access="write")
    p.store(y, (r, a), p.exp(p.load(x, (r, a))).at(affine((a, -1), offset=n - 1)))
    return simplify(p.finish())


@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize("is_known", [True, False])
def test_packets_of_one_lane_cost_what_full_ones_do(width, is_known, monkeypatch):
    """Where the workspace has no room for W lanes every program has a packet of its own."""
    last = BUDGET // (4 * width)  # the longest row of which W fit
    for m in (1, width - 1, 3 * width, 1000):
        for n in (last - 1, last, last + 1, 2 * last):
            program = reversed_rows(m, n) if is_known else reversed_rows(M, N)
            mapping = Mapping(WHOLE, program.roots[0], width, 1)
            extents = {"M": m, "N": n}
            with monkeypatch.context() as patch:
                roomy = price(program, mapping, extents, 0)
                everyone = reversed_rows(m * width, n) if is_known else program
                spread = price(everyone, Mapping(WHOLE, everyone.roots[0], width, 1), {"M": m * width, "N": n}, 0)
                patch.setattr(row_workspace, "WORKSPACE_BUDGET_BYTES", BUDGET)
                small = price(program, mapping, extents, 0)
            assert small == (roomy if n <= last else spread), (m, n)


def total(n):
    """The sum of exponentials of a vector, by one program without roots."""
    p = ProgramBuilder("total")
    a = p.axis("n", n)
    x = p.load(p.view("x", F32, (n,)), (a,))
    p.store(p.view("y", F32, (1,), access="write"), (0,), p.sum(p.exp(x), a))
    return p.finish()


def test_the_one_lane_of_a_program_without_roots_costs_a_packet():
    least = sum(REFERENCE.picoseconds[kind] for kind in ("exp", "cheap", "broadcast"))
    for n in (1, 17, 1000, 100_000):
        for width in (1, 8, 16):
            assert price(total(n), Mapping(WHOLE, None, width, 1), {}) >= 0.99 * width * n * least


def test_the_lanes_of_a_packet_share_the_sum_of_a_vector():
    for n in (1000, 100_000):
        assert plan(total(n), host_target(), machine=REFERENCE).variants[0].mapping.kind == LOCAL
