"""Rules over the whole registry of kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from grainline.execgraph.interp import INTERPRETED
from grainline.execgraph.pack import KERNEL_NUMBERS
from grainline.execgraph.registry import (
    KERNELS,
    LAUNCH,
    MEMORY,
    SLOT_KINDS,
    Traits,
    is_copy_async,
    is_launch_consumer,
    is_launch_node,
    trace,
    worker_of,
)

OWNING_KINDS = {"weight", "memory", "output", "workspace", "blocks"}
NORMAL_OF_THREE = {"BuildTensor", "BuildTensorStorage", "BuildTensorPureShape"}
SPLIT_SUBMISSIONS = {"LaunchH2DCopy", "LaunchCopyFlowH2D"}


def test_R31_every_kernel_has_a_stored_number_of_instructions() -> None:
    """`make bench-kernels` compares with them."""
    stored = Path(__file__).parents[2] / "native" / "tests" / "kernel_instructions.txt"
    numbers = {name: int(number) for name, number in map(str.split, stored.read_text().splitlines())}
    assert set(numbers) == set(KERNEL_NUMBERS)
    assert all(number > 0 for number in numbers.values()), f"in no graph that is counted: {numbers}"


@pytest.mark.parametrize("name", KERNELS)
def test_R37_whoever_touches_memory_state_has_a_section(name: str) -> None:
    kernel = KERNELS[name]
    owns = bool(OWNING_KINDS & set(kernel.outputs or ()))
    if owns or kernel.is_guarder or ("Copy" in name and kernel.outputs is None):
        assert kernel.section == MEMORY, f"{name} produces or releases memory without the section that serialises it"


@pytest.mark.parametrize("name", KERNELS)
def test_R42_submissions_have_no_outputs_and_results_have_the_memory_section(name: str) -> None:
    kernel = KERNELS[name]
    assert kernel.section in (MEMORY, LAUNCH, "")
    if kernel.section == LAUNCH:
        assert kernel.outputs == (), f"{name} only submits, so it may produce nothing"


@pytest.mark.parametrize(
    "name",
    ["AllocHostCpuOutputMemory", "SplitDataTensor", "IdentityAddr", "IdentityShapeAndAddr", "AccessMemCrossStream"],
)
def test_R38_shared_memory_state_stays_on_the_memory_worker_of_three(name: str) -> None:
    assert KERNELS[name].section == MEMORY
    assert worker_of(name, 3) == "memory"


@pytest.mark.parametrize("threads", [2, 3, 4, 7])
@pytest.mark.parametrize("name", KERNELS)
def test_R39_only_the_tensor_builders_leave_the_memory_worker_and_only_of_three(name: str, threads: int) -> None:
    kernel = KERNELS[name]
    by_section = kernel.section or ("launch" if is_launch_node(name) else "normal")
    expected = "memory" if name == "ExecuteOpPrepare" else by_section
    if threads == 3 and name in NORMAL_OF_THREE:
        assert (by_section, worker_of(name, threads)) == ("memory", "normal")
    else:
        assert worker_of(name, threads) == expected


def test_R39_an_unknown_kernel_is_a_normal_task_and_one_worker_is_none() -> None:
    assert worker_of("SomethingElse", 3) == "normal"
    with pytest.raises(ValueError, match="at least 2 workers"):
        worker_of("Launch", 1)


def test_R64_submissions_of_split_copies_are_anchors_but_no_launch_nodes() -> None:
    for name in SPLIT_SUBMISSIONS:
        assert not is_launch_node(name), f"{name} would count as an operator of its own"
        assert is_launch_consumer(name) and KERNELS[name].section == LAUNCH


def test_launch_consumers_are_semantic_or_registered_launches() -> None:
    assert is_launch_node("LaunchHcom") and KERNELS["LaunchHcom"].section == ""
    assert is_launch_node("ExecuteOpFunc") and KERNELS["ExecuteOpFunc"].section == MEMORY
    for name in ("LaunchHcom", "ExecuteOpFunc", "ExecuteOpLaunch", "Launch", "CopyMemory", "LaunchH2DCopy"):
        assert is_launch_consumer(name)
    for name in ("BuildRefTensor", "ExecuteOpPrepare", "AllocMemory", "FreeMemory", "SomethingElse"):
        assert not is_launch_consumer(name)


def test_R68_the_list_of_asynchronous_copies_is_what_it_was() -> None:
    assert {name for name in KERNELS if is_copy_async(name)} == {
        "CopyH2D",
        "CopyD2H",
        "MakeSureTensorAtDevice",
        "EnsureTensorAtOutMemory",
        "CopyFlowLaunch",
        "CopyMemory",  # between two places of one device
    }


def test_frees_of_device_memory_have_a_variant_that_holds_the_address() -> None:
    variants = {name: kernel.hold_address for name, kernel in KERNELS.items() if kernel.hold_address}
    assert variants == {name: name + "HoldAddr" for name in ("FreeMemory", "FreeMemHbm", "FreeBatchHbm")}
    for name, held in variants.items():
        assert KERNELS[held].holds_address and not KERNELS[name].holds_address
        assert (KERNELS[held].section, KERNELS[held].inputs) == (KERNELS[name].section, KERNELS[name].inputs)


def test_the_registry_is_consistent() -> None:
    for name, kernel in KERNELS.items():
        assert kernel.name == name
        for kinds in kernel.inputs or ():
            assert set(kinds) <= set(SLOT_KINDS), f"{name} reads unknown kinds"
        assert set(kernel.outputs or ()) <= set(SLOT_KINDS), f"{name} produces unknown kinds"
        assert not (Traits.PURE in kernel.traits and kernel.section == LAUNCH)


def test_every_kernel_of_a_run_has_a_meaning() -> None:
    assert set(KERNELS) - {"ReleaseWeight"} <= set(INTERPRETED)


def test_the_native_core_knows_the_packed_kernels_under_the_same_names_and_sections() -> None:
    from grainline import _native

    assert _native.kernel_types() == [(name, KERNELS[name].section) for name in KERNEL_NUMBERS]


def test_a_trace_names_slots_and_attributes() -> None:
    assert trace("AllocMemory", (), (3,), {"size_bytes": 64}) == ["slots [] -> [3]", "size_bytes=64"]
    for name, kernel in KERNELS.items():
        attributes = dict.fromkeys(kernel.trace, 1)
        assert trace(name, (), (), attributes)[1:] == [f"{key}=1" for key in kernel.trace]
