"""Measures the f32 functions against double precision and writes docs/vector-math.md.

`python -m grainline.codegen.math.measure [step]` samples every `step`-th of all 2**32 floats (default 61). 1 is all of
them, as in the committed table: an hour and a half.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from math import erf
from pathlib import Path

import numpy as np

from grainline.base.dtypes import F32, I64
from grainline.codegen import memory
from grainline.codegen.elementwise import apply
from grainline.codegen.emit import MathForm, ModuleText, Reg, i64
from grainline.codegen.llvm import LinkedObject, compile_object, link_object
from grainline.plan.target import Target, host_target
from grainline.tile.interp_elementwise import sigmoid

LANES = 32
CHUNK = 1 << 20
TABLE = Path("docs/vector-math.md")
Array = np.ndarray


def _erf(x: Array) -> Array:
    try:
        from scipy.special import erf as vector_erf

        return np.asarray(vector_erf(x))
    except ImportError:
        return np.asarray(np.vectorize(erf, otypes=[np.float64])(x))


REFERENCE: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "erf": _erf,
    "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    "sin": np.sin,
    "cos": np.cos,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}
PROMISED = {
    "exp": 2.5,
    "log": 2.5,
    "sigmoid": 2.5,
    "tanh": 6.0,
    "erf": 6.0,
    "log1p": 2.5,
    "softplus": 2.5,
    "sin": 2.5,
    "cos": 2.5,
    "pow": 1.0,
    "rsqrt": 2.5,
}
PROMISED_ACCURATE = {"exp": 1.0, "log": 1.0, "sigmoid": 1.0, "tanh": 2.5, "erf": 2.5, "rsqrt": 1.0}


class VectorFunction:
    """y[k] = f(x[k]) (or f(x[k], z[k])) over arrays whose length is a multiple of LANES."""

    def __init__(self, name: str, target: Target | None = None, lanes: int = LANES, is_accurate: bool = False) -> None:
        target = target or host_target()
        text = loop_text(name, lanes, MathForm(target.has_avx512, is_accurate))
        self._linked: LinkedObject = link_object(compile_object(text, target), ("sweep",))
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        self._entry = kind(self._linked.address("sweep"))

    def __call__(self, x: Array, z: Array | None = None) -> Array:
        y = np.empty_like(x)
        self._entry(x.ctypes.data, (x if z is None else z).ctypes.data, y.ctypes.data, x.size)
        return y


def loop_text(name: str, lanes: int, form: MathForm) -> str:
    module = ModuleText(form)
    f = module.function("sweep", "i32", [("ptr", "x"), ("ptr", "z"), ("ptr", "y"), ("i64", "n")], "nounwind")
    sources = ("%x", "%z") if name == "pow" else ("%x",)

    def step(index: Reg, _carried: list[Reg]) -> list[Reg]:
        args = [memory.load(f, f.pointer(source, index, 4), F32, lanes) for source in sources]
        memory.store(f, f.pointer("%y", index, 4), apply(f, name, tuple(args)))
        return []

    f.loop(i64(0), Reg("%n", I64), max(lanes, 1), [], step)
    f.do("ret i32 0")
    return module.text


def ulp_error(found: Array, exact: Array) -> Array:
    """|found - exact| in units in the last place of exact rounded to f32; inf where the classes differ."""
    rounded = exact.astype(np.float32)
    finite = np.isfinite(rounded)
    unit = np.spacing(np.abs(np.where(finite, rounded, 1))).astype(np.float64)
    error = np.abs(found.astype(np.float64) - np.where(finite, exact, 0)) / unit
    same = (np.isnan(found) & np.isnan(exact)) | (found == rounded)
    return np.where(finite, np.where(np.isfinite(found), error, np.inf), np.where(same, 0.0, np.inf))


def sampled_floats(step: int) -> Iterator[Array]:
    """Every `step`-th of all 2**32 floats in chunks of at most CHUNK, a multiple of LANES in all; 1 is all of them."""
    for first in range(0, 2**32, step * CHUNK):
        bits = np.arange(first, min(first + step * CHUNK, 2**32), step, dtype=np.uint64).astype(np.uint32)
        yield np.resize(bits, -(-bits.size // LANES) * LANES).view(np.float32)


def worst(name: str, step: int, target: Target | None = None, is_accurate: bool = False) -> tuple[float, float]:
    """(largest error in ULP over the sample, the argument where it occurs)."""
    function = VectorFunction(name, target, is_accurate=is_accurate)
    found = (0.0, 0.0)
    with np.errstate(all="ignore"):
        for x in sampled_floats(step):
            error = ulp_error(function(x), REFERENCE[name](x.astype(np.float64)))
            at = int(np.argmax(error))
            found = max(found, (float(error[at]), float(x[at])))
    return found


def worst_power(samples: int) -> tuple[float, float]:
    """Like `worst` for pow: random bases and exponents whose power is mostly in range. At least LANES samples."""
    random, function, found = np.random.default_rng(0), VectorFunction("pow"), (0.0, 0.0)
    for size in [CHUNK] * (samples // CHUNK) + [samples % CHUNK // LANES * LANES]:
        x = np.exp(random.normal(size=size) * 4).astype(np.float32)
        z = (random.normal(size=size) * 12).astype(np.float32)
        with np.errstate(all="ignore"):
            error = ulp_error(function(x, z), np.power(x.astype(np.float64), z.astype(np.float64)))
        if size:
            at = int(np.argmax(error))
            found = max(found, (float(error[at]), float(x[at])))
    return found


def nanoseconds(name: str) -> float:
    """Time per element over 65536 elements; the best of many."""
    x = np.abs(np.random.default_rng(0).normal(size=65536).astype(np.float32)) + np.float32(0.1)
    function, best = VectorFunction(name), float("inf")
    for _ in range(30):
        start = time.perf_counter()
        function(x)
        best = min(best, time.perf_counter() - start)
    return best / x.size * 1e9


def table(step: int) -> str:
    have = "had" if host_target().has_avx512 else "lacked"
    floats, pairs = "all 2^32 floats" if step == 1 else f"every {step}th of all 2^32 floats", 28 if step == 1 else 22
    lines = [
        "# Accuracy of the vector functions",
        "",
        f"Written by `python -m grainline.codegen.math.measure {step}`: {floats} against double",
        f"precision (pow: 2^{pairs} random pairs). NaN, infinities and denormals are among them; a wrong class counts",
        "as infinite. Coefficients come from `src/grainline/codegen/math/fit.py`. f64 calls the C",
        "library. The accurate tier (`MathForm.is_accurate`) computes in double precision what the default does not",
        f"hold within these bounds. The processor {have} AVX-512, where erf has a form of its own.",
        "",
        "| function | tier | largest error (ULP) | promised | at x |",
        "|---|---|---|---|---|",
    ]
    for tier, promised in (("default", PROMISED), ("accurate", PROMISED_ACCURATE)):
        for name, promise in promised.items():
            error, at = worst(name, step, None, tier == "accurate") if name in REFERENCE else worst_power(1 << pairs)
            lines.append(f"| {name} | {tier} | {error:.2f} | {promise} | {at:.9g} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    step = int(sys.argv[1]) if len(sys.argv) > 1 else 61
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(table(step))
    print(TABLE.read_text())
    for name in PROMISED:
        print(f"{name:10s} {nanoseconds(name):.3f} ns/element")


if __name__ == "__main__":
    main()
