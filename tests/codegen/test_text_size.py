"""How much text a row kernel is: LLVM takes time in proportion to it, so what is written grows only on purpose."""

from __future__ import annotations

import pytest

from grainline.base.dims import symbol
from grainline.codegen.kernel import emit
from grainline.kernels import pointwise, rows
from grainline.plan.planner import plan
from grainline.plan.target import Target

M, N = symbol("M"), symbol("N")
AVX512 = Target("x86-64-v4", "+avx2,+fma,+avx512f,+avx512bw,+avx512vl,+avx512dq", 64, 1)
# Instructions of each kernel, of any number of rows and columns.
KERNELS = {
    rows.rms_norm: 308,
    rows.layer_norm: 397,
    rows.softmax: 399,
    rows.masked_softmax: 513,
    pointwise.gelu: 146,
    pointwise.swiglu: 137,
}


def text_of(kernel) -> str:
    return emit(plan(kernel(M, N), AVX512).variants[0]).text


@pytest.mark.parametrize(("kernel", "most"), KERNELS.items(), ids=lambda value: getattr(value, "__name__", None))
def test_kernels_are_no_longer_than_they_were(kernel, most):
    count = sum(line.startswith("  ") for line in text_of(kernel).splitlines())
    assert count <= most, f"{kernel.__name__} has {count} instructions, {most} are known"


@pytest.mark.parametrize("kernel", [rows.rms_norm, rows.layer_norm], ids=lambda k: k.__name__)
def test_each_form_of_the_last_pass_has_one_short_packet(kernel):
    """What is written past the caches begins and ends with the same code, what is not has its tail."""
    assert text_of(kernel).count("call void @llvm.masked.store") == 2


def test_halves_of_registers_are_no_lists_of_lanes():
    shuffles = [line for line in text_of(rows.softmax).splitlines() if "shufflevector <64 x float>" in line]
    assert all("zeroinitializer" in line for line in shuffles), "a part of a register is extracted by its number"


def test_coordinates_of_lanes_are_compared_in_32_bits():
    """64 coordinates in 64 bits are eight registers, and fewer lanes than that are decided by a comparison."""
    text = text_of(rows.masked_softmax)
    assert "icmp slt <64 x i32>" in text or "icmp sle <64 x i32>" in text
    assert "<64 x i64>" not in text
