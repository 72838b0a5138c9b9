"""The audit's rules for contests: what `evidence.audit` holds of visits, said of candidates, screenings and races."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

from grainline.evidence import operators
from grainline.evidence.contest import ROUNDS, SCREEN, conditions
from grainline.evidence.regret import OUTLIER, regret_of

ROLES = {"automatic", "legacy", "uncalibrated"}
TOLERANCE_NS = 0.2  # screenings are written with one decimal


def wrong_in_contest(name: str, m: dict[str, Any], homes: int, suite: str) -> Iterator[str]:
    """What is wrong with the measurement of one contest."""
    if not 0 <= m["max_abs_error"] <= operators.ATOL + operators.RTOL * 1e3:
        yield f"{name}: the error {m['max_abs_error']} is no error that passes"
    if m["homes"] != homes:
        yield f"{name}: measured with {m['homes']} threads, asked for {homes}"
    outputs: dict[str, set[str]] = {}
    for code in m["codes"]:
        outputs.setdefault(code["mapping"], set()).add(code["output"])
    for mapping, found in outputs.items():
        if len(found) > 1:
            yield f"{name}: {mapping} gives {len(found)} outputs, blocks may not change a bit"
    if len({code["llvm_sha256"] for code in m["codes"]}) != len({code["object_sha256"] for code in m["codes"]}):
        yield f"{name}: equal code gave different objects, or different code equal ones"
    expected = [(c.homes, c.start, c.worker_slowdown) for c in conditions(homes, suite)]
    if [(c["homes"], c["start"], c["worker_slowdown"]) for c in m["conditions"]] != expected:
        yield f"{name}: the conditions are not the prescribed ones"
    for condition in m["conditions"]:
        where = f"{name}, H={condition['homes']} {condition['start']}"
        yield from _wrong_arms(where, condition, m["codes"])
        yield from _wrong_races(where, condition)


def _wrong_arms(where: str, condition: dict[str, Any], codes: list[dict[str, Any]]) -> Iterator[str]:
    arms, raced, roles = condition["arms"], condition["raced"], condition["roles"]
    keys = [(arm["code"], arm["grain"]) for arm in arms]
    if len(set(keys)) != len(keys):
        yield f"{where}: an arm stands there twice"
    for arm in arms:
        if not 0 <= arm["code"] < len(codes) or not 1 <= arm["grain"] <= codes[arm["code"]]["blocks"]:
            yield f"{where}: an arm has no code, or a grain that its launch has not"
        if not (isfinite(arm["predicted_ns"]) and arm["predicted_ns"] >= 0 and arm["screening_ns"] > 0):
            yield f"{where}: a prediction or a screening is no time"
    if set(roles) != ROLES or not all(0 <= arm < len(arms) for arm in roles.values()):
        yield f"{where}: the roles are not {', '.join(sorted(ROLES))}"
        return
    limit = SCREEN * min(arm["screening_ns"] for arm in arms)
    must = {k for k, arm in enumerate(arms) if arm["screening_ns"] < limit - TOLERANCE_NS} | set(roles.values())
    may = {k for k, arm in enumerate(arms) if arm["screening_ns"] <= limit + TOLERANCE_NS} | set(roles.values())
    if not must <= set(raced) <= may or sorted(set(raced)) != raced:
        yield f"{where}: those that race are not those that the screening lets through"


def _wrong_races(where: str, condition: dict[str, Any]) -> Iterator[str]:
    raced, races, repetitions = condition["raced"], condition["races"], condition["repetitions"]
    if len(repetitions) != len(raced) or not all(type(n) is int and n >= 1 for n in repetitions):
        yield f"{where}: every arm that races has its repetitions"
        return
    for race, rounds in zip(races, (ROUNDS, 2 * ROUNDS), strict=False):
        turns = [*race["elapsed_ns"], race["again_ns"]]
        if len(turns) != len(raced) + 1 or any(len(each) != rounds for each in turns):
            yield f"{where}: a race has {rounds} rounds of every arm and of the automatic one again"
            return
        if not all(type(t) is int and t > 0 for each in turns for t in each):
            yield f"{where}: a turn is no positive number of nanoseconds"
            return
    is_outlier = regret_of(races[0], raced.index(condition["roles"]["automatic"]), repetitions) > OUTLIER
    if len(races) != 1 + is_outlier:
        yield f"{where}: {len(races)} races where the first one asks for {1 + is_outlier}"
