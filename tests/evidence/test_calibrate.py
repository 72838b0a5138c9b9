"""Calibration recovers prices that are known, and its fixed set shares nothing with what it is judged by."""

from __future__ import annotations

import numpy as np

from grainline.evidence import operators
from grainline.evidence.calibrate import Timed, fit, predictions
from grainline.evidence.fitting_set import fitting_set
from grainline.plan.machine import PICOSECONDS
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
    found = fit(raw, dict.fromkeys(truth, 100.0))
    for kind, price in truth.items():
        assert abs(found[kind] - price) < 0.1 * price, f"{kind}: expected {price}, found {found[kind]} (seed {SEED})"
    assert all(abs(ratio - 1) < 0.02 for ratio, _ in predictions(raw, found))


def test_what_no_sample_shows_keeps_its_shipped_price_and_nothing_is_negative() -> None:
    raw = [{"kernel": "k", "items": {"a": 10, "b": 1000}, "ns": [1e-3]}]
    found = fit(raw, {"a": 50.0, "b": 50.0, "unseen": 7.0})
    assert found["unseen"] == 7.0 and all(price >= 0 for price in found.values())


def test_the_fitting_set_shows_every_priced_primitive_and_holds_the_operators_out() -> None:
    target = host_target()
    names, seen = set(), set()
    for sample in fitting_set():
        names.add(sample.program.name)
        seen |= set(Timed(sample, target).items()) if "of" in sample.program.name.split() else set()
        seen |= {operation.op for operation in sample.program.operations()}
    assert {kind for kind in PICOSECONDS if kind in ("exp", "tanh", "erf", "pow", "mod", "div", "sqrt")} <= seen
    assert {"packet", "lane_fold", "program", "launch", "contiguous", "scalar_cheap"} <= seen
    assert not names & set(operators.OPERATORS), "an operator that is judged by must not be fitted to"
