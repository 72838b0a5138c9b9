"""Vector functions keep their promised accuracy, on this machine's vectors and on AVX2; special values are exact."""

import math

import numpy as np
import pytest

from grainline.codegen.math.measure import LANES, PROMISED, REFERENCE, VectorFunction, worst, worst_power
from grainline.plan.target import Target, host_target

STEP = 4099  # every STEPth float; docs/vector-math.md is written with a finer sample


def avx2_target():
    host = host_target()
    if "+avx2" not in host.features:
        pytest.skip("this machine has no AVX2")
    kept = [f for f in host.features.split(",") if not f[1:].startswith(("avx512", "avx10", "evex"))]
    return Target("znver3" if "+sse4a" in host.features else "haswell", ",".join(kept), 32, host.homes)


@pytest.mark.parametrize("name", sorted(REFERENCE))
@pytest.mark.parametrize("kind", ["host", "avx2"])
def test_error_stays_below_the_promise(name, kind):
    error, at = worst(name, STEP, None if kind == "host" else avx2_target())
    assert error <= PROMISED[name], f"{name}({at!r}) is off by {error} ULP"


def test_pow_stays_below_its_promise():
    error, at = worst_power(1 << 18)
    assert error <= PROMISED["pow"], f"pow({at!r}, ...) is off by {error} ULP"


@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_bits_do_not_depend_on_the_lane_count(name):
    x = (np.random.default_rng(0).normal(size=1024) * 20).astype(np.float32)
    results = {VectorFunction(name, lanes=lanes)(x).tobytes() for lanes in (8, 16, 32, 64)}
    assert len(results) == 1


@pytest.mark.parametrize(
    ("name", "x", "y"),
    [
        ("exp", 0.0, 1.0),
        ("exp", -math.inf, 0.0),
        ("exp", math.inf, math.inf),
        ("exp", -104.0, 0.0),
        ("log", 1.0, 0.0),
        ("log", 0.0, -math.inf),
        ("log", -0.0, -math.inf),
        ("log", math.inf, math.inf),
        ("log1p", -1.0, -math.inf),
        ("log1p", -0.0, -0.0),
        ("log1p", math.inf, math.inf),
        ("tanh", -0.0, -0.0),
        ("tanh", math.inf, 1.0),
        ("tanh", -20.0, -1.0),
        ("erf", -0.0, -0.0),
        ("erf", -math.inf, -1.0),
        ("sigmoid", -math.inf, 0.0),
        ("sigmoid", math.inf, 1.0),
        ("sigmoid", 0.0, 0.5),
        ("softplus", -math.inf, 0.0),
        ("softplus", math.inf, math.inf),
        ("sin", -0.0, -0.0),
        ("cos", 0.0, 1.0),
    ],
)
def test_special_values_are_exact_in_every_lane(name, x, y):
    random = np.random.default_rng(1).normal(size=LANES).astype(np.float32)
    function = VectorFunction(name)
    for lane in range(LANES):
        values = np.abs(random)
        values[lane] = x
        found = function(values)[lane]
        assert found == np.float32(y) and np.signbit(found) == np.signbit(np.float32(y)), f"{name}({x}) = {found}"


@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_nan_stays_nan_and_touches_no_other_lane(name):
    values = np.abs(np.random.default_rng(2).normal(size=LANES).astype(np.float32))
    function = VectorFunction(name)
    clean = function(values)
    for lane in range(LANES):
        dirty = values.copy()
        dirty[lane] = np.nan
        found = function(dirty)
        assert np.isnan(found[lane])
        assert np.delete(found, lane).tobytes() == np.delete(clean, lane).tobytes()
