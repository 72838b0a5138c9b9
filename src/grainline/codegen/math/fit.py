"""Fits the coefficients of `coefficients.py`. Run at development time: `python -m grainline.codegen.math.fit`.

Method: Lawson's iteratively reweighted least squares on Chebyshev nodes. A polynomial is one weighted linear problem a
round; a rational function P/Q (Q(0) = 1) is linearised, P - g*Q over the previous Q. Errors are relative to the
function's value, so a small maximum is a small number of units in the last place. Needs numpy only.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Array = np.ndarray
PIECES = 32
ERF_STEP = 33 / 256
ERF_TOP = 3.97  # where erf has long been rounded to 1; below 31.5 steps
NODES = 2000
ROUNDS = 60


def chebyshev_nodes(low: float, high: float) -> Array:
    angle = np.pi * (np.arange(NODES) + 0.5) / NODES
    return 0.5 * (low + high) + 0.5 * (high - low) * np.cos(angle)


def fit_polynomial(target: Array, at: Array, scale: Array, degree: int) -> Array:
    """Coefficients (constant first) that minimise max |(p(at) - target) * scale|."""
    return fit_rational(target, at, scale, degree, 0)[0]


def fit_rational(target: Array, at: Array, scale: Array, above: int, below: int) -> tuple[Array, Array]:
    """P of degree `above` and Q of degree `below`, Q(0) = 1, minimising max |(P/Q - target) * scale|."""
    size = np.abs(at).max()
    unit = at / size
    up = np.vander(unit, above + 1, increasing=True)
    down = np.vander(unit, below + 1, increasing=True)
    weight, bottom = np.ones(len(at)), np.ones(len(at))
    best = (np.inf, np.zeros(above + 1), np.ones(below + 1))
    for _ in range(ROUNDS):
        row = (np.sqrt(weight) * scale / bottom)[:, None]
        system = np.hstack([up, -target[:, None] * down[:, 1:]]) * row
        solution = np.linalg.lstsq(system, target * row[:, 0], rcond=None)[0]
        p, q = solution[: above + 1], np.concatenate([[1.0], solution[above + 1 :]])
        bottom = down @ q
        error = np.abs((up @ p / bottom - target) * scale)
        if error.max() < best[0]:
            best = (float(error.max()), p, q)
        weight = weight * (error / error.max() + 1e-3)
        weight /= weight.max()
    powers_p, powers_q = size ** -np.arange(above + 1.0), size ** -np.arange(below + 1.0)
    return best[1] * powers_p, best[2] * powers_q


def exp_tail() -> Array:
    """q with exp(r) = 1 + r + r*r*q(r) on |r| <= ln(2)/2."""
    r = chebyshev_nodes(-0.3470, 0.3470)
    with np.errstate(invalid="ignore", divide="ignore"):
        series = np.where(np.abs(r) < 1e-3, 0.5 + r / 6 + r * r / 24, (np.expm1(r) - r) / (r * r))
    return fit_polynomial(series, r, r * r / np.exp(r), 4)


def log_tail() -> Array:
    """p with log(1 + f) = f - f*f/2 + f*f*f*p(f) on sqrt(1/2) <= 1 + f <= sqrt(2)."""
    f = chebyshev_nodes(np.sqrt(0.5) - 1, np.sqrt(2.0) - 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        exact = (np.log1p(f) - f + f * f / 2) / f**3
    series = 1 / 3 - f / 4 + f * f / 5 - f**3 / 6 + f**4 / 7
    target = np.where(np.abs(f) < 3e-3, series, exact)
    return fit_polynomial(target, f, f * f, 8)


def odd_rational(function: Callable[[Array], Array], limit: float, above: int, below: int) -> tuple[Array, Array]:
    """P, Q with function(x) = x * P(x*x) / Q(x*x) on |x| <= limit."""
    x = chebyshev_nodes(1e-3, limit)
    ratio = function(x) / x
    return fit_rational(ratio, x * x, 1 / ratio, above, below)


def pieces(function: Callable[[Array], Array], step: float, limit: float, degree: int) -> Array:
    """c[j, k] with function(x) = sum c[j, k] x**k for x within step / 2 of j * step, up to `limit`; function(0) = 0.

    Coefficients are rounded to f32 from the highest down, each before the lower ones are fitted to what is left.
    """
    rows = np.zeros((PIECES, degree + 1))
    for j in range(PIECES):
        low, high = max((j - 0.5) * step, 1e-9), min((j + 0.5) * step, limit)
        x = chebyshev_nodes(low, high)
        rest, scale = function(x), 1 / function(x)
        shift = 0 if j else 1  # the first piece has no constant: relative errors count there
        for k in range(degree, shift - 1, -1):
            fitted = fit_polynomial(rest / x**shift, x - (low + high) / 2, scale * x**shift, k - shift)
            rows[j, k] = np.float32(fitted[-1])  # the highest coefficient does not depend on the origin
            rest = rest - rows[j, k] * x**k
    return rows


def sine_tail() -> Array:
    """s with sin(r) = r + r*r*r*s(r*r) on |r| <= pi/4."""
    r = chebyshev_nodes(0.02, 0.7860)
    return fit_polynomial((np.sin(r) - r) / r**3, r * r, r**3 / np.sin(r), 3)


def cosine_tail() -> Array:
    """c with cos(r) = 1 - r*r/2 + r^4*c(r*r) on |r| <= pi/4."""
    r = chebyshev_nodes(0.05, 0.7860)
    return fit_polynomial((np.cos(r) - 1 + r * r / 2) / r**4, r * r, r**4 / np.cos(r), 3)


def exp2_double() -> Array:
    """p with 2**r = p(r) on |r| <= 1/2, for pow in double precision."""
    r = chebyshev_nodes(-0.5, 0.5)
    return fit_polynomial(np.exp2(r), r, np.exp2(-r), 8)


def log2_double() -> Array:
    """p with log2(m) = s * p(s*s), s = (m - 1) / (m + 1), m in [sqrt(1/2), sqrt(2)]."""
    s = chebyshev_nodes(1e-3, 0.1716)
    return fit_polynomial(2 * np.arctanh(s) / s / np.log(2.0), s * s, s / np.arctanh(s), 6)


def printed(name: str, values: Array) -> str:
    return f"{name} = ({', '.join(repr(float(v)) for v in values)})"


def printed_rows(name: str, rows: Array) -> str:
    return "\n".join([f"{name} = (", *(f"    ({', '.join(repr(float(v)) for v in row)})," for row in rows), ")"])


def main() -> None:
    from scipy.special import erf

    print(printed("EXP_TAIL", exp_tail()))
    print(printed("LOG_TAIL", log_tail()))
    for name, function, limit, above, below in (("TANH", np.tanh, 9.02, 4, 4), ("ERF", erf, 3.925, 6, 4)):
        p, q = odd_rational(function, limit, above, below)
        print(printed(f"{name}_ABOVE", p))
        print(printed(f"{name}_BELOW", q))
    print(f"{ERF_STEP = }\n{ERF_TOP = }")
    print(printed_rows("ERF_PIECES", pieces(erf, ERF_STEP, ERF_TOP, 4).T))
    p, q = odd_rational(erf, 3.925, 7, 7)
    print(printed("ERF_DOUBLE_ABOVE", p))
    print(printed("ERF_DOUBLE_BELOW", q))
    print(printed("SIN_TAIL", sine_tail()))
    print(printed("COS_TAIL", cosine_tail()))
    print(printed("EXP2_DOUBLE", exp2_double()))
    print(printed("LOG2_DOUBLE", log2_double()))


if __name__ == "__main__":
    main()
