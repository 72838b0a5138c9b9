"""The audit: a sound report passes, every change of a field is found, and forgeries are found behind new seals too."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grainline.evidence.audit import audit, audit_kept, audit_together, closed_counts
from grainline.evidence.records import sealed
from grainline.evidence.suites import Suite

Report = dict[str, Any]


def forged(report: Report, change: Callable[[Report], object]) -> Report:
    """A copy that somebody changed and sealed again, so that the seals are no help."""
    copied = copy.deepcopy(report)
    change(copied)
    if "visits" in copied:
        copied["visits"] = [sealed(record) for record in copied["visits"]]
    return sealed(copied)


def test_a_sound_report_passes(small_report: dict[str, Any], small_suite: Suite) -> None:
    assert audit(small_report["report"], small_suite) == []
    assert audit_kept(small_report["report"], small_report["folder"] / "kept") == []
    assert forged(small_report["report"], lambda r: None) == small_report["report"], "sealing is a function"


def _first(report: Report) -> Any:
    return report["visits"][0]


def _measured(report: Report) -> Any:
    return report["visits"][0]["measurement"]


FORGERIES: dict[str, tuple[Callable[[Report], object], str]] = {
    "a visit removed": (lambda r: r["visits"].pop(3), "is missing"),
    "a visit duplicated": (lambda r: r["visits"].append(r["visits"][3]), "visited 2 times"),
    "the oracle's flag failed": (lambda r: _measured(r)["correctness"].update(passed=False), "oracle's passed"),
    "a median changed": (lambda r: _measured(r)["median_us"].update(hot=0.5), "median is not"),
    "an input fingerprint changed": (lambda r: _measured(r)["inputs"].update(u="0" * 64), "input fingerprint"),
    "the worker count changed": (lambda r: _first(r).update(homes=2), "its homes is not"),
    "the measured threads changed": (lambda r: _measured(r).update(homes=2), "measured with 2 threads"),
    "another order": (lambda r: _first(r).update(order=_first(r)["order"][::-1]), "order is"),
    "other settings": (lambda r: _first(r)["settings"].update(blocks_per_task=7), "settings is"),
    "a visit of another name": (lambda r: _first(r).update(name="x"), "no visit of the suite"),
    "a failure hidden": (lambda r: _first(r).update(return_code=1), "failed"),
    "an error beside a success": (lambda r: _first(r).update(error="slow"), "failed"),
    "a steered environment": (lambda r: _first(r).update(steering_variables=["OMP_X"]), "environment had"),
    "another source": (lambda r: _first(r)["source"].update(source_sha256="1"), "its source is not"),
    "binaries changed meanwhile": (
        lambda r: r["sessions"][0]["binaries_after"].update(python="1"),
        "the binaries changed",
    ),
    "no end": (lambda r: r["sessions"][0].pop("binaries_after"), "did not end"),
    "more threads than processors": (lambda r: r["machine"].update(processors=0), "threads were timed"),
    "a sample left out": (lambda r: _measured(r)["elapsed_ns"]["hot"].pop(), "hot needs 7"),
    "a negative sample": (lambda r: _measured(r)["elapsed_ns"]["native"].__setitem__(0, -1), "native needs 7"),
    "no repetitions": (lambda r: _measured(r)["repetitions"].update(parked=0), "parked needs 7"),
    "a clock left out": (lambda r: _measured(r)["elapsed_ns"].pop("parked"), "has not the clocks"),
    "a latency left out": (lambda r: _measured(r)["latency_ns"].pop(), "positive latencies"),
    "a phase left out": (lambda r: _measured(r)["phases_ms"].pop("compile"), "the phases are not"),
    "one check only": (lambda r: _measured(r)["correctness"].update(checks=1), "oracle's checks"),
    "fewer elements": (lambda r: _measured(r)["correctness"].update(elements_per_check=5), "oracle's elements"),
    "no guards": (lambda r: _measured(r)["correctness"].update(guard_elements_per_check=0), "oracle's guard"),
    "a looser oracle": (lambda r: _measured(r)["correctness"].update(rtol=1.0), "oracle's rtol"),
    "a large error": (lambda r: _measured(r)["correctness"].update(max_abs_error=2.0), "no error that passes"),
    "fast math": (lambda r: _measured(r).update(fast_math=True), "fast_math is"),
    "relaxed precision": (lambda r: _measured(r).update(relaxed_precision=True), "relaxed_precision is"),
    "another precision": (lambda r: _measured(r).update(precision="f16"), "precision is"),
    "another shape": (lambda r: _measured(r).update(output_shape=[17, 65]), "shapes are not"),
    "another mapping than forced": (lambda r: _measured(r)["choice"].update(local_lanes=1), "forced was"),
    "another block than forced": (lambda r: _measured(r)["choice"].update(block_size=64), "forced was 32"),
    "another grain than fixed": (lambda r: _measured(r)["choice"].update(blocks_per_task=9), "fixed was"),
    "another effective grain": (lambda r: _measured(r).update(effective_grain=77), "effective grain"),
    "another object": (lambda r: _measured(r).update(object_sha256="2"), "codes, outputs or facts"),
    "another IR": (lambda r: _measured(r).update(llvm_sha256="2"), "codes, outputs or facts"),
    "another output": (lambda r: _measured(r).update(output="2"), "codes, outputs or facts"),
    "other facts": (lambda r: _measured(r)["facts"].update(packet_width=1), "codes, outputs or facts"),
    "other counts": (lambda r: _measured(r)["choice"]["counts"].update(critical_tasks=9), "closed formulas"),
    "a cheaper term": (lambda r: _measured(r)["choice"]["cost"].update(memory=1.0), "sum to its score"),
    "a cost that is none": (lambda r: _measured(r)["choice"]["cost"].update(memory=-1.0), "finite costs"),
    "another suite": (lambda r: r.update(suite="nothing"), "not a report of suite"),
    "another format": (lambda r: r.update(format=0), "format 0"),
    "no visits": (lambda r: r.pop("visits"), "not the form"),
}


@pytest.mark.parametrize("change, sentence", FORGERIES.values(), ids=FORGERIES)
def test_forgeries_are_found_behind_new_seals(
    change: Callable[[Report], object], sentence: str, small_report: dict[str, Any], small_suite: Suite
) -> None:
    wrong = audit(forged(small_report["report"], change), small_suite)
    assert wrong, "the forgery passed"
    assert any(sentence in line for line in wrong), wrong


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield path
        return
    for key, inner in items:
        yield from leaves(inner, (*path, key))


def mutated(value: Any) -> Any:
    """Something else of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value}x" if isinstance(value, str) else "x"


def with_leaf_mutated(report: Report, path: tuple[Any, ...]) -> Report:
    copied = copy.deepcopy(report)
    place = copied
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = mutated(place[path[-1]])
    return copied


def test_a_change_of_any_field_is_found(small_report: dict[str, Any], small_suite: Suite) -> None:
    """Every leaf of the header and of one visit."""
    report = small_report["report"]
    paths = [p for p in leaves(report) if p[0] != "visits" or p[1] == 1]
    assert len(paths) > 120
    for path in paths:
        assert audit(with_leaf_mutated(report, path), small_suite), f"a change of {path} passed"


@given(data=st.data())
@settings(max_examples=30, deadline=None, print_blob=True)
def test_random_changes_are_found(data: st.DataObject, small_report: dict[str, Any], small_suite: Suite) -> None:
    report = small_report["report"]
    path = data.draw(st.sampled_from(list(leaves(report["visits"]))))
    assert audit(with_leaf_mutated(report, ("visits", *path)), small_suite), f"a change of {path} passed"


@given(
    packets_per_block=st.integers(1, 8),
    packets=st.integers(1, 400),
    homes=st.integers(1, 9),
    grain=st.one_of(st.integers(0, 40), st.just(2**32 - 1)),
)
@settings(max_examples=200, deadline=None, print_blob=True)
def test_closed_counts_are_those_of_a_simulation(packets_per_block: int, packets: int, homes: int, grain: int) -> None:
    blocks = -(-packets // packets_per_block)
    found = closed_counts(packets, blocks, packets_per_block, homes, grain)
    size = min(grain or -(-blocks // (32 * homes)), blocks)
    tasks = [range(begin, min(begin + size, blocks)) for begin in range(0, blocks, size)]
    active = min(len(tasks), homes)
    if active == 1:
        tasks = [range(blocks)]
    loads = [[task for k, task in enumerate(tasks) if k % active == home] for home in range(active)]
    sizes = [min(packets_per_block, packets - block * packets_per_block) for block in range(blocks)]
    assert found["active_workers"] == active and found["task_count"] == len(tasks)
    assert found["critical_tasks"] == max(map(len, loads))
    assert found["critical_blocks"] == max(sum(map(len, load)) for load in loads)
    assert found["critical_packets"] == max(sum(sizes[b] for task in load for b in task) for load in loads)


def test_mixed_sources_are_found(small_report: dict[str, Any]) -> None:
    report = small_report["report"]
    other = copy.deepcopy(report)
    other["suite"] = "another"
    assert audit_together([report, other]) == []
    other["source"]["versions"]["numpy"] = "0"
    assert audit_together([report, other]) == ["the suites differ in source"]
    assert audit_together([report, report]) == ["there are several reports of suite fixed-grain"]


def test_kept_files_are_checked(small_report: dict[str, Any], tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(small_report["folder"] / "kept", kept)
    output = small_report["report"]["visits"][0]["measurement"]["output"]
    data = bytearray((kept / f"{output}.f32").read_bytes())
    data[3] ^= 0x40
    (kept / f"{output}.f32").write_bytes(data)
    wrong = audit_kept(small_report["report"], kept)
    assert any("not the content" in line for line in wrong) and any("FP64" in line for line in wrong)
    (kept / f"{output}.f32").unlink()
    assert any("was not kept" in line for line in audit_kept(small_report["report"], kept))
