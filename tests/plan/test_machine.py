"""A machine's costs: kept in a file, refused when broken, and never allowed to decide bits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from grainline.base import knobs
from grainline.base.dims import symbol
from grainline.base.errors import OptionError
from grainline.kernels import pointwise, rows
from grainline.plan import machine as machines
from grainline.plan import target as targets
from grainline.plan.cost import CalibratedExecutionCostPolicy
from grainline.plan.machine import (
    REFERENCE,
    Machine,
    machine_in_use,
    machine_of,
    machine_path,
    machine_text,
    parse_machine,
    shipped_machine,
)
from grainline.plan.planner import plan
from grainline.plan.policy import ExecutionTarget
from grainline.plan.target import host_target
from grainline.plan.types import PlannerOptions

HOST = host_target()
TASK = f'"task_ps": {REFERENCE.task_ps}'


def odd_machine() -> Machine:
    """A machine on which everything contiguous is dear and gathers are free."""
    prices = {**REFERENCE.picoseconds, "contiguous": 10_000.0, "strided": 0.0, "scatter": 0.0}
    return replace(REFERENCE, origin="odd", picoseconds=prices)


def test_a_machine_reads_back_as_it_was_written() -> None:
    assert parse_machine(machine_text(odd_machine(), {"prices": []}), "memory") == odd_machine()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:100], "calibration x"),
        (lambda text: text.replace(TASK, '"task_ps": -1'), "task_ps: expected a number >= 0"),
        (lambda text: text.replace(TASK, '"task_ps": NaN'), "task_ps: expected a number >= 0"),
        (lambda text: text.replace(TASK, '"task_ps": true'), "task_ps: expected a number >= 0"),
        (lambda text: text.replace('"tie"', '"ties"'), "expected the fields"),
        (lambda text: text.replace('"exp"', '"exponential"'), "expected the fields"),
        (lambda text: "[]", "calibration x"),
    ],
)
def test_a_broken_calibration_is_refused_in_words(change, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(OptionError, match=message):
        parse_machine(change(machine_text(REFERENCE, {})), "x")


def test_the_calibrated_machine_is_found_and_else_the_shipped_one(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    machines._machine_of.cache_clear()
    assert machine_of(HOST) == shipped_machine(HOST)
    path = machine_path(HOST)
    path.parent.mkdir(parents=True)
    path.write_text(machine_text(odd_machine(), {}))
    machines._machine_of.cache_clear()
    assert machine_of(HOST).origin == "odd"
    machines._machine_of.cache_clear()


def test_a_calibration_that_is_named_must_be_there(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "machine.json"
    monkeypatch.setenv("GRAINLINE_MACHINE_FILE", str(path))
    with pytest.raises(OptionError, match=f"GRAINLINE_MACHINE_FILE.*{path}"):
        machine_of(HOST)
    path.write_text(machine_text(odd_machine(), {}))
    assert machine_of(HOST).origin == "odd"


def test_two_models_of_one_maker_are_two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: 0x{}\n"

    def identity(part: str) -> str:
        monkeypatch.setattr(targets, "_cpuinfo", lambda: text.format(part).splitlines(keepends=True))
        return targets._processor_identity()

    assert identity("d0c") == identity("d0c") != identity("d40")


def test_the_suite_sees_no_calibration_of_its_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert machine_path(HOST).is_relative_to(tmp_path_factory.getbasetemp())
    assert not [knob.name for knob in knobs.ALL if knob.is_set() and knob is not knobs.CACHE_DIR]


@pytest.mark.parametrize("cpu", ["znver4", "sapphirerapids", "haswell", "neoverse-n1", "generic"])
def test_shipped_machines_say_where_they_come_from(cpu: str) -> None:
    shipped = shipped_machine(replace(HOST, cpu=cpu))
    assert shipped.origin.startswith("shipped: ") and ("measured" in shipped.origin or "estimated" in shipped.origin)


def test_native_costs_have_every_field() -> None:
    costs = odd_machine().costs()
    for name in Machine.__slots__[6:]:
        assert getattr(costs, name) == getattr(REFERENCE, name)
    assert set(json.loads(machine_text(REFERENCE, {}))["machine"]) == set(Machine.__slots__)


def test_without_hot_threads_a_start_costs_what_waking_from_the_condition_variable_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asleep = replace(odd_machine(), condvar_paid_ps=1.0, condvar_delay_ps=2.0).without_hot_threads()
    assert (asleep.parked_paid_ps, asleep.parked_delay_ps) == (1.0, 2.0)
    assert replace(asleep, parked_paid_ps=0, parked_delay_ps=0, condvar_paid_ps=0, condvar_delay_ps=0) == replace(
        odd_machine(), parked_paid_ps=0, parked_delay_ps=0, condvar_paid_ps=0, condvar_delay_ps=0
    )
    monkeypatch.setenv("GRAINLINE_HOT_THREADS", "0")
    assert machine_in_use(HOST) == machine_of(HOST).without_hot_threads()
    monkeypatch.setenv("GRAINLINE_HOT_THREADS", "1")
    assert machine_in_use(HOST) == machine_of(HOST)


@pytest.mark.parametrize("kernel", [rows.softmax, rows.layer_norm, rows.rms_norm, pointwise.gelu])
@pytest.mark.parametrize("shape", [(3, 1024), (257, 15), (symbol("M"), 768), (symbol("M"), symbol("N"))], ids=str)
def test_neither_threads_nor_a_calibration_choose_the_signature(kernel, shape) -> None:  # type: ignore[no-untyped-def]
    program = kernel(*shape)
    wanted = plan(program, HOST).variants[0].signature
    for homes in (1, 2, 64):
        for policy in (CalibratedExecutionCostPolicy(), CalibratedExecutionCostPolicy(odd_machine())):
            target = ExecutionTarget(16, homes, block_widths=(16, 64, 256))
            found = plan(program, HOST, PlannerOptions(cost_policy=policy), execution=target)
            assert {variant.signature for variant in found.variants} == {wanted}


def test_same_bits_can_be_given_up() -> None:
    program = rows.softmax(64, 256)
    policy = CalibratedExecutionCostPolicy(odd_machine())
    kept = plan(program, HOST, PlannerOptions(cost_policy=policy))
    free = plan(program, HOST, PlannerOptions(cost_policy=policy, same_bits=False))
    assert kept.variants[0].mapping.is_local and not free.variants[0].mapping.is_local


def test_a_transpose_of_unknown_extents_keeps_variants_for_both_directions() -> None:
    from grainline.base.dtypes import F32
    from grainline.tile.build import ProgramBuilder

    rows_, columns = symbol("M"), symbol("N")
    p = ProgramBuilder("transpose")
    r, c = p.root("r", rows_), p.root("c", columns)
    x, y = p.view("x", F32, (columns, rows_)), p.view("y", F32, (rows_, columns), access="write")
    p.store(y, (r, c), p.load(x, (c, r)))
    found = plan(p.finish(), HOST)
    axes = [variant.mapping.lane_axis for variant in found.variants]
    assert len(axes) == len(set(axes)) <= 3
    assert len({variant.signature for variant in found.variants}) == 1
