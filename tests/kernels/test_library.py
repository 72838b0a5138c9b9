"""Every kernel of the library against its meaning in double precision: widths, mappings, packet widths, types.

The default suite samples the matrix, the slow suite runs all of it. Inputs come from a seed that the messages name.
"""

from __future__ import annotations

import zlib

import ml_dtypes
import numpy as np
import pytest
from harness import GUARD, Compiled, guarded

from grainline.base.dims import evaluate
from grainline.base.dtypes import BOOL, F32, F64, I64
from grainline.kernels.library import KERNELS, ROOM, SUM_DEVIATIONS, TOLERANCE, Entry, sum_units
from grainline.plan.planner import plan
from grainline.plan.target import host_target
from grainline.plan.types import Plan, PlanError, PlannerOptions

WIDTHS = (7, 32, 65, 66, 1538)
ROWS = {7: 33, 32: 17, 65: 17, 66: 5, 1538: 3}
PACKETS = (1, 2, 4, 8, 16)
F64_TOLERANCE = 1e-12
ATTENTION_EXTENTS = {7: (2, 7, 9), 32: (1, 32, 32), 65: (2, 65, 80), 66: (3, 1, 66), 1538: (1, 3, 1538)}


def extents_of(name: str, width: int) -> dict[str, int]:
    if not name.startswith("attention"):
        return {"M": ROWS[width], "N": width}
    return dict(zip("MNK", ATTENTION_EXTENTS[width], strict=True))


def array_of(name: str, view, env: dict[str, int], random: np.random.Generator) -> np.ndarray:
    shape = tuple(evaluate(extent, env) for extent in view.shape)
    if view.dtype == BOOL:
        return random.random(shape) < 0.7
    if view.dtype == I64:
        return random.integers(0, ROOM, shape) if name == "cache_append" else random.integers(-9, 9, shape)
    return random.normal(size=shape).astype(view.dtype.numpy)


def check(name: str, dtype, options: PlannerOptions, widths=WIDTHS) -> None:
    kernel = KERNELS[name]
    program = kernel.program(dtype)
    compiled = Compiled(program, options)
    for width in widths:
        env, seed = extents_of(name, width), zlib.crc32(f"{name} {width}".encode())
        random = np.random.default_rng(seed)
        arrays = [array_of(name, view, env, random) for view in program.views]
        label = f"{name} {dtype} {compiled.plan.mapping} {env} seed {seed}"
        with np.errstate(all="ignore"):
            want = kernel.meaning(*arrays)
        # o is the view before an optional mask; every other kernel writes its last view
        written = next(i for i, view in enumerate(program.views) if view.access != "read")
        pairs = [guarded(array) for array in arrays]
        assert compiled.launch([inner for inner, _ in pairs], env) == 0, label
        for (inner, outer), array, view in zip(pairs, arrays, program.views, strict=True):
            pattern = guarded(array)[1]
            assert outer[:GUARD].tobytes() == pattern[:GUARD].tobytes(), f"{label}: wrote before {view.name}"
            assert outer[-GUARD:].tobytes() == pattern[-GUARD:].tobytes(), f"{label}: wrote behind {view.name}"
            assert view.access != "read" or inner.tobytes() == array.tobytes(), f"{label}: changed {view.name}"
        lost = units_of_sums(compiled.plan, env)
        assert_close(kernel, pairs[written][0], want, label, lost, terms_scale(kernel, name, arrays))


def terms_scale(kernel: Entry, name: str, arrays: list[np.ndarray]) -> np.ndarray | float:
    """What a sum of the same terms with random signs comes to; 0 where units are not of that."""
    if kernel.unit != "terms" or kernel.ulps == 0:
        return 0.0
    squares = kernel.meaning(arrays[0].astype(np.float64) ** 2, arrays[1].astype(np.float64))
    return np.sqrt(squares / (arrays[0].size / squares.size if name.startswith("mean") else 1))


def units_of_sums(plan: Plan, env: dict[str, int]) -> float:
    """What all sums of the program may lose. A lane adds up all terms, or its share of them along a row."""
    sums = [o for o in plan.program.operations() if o.op == "mma" or o.attributes.get("kind") == "add"]
    terms, lanes = sum(evaluate(o.axis.extent, env) for o in sums), plan.mapping.lanes if plan.mapping.is_local else 1
    return sum_units(terms / lanes, lanes) if terms else 0.0


def assert_close(
    kernel: Entry, found: np.ndarray, want: np.ndarray, label: str, lost: float = 0, least_scale=0.0
) -> None:
    assert found.shape == want.shape, label
    if kernel.ulps == 0:
        assert np.array_equal(found, want.astype(found.dtype)), f"{label}: not bit for bit"
        return
    exact, got = want.astype(np.float64), found.astype(np.float64)
    error, own_rounding = np.abs(got - exact), 0.0
    kept = F64_TOLERANCE if found.dtype == np.float64 else kernel.tolerance
    if found.dtype.itemsize == 2:
        own_rounding = 0.5 * spacing(exact, found.dtype)
    bound = own_rounding + kept * (1 + np.abs(exact))
    assert (error <= bound).all(), f"{label}: off by {(error / (1 + np.abs(exact))).max():.2e}"
    if found.dtype == np.float64:
        return  # the meaning is no more exact than the result
    scale = np.maximum(np.abs(exact), least_scale)
    if kernel.unit == "row" and exact.ndim:
        scale = np.broadcast_to(np.abs(exact).max(-1, keepdims=True), exact.shape)
    units = np.maximum(error - own_rounding, 0) / spacing(scale, np.float32)
    allowed = kernel.ulps + lost
    assert units.max(initial=0) <= allowed, f"{label}: {units.max():.2f} of {allowed:.2f} units in the last place"


def spacing(values: np.ndarray, dtype) -> np.ndarray:
    """The distance of neighbours of `dtype` at the magnitude of `values`."""
    info = ml_dtypes.finfo(dtype)
    exponent = np.floor(np.log2(np.maximum(np.abs(values), float(info.smallest_normal))))
    return np.exp2(exponent) * float(info.eps)


def forms(name: str, dtype) -> list[PlannerOptions]:
    """Every mapping and packet width that the program may have; products have one."""
    program, found = KERNELS[name].program(dtype), []
    if any(o.op == "mma" for o in program.body):
        return [PlannerOptions()]
    for mapping in ("whole", "local"):
        for width in PACKETS:
            options = PlannerOptions(mapping=mapping, packet_width=width)
            try:
                plan(program, host_target(), options)
            except PlanError:
                continue
            found.append(options)
    return found


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_keep_their_accuracy(name):
    check(name, KERNELS[name].dtypes[0], PlannerOptions())


@pytest.mark.parametrize("name", [n for n in KERNELS if len(KERNELS[n].dtypes) > 1])
def test_one_other_type_and_mapping_of_every_kernel(name):
    """A sample that differs from kernel to kernel and is the same every time."""
    number = zlib.crc32(name.encode())
    kernel = KERNELS[name]
    dtype = kernel.dtypes[1:][number % (len(kernel.dtypes) - 1)]
    options = forms(name, dtype)
    check(name, dtype, options[number // 7 % len(options)], widths=(7, 65))


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_the_whole_matrix(name):
    for dtype in KERNELS[name].dtypes:
        for options in forms(name, dtype):
            check(name, dtype, options)


def test_tolerances_are_those_of_the_contract():
    assert {kernel.tolerance for kernel in KERNELS.values()} == {TOLERANCE}
    assert all(dtype in kernel.dtypes for kernel in KERNELS.values() for dtype in (F32,))
    assert F64 in KERNELS["softmax"].dtypes


def test_a_sloppy_result_is_noticed():
    """The bound in units finds what 5e-5 would hide."""
    want = np.full((2, 3), 0.7)
    sloppy = (want * (1 + 4e-6)).astype(np.float32)
    with pytest.raises(AssertionError, match="units in the last place"):
        assert_close(KERNELS["softmax"], sloppy, want, "sloppy")


@pytest.mark.parametrize(("terms", "lanes"), [(4, 1), (64, 1), (1536, 1), (8, 16), (24, 64)])
@pytest.mark.parametrize("kind", ["random signs", "one sign"])
def test_sums_lose_what_is_derived(kind, terms, lanes):
    """Sums in float32, lane by lane and then in pairs: their deviation is at most that of `sum_units`, and near it."""
    random = np.random.default_rng(terms + lanes)
    x = random.normal(size=(terms, lanes, 2000)).astype(np.float32)
    x = np.abs(x) if kind == "one sign" else x
    lane_sums = np.add.accumulate(x, axis=0, dtype=np.float32)[-1]
    while len(lane_sums) > 1:
        lane_sums = lane_sums[0::2] + lane_sums[1::2]
    exact = x.astype(np.float64).sum(axis=(0, 1))
    scale = np.abs(exact) if kind == "one sign" else np.full_like(exact, np.sqrt(terms * lanes))
    error = np.abs(lane_sums[0] - exact) / spacing(scale, np.float32)
    deviation, derived = np.sqrt(np.mean(error**2)), sum_units(terms, lanes) / SUM_DEVIATIONS
    assert deviation <= derived, f"{deviation:.2f} units, derived {derived:.2f}"
    assert deviation >= derived / (6 if kind == "one sign" else 3), f"{deviation:.2f} units, derived {derived:.2f}"
