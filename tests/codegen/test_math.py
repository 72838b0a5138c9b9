"""Vector functions keep their promised accuracy, on this machine's vectors and on AVX2; special values are exact."""

import math

import numpy as np
import pytest
from harness import Compiled

from grainline.base.dims import symbol
from grainline.base.dtypes import F32
from grainline.codegen.math.measure import (
    CHUNK,
    LANES,
    PROMISED,
    PROMISED_ACCURATE,
    REFERENCE,
    VectorFunction,
    sampled_floats,
    ulp_error,
    worst,
    worst_power,
)
from grainline.plan.target import Target, host_target
from grainline.plan.types import PlannerOptions
from grainline.tile.build import ProgramBuilder

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


@pytest.mark.parametrize("name", sorted(PROMISED_ACCURATE))
@pytest.mark.parametrize("kind", ["host", "avx2"])
def test_the_accurate_tier_stays_below_its_promise(name, kind):
    error, at = worst(name, STEP, None if kind == "host" else avx2_target(), is_accurate=True)
    assert error <= PROMISED_ACCURATE[name], f"{name}({at!r}) is off by {error} ULP"


def test_pow_stays_below_its_promise():
    error, at = worst_power(1 << 18)
    assert error <= PROMISED["pow"], f"pow({at!r}, ...) is off by {error} ULP"


@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_bits_do_not_depend_on_the_lane_count(name):
    x = (np.random.default_rng(0).normal(size=1024) * 20).astype(np.float32)
    results = {VectorFunction(name, lanes=lanes)(x).tobytes() for lanes in (0, 1, 2, 8, 16, 32, 64)}
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
        ("rsqrt", 0.0, math.inf),
        ("rsqrt", math.inf, 0.0),
        ("rsqrt", 4.0, 0.5),
        ("tanh", 1e-40, 1e-40),
        ("sin", 1e-40, 1e-40),
        ("exp", 1e-40, 1.0),
    ],
)
@pytest.mark.parametrize("is_accurate", [False, True], ids=["default", "accurate"])
def test_special_values_are_exact_in_every_lane(name, x, y, is_accurate):
    random = np.random.default_rng(1).normal(size=LANES).astype(np.float32)
    function = VectorFunction(name, is_accurate=is_accurate)
    for lane in range(LANES):
        values = np.abs(random)
        values[lane] = x
        found = function(values)[lane]
        assert found == np.float32(y) and np.signbit(found) == np.signbit(np.float32(y)), f"{name}({x}) = {found}"


@pytest.mark.parametrize("kind", ["host", "avx2"])
def test_erf_is_odd_reaches_one_and_does_not_pass_it(kind):
    x = np.arange(np.float32(3.5).view(np.uint32), np.float32(4.5).view(np.uint32), dtype=np.uint32).view(np.float32)
    x = x[: x.size // LANES * LANES]
    function = VectorFunction("erf", avx2_target() if kind == "avx2" else None)
    y = function(x)
    if kind == "host" and host_target().has_avx512:
        assert y.max() == 1
    assert (y[x > 4] == 1).all()
    assert function(-x).tobytes() == (-y).tobytes()


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


def test_a_plan_asks_for_the_tier():
    p = ProgramBuilder("sigmoid")
    c = p.root("n", symbol("N"))
    p.store(
        p.view("y", F32, (symbol("N"),), access="write"),
        (c,),
        p.sigmoid(p.load(p.view("x", F32, (symbol("N"),)), (c,))),
    )
    program, x = p.finish(), np.linspace(-90, 90, 20_001, dtype=np.float32)
    errors = {}
    for tier in ("default", "accurate"):
        y = np.empty_like(x)
        # the view that is written comes first
        assert Compiled(program, PlannerOptions(math=tier)).launch([y, x], {"N": x.size}) == 0
        errors[tier] = ulp_error(y, REFERENCE["sigmoid"](x.astype(np.float64))).max()
    assert errors["accurate"] <= PROMISED_ACCURATE["sigmoid"] < errors["default"] <= PROMISED["sigmoid"]


@pytest.mark.parametrize("step", [4099 * 61, 2**31 - 1])
def test_a_sample_has_every_step_and_fits_the_lanes(step):
    chunks = [chunk.view(np.uint32) for chunk in sampled_floats(step)]
    assert all(0 < chunk.size <= CHUNK and chunk.size % LANES == 0 for chunk in chunks)
    assert set(np.concatenate(chunks).tolist()) == set(range(0, 2**32, step))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "is_accurate"), [*((n, False) for n in sorted(REFERENCE)), *((n, True) for n in sorted(PROMISED_ACCURATE))]
)
def test_error_over_all_floats(name, is_accurate):
    """Two to ten minutes a function."""
    error, at = worst(name, 1, is_accurate=is_accurate)
    promised = PROMISED_ACCURATE if is_accurate else PROMISED
    assert error <= promised[name], f"{name}({at!r}) is off by {error} ULP"
