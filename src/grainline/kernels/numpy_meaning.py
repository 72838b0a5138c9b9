"""The kernels of this room in NumPy, double precision inside: what tests and benchmarks compare with."""

from __future__ import annotations

from math import erf

import numpy as np

Array = np.ndarray
_erf = np.vectorize(erf, otypes=[np.float64])


def softmax(x: Array) -> Array:
    e = np.exp(x.astype(np.float64) - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def layer_norm(x: Array, gamma: Array, beta: Array, epsilon: float = 1e-5) -> Array:
    wide = x.astype(np.float64)
    c = wide - wide.mean(axis=-1, keepdims=True)
    return np.asarray(c / np.sqrt((c * c).mean(axis=-1, keepdims=True) + epsilon) * gamma + beta)


def rms_norm(x: Array, gamma: Array, epsilon: float = 1e-5) -> Array:
    wide = x.astype(np.float64)
    return np.asarray(wide / np.sqrt((wide * wide).mean(axis=-1, keepdims=True) + epsilon) * gamma)


def gelu(x: Array) -> Array:
    wide = x.astype(np.float64)
    return np.asarray(0.5 * wide * (1 + _erf(wide / np.sqrt(2.0))))


def gelu_tanh_residual(x: Array, u: Array) -> Array:
    wide = x.astype(np.float64)
    return np.asarray(0.5 * wide * (1 + np.tanh(0.7978845608 * (wide + 0.044715 * wide**3))) + u)


def swiglu(x: Array, u: Array) -> Array:
    wide = x.astype(np.float64)
    return np.asarray(wide / (1 + np.exp(-wide)) * u)
