"""Contests: regret by selecting and judging rounds, candidates that are all there, and an audit that finds changes."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from grainline.evidence import contest, operators
from grainline.evidence.audit import audit, visits_are_the_suite
from grainline.evidence.calibrate import Timed
from grainline.evidence.choice import automatic, launch_of
from grainline.evidence.contest_audit import wrong_in_contest
from grainline.evidence.fitting_set import fitting_set
from grainline.evidence.measure import measure_suite
from grainline.evidence.page import html
from grainline.evidence.records import sealed
from grainline.evidence.regret import best_of, percentile, regret_of, verdicts
from grainline.evidence.sides import sides
from grainline.evidence.suites import (
    CONTRADICTION,
    DRAWS,
    HELD_OUT,
    ROW_NAMES,
    Case,
    Suite,
    held_out,
    held_out_shapes,
    suite_of,
)
from grainline.evidence.tables import markdown
from grainline.plan.machine import Machine, shipped_machine
from grainline.plan.target import host_target


@pytest.fixture(scope="module")
def suite() -> Suite:
    return replace(HELD_OUT, cases=(Case("rms_norm", (40, 66)), Case("swiglu", (5, 34))))


@pytest.fixture(scope="module")
def report(suite: Suite, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    from tests.evidence.conftest import make_brief

    with pytest.MonkeyPatch.context() as patch:
        make_brief(patch)
        patch.setattr(contest, "TURN_NS", 20_000)
        return measure_suite(suite, tmp_path_factory.mktemp("contest"), homes=2, keep=False, say=lambda line: None)


def test_a_sound_contest_passes(report: dict[str, Any], suite: Suite) -> None:
    assert audit(report, suite) == []
    found = list(verdicts(report))
    assert len(found) == 2 * 5 and {v.condition for v in found} == {
        *("H=1 hot", "H=1 parked", "H=2 hot", "H=2 parked"),
        "H=2 hot, pool threads 2 times slower",
    }
    assert all(v.automatic_ns > 0 and v.best_ns > 0 for v in found)


def test_all_mappings_and_grains_take_part(report: dict[str, Any]) -> None:
    m = report["visits"][0]["measurement"]
    mappings = {code["mapping"].split()[0] for code in m["codes"]}
    assert mappings == {"whole", "local"}
    hot = next(c for c in m["conditions"] if c["homes"] == 2)
    finest = max(m["codes"], key=lambda code: code["blocks"])
    grains = {arm["grain"] for arm in hot["arms"] if m["codes"][arm["code"]] is finest}
    assert {1, 2, 4, finest["blocks"]} <= grains


def test_regret_selects_and_judges_by_different_rounds() -> None:
    """Arm 1 looks best on the even rounds only: selected, and judged at what it really takes."""
    race = {"elapsed_ns": [[10, 10] * 4, [5, 20] * 4], "again_ns": [10, 10] * 4}
    assert best_of(race, [1, 1]) == 1
    assert regret_of(race, 0, [1, 1]) == pytest.approx(10 / 20 - 1)
    assert regret_of(race, 1, [1, 1]) == 0.0, "who chose the best has no regret"
    assert best_of(race, [4, 1]) == 0, "times are per repetition"


def test_regret_finds_a_planted_loss() -> None:
    seed = 7
    noise = random.Random(seed)
    arms = [[round(1000 * factor * noise.gauss(1, 0.01)) for _ in range(16)] for factor in (1.0, 1.3, 2.0)]
    assert regret_of({"elapsed_ns": arms, "again_ns": arms[1]}, 1, [1, 1, 1]) == pytest.approx(0.3, abs=0.03), seed


def test_percentiles() -> None:
    values = [float(v) for v in range(1, 101)]
    assert [percentile(values, p) for p in (0, 50, 95, 100)] == [1, 50, 95, 100]
    assert percentile([3.0], 95) == 3.0


def test_held_out_cases_are_drawn_once() -> None:
    seeds = [draw.seed for draw in DRAWS]
    assert seeds == sorted(set(seeds)), "a draw is listed once and never goes"
    assert held_out_shapes(seeds[-1], 9) == held_out_shapes(seeds[-1], 9) != held_out_shapes(1, 9)
    assert len(HELD_OUT.cases) >= 61 and {case.operator for case in HELD_OUT.cases} == set(ROW_NAMES)
    assert Case("layer_norm", (4096, 1024)) in HELD_OUT.cases


def test_a_report_is_audited_against_its_own_draw() -> None:
    """Shapes of another draw than the one that is named are no visits of the suite; a draw that never was is none."""
    old = held_out(DRAWS[0])
    named = {"suite": "held-out", "draw": asdict(DRAWS[0]), "source": {"source_sha256": "0"}}
    assert suite_of(named) == old != HELD_OUT
    visits = [{**visit.description(), "name": visit.name} for visit in old.visits()]
    for draw, missing in ((DRAWS[0], 0), (DRAWS[-1], 60)):
        found = list(visits_are_the_suite({**named, "visits": visits}, suite_of({**named, "draw": asdict(draw)})))
        assert sum("is missing" in line for line in found) == missing
    for unknown in ({"seed": 1, "policy": "0"}, {**asdict(DRAWS[0]), "policy": DRAWS[-1].policy}, None):
        (sentence,) = audit({**named, "draw": unknown, "visits": visits})
        assert "no known draw" in sentence


CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "a turn left out": (lambda c: c["races"][0]["elapsed_ns"][0].pop(), "16 rounds"),
    "a turn of no time": (lambda c: c["races"][0]["again_ns"].__setitem__(0, 0), "no positive number"),
    "a race made up": (lambda c: c["races"].append(c["races"][0]), "races where|32 rounds"),
    "no control": (lambda c: c["races"][0].pop("again_ns"), "again_ns"),
    "a racer left out": (lambda c: c["raced"].pop(), "screening lets through|not in list"),
    "a role forgotten": (lambda c: c["roles"].pop("legacy"), "roles are not"),
    "a grain too large": (lambda c: c["arms"][0].update(grain=10**6), "a grain that its launch has not"),
    "a prediction below zero": (lambda c: c["arms"][0].update(predicted_ns=-1.0), "is no time"),
    "an arm twice": (lambda c: c["arms"].append(c["arms"][0]), "stands there twice"),
    "another condition": (lambda c: c.update(start="warm"), "not the prescribed"),
    "no repetitions": (lambda c: c["repetitions"].__setitem__(0, 0), "has its repetitions"),
}


@pytest.mark.parametrize("change, sentence", CHANGES.values(), ids=CHANGES)
def test_changes_of_a_contest_are_found(
    change: Callable[[Any], object], sentence: str, report: dict[str, Any], suite: Suite
) -> None:
    import re

    forged = copy.deepcopy(report)
    change(forged["visits"][0]["measurement"]["conditions"][2])
    forged["visits"] = [sealed(record) for record in forged["visits"]]
    wrong = audit(sealed(forged), suite)
    assert any(re.search(sentence, line) for line in wrong), wrong


def test_blocks_that_change_bits_are_found(report: dict[str, Any], suite: Suite) -> None:
    m = copy.deepcopy(report["visits"][0]["measurement"])
    assert not list(wrong_in_contest("x", m, 2, suite.name))
    m["codes"][0]["output"] = "0"
    assert any("may not change a bit" in line for line in wrong_in_contest("x", m, 2, suite.name))


def test_contests_are_shown(report: dict[str, Any], tmp_path: Path) -> None:
    text, page = markdown([report]), html([report])
    assert text.count("| rms_norm 40×66 |") == 5 and "regret median" in text
    assert page.count("<svg") == 4 + 5, "one scatter for each undisturbed condition, one histogram for each condition"


def test_no_calibration_steers_a_visit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a calibration that nobody may read every choice is still made, and made by the shipped prices."""
    operator, dims = operators.find("rms_norm"), (40, 66)
    codes, shipped = contest.Codes(operator.program(*dims), operator, dims), shipped_machine(host_target())
    monkeypatch.setenv("GRAINLINE_MACHINE_FILE", str(tmp_path / "nowhere.json"))
    chosen = automatic(codes.program, codes.target, shipped)
    launch = launch_of(chosen, 2, True, shipped)
    assert launch.homes in (1, 2) and launch.grain >= 1 and launch.predicted_ns > 0
    arms, roles = contest._arms(codes, contest.Condition(2, "hot"))
    assert arms[roles["automatic"]].key == codes.arm(chosen, launch.grain, launch.homes).key
    Timed(next(fitting_set()), codes.target)


def test_dear_threads_are_left_asleep() -> None:
    program, target = operators.find("rms_norm").program(1024, 4096), host_target()
    shipped = shipped_machine(target)
    chosen = automatic(program, target, shipped)
    free = replace(shipped, hot_paid_ps=0.0, hot_delay_ps=0.0, home_delay_ps=0.0, bus_byte_ps=0.0, task_ps=0.0)
    dear = replace(shipped, hot_paid_ps=1e12, hot_delay_ps=1e12)
    assert launch_of(chosen, 2, True, free).homes == 2
    assert launch_of(chosen, 2, True, dear).homes == 1


# ---- the contradiction -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wakers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    from tests.evidence.conftest import make_brief

    brief = replace(CONTRADICTION, cases=(Case("rms_norm", (40, 66)),))
    with pytest.MonkeyPatch.context() as patch:
        make_brief(patch)
        patch.setattr(contest, "TURN_NS", 20_000)
        found = measure_suite(brief, tmp_path_factory.mktemp("wakers"), homes=2, keep=False, say=lambda line: None)
    assert audit(found, brief) == []
    return found


def test_the_contradiction_is_measured_where_launches_wake_threads(wakers: dict[str, Any]) -> None:
    found = list(sides(wakers))
    assert [one.start for one in found] == ["parked", "condvar"]
    assert all(one.spread >= 0 for one in found)
    text = markdown([wakers])
    assert text.count("| rms_norm 40×66 | parked |") == text.count("| rms_norm 40×66 | condvar |") == 1
    assert "H=2 condvar" in text


def test_the_published_shape_and_three_more_are_asked_of_all_operators() -> None:
    shapes = {(129, 768), (17, 65), (257, 1538), (4096, 1024)}
    assert {(case.operator, case.dims) for case in CONTRADICTION.cases} == {
        (name, (rows, n + n % 2 if name == "rope" else n)) for name in ROW_NAMES for rows, n in shapes
    }


def planted(alone: int, shared: int, again: int, automatic: int) -> dict[str, Any]:
    """A report of one case with one arm of one task and one of two, and a choice between them."""
    race = {"elapsed_ns": [[alone] * 8, [shared] * 8], "again_ns": [again] * 8}
    condition = {"start": "parked", "raced": [0, 1], "repetitions": [1, 1], "races": [race]}
    condition |= {"roles": {"automatic": automatic}, "arms": [{"code": 0, "grain": 4}, {"code": 0, "grain": 2}]}
    return {
        "visits": [
            {"operator": "x", "dims": [2, 3], "measurement": {"codes": [{"blocks": 4}], "conditions": [condition]}}
        ]
    }


def test_a_clear_win_must_be_chosen_and_a_tie_may_go_either_way() -> None:
    (wrong,) = sides(planted(100, 150, again=151, automatic=1))
    assert wrong.is_clear and wrong.is_shared and not wrong.is_right
    (right,) = sides(planted(100, 150, again=101, automatic=0))
    assert right.is_clear and right.is_right and not right.shared_wins
    (noisy,) = sides(planted(100, 110, again=120, automatic=1))
    assert not noisy.is_clear and noisy.is_right
    (pooled,) = sides(planted(150, 100, again=150, automatic=1))
    assert pooled.shared_wins and not pooled.is_clear and pooled.is_right


def test_waking_from_a_condition_variable_is_priced_and_the_planner_knows_it() -> None:
    program, target = operators.find("masked_softmax").program(129, 768), host_target()
    free = replace(shipped_machine(target), condvar_paid_ps=0.0, condvar_delay_ps=0.0).without_hot_threads()
    dear = replace(shipped_machine(target), condvar_paid_ps=1e12, condvar_delay_ps=1e12).without_hot_threads()
    for machine, homes in ((free, 2), (dear, 1)):
        chosen = automatic(program, target, machine, is_hot=False)
        assert launch_of(chosen, 2, False, machine).homes == homes
        assert launch_of(chosen, 2, True, machine).homes == 2, "awake threads cost what they did"


def rows_for_the_pool(name: str, n: int, machine: Machine) -> int:
    """From how many rows of `n` on a launch that finds the pool asleep is given to it, by these prices."""
    for rows in range(1, 2000):
        chosen = automatic(operators.find(name).program(rows, n), host_target(), machine, is_hot=False)
        if launch_of(chosen, 2, False, machine).homes > 1:
            return rows
    return 2000


@pytest.mark.parametrize("start", ["parked", "condvar"])
def test_dear_vector_math_goes_to_the_pool_sooner_by_one_set_of_prices(start: str) -> None:
    """What the uncalibrated prior cannot say at any price of waking: between the two groups lie shapes of which the
    pool gets three operators and the caller three."""
    machine = shipped_machine(replace(host_target(), cpu="emeraldrapids"))
    machine = machine.without_hot_threads() if start == "condvar" else machine
    dear = [rows_for_the_pool(name, 768, machine) for name in ("masked_softmax", "swiglu", "gelu_residual")]
    cheap = [rows_for_the_pool(name, 768, machine) for name in ("rms_norm", "layer_norm", "rope")]
    assert max(dear) * 1.1 < min(cheap), f"{dear} and {cheap} rows"
