"""Row kernels at every interesting width, both mappings, static and symbolic extents, against the interpreter."""

import numpy as np
import pytest
from harness import Compiled, check

from grainline.base.dims import symbol
from grainline.base.dtypes import F32
from grainline.kernels import pointwise, rows
from grainline.plan.row_schedule import RowSchedule, schedule_rows
from grainline.plan.types import PlannerOptions
from grainline.tile.build import ProgramBuilder

WIDTHS = (0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 65, 66, 100, 768)
ROW_KERNELS = (rows.softmax, rows.masked_softmax, rows.layer_norm, rows.rms_norm)
POINTWISE = (pointwise.gelu, pointwise.gelu_tanh_residual, pointwise.swiglu, pointwise.copy)


def arguments(program, env, seed=0):
    from grainline.base.dims import evaluate

    random = np.random.default_rng(seed)
    shapes = [tuple(evaluate(d, env) for d in view.shape) for view in program.views]
    return [random.normal(size=shape).astype(v.dtype.numpy) for v, shape in zip(program.views, shapes, strict=True)]


@pytest.mark.parametrize("kernel", ROW_KERNELS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("mapping", ["local", "whole"])
def test_symbolic_row_kernel_serves_every_width(kernel, mapping):
    program = kernel(symbol("M"), symbol("N"))
    compiled = Compiled(program, PlannerOptions(mapping=mapping))
    for n in WIDTHS:
        for m in (1, 5, 33):
            if n == 0 and kernel is rows.masked_softmax:
                continue  # the row number modulo zero faults
            env = {"M": m, "N": n}
            check(program, arguments(program, env), env, compiled=compiled)


@pytest.mark.parametrize("kernel", ROW_KERNELS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("n", [1, 3, 16, 17, 65, 100, 768])
def test_static_row_kernel(kernel, n):
    program = kernel(symbol("M"), n)
    check(program, arguments(program, {"M": 5}), {"M": 5}, PlannerOptions(mapping="local"))


@pytest.mark.parametrize("kernel", ROW_KERNELS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("n", [1, 31, 65, 768])
def test_static_and_symbolic_extents_give_the_same_bits(kernel, n):
    symbolic = kernel(symbol("M"), symbol("N"))
    static = kernel(7, n)
    env = {"M": 7, "N": n}
    data = arguments(symbolic, env)
    options = PlannerOptions(mapping="local")
    one = check(symbolic, data, env, options)
    two = check(static, data, env, options)
    assert one[-1].tobytes() == two[-1].tobytes(), "a static extent changed the bits"


@pytest.mark.parametrize("kernel", POINTWISE, ids=lambda k: k.__name__)
def test_pointwise_kernels(kernel):
    program = kernel(symbol("M"), symbol("N"))
    compiled = Compiled(program)
    for n in WIDTHS:
        env = {"M": 5, "N": n}
        check(program, arguments(program, env), env, compiled=compiled)


@pytest.mark.parametrize("kernel", ROW_KERNELS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("mapping", ["local", "whole"])
def test_bits_do_not_depend_on_how_blocks_are_cut(kernel, mapping):
    program = kernel(symbol("M"), symbol("N"))
    compiled = Compiled(program, PlannerOptions(mapping=mapping, block_size=16 if mapping == "local" else 64))
    env = {"M": 100, "N": 66}
    data = arguments(program, env)
    whole = check(program, data, env, compiled=compiled)
    for parts in (2, 3, 7):
        cut = check(program, data, env, compiled=compiled, parts=parts)
        assert cut[-1].tobytes() == whole[-1].tobytes(), f"{parts} parts changed the bits"


@pytest.mark.parametrize("kernel", ROW_KERNELS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("mapping", ["local", "whole"])
def test_output_may_be_the_input_memory(kernel, mapping):
    program = kernel(symbol("M"), symbol("N"))
    compiled = Compiled(program, PlannerOptions(mapping=mapping, may_alias=True))
    env = {"M": 9, "N": 66}
    data = arguments(program, env)
    apart = check(program, data, env, compiled=compiled)
    shared = data[0].copy()
    assert compiled.launch([shared, *data[1:-1], shared], env) == 0
    assert shared.tobytes() == apart[-1].tobytes(), "running in place changed the bits"


def row_schedule(program, options):
    plan = Compiled(program, options).plan
    return schedule_rows(plan.program, plan.mapping.lane_axis, options.switches)


def two_roots(dtype=F32):
    """y[a, b] = x[a, b] / sum x[a, b] + z[b], in an order of roots that is not the order of memory."""
    p = ProgramBuilder("two_roots")
    a, b, n = p.root("a", symbol("A")), p.root("b", symbol("M")), p.axis("n", symbol("N"))
    x = p.view("x", dtype, (symbol("A"), symbol("M"), symbol("N")))
    z = p.view("z", dtype, (symbol("M"),))
    y = p.view("y", dtype, (symbol("A"), symbol("M"), symbol("N")), access="write")
    t = p.load(x, (a, b, n))
    p.store(y, (a, b, n), t / p.sum(p.abs(t), n) + p.load(z, (b,)))
    return p.finish()


@pytest.mark.parametrize("make", [*ROW_KERNELS, two_roots], ids=lambda k: k.__name__)
def test_the_first_pass_of_the_next_program_changes_no_bit(make, monkeypatch):
    """Rows of one, several and no element, alone and followed by others, however the launch is cut."""
    program = make() if make is two_roots else make(symbol("M"), symbol("N"))
    orders = ((0, 1), (1, 0)) if make is two_roots else ((),)
    for order in orders:
        options = PlannerOptions(mapping="local", root_axis_order=order)
        led = Compiled(program, options)
        assert row_schedule(program, options).has_lead(options.switches)
        with monkeypatch.context() as patch:
            patch.setattr(RowSchedule, "has_lead", lambda *_: False)
            alone = Compiled(program, options)
        assert led.emitted.text != alone.emitted.text
        for n, m, parts in ((1, 1, 1), (65, 1, 1), (65, 2, 2), (66, 7, 1), (66, 7, 3), (200, 19, 4)):
            env = {"M": m, "N": n} | ({"A": 3} if make is two_roots else {})
            data = arguments(program, env, seed=n)
            want = check(program, data, env, compiled=alone)[-1]
            found = check(program, data, env, compiled=led, parts=parts)[-1]
            assert found.tobytes() == want.tobytes(), f"n={n} m={m} parts={parts}: other bits"


def test_a_first_pass_leads_where_it_writes_nothing_and_memory_is_not_shared():
    program = rows.softmax(symbol("M"), symbol("N"))
    for options, leads in (
        (PlannerOptions(mapping="local"), True),
        (PlannerOptions(mapping="local", may_alias=True), False),  # what one program stores another one may load
        (PlannerOptions(mapping="local", fuse_load_reduction=False), False),  # the first pass keeps a row
    ):
        assert row_schedule(program, options).has_lead(options.switches) == leads, options


def test_emitting_twice_gives_the_same_text():
    for kernel in (*ROW_KERNELS, *POINTWISE):
        first, second = (Compiled(kernel(symbol("M"), symbol("N"))).emitted for _ in range(2))
        assert first.text == second.text and first.symbol == second.symbol, kernel.__name__


def test_mean_pool():
    program = rows.mean_pool(symbol("B"), symbol("L"), symbol("D"))
    compiled = Compiled(program)
    assert compiled.plan.mapping.kind == "whole", "lanes along the contiguous axis are expected"
    for shape in ((1, 1, 1), (2, 7, 33), (3, 0, 20), (2, 5, 384)):
        env = dict(zip("BLD", shape, strict=True))
        check(program, arguments(program, env), env, compiled=compiled)


def test_facts_say_what_was_emitted():
    local = Compiled(rows.softmax(symbol("M"), symbol("N")), PlannerOptions(mapping="local"))
    facts = local.emitted.facts
    wide = local.emitted.text.count("@llvm.masked.load") - 1  # the declaration
    assert facts.accesses["load masked"] == wide > 0
    assert facts.math_calls["exp"] > 0 and "tanh" not in facts.math_calls
    assert facts.direct_control_flow and facts.full_packet_body
    assert 0 < local.kernel.code_bytes < 65536
    short = Compiled(rows.softmax(symbol("M"), 7), PlannerOptions(mapping="local")).emitted.facts
    assert not short.full_packet_body and "load contiguous" not in short.accesses


def test_rows_of_tiles_with_unit_axes_are_local():
    p = ProgramBuilder("unit_axis")
    r, u, n = p.root("r", symbol("M")), p.axis("u", 1), p.axis("n", symbol("N"))
    x, y = (p.view(name, F32, (symbol("M"), 1, symbol("N")), access=a) for name, a in (("x", "read"), ("y", "write")))
    t = p.load(x, (r, u, n))
    e = p.exp(t - p.max(p.max(t, n), u))
    p.store(y, (r, u, n), e / p.sum(e, n))
    compiled = Compiled(p.finish())
    assert compiled.plan.mapping.kind == "local"
    for n in (1, 17, 66, 200):
        data = [np.random.default_rng(n).normal(size=(5, 1, n)).astype(np.float32), np.zeros((5, 1, n), np.float32)]
        check(p.finish(), data, {"M": 5, "N": n}, compiled=compiled)
