"""RNN, GRU and LSTM, one step of time after the other over the whole batch.

Each sequence may end early (`sequence_lens`): from there on its state stays and its outputs are zero, and backwards it
begins at its own last element. The reference operators pay no heed to that, to `clip`, nor to most activations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grainline.base.errors import KernelError
from grainline.graph import primitives

Array = np.ndarray[Any, Any]
Activation = Callable[[Array], Array]
Step = Callable[[Array, tuple[Array, ...]], tuple[Array, ...]]

#: name -> (function of x, alpha and beta, the default alpha and beta)
ACTIVATIONS: dict[str, tuple[Callable[[Array, Any, Any], Array], float, float]] = {
    "sigmoid": (lambda x, a, b: primitives.sigmoid(x), 0, 0),
    "tanh": (lambda x, a, b: np.tanh(x), 0, 0),
    "relu": (lambda x, a, b: np.maximum(x, 0), 0, 0),
    "affine": (lambda x, a, b: a * x + b, 1, 0),
    "leakyrelu": (lambda x, a, b: np.where(x < 0, a * x, x), 0.01, 0),
    "thresholdedrelu": (lambda x, a, b: np.where(x > a, x, 0), 1, 0),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), 1, 1),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
    "elu": (lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x), 1, 0),
    "softsign": (lambda x, a, b: x / (1 + np.abs(x)), 0, 0),
    "softplus": (lambda x, a, b: np.logaddexp(x, 0), 0, 0),
}


def rnn(call: Any) -> list[Any]:
    return _recurrent(call, 1, ["Tanh"], _rnn_step)


def gru(call: Any) -> list[Any]:
    return _recurrent(call, 3, ["Sigmoid", "Tanh"], _gru_step)


def lstm(call: Any) -> list[Any]:
    return _recurrent(call, 4, ["Sigmoid", "Tanh", "Tanh"], _lstm_step)


def _recurrent(call: Any, gates: int, defaults: list[str], make_step: Callable[..., Step]) -> list[Any]:
    """Y: [time, directions, batch, hidden], Y_h and, of an LSTM, Y_c: [directions, batch, hidden]; layout 1 puts batch
    first."""
    x, w, r, b, lengths = (call.input(index) for index in range(5))
    is_batch_first = bool(call.get("layout", 0))
    x = np.ascontiguousarray(x.swapaxes(0, 1)) if is_batch_first else x
    time, batch, hidden = x.shape[0], x.shape[1], r.shape[2]
    if w.shape[1:] != (gates * hidden, x.shape[2]) or r.shape[1] != gates * hidden:
        raise KernelError("the weights do not fit the input", expected=list(x.shape), found=list(w.shape))
    lengths = np.full(batch, time) if lengths is None else lengths
    if lengths.shape != (batch,) or (batch and not 0 <= lengths.min() <= lengths.max() <= time):
        raise KernelError("sequence_lens does not fit the input", expected=f"{batch} of 0 to {time}", found=lengths)
    functions = _activations(call, defaults, w.shape[0])
    outputs, finals = [], []
    for direction in range(w.shape[0]):
        bias = np.zeros(2 * gates * hidden, x.dtype) if b is None else b[direction]
        step = make_step(call, direction, r[direction].T, bias[gates * hidden :], functions[direction])
        states = tuple(_initial(call, at, direction, batch, hidden, x, is_batch_first) for at in _states(gates))
        is_reverse = direction == 1 or call.get("direction", b"forward") == b"reverse"
        projected = np.matmul(x, w[direction].T) + bias[: gates * hidden]
        y, states = _walk(projected, states, step, lengths, is_reverse)
        outputs.append(y)
        finals.append(states)
    y = np.stack(outputs, axis=1)
    ends = [np.stack(states) for states in zip(*finals, strict=True)]
    if is_batch_first:
        y, ends = y.transpose(2, 0, 1, 3), [end.swapaxes(0, 1) for end in ends]
    return [y, *ends][: len(call.node.outputs)]


def _walk(
    projected: Array, states: tuple[Array, ...], step: Step, lengths: Array, is_reverse: bool
) -> tuple[Array, tuple[Array, ...]]:
    """Outputs [time, batch, hidden] and the last states. Backwards too a sequence takes part from its own length on."""
    time = projected.shape[0]
    y = np.zeros((time, *states[0].shape), states[0].dtype)
    is_even = bool((lengths == time).all())
    for at in reversed(range(time)) if is_reverse else range(time):
        after = step(projected[at], states)
        if is_even:
            states, y[at] = after, after[0]
            continue
        takes_part = (at < lengths)[:, None]
        states = tuple(np.where(takes_part, new, old) for new, old in zip(after, states, strict=True))
        y[at] = np.where(takes_part, after[0], 0)
    return y, states


def _rnn_step(call: Any, direction: int, r: Array, bias: Array, functions: list[Activation]) -> Step:
    bound = _bound(call)

    def step(projected: Array, states: tuple[Array, ...]) -> tuple[Array, ...]:
        return (functions[0](bound(projected + states[0] @ r + bias)),)

    return step


def _gru_step(call: Any, direction: int, r: Array, bias: Array, functions: list[Activation]) -> Step:
    """Gates z, r, h. H = (1 - z) * h + z * H, where r scales H before (or after) its product with the weights of h."""
    bound, hidden = _bound(call), r.shape[0]
    gate, candidate = functions
    is_linear_first = bool(call.get("linear_before_reset", 0))

    def step(projected: Array, states: tuple[Array, ...]) -> tuple[Array, ...]:
        (h,) = states
        both = gate(bound(projected[:, : 2 * hidden] + h @ r[:, : 2 * hidden] + bias[: 2 * hidden]))
        update, reset = both[:, :hidden], both[:, hidden:]
        r_h, bias_h = r[:, 2 * hidden :], bias[2 * hidden :]
        recurrent = reset * (h @ r_h + bias_h) if is_linear_first else (reset * h) @ r_h + bias_h
        new = candidate(bound(projected[:, 2 * hidden :] + recurrent))
        return ((1 - update) * new + update * h,)

    return step


def _lstm_step(call: Any, direction: int, r: Array, bias: Array, functions: list[Activation]) -> Step:
    """Gates i, o, f, c with peepholes from the cell. C = f * C + i * c, H = o * h(C)."""
    bound, hidden = _bound(call), r.shape[0]
    gate, candidate, shown = functions
    given = call.input(7)
    peepholes = None if given is None else np.split(given[direction], 3)
    is_coupled = bool(call.get("input_forget", 0))

    def step(projected: Array, states: tuple[Array, ...]) -> tuple[Array, ...]:
        h, c = states
        z = projected + h @ r + bias
        if peepholes is not None:
            z[:, :hidden] += peepholes[0] * c
            z[:, 2 * hidden : 3 * hidden] += peepholes[2] * c
        gates = gate(bound(z[:, : 3 * hidden]))
        i, o, f = gates[:, :hidden], gates[:, hidden : 2 * hidden], gates[:, 2 * hidden :]
        c = (1 - i if is_coupled else f) * c + i * candidate(bound(z[:, 3 * hidden :]))
        if peepholes is not None:
            o = gate(bound(z[:, hidden : 2 * hidden] + peepholes[1] * c))
        return o * shown(c), c

    return step


def _states(gates: int) -> tuple[int, ...]:
    """The inputs that hold initial states."""
    return (5, 6) if gates == 4 else (5,)


def _initial(call: Any, at: int, direction: int, batch: int, hidden: int, x: Array, is_batch_first: bool) -> Array:
    given = call.input(at)
    if given is None:
        return np.zeros((batch, hidden), x.dtype)
    return np.ascontiguousarray(given[:, direction] if is_batch_first else given[direction])


def _bound(call: Any) -> Activation:
    clip = call.get("clip")
    return (lambda x: x) if not clip else (lambda x: np.clip(x, -clip, clip))


def _activations(call: Any, defaults: list[str], directions: int) -> list[list[Activation]]:
    """The functions of each direction. alpha and beta have entries for those functions alone that take one."""
    names = [name.decode() for name in call.get("activations") or []] or defaults * directions
    if len(names) != len(defaults) * directions or any(name.lower() not in ACTIVATIONS for name in names):
        raise KernelError("the activations are not known", expected=sorted(ACTIVATIONS), found=names)
    alphas, betas = list(call.get("activation_alpha") or []), list(call.get("activation_beta") or [])
    made = []
    for name in names:
        function, alpha, beta = ACTIVATIONS[name.lower()]
        alpha = alphas.pop(0) if alpha and alphas else alpha
        beta = betas.pop(0) if (beta or name.lower() == "affine") and betas else beta
        made.append(_with(function, alpha, beta))
    return [made[start : start + len(defaults)] for start in range(0, len(made), len(defaults))]


def _with(function: Callable[[Array, Any, Any], Array], alpha: float, beta: float) -> Activation:
    return lambda x: function(x, x.dtype.type(alpha), x.dtype.type(beta)).astype(x.dtype, copy=False)


TABLE = {("", "RNN"): rnn, ("", "GRU"): gru, ("", "LSTM"): lstm}
