"""The kernels of this room in NumPy, double precision inside: what tests and benchmarks compare with."""

from __future__ import annotations

from collections.abc import Sequence
from math import erf

import numpy as np

Array = np.ndarray
EPSILON = 1e-5
SQRT_TWO_OVER_PI = 0.7978845608
CUBIC = 0.044715
_erf = np.vectorize(erf, otypes=[np.float64])


def wide(x: Array) -> Array:
    return np.asarray(x).astype(np.float64)


def softmax(x: Array) -> Array:
    with np.errstate(invalid="ignore"):
        e = np.exp(wide(x) - wide(x).max(axis=-1, keepdims=True, initial=-np.inf))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def masked_softmax(x: Array) -> Array:
    """Softmax over the columns at or left of the row number (mod n); 0 elsewhere."""
    rows, n = x.shape
    valid = np.arange(n) <= (np.arange(rows) % n)[:, None]
    return softmax(np.where(valid, wide(x), -np.inf))


def layer_norm(x: Array, gamma: Array, beta: Array, epsilon: float = EPSILON) -> Array:
    c = wide(x) - wide(x).mean(axis=-1, keepdims=True)
    return np.asarray(c / np.sqrt((c * c).mean(axis=-1, keepdims=True) + epsilon) * wide(gamma) + wide(beta))


def rms_norm(x: Array, gamma: Array, epsilon: float = EPSILON) -> Array:
    square = (wide(x) * wide(x)).mean(axis=-1, keepdims=True)
    return np.asarray(wide(x) / np.sqrt(square + epsilon) * wide(gamma))


def gelu(x: Array) -> Array:
    return np.asarray(0.5 * wide(x) * (1 + _erf(wide(x) / np.sqrt(2.0)))) if x.size else wide(x)


def gelu_erf_residual(x: Array, u: Array) -> Array:
    return np.asarray(gelu(x) + wide(u))


def gelu_tanh_residual(x: Array, u: Array) -> Array:
    t = wide(x)
    return np.asarray(0.5 * t * (1 + np.tanh(SQRT_TWO_OVER_PI * (t + CUBIC * t**3))) + wide(u))


def swiglu(x: Array, u: Array) -> Array:
    return np.asarray(wide(x) / (1 + np.exp(-wide(x))) * wide(u))


def rope_halves(x: Array, cos: Array, sin: Array) -> Array:
    left, right = np.split(wide(x), 2, axis=-1)
    turned = (left * wide(cos) - right * wide(sin), left * wide(sin) + right * wide(cos))
    return np.concatenate(turned, axis=-1)


def rope_interleaved(x: Array, cos: Array, sin: Array) -> Array:
    left, right = wide(x)[:, 0::2], wide(x)[:, 1::2]
    turned = (left * wide(cos) - right * wide(sin), left * wide(sin) + right * wide(cos))
    return np.stack(turned, axis=-1).reshape(x.shape)


def attention(q: Array, k: Array, v: Array, causal: bool = True, mask: Array | None = None) -> Array:
    """q: [B, Hq, Q, D], k: [B, Hkv, K, D], v: [B, Hkv, K, Dv], mask: bool[B, K]; a row without valid keys is 0."""
    group, queries, keys = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    score = wide(q) @ np.repeat(wide(k), group, axis=1).swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    valid = np.ones((queries, keys), bool)
    if causal:
        valid = np.arange(keys) <= np.arange(queries)[:, None] + keys - queries
    seen = np.broadcast_to(valid if mask is None else valid & mask[:, None, None, :], score.shape)
    top = np.where(seen, score, -np.inf).max(axis=-1, keepdims=True, initial=-np.inf)
    weight = np.where(seen, np.exp(np.where(seen, score - top, 0)), 0)
    total = weight.sum(axis=-1, keepdims=True)
    return np.asarray(weight / np.where(total == 0, 1, total) @ np.repeat(wide(v), group, axis=1))


def reduction(kind: str, x: Array, axes: Sequence[int]) -> Array:
    fold = {"add": np.sum, "mul": np.prod, "min": np.min, "max": np.max, "mean": np.mean}[kind]
    return np.asarray(fold(wide(x), axis=tuple(axes)))


def extreme_place(kind: str, x: Array, axis: int) -> Array:
    return np.asarray({"min": np.argmin, "max": np.argmax}[kind](x, axis=axis))


def gather_rows(x: Array, index: Array) -> Array:
    return np.asarray(x[index])


def pad_columns(x: Array, before: int, after: int) -> Array:
    return np.pad(x, ((0, 0), (before, after)))


def cache_append(new: Array, length: Array, cache: Array) -> Array:
    result = cache.copy()
    for b, start in enumerate(length):
        result[b, :, start : start + new.shape[2]] = new[b]
    return result
