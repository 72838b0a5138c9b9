"""The operator library as a table: every kernel with its NumPy meaning and the accuracy that it keeps.

A kernel is accepted where each written element is within `tolerance` (absolute + relative, TOLERANCE unless stated) of
its meaning in double precision, and within `ulps` units in the last place, and what its sums may lose (`sum_units`). A
unit is that of the element itself where `unit` is "element"; where sums or differences may cancel it is that of the
largest magnitude in the last dimension of the result ("row"), and of plain sums, whose terms of both signs cancel, that
of a sum of random signs: the root of the sum of their squares ("terms"). f16 and bf16 results may be off by another
half unit of their own, their final rounding.

The programs are in the symbols M (rows) and N (width) and, where a kernel has other extents, fixed small numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log2, sqrt

import numpy as np

from grainline.base.dims import symbol
from grainline.base.dtypes import BF16, F16, F32, F64, DType
from grainline.kernels import attention, movement, numpy_meaning, pointwise, reductions, rotary, rows
from grainline.tile.ir import TileProgram

TOLERANCE = 5e-5
FLOATS = (F32, F64, F16, BF16)
M, N = symbol("M"), symbol("N")
KEYS, GROUP, HEADS, WIDTH, VALUE_WIDTH = symbol("K"), 2, 3, 16, 24
SUM_DEVIATIONS = 4
ROOM = 4  # free rows of a cache before an append

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry.

    program: element type -> tile program. meaning: the arrays of its views in order, as given -> what the written view
    must hold, in double precision. ulps 0: bit for bit.
    """

    program: Callable[[DType], TileProgram]
    meaning: Callable[..., Array]
    ulps: float
    unit: str = "element"
    dtypes: tuple[DType, ...] = FLOATS
    tolerance: float = TOLERANCE


def sum_units(terms_per_lane: float, lanes: int) -> float:
    """How many units a sum of `terms_per_lane` terms in each of `lanes` lanes, which then merge in pairs, may lose.

    After Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis" (SIAM J. Sci. Comput. 41, 2019):
    rounding errors are independent and have mean zero, so their variances add up. An addition with the result s errs
    uniformly by up to half its unit: over all mantissas a deviation of 0.43 u |s|, u = 2^-24. Of m terms with deviation
    d and random signs the k-th partial sum has E s^2 = k d^2. L lanes and log2 L levels of merging make a variance of
    (0.43 u d)^2 (L m^2 / 2 + L m log2 L); the unit of the sum is at least u d sqrt(L m). Their ratio is
    0.09 (m + 2 log2 L). (Terms of one sign lose less: s = k d adds up to m / 3 and 2 in place of m / 2 and log2 L,
    beside a sum that is sqrt(L m) times as large.) Allowed are SUM_DEVIATIONS deviations: more once in 16 000 sums.
    """
    return SUM_DEVIATIONS * 0.3 * sqrt(terms_per_lane + 2 * log2(lanes))


def _attention(causal: bool, padding: bool) -> Callable[[DType], TileProgram]:
    def program(_dtype: DType) -> TileProgram:
        return attention.attention(M, HEADS, GROUP, N, KEYS, WIDTH, VALUE_WIDTH, causal, padding)

    return program


def _attended(causal: bool) -> Callable[..., Array]:
    def meaning(q: Array, k: Array, v: Array, o: Array, mask: Array | None = None) -> Array:
        batch, heads, group_rows, width = q.shape
        split = q.reshape(batch, heads * GROUP, group_rows // GROUP, width)
        return numpy_meaning.attention(split, k, v, causal, mask).reshape(o.shape)

    return meaning


def _reduced(kind: str, axes: tuple[int, ...]) -> Entry:
    return Entry(
        lambda dtype: reductions.reduction(kind, (M, N), axes, dtype),
        lambda x, y: numpy_meaning.reduction(kind, x, axes),
        ulps=2 if kind in ("add", "mean") else 0,
        unit="terms",
    )


def _placed(kind: str, axis: int) -> Entry:
    return Entry(
        lambda dtype: reductions.extreme_place(kind, (M, N), axis, dtype),
        lambda x, y: numpy_meaning.extreme_place(kind, x, axis),
        ulps=0,
    )


KERNELS: dict[str, Entry] = {
    "rms_norm": Entry(
        lambda dtype: rows.rms_norm(M, N, dtype=dtype), lambda x, gamma, y: numpy_meaning.rms_norm(x, gamma), 2
    ),
    "layer_norm": Entry(
        lambda dtype: rows.layer_norm(M, N, dtype=dtype),
        lambda x, gamma, beta, y: numpy_meaning.layer_norm(x, gamma, beta),
        2,
        "row",
    ),
    "softmax": Entry(lambda dtype: rows.softmax(M, N, dtype), lambda x, y: numpy_meaning.softmax(x), 5),
    "masked_softmax": Entry(
        lambda dtype: rows.masked_softmax(M, N, dtype), lambda x, y: numpy_meaning.masked_softmax(x), 5
    ),
    "rope_halves": Entry(
        lambda dtype: rotary.rope_halves(M, N, dtype), lambda x, c, s, y: numpy_meaning.rope_halves(x, c, s), 2, "row"
    ),
    "rope_interleaved": Entry(
        lambda dtype: rotary.rope_interleaved(M, N, dtype),
        lambda x, c, s, y: numpy_meaning.rope_interleaved(x, c, s),
        2,
        "row",
    ),
    "swiglu": Entry(lambda dtype: pointwise.swiglu(M, N, dtype), lambda x, u, y: numpy_meaning.swiglu(x, u), 5),
    "gelu": Entry(lambda dtype: pointwise.gelu(M, N, dtype), lambda x, y: numpy_meaning.gelu(x), 6, "row"),
    "gelu_erf_residual": Entry(
        lambda dtype: pointwise.gelu_erf_residual(M, N, dtype),
        lambda x, u, y: numpy_meaning.gelu_erf_residual(x, u),
        6,
        "row",
    ),
    "gelu_tanh_residual": Entry(
        lambda dtype: pointwise.gelu_tanh_residual(M, N, dtype),
        lambda x, u, y: numpy_meaning.gelu_tanh_residual(x, u),
        6,
        "row",
    ),
    "attention": Entry(_attention(False, False), _attended(False), 8, "row", (F32,)),
    "attention_causal": Entry(_attention(True, False), _attended(True), 8, "row", (F32,)),
    "attention_padded": Entry(_attention(False, True), _attended(False), 8, "row", (F32,)),
    "attention_causal_padded": Entry(_attention(True, True), _attended(True), 8, "row", (F32,)),
    "sum_columns": _reduced("add", (1,)),
    "sum_rows": _reduced("add", (0,)),
    "sum_all": _reduced("add", (0, 1)),
    "mean_columns": _reduced("mean", (1,)),
    "max_columns": _reduced("max", (1,)),
    "min_rows": _reduced("min", (0,)),
    "argmax_columns": _placed("max", 1),
    "argmin_rows": _placed("min", 0),
    "copy": Entry(lambda dtype: pointwise.copy(M, N, dtype), lambda x, y: x, 0),
    "transpose": Entry(lambda dtype: movement.transpose((M, N), (1, 0), dtype), lambda x, y: x.T, 0),
    "concat_part": Entry(
        lambda dtype: movement.concat_part(M, N, N + 5, 3, dtype), lambda x, y: _overwritten(y, x, 3), 0
    ),
    "slice_columns": Entry(
        lambda dtype: movement.slice_columns(M, 2 * N + 1, N, 1, 2, dtype), lambda x, y: x[:, 1::2], 0
    ),
    "pad_columns": Entry(
        lambda dtype: movement.pad_columns(M, N, 3, 2, dtype), lambda x, y: numpy_meaning.pad_columns(x, 3, 2), 0
    ),
    "gather_rows": Entry(
        lambda dtype: pointwise.gather_rows(M, 9, N, dtype), lambda x, index, y: numpy_meaning.gather_rows(x, index), 0
    ),
    "cache_append": Entry(
        lambda dtype: movement.cache_append(2, HEADS, M + ROOM, M, N, dtype), numpy_meaning.cache_append, 0
    ),
}


def _overwritten(y: Array, x: Array, offset: int) -> Array:
    result = y.copy()
    result[:, offset : offset + x.shape[1]] = x
    return result
