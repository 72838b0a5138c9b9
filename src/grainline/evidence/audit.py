"""The audit of a report: everything that can be recomputed is, and what does not agree is a sentence.

The rules below are the law of a report, in order. A rule yields one sentence for each thing that is wrong; a report
holds when none does. Seals find any change of a field; the other rules find what a forger who seals again would need to
invent: visits that are missing or made up, inputs that are not the generator's, medians that are not the samples',
code or outputs that differ where they must be equal, sources that mix.
"""

from __future__ import annotations

import gzip
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from grainline.base.errors import OptionError
from grainline.evidence import operators
from grainline.evidence.contest_audit import wrong_in_contest
from grainline.evidence.realise import GUARD, effective_grain
from grainline.evidence.records import FORMAT, is_sealed, sha256
from grainline.evidence.suites import PACKET, Suite, find, suite_of
from grainline.evidence.visit import MOST_REPETITIONS, SAMPLES, median_us

Report = dict[str, Any]
Record = dict[str, Any]
CLOCKS = ("native", "hot", "parked")
RIGHTS = {"precision": "f32", "fast_math": False, "relaxed_precision": False, "reduction_policy": "unordered_tree"}
PHASES = ("fixture", "compile", "cold_call", "warm_up")


def audit(report: Report, suite: Suite | None = None) -> list[str]:
    """What is wrong with a report of one suite; empty when it holds."""
    try:
        suite = suite or suite_of(report)
        rules = CONTEST_RULES if suite.is_contest else RULES
        return [sentence for rule in rules for sentence in rule(report, suite)]
    except OptionError as error:
        return [str(error)]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        return [f"the report has not the form of one: {type(error).__name__} {error}"]


def audit_together(reports: list[Report]) -> list[str]:
    """What is wrong among reports that each hold: one source, one machine, one suite each."""
    wrong = []
    for field in ("source", "machine", "homes"):
        if len({sha256(repr(sorted_items(report[field])).encode()) for report in reports}) > 1:
            wrong.append(f"the suites differ in {field}")
    twice = [name for name, count in Counter(report["suite"] for report in reports).items() if count > 1]
    return [*wrong, *(f"there are several reports of suite {name}" for name in twice)]


def sorted_items(value: Any) -> Any:
    """The value with its dictionaries as sorted pairs, for comparing."""
    return sorted((k, sorted_items(v)) for k, v in value.items()) if isinstance(value, dict) else value


def seals_hold(report: Report, suite: Suite) -> Iterator[str]:
    if report.get("format") != FORMAT:
        yield f"format {report.get('format')} is not {FORMAT}"
    if not is_sealed(report):
        yield "the report was changed after it was sealed"
    for record in report["visits"]:
        if not is_sealed(record):
            yield f"{record.get('name')}: the record was changed after it was sealed"


def visits_are_the_suite(report: Report, suite: Suite) -> Iterator[str]:
    """Every prescribed visit once, in the prescribed order, as the suite describes it."""
    if report["suite"] != suite.name:
        yield f"this is not a report of suite {suite.name}"
    expected = {visit.name: visit for visit in suite.visits()}
    found = Counter(record["name"] for record in report["visits"])
    yield from (f"{name}: visited {count} times" for name, count in found.items() if count > 1)
    yield from (f"{name}: is no visit of the suite" for name in found if name not in expected)
    yield from (f"{name}: the visit is missing" for name in expected if name not in found)
    for record in report["visits"]:
        visit = expected.get(record["name"])
        if visit is None:
            continue
        for field, value in visit.description().items():
            if record.get(field) != value:
                yield f"{record['name']}: {field} is {record.get(field)!r}, the suite says {value!r}"


def visits_succeeded(report: Report, suite: Suite) -> Iterator[str]:
    for record in report["visits"]:
        if record.get("return_code") != 0 or record.get("valid") is not True or "error" in record:
            yield f"{record['name']}: failed: {record.get('error', record.get('return_code'))}"
        if record.get("steering_variables") != []:
            yield f"{record['name']}: the environment had {record.get('steering_variables')}"


def one_source(report: Report, suite: Suite) -> Iterator[str]:
    """All visits ran the header's source with the header's threads, and no binary changed meanwhile."""
    for record in report["visits"]:
        for field in ("source", "homes"):
            if record.get(field) != report[field]:
                yield f"{record['name']}: its {field} is not the report's"
    sessions = report["sessions"]
    if not sessions or "binaries_after" not in sessions[-1]:
        yield "the last session did not end"
    for number, session in enumerate(sessions):
        for when in ("binaries_before", "binaries_after"):
            if session.get(when, report["source"]["binaries"]) != report["source"]["binaries"]:
                yield f"session {number}: the binaries changed ({when})"
        if not session["started"] <= session.get("finished", session["started"]):
            yield f"session {number}: ended before it began"
    if not 1 <= report["homes"] <= report["machine"]["processors"]:
        yield f"{report['homes']} threads were timed on {report['machine']['processors']} processors"


def numbers_follow_from_samples(report: Report, suite: Suite) -> Iterator[str]:
    for name, m in measurements(report):
        if set(m["elapsed_ns"]) != set(CLOCKS) or set(m["median_us"]) != set(CLOCKS):
            yield f"{name}: has not the clocks {', '.join(CLOCKS)}"
            continue
        for clock in CLOCKS:
            samples, repetitions = m["elapsed_ns"][clock], m["repetitions"][clock]
            if not _positive_integers(samples) or not _positive_integers([repetitions], 1, MOST_REPETITIONS):
                yield f"{name}: {clock} needs {SAMPLES} positive samples and 1 to {MOST_REPETITIONS} repetitions"
            elif m["median_us"][clock] != median_us(samples, repetitions):
                yield f"{name}: the {clock} median is not its samples' median"
        if not _positive_integers(m["latency_ns"]):
            yield f"{name}: needs {SAMPLES} positive latencies"
        if sorted(m["phases_ms"]) != sorted(PHASES) or min(m["phases_ms"].values()) < 0:
            yield f"{name}: the phases are not {', '.join(PHASES)}"


def inputs_are_the_generators(report: Report, suite: Suite) -> Iterator[str]:
    for record in report["visits"]:
        m = record.get("measurement")
        if m is None:
            continue
        hashes, shapes, output_shape = _generated(record["operator"], tuple(record["dims"]))
        if m["inputs"] != hashes:
            yield f"{record['name']}: an input fingerprint is not that of the generated input"
        if m["input_shapes"] != shapes or m["output_shape"] != output_shape:
            yield f"{record['name']}: shapes are not the operator's"


def oracle_was_passed(report: Report, suite: Suite) -> Iterator[str]:
    for name, m in measurements(report):
        told = m["correctness"]
        expected = {
            "checks": 2,
            "passed": True,
            "elements_per_check": int(np.prod(m["output_shape"])),
            "guard_elements_per_check": 2 * GUARD,
            "atol": operators.ATOL,
            "rtol": operators.RTOL,
        }
        for field, value in expected.items():
            if told.get(field) != value or type(told.get(field)) is not type(value):
                yield f"{name}: the oracle's {field} is {told.get(field)!r}, not {value!r}"
        if not 0 <= told["max_abs_error"] < 1:
            yield f"{name}: the error {told['max_abs_error']} is no error that passes"


def numeric_rights_are_the_suites(report: Report, suite: Suite) -> Iterator[str]:
    for name, m in measurements(report):
        for field, value in RIGHTS.items():
            if m.get(field) != value:
                yield f"{name}: {field} is {m.get(field)!r}"


def choices_obey_their_settings(report: Report, suite: Suite) -> Iterator[str]:
    """What was forced was realised, and the counts follow from it."""
    width = report["machine"]["packet_width"]
    for record in report["visits"]:
        m, settings = record.get("measurement"), record["settings"]
        if m is None:
            continue
        choice, name = m["choice"], record["name"]
        wanted = width if settings["local_lanes"] == PACKET else settings["local_lanes"]
        if wanted and choice["local_lanes"] != wanted:
            yield f"{name}: local_lanes is {choice['local_lanes']}, forced was {wanted}"
        if settings["block_size"] and choice["block_size"] != settings["block_size"]:
            yield f"{name}: block_size is {choice['block_size']}, forced was {settings['block_size']}"
        if not settings["search_task_grain"] and choice["blocks_per_task"] != settings["blocks_per_task"]:
            yield f"{name}: blocks_per_task is {choice['blocks_per_task']}, fixed was {settings['blocks_per_task']}"
        if m["homes"] != record["homes"]:
            yield f"{name}: measured with {m['homes']} threads, asked for {record['homes']}"
        if m["effective_grain"] != effective_grain(m["blocks"], choice["blocks_per_task"], m["homes"]):
            yield f"{name}: {m['effective_grain']} is not the effective grain of {choice['blocks_per_task']}"


def counts_and_costs_add_up(report: Report, suite: Suite) -> Iterator[str]:
    """The planner's counts follow from packets, blocks, grain and threads; its terms sum to its score."""
    for name, m in measurements(report):
        counts, cost, choice = m["choice"]["counts"], m["choice"]["cost"], m["choice"]
        per_block = max(choice["block_size"] // max(m["facts"]["packet_width"], 1), 1)
        wanted = closed_counts(counts["packet_count"], m["blocks"], per_block, m["homes"], choice["blocks_per_task"])
        if {key: counts.get(key) for key in wanted} != wanted:
            yield f"{name}: the planner's counts are not those of the closed formulas"
        terms = [value for key, value in cost.items() if key != "score"]
        if not all(0 <= value < inf for value in terms) or abs(sum(terms) - cost["score"]) > 1e-9 * cost["score"]:
            yield f"{name}: the planner's terms are not finite costs that sum to its score"


def closed_counts(packets: int, blocks: int, packets_per_block: int, homes: int, asked: int) -> dict[str, int]:
    """What the longest home does when tasks are dealt evenly, from the formulas and not from the planner."""
    grain = effective_grain(blocks, asked, homes)
    tasks = -(-blocks // grain)
    active = min(tasks, homes)
    if active == 1:
        tasks, grain = 1, blocks

    def critical(total: int, capacity: int) -> int:
        full = tasks - 1
        return max(-(-full // active) * capacity, full // active * capacity + total - full * capacity)

    return {
        "block_count": blocks,
        "task_count": tasks,
        "active_workers": active,
        "blocks_per_task": grain,
        "critical_packets": critical(packets, grain * packets_per_block) if active > 1 else packets,
        "critical_blocks": critical(blocks, grain),
        "critical_tasks": -(-tasks // active),
    }


def equal_settings_give_equal_code(report: Report, suite: Suite) -> Iterator[str]:
    """One IR, one object and one output for one case under one plan; fixed-grain: for the whole case."""
    facts: dict[tuple[Any, ...], set[Any]] = defaultdict(set)
    for record in report["visits"]:
        m = record.get("measurement")
        if m is None:
            continue
        choice = m["choice"]
        plan = () if suite.keeps_code else (choice["mapping"], choice["local_lanes"], choice["block_size"])
        code = (m["llvm_sha256"], m["object_sha256"], m["object_bytes"], m["output"], m["scratch_bytes"], m["blocks"])
        facts[record["operator"], tuple(record["dims"]), plan].add((*code, repr(sorted_items(m["facts"]))))
    for (operator, dims, _), found in facts.items():
        if len(found) > 1:
            yield f"{operator} {dims}: {len(found)} codes, outputs or facts where there must be one"


Rule = Callable[[Report, Suite], Iterator[str]]


def contests_are_races(report: Report, suite: Suite) -> Iterator[str]:
    for name, m in measurements(report):
        yield from wrong_in_contest(name, m, report["homes"], suite.name)


COMMON_RULES: tuple[Rule, ...] = (
    seals_hold,
    visits_are_the_suite,
    visits_succeeded,
    one_source,
    inputs_are_the_generators,
)
RULES: tuple[Rule, ...] = (
    *COMMON_RULES,
    numbers_follow_from_samples,
    oracle_was_passed,
    numeric_rights_are_the_suites,
    choices_obey_their_settings,
    counts_and_costs_add_up,
    equal_settings_give_equal_code,
)
CONTEST_RULES: tuple[Rule, ...] = (*COMMON_RULES, contests_are_races)


def audit_kept(report: Report, folder: Path) -> list[str]:
    """What is wrong with the kept files: each must have its name's hash, and each output must be its FP64 meaning."""
    wrong = [f"{path.name}: not the content of its name" for path in folder.iterdir() if not _is_named_by_hash(path)]
    outputs = {
        (record["operator"], tuple(record["dims"]), record["measurement"]["output"])
        for record in report["visits"]
        if "output" in record.get("measurement", {})
    }
    for name, dims, fingerprint in sorted(outputs):
        path = folder / f"{fingerprint}.f32"
        if not path.exists():
            wrong.append(f"{name} {dims}: the output {fingerprint[:12]} was not kept")
            continue
        operator = operators.find(name)
        reference = operator.oracle(*operator.inputs(dims).values())
        found = np.fromfile(path, np.float32).reshape(reference.shape)
        bound = operators.ATOL + operators.RTOL * np.abs(reference)
        if not (np.abs(found - reference) <= bound).all():
            wrong.append(f"{name} {dims}: the kept output is not the FP64 meaning")
    return wrong


def codes_of(report: Report) -> list[str]:
    """The names under which the IR and the objects of a report are kept."""
    hashes = ((m["llvm_sha256"], m["object_sha256"]) for _, m in measurements(report) if "llvm_sha256" in m)
    return sorted({name for llvm, code in hashes for name in (f"{llvm}.ll", f"{code}.o")})


def audit_captures(report: Report, folder: Path) -> list[str]:
    """What is wrong with the captured code of a record: files that are missing or not the content of their names."""
    wrong: list[str] = []
    if not find(report["suite"]).keeps_code:
        return wrong
    for name in codes_of(report):
        path = folder / f"{name}.gz"
        if not path.exists() or sha256(gzip.decompress(path.read_bytes())) != name.partition(".")[0]:
            wrong.append(f"{name[:12]}: was not captured, or is not the content of its name")
    return wrong


def measurements(report: Report) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, measurement) of every visit that has one."""
    for record in report["visits"]:
        if "measurement" in record:
            yield record["name"], record["measurement"]


def _positive_integers(values: Any, count: int = SAMPLES, most: float = float("inf")) -> bool:
    return len(values) == count and all(type(v) is int and 0 < v <= most for v in values)


def _is_named_by_hash(path: Path) -> bool:
    return path.stem == sha256(path.read_bytes())


@lru_cache(maxsize=64)
def _generated(name: str, dims: tuple[int, ...]) -> tuple[dict[str, str], dict[str, list[int]], list[int]]:
    operator = operators.find(name)
    arrays = operator.inputs(dims)
    hashes = {key: sha256(array.data) for key, array in arrays.items()}
    return hashes, {key: list(array.shape) for key, array in arrays.items()}, list(operator.output_shape(dims))
