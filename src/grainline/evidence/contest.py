"""A contest: every candidate of one case against the automatic choice, side by side in one process.

Conditions are threads, the pool's state at the start, and how slow its threads are made. All distinct realisations are
compiled once, checked against the FP64 oracle and timed briefly; those within SCREEN of the fastest, and always the
automatic choice, the pool's own grain and the uncalibrated joint search, then race: in every round each takes one turn,
the automatic one twice, in orders that alternate. Nothing decides here who is best: `evidence.regret` does, from the
raw turns. A condition with a large regret is raced once more, with twice the rounds; both races are kept.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grainline.evidence import operators
from grainline.evidence.choice import automatic, choose, launch_of
from grainline.evidence.realise import Bound, Realisation, effective_grain, realise
from grainline.evidence.records import sha256
from grainline.evidence.regret import OUTLIER, Race, regret_of
from grainline.evidence.suites import CONTRADICTION, HELD_OUT, JOINT_TASKS
from grainline.evidence.visit import main
from grainline.plan.launches import with_launches
from grainline.plan.legal import legal_mappings
from grainline.plan.machine import Machine, shipped_machine
from grainline.plan.planner import execution_target, plan
from grainline.plan.target import Target, host_target
from grainline.plan.types import DEFAULT_OPTIONS, MMA, Candidate, Plan, PlannerOptions, PlanResult
from grainline.tile.ir import TileProgram

ROUNDS = 16
TURN_NS = 1_000_000
PARKED_TURN_NS = 3_000_000
PAUSE_NS = 1_050_000  # of a parked start, not part of a time
SCREEN = 1.5
SCREENING_TURNS = 2


@dataclass(frozen=True)
class Condition:
    homes: int
    start: str
    worker_slowdown: float = 1.0

    def time(self, bound: Bound, repeat: int, grain: int) -> int:
        return bound.time(repeat, grain, self.homes, self.start, self.worker_slowdown)


def conditions(homes: int, suite: str = HELD_OUT.name) -> tuple[Condition, ...]:
    """One thread; all of them, hot and parked; all of them with slow pool threads. Of the contradiction those in which
    a launch wakes threads: parked, and from a condition variable."""
    if suite == CONTRADICTION.name:
        return (Condition(homes, "parked"), Condition(homes, "condvar")) if homes > 1 else ()
    alone = (Condition(1, "hot"), Condition(1, "parked"))
    together = (Condition(homes, "hot"), Condition(homes, "parked"), Condition(homes, "hot", 2.0))
    return alone + together if homes > 1 else alone


@dataclass(frozen=True)
class Arm:
    """One realisation of a launch: a code and the blocks of a task; all blocks where there is one task."""

    code: int
    grain: int
    predicted_ns: float = 0.0

    @property
    def key(self) -> tuple[int, int]:
        return self.code, self.grain


class Codes:
    """The distinct codes of a case, compiled when they are first asked for, in memory that they share."""

    def __init__(self, program: TileProgram, operator: operators.Operator, dims: operators.Shape) -> None:
        self.program, self.target = program, host_target()
        self.operator, self.dims = operator, dims
        self.inputs = operator.inputs(dims)
        self.reference = operator.oracle(*self.inputs.values())
        self.bounds: list[Bound] = []
        self.described: list[dict[str, Any]] = []
        self.max_error = 0.0
        self._numbers: dict[tuple[str, str, int], int] = {}

    def number_of(self, chosen: Plan) -> int:
        """The index of a plan's code; `OracleError` when its output is wrong."""
        key = str(chosen.mapping), str(chosen.mapping.details), chosen.block
        if key not in self._numbers:
            self._numbers[key] = len(self.bounds)
            self._add(realise(chosen))
        return self._numbers[key]

    def _add(self, realisation: Realisation) -> None:
        beside = self.bounds[0] if self.bounds else None
        bound = Bound(realisation, self.inputs, self.operator.output_shape(self.dims), beside)
        bound.time_entry()
        self.max_error = max(self.max_error, bound.max_error(self.reference))
        self.bounds.append(bound)
        self.described.append(
            {
                "mapping": str(realisation.plan.mapping),
                "block": realisation.plan.block,
                "blocks": realisation.blocks,
                "llvm_sha256": realisation.llvm_sha256,
                "object_sha256": realisation.object_sha256,
                "output": sha256(np.ascontiguousarray(bound.output).data),
            }
        )

    def arm(self, chosen: Plan, blocks_per_task: int, homes: int, predicted_ns: float = 0.0) -> Arm:
        number = self.number_of(chosen)
        blocks = self.bounds[number].realisation.blocks
        grain = effective_grain(blocks, blocks_per_task, homes)
        return Arm(number, blocks if homes == 1 else grain, predicted_ns)

    def arm_of(self, candidate: Candidate, homes: int, predicted_ns: float) -> Arm:
        """The arm of one candidate of the planner."""
        return self.arm(self._plan_of(candidate), candidate.blocks_per_task, homes, predicted_ns)

    def _plan_of(self, candidate: Candidate) -> Plan:
        """The plan that is a candidate's code; of a product's variants the one that is realised so."""
        machine, mapping = shipped_machine(self.target), candidate.mapping
        if mapping.kind == MMA:
            variants = plan(self.program, self.target, machine=machine).variants
            return next(each for each in variants if str(each.mapping.details) == str(mapping.details))
        forced = PlannerOptions(
            mapping=mapping.kind,
            local_lanes=candidate.local_lanes,
            root_axis_order=candidate.root_axis_order,
            block_size=candidate.block_size,
            blocks_per_task=1,
        )
        return plan(self.program, self.target, forced, machine=machine).variants[0]


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """The contest of {operator, dims, homes, suite} under every condition of the suite."""
    operator, dims = operators.find(request["operator"]), tuple(request["dims"])
    codes = Codes(operator.program(*dims), operator, dims)
    prescribed = conditions(int(request["homes"]), request["suite"])
    results = [contest(codes, condition) for condition in prescribed]
    for bound in codes.bounds:
        bound.reset()
        bound.time_entry()
        codes.max_error = max(codes.max_error, bound.max_error(codes.reference))
    return {
        "homes": int(request["homes"]),
        "inputs": {name: sha256(array.data) for name, array in codes.inputs.items()},
        "input_shapes": {name: list(array.shape) for name, array in codes.inputs.items()},
        "output_shape": list(codes.reference.shape),
        "max_abs_error": codes.max_error,
        "codes": codes.described,
        "conditions": results,
    }


def contest(codes: Codes, condition: Condition) -> dict[str, Any]:
    """Arms, roles (indices into the arms), screening and races of one condition."""
    arms, roles = _arms(codes, condition)
    repetitions, screening = _screen(codes, condition, arms)
    limit = SCREEN * min(screening)
    raced = [k for k in range(len(arms)) if screening[k] <= limit or k in roles.values()]
    counts = [repetitions[k] for k in raced]
    runners, chosen = [arms[k] for k in raced], raced.index(roles["automatic"])
    races = [_race(codes, condition, runners, counts, chosen, ROUNDS)]
    if regret_of(races[0], chosen, counts) > OUTLIER:
        races.append(_race(codes, condition, runners, counts, chosen, 2 * ROUNDS))
    return {
        "homes": condition.homes,
        "start": condition.start,
        "worker_slowdown": condition.worker_slowdown,
        "arms": [
            {"code": a.code, "grain": a.grain, "predicted_ns": round(a.predicted_ns, 1), "screening_ns": round(s, 1)}
            for a, s in zip(arms, screening, strict=True)
        ],
        "roles": roles,
        "raced": raced,
        "repetitions": counts,
        "races": races,
    }


def _arms(codes: Codes, condition: Condition) -> tuple[list[Arm], dict[str, int]]:
    """The distinct candidates, and which of them is whose choice."""
    homes, is_hot = condition.homes, condition.start == "hot"
    program, target, machine = codes.program, codes.target, priced_for(condition.start, codes.target)
    chosen = automatic(program, target, machine, is_hot=condition.start != "condvar")
    launch = launch_of(chosen, homes, is_hot, machine)
    joint = choose(program, JOINT_TASKS.settings, homes, target)
    named = {
        "automatic": codes.arm(chosen, launch.grain, launch.homes, launch.predicted_ns),
        "legacy": codes.arm(chosen, 0, homes),
        "uncalibrated": codes.arm(joint.plan, joint.blocks_per_task, homes),
    }
    arms: dict[tuple[int, int], Arm] = {}
    for arm in (*_candidates(codes, homes, is_hot, machine), *named.values()):
        arms.setdefault(arm.key, arm)
    places = {key: number for number, key in enumerate(arms)}
    return list(arms.values()), {name: places[arm.key] for name, arm in named.items()}


def priced_for(start: str, target: Target) -> Machine:
    """The shipped prices, with what a launch pays for threads in a run that begins so."""
    machine = shipped_machine(target)
    return machine.without_hot_threads() if start == "condvar" else machine


def search_for(program: TileProgram, target: Target, homes: int, is_hot: bool, machine: Machine) -> PlanResult:
    """The whole space for so many threads, awake or asleep, by the prices of `machine`.

    Candidates of every numeric signature, while `best` is what a launch takes, which keeps to one of them. Those of a
    matrix product are its variants in every grain.
    """
    execution = execution_target(program, target, DEFAULT_OPTIONS)
    execution = replace(execution, worker_count=homes, is_hot=is_hot)
    kept = plan(program, target, execution=execution, machine=machine)
    if kept.best is None:
        _, refusals = legal_mappings(program, target, DEFAULT_OPTIONS)
        return with_launches(replace(kept, refusals=(*kept.refusals, *refusals)), execution, machine, {})
    every = plan(program, target, PlannerOptions(same_bits=False), execution=execution, machine=machine)
    best = next(each for each in every.candidates if _key(each.candidate) == _key(kept.best.candidate))
    return replace(kept, candidates=every.candidates, best=best)


def _key(candidate: Candidate) -> tuple[str, tuple[int, ...]]:
    return str(candidate), candidate.root_axis_order


def _candidates(codes: Codes, homes: int, is_hot: bool, machine: Machine) -> Sequence[Arm]:
    """The whole space for this condition, with the prediction of each."""
    found = search_for(codes.program, codes.target, homes, is_hot, machine).candidates
    return [codes.arm_of(s.candidate, homes, s.cost.score / 1e3) for s in found]


def _screen(codes: Codes, condition: Condition, arms: Sequence[Arm]) -> tuple[list[int], list[float]]:
    """(repetitions of a turn, the faster of two turns in ns per repetition) of every arm."""
    is_paused = condition.start == "parked" and condition.homes > 1
    pause, turn = (PAUSE_NS, PARKED_TURN_NS) if is_paused else (0, TURN_NS)
    repetitions, fastest = [], []
    for arm in arms:
        bound = codes.bounds[arm.code]
        once = min(condition.time(bound, 1, arm.grain) for _ in range(SCREENING_TURNS))
        count = max(1, turn // (once + pause))
        turns = [condition.time(bound, count, arm.grain) / count for _ in range(SCREENING_TURNS)]
        repetitions.append(count)
        fastest.append(min(turns))
    return repetitions, fastest


def _race(
    codes: Codes, condition: Condition, raced: Sequence[Arm], repetitions: Sequence[int], chosen: int, rounds: int
) -> Race:
    """elapsed_ns[i][r] of the i-th arm in round r, and again_ns[r], the second turn of the arm `chosen`."""
    elapsed: list[list[int]] = [[] for _ in raced]
    again: list[int] = []
    turns = [*zip(raced, repetitions, elapsed, strict=True), (raced[chosen], repetitions[chosen], again)]
    for number in range(rounds):
        start = number * 5 % len(turns)
        order = turns[start:] + turns[:start]
        for arm, count, times in order if number // 2 % 2 == 0 else reversed(order):
            times.append(condition.time(codes.bounds[arm.code], count, arm.grain))
    return {"elapsed_ns": elapsed, "again_ns": again}


if __name__ == "__main__":
    sys.exit(main(measure))
