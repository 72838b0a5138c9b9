"""`grainline plan` and `grainline explain --kernel`: the planner's whole space, its terms, its pick, and what is true.

Times are microseconds. `*` marks the pick, which keeps to one numeric signature; with measured times `!` marks the
fastest, and the last line says what the pick loses to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from grainline.base.errors import OptionError
from grainline.base.knobs import thread_budget
from grainline.evidence import operators
from grainline.evidence.contest import Codes, Condition, search_for
from grainline.plan.launches import with_launches
from grainline.plan.machine import machine_in_use
from grainline.plan.planner import execution_target
from grainline.plan.search import typical_extents
from grainline.plan.target import host_target
from grainline.plan.types import DEFAULT_OPTIONS, MMA, PlanError, PlanResult, ScoredCandidate

ROUNDS = 7
TURN_NS = 2_000_000
TERMS = ("arithmetic", "memory", "block_dispatch", "imbalance", "task_dispatch", "worker_activation")
SHORTEST_NAME = 34
HEAD = f"{'block':>6} {'grain':>8} {'Q':>7} {'L':>6} {'C':>6} {'h':>3}"
TERM_HEAD = " ".join(f"{name.split('_')[0]:>10}" for name in TERMS)


def operator_lines(
    name: str, shape: str, threads: int | None, is_parked: bool, is_measured: bool, rows: int
) -> Iterator[str]:
    """The candidates of one operator at one shape; `OptionError` when there is no such thing."""
    operator, dims = operators.find(name), shape_of(shape)
    operators.check_dims(operator, dims)
    processors = len(os.sched_getaffinity(0))
    homes = threads or min(thread_budget(None) or processors, processors)
    if is_measured and homes > processors:
        raise OptionError("threads cannot be timed", expected=f"at most {processors}, the processors", found=homes)
    start, target = "parked" if is_parked else "hot", host_target()
    program, machine = operator.program(*dims), machine_in_use(target)
    try:
        result = search_for(program, target, homes, not is_parked, machine)
    except PlanError as error:
        raise OptionError(f"{name} cannot be planned: {error}", found=dims) from error
    yield f"{name} {'x'.join(map(str, dims))}: H={homes}, {start} start, {target.cpu}; prices: {machine.origin}"
    times = None
    if is_measured:
        codes = Codes(program, operator, dims)
        times = measured_us(codes, result.candidates, Condition(homes, start))
    yield from candidate_lines(result, rows, times)


def model_lines(path: Path, name: str) -> Iterator[str]:
    """The candidates of a model's kernels, with symbolic extents at typical values; nothing is compiled or run."""
    from grainline.pipeline import plan_model

    table = plan_model(path)
    found = False
    for key, result in table.plans.items():
        symbols = [kernel.symbol for kernel in table.kernels[key]]
        if not any(known.startswith(name) for known in (*symbols, *table.names[key])):
            continue
        found = True
        yield ", ".join((*table.names[key], *symbols))
        result = result if result.candidates else _launches(result)
        yield from candidate_lines(result, len(result.candidates), None)
    if not found:
        names = sorted({known for names in table.names.values() for known in names})
        raise OptionError("the model has no such kernel", expected=" or ".join(names), found=repr(name))


def _launches(products: PlanResult) -> PlanResult:
    """What launches of a model's product choose among, on all threads, where symbols have typical extents."""
    program, target = products.variants[0].program, products.variants[0].target
    execution = execution_target(program, target, DEFAULT_OPTIONS)
    return with_launches(products, execution, machine_in_use(target), typical_extents(program, None))


def candidate_lines(result: PlanResult, rows: int, times: Sequence[float] | None) -> Iterator[str]:
    """One line per candidate, the cheapest first, then the refusals and the verdict."""
    width = max(SHORTEST_NAME, *(len(name_of(each)) for each in result.candidates))
    yield f"    {'mapping':{width}} {HEAD} {TERM_HEAD} {'predicted':>10}{' measured' if times else ''}"
    places = sorted(range(len(result.candidates)), key=lambda k: result.candidates[k].cost.score)
    fastest = min(range(len(times)), key=lambda k: times[k]) if times else None
    pick = next((k for k in places if result.candidates[k] is result.best), None)
    for number, k in enumerate(places):
        if number < rows or k in (pick, fastest):
            mark = ("*" if k == pick else " ") + ("!" if k == fastest else " ")
            yield f" {mark} {_candidate(result.candidates[k], width)}{f' {times[k]:8.3f}' if times else ''}"
    if len(places) > rows:
        yield f"    {len(places)} candidates in all"
    yield from (f"    refused {refusal.mapping}: {refusal.reason}" for refusal in result.refusals)
    if times and pick is not None and fastest is not None:
        loss = times[pick] / times[fastest] - 1
        yield "the pick is the fastest" if pick == fastest else f"the pick takes {loss:.1%} longer than the fastest"


def measured_us(codes: Codes, candidates: Sequence[ScoredCandidate], condition: Condition) -> list[float]:
    """Median microseconds of every candidate, all taking turns; equal realisations share one measurement."""
    arms = [codes.arm_of(each.candidate, condition.homes, 0.0) for each in candidates]
    turns: dict[tuple[int, int], list[float]] = {arm.key: [] for arm in arms}
    counts = {}
    for code, grain in turns:
        once = min(condition.time(codes.bounds[code], 1, grain) for _ in range(2))
        counts[code, grain] = max(1, TURN_NS // (2 * once))
    for _ in range(ROUNDS):
        for (code, grain), times in turns.items():
            count = counts[code, grain]
            times.append(condition.time(codes.bounds[code], count, grain) / count / 1e3)
    return [median(turns[arm.key]) for arm in arms]


def shape_of(text: str) -> tuple[int, ...]:
    """Extents written as 129x768."""
    try:
        return tuple(int(part) for part in text.lower().split("x"))
    except ValueError:
        raise OptionError("the shape cannot be read", expected="extents such as 129x768", found=repr(text)) from None


def name_of(scored: ScoredCandidate) -> str:
    """The mapping of a candidate; of a product how it is realised."""
    mapping = scored.candidate.mapping
    return str(mapping.details if mapping.kind == MMA else mapping)


def _candidate(scored: ScoredCandidate, width: int) -> str:
    c, w = scored.candidate, scored.work
    counts = f"{w.packet_count:7} {w.block_count:6} {w.task_count:6} {w.active_workers:3}"
    terms = " ".join(f"{getattr(scored.cost, name) / 1e6:10.3f}" for name in TERMS)
    where = f"{name_of(scored):{width}} {c.block_size:6} {c.blocks_per_task:8}"
    return f"{where} {counts} {terms} {scored.cost.score / 1e6:10.3f}"
