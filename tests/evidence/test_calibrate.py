"""Calibration recovers prices that are known, and its fixed set shares nothing with what it is judged by."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import fields

import numpy as np
import pytest

from grainline.evidence import calibrate, operators
from grainline.evidence.calibrate import Timed
from grainline.evidence.fitting import fit_prices, fitted, merged, predictions, traffic_ps
from grainline.evidence.fitting_set import fitting_set
from grainline.evidence.shipping import samples_of, shipped
from grainline.plan.machine import (
    PICOSECONDS,
    REFERENCE,
    SHIPPED,
    SHIPPED_FOLDER,
    Machine,
    machine_text,
    parse_machine,
    shipped_machine,
)
from grainline.plan.target import host_target

SEED = 11


def test_fitting_recovers_known_prices_from_exact_samples() -> None:
    random = np.random.default_rng(SEED)
    truth = {kind: float(random.uniform(1, 500)) for kind in ("a", "b", "c", "d")}
    raw = []
    for number in range(20):
        items = {kind: int(random.integers(0, 1000)) for kind in truth}
        time_ns = sum(truth[kind] * amount for kind, amount in items.items()) / 1e3
        raw.append({"kernel": str(number), "items": items, "ns": [time_ns] * 5})
    found = fit_prices(raw, dict.fromkeys(truth, 100.0))
    for kind, price in truth.items():
        assert abs(found[kind] - price) < 0.1 * price, f"{kind}: expected {price}, found {found[kind]} (seed {SEED})"
    assert all(abs(ratio - 1) < 0.02 for ratio, _ in predictions(raw, found))


def test_what_no_sample_shows_keeps_its_shipped_price_and_nothing_is_negative() -> None:
    raw = [{"kernel": "k", "items": {"a": 10, "b": 1000}, "ns": [1e-3]}]
    found = fit_prices(raw, {"a": 50.0, "b": 50.0, "unseen": 7.0})
    assert found["unseen"] == 7.0 and all(price >= 0 for price in found.values())


def test_the_fitting_set_shows_every_priced_primitive_and_holds_the_operators_out() -> None:
    target = host_target()
    names, seen = set(), set()
    for sample in fitting_set():
        names.add(sample.program.name)
        seen |= set(Timed(sample, target).items(REFERENCE)) if "of" in sample.program.name.split() else set()
        seen |= {operation.op for operation in sample.program.operations()}
    assert {kind for kind in PICOSECONDS if kind in ("exp", "tanh", "erf", "pow", "mod", "div", "sqrt")} <= seen
    assert {"packet", "lane_fold", "program", "launch", "contiguous", "scalar_cheap"} <= seen
    assert not names & set(operators.OPERATORS), "an operator that is judged by must not be fitted to"


MEASURED = [name for _, name in SHIPPED if isinstance(name, str)]


@pytest.mark.parametrize("name", MEASURED)
def test_shipped_prices_are_those_of_their_samples_byte_for_byte(name: str) -> None:
    text = (SHIPPED_FOLDER / f"{name}.json").read_text()
    assert machine_text(shipped(samples_of(name), parse_machine(text, name).origin)) == text


def test_every_shipped_file_is_used_and_what_is_not_measured_says_so() -> None:
    assert {path.name for path in SHIPPED_FOLDER.iterdir()} == {
        file for name in MEASURED for file in (f"{name}.json", f"{name}.samples.json.gz")
    }
    assert all(re.search("estimated|lost", each.origin) for _, each in SHIPPED if isinstance(each, Machine))


@pytest.mark.parametrize("name", MEASURED)
def test_every_sample_moves_the_prices(name: str) -> None:
    """Samples that nothing is fitted to would prove nothing: ten times as much of any, or as little, changes a price."""
    raw = samples_of(name)
    known = fitted(raw, REFERENCE)

    def moves(part: str, key: object, samples: str | None) -> bool:
        found = []
        for factor in (10, 0.1):
            changed = copy.deepcopy(raw)
            place, last = (changed[part], key) if samples is None else (changed[part][key], samples)
            place[last] = [factor * sample for sample in place[last]]
            found.append(fitted(changed, REFERENCE) != known)
        return any(found)

    for part in ("prices", "reach", "products", "memory"):
        keys = raw[part] if isinstance(raw[part], dict) else range(len(raw[part]))
        for key in keys:
            assert moves(part, key, "ns"), f"{part} {key}"
    for key in raw["threads"].keys() - {"tasks", "two"}:
        assert moves("threads", key, None), key


def test_a_calibration_has_every_price_and_fits_again_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a small machine that is measured briefly: what is written is all that the prices follow from."""
    small = {"nearest_bytes": 16384.0, "private_bytes": 65536.0, "shared_bytes": 262144.0}
    monkeypatch.setattr(calibrate, "cache_sizes", lambda: small)
    for name, value in {"ROUNDS": 2, "LATE_ROUNDS": 2, "TURN_NS": 1000, "ASLEEP_HANDOVERS": 2}.items():
        monkeypatch.setattr(calibrate, name, value)
    target, told = host_target(), []
    machine, raw = calibrate.calibrate(target, told.append, repeat=2)
    assert told == 2 * ["prices of work", "products", "memory", "threads"][: 4 if target.homes > 1 else 3]
    read = json.loads(machine_text(machine, raw))["raw"]
    again = fitted(read, shipped_machine(target))
    assert all(getattr(again, each.name) == getattr(machine, each.name) for each in fields(Machine)[1:])
    assert {sample["kind"] for sample in raw["reach"]} == {
        kind for kind in PICOSECONDS if "_private" in kind or "_shared" in kind
    }
    assert all(len(sample["ns"]) == 4 for part in ("prices", "reach") for sample in raw[part])
    with pytest.raises(ValueError, match="calibrations of one machine"):
        merged([raw, {**raw, "cpu": "another"}])


def test_traffic_is_what_a_launch_of_one_home_is_charged() -> None:
    from grainline import _native

    for size in (1 << 10, 100 << 10, 5 << 20, 100 << 20):
        assert traffic_ps(REFERENCE, size) == pytest.approx(
            _native.launch_time(0, size, 0, 1, 1, 1, True, REFERENCE.costs())
        )
