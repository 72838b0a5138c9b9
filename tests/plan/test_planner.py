"""Legality, cost and choice: every refusal has a reason, every cost is an extent, the grain is nowhere."""

from dataclasses import replace

import pytest

from grainline.base.dims import evaluate, symbol
from grainline.base.dtypes import F32
from grainline.kernels import pointwise, rows
from grainline.plan.machine import REFERENCE
from grainline.plan.planner import plan
from grainline.plan.row_schedule import schedule_rows
from grainline.plan.target import host_target
from grainline.plan.types import PlanError, PlannerOptions
from grainline.tile.access import tile_axes
from grainline.tile.build import ProgramBuilder
from grainline.tile.passes import simplify

M, N = symbol("M"), symbol("N")


def test_row_kernels_are_local_and_pointwise_kernels_whole():
    for kernel, mapping in ((rows.softmax, "local"), (rows.layer_norm, "local"), (pointwise.gelu, "whole")):
        result = plan(kernel(M, 768), host_target())
        assert result.variants[0].mapping.kind == mapping, result.reason


def test_lanes_follow_the_contiguous_axis():
    result = plan(rows.mean_pool(M, N, 384), host_target())
    chosen = result.variants[0].mapping
    assert chosen.kind == "whole" and chosen.lane_axis is not None and chosen.lane_axis.label == "d"


def test_refusals_say_why():
    result = plan(rows.mean_pool(M, N, 384), host_target())
    assert all(r.reason for r in result.refusals)
    result = plan(pointwise.gelu(M, N), host_target())
    assert [r.mapping for r in result.refusals] == ["local"]
    assert "0 tile axes" in result.refusals[0].reason


def test_a_program_that_loads_after_storing_is_refused_in_words():
    p = ProgramBuilder("again")
    i, a = p.root("i", M), p.axis("n", 20)
    x = p.view("x", F32, (M, 20), access="readwrite")
    p.store(x, (i, a), p.load(x, (i, a)) + 1.0)
    p.store(x, (i, a), p.load(x, (i, a)) * 2.0)
    with pytest.raises(PlanError, match="after storing to it"):
        plan(p.finish(), host_target(), PlannerOptions(mapping="local"))


def test_a_launch_for_two_is_not_cut_so_that_one_of_them_has_nearly_everything():
    target = replace(host_target(), homes=2)
    for count in range(17, 140):
        best = plan(rows.softmax(count, 3990), target, machine=REFERENCE).best
        assert best.work.active_workers == 2, f"{count} rows are worth two threads"
        share = best.work.critical_packets / best.work.packet_count
        assert share < 0.57, f"{count} rows: {best.candidate} gives one of two {share:.0%}"


def test_blocks_cover_every_program():
    for m in (1, 31, 4096, 10_000):
        chosen = plan(simplify(pointwise.gelu(M, 7)), host_target()).variants[0]
        assert evaluate(chosen.blocks, {"M": m}) * chosen.block >= m * 7


def test_costs_grow_with_the_work_and_math_costs_more_than_a_copy():
    def cost(program, **env):
        return evaluate(plan(program, host_target()).variants[0].cost_ps, env)

    assert cost(rows.softmax(M, N), M=100, N=768) > 5 * cost(rows.softmax(M, N), M=10, N=768)
    assert cost(rows.softmax(M, N), M=10, N=768) > cost(rows.rms_norm(M, N), M=10, N=768)
    assert cost(pointwise.gelu(M, N), M=10, N=768) > 2 * cost(pointwise.copy(M, N), M=10, N=768)


def test_softmax_keeps_its_exponentials_in_the_output_row():
    program = rows.softmax(M, N)
    schedule = schedule_rows(program, tile_axes(program)[0])
    assert len(schedule.passes) == 3
    assert [spill.row is not None for spill in schedule.spills] == [True]
    assert plan(program, host_target()).variants[0].scratch_bytes == 0


def test_layer_norm_recomputes_and_spills_nothing():
    program = rows.layer_norm(M, N)
    assert schedule_rows(program, tile_axes(program)[0]).spills == ()


def test_forced_options_are_kept():
    forced = plan(rows.softmax(M, N), host_target(), PlannerOptions(mapping="whole", block_size=64)).variants[0]
    assert (forced.mapping.kind, forced.block) == ("whole", 64)


def test_the_host_is_remembered_for_later_processes(tmp_path):
    asked = host_target(tmp_path)
    assert asked == host_target()
    remembered = (tmp_path / "target.txt").read_text().splitlines()
    assert remembered[1:] == [asked.cpu, asked.features]
    host_target.cache_clear()
    (tmp_path / "target.txt").write_text("somebody else\nz80\n+everything")
    assert host_target(tmp_path) == asked, "the description of another machine was believed"


def test_a_warm_start_does_not_import_llvm(tmp_path):
    import os
    import subprocess
    import sys

    pytest.importorskip("grainline._native")
    script = """
import sys
from grainline.codegen.cache import open_cache
from grainline.codegen.compile import compile_kernels
from grainline.codegen.kernel import emit
from grainline.kernels import rows
from grainline.plan.planner import plan
from grainline.plan.target import host_target
store = open_cache()
kernel = emit(plan(rows.softmax(4, 40), host_target(store.folder)).variants[0])
assert compile_kernels([kernel], store)[kernel.symbol].address
print("llvmlite.binding" in sys.modules)
"""
    environment = {
        **os.environ,
        "GRAINLINE_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    runs = [
        subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        for _ in range(2)
    ]
    assert [r.stdout.strip() for r in runs] == ["True", "False"], runs[-1].stderr


def product():
    p = ProgramBuilder("product")
    m, n, k = p.root("m", M), p.axis("n", N), p.axis("k", 64)
    a, b = p.view("a", F32, (M, 64)), p.view("b", F32, (64, N))
    p.store(p.view("y", F32, (M, N), access="write"), (m, n), p.mma(p.load(a, (m, k)), p.load(b, (k, n)), k))
    return p.finish()


@pytest.mark.parametrize("width", [3, -1, 128])
@pytest.mark.parametrize("program", [rows.softmax(8, 8), product()], ids=["rows", "product"])
def test_a_packet_width_that_no_code_has_is_an_error(program, width):
    with pytest.raises(PlanError, match=f"packet width: expected a power of two up to 64, found {width}"):
        plan(program, host_target(), PlannerOptions(packet_width=width))
