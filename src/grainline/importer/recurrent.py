"""RNN, GRU and LSTM written out as ONNX: products with the whole input, then a Scan over time.

`expanded` gives the function that a cell stands for; `frames` imports it like one that the model brings along, so its
steps compile as every Scan does. Each sequence may end early (`lengths`): from there on its state stays and its outputs
are zero, and backwards it begins at its own last element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from grainline.base.errors import ModelError
from grainline.importer.call import Call
from grainline.importer.proto import attribute, messages

#: of the operators written here
OPSET = 18
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
INPUTS = ("X", "W", "R", "B", "lengths", "h0", "c0", "P")
#: activation -> (operator, which of alpha and beta it takes, by default)
ACTIVATIONS: dict[str, tuple[str, dict[str, float]]] = {
    "sigmoid": ("Sigmoid", {}), "tanh": ("Tanh", {}), "relu": ("Relu", {}), "softsign": ("Softsign", {}),
    "softplus": ("Softplus", {}), "leakyrelu": ("LeakyRelu", {"alpha": 0.01}), "elu": ("Elu", {"alpha": 1.0}),
    "thresholdedrelu": ("ThresholdedRelu", {"alpha": 1.0}), "hardsigmoid": ("HardSigmoid", {"alpha": 0.2, "beta": 0.5}),
    "affine": ("Affine", {"alpha": 1.0, "beta": 0.0}), "scaledtanh": ("ScaledTanh", {"alpha": 1.0, "beta": 1.0}),
}  # fmt: skip

Activation = tuple[str, dict[str, float]]


@dataclass
class Nodes:
    """ONNX nodes in order; every result has a name of its own that begins with `prefix`."""

    prefix: str
    made: list[Any] = field(default_factory=list)

    def add(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """The name of the result, or those of several."""
        names = [f"{self.prefix}{len(self.made)}_{index}" for index in range(outputs)]
        node = messages().NodeProto(op_type=op, input=inputs, output=names)
        node.attribute.extend(attribute(name, value) for name, value in attributes.items())
        self.made.append(node)
        return names[0] if outputs == 1 else names

    def numbers(self, *values: int) -> str:
        return self.add("Constant", value_ints=list(values))

    def like(self, number: float, x: str) -> str:
        """A scalar of x's type"""
        return self.add("CastLike", self.add("Constant", value_float=number), x)

    def cut(self, x: str, axis: int, start: int, end: int) -> str:
        return self.add("Slice", x, self.numbers(start), self.numbers(end), self.numbers(axis))

    def item(self, x: str, axis: int, index: int) -> str:
        """x[.., index, ..] without the axis"""
        return self.add("Squeeze", self.cut(x, axis, index, index + 1), self.numbers(axis))

    def parts(self, x: str, count: int, size: int) -> list[str]:
        """x[.., count * size] in pieces of `size`"""
        if count == 1:
            return [x]
        return self.add("Split", x, self.numbers(*[size] * count), axis=-1, outputs=count)

    def sum(self, *terms: str | None) -> str:
        first, *others = [term for term in terms if term is not None]
        for term in others:
            first = self.add("Add", first, term)
        return first

    def activated(self, x: str, activation: Activation) -> str:
        op, numbers = activation
        if op == "Affine":
            return self.add("Add", self.add("Mul", x, self.like(numbers["alpha"], x)), self.like(numbers["beta"], x))
        if op == "ScaledTanh":
            inner = self.add("Tanh", self.add("Mul", x, self.like(numbers["beta"], x)))
            return self.add("Mul", inner, self.like(numbers["alpha"], x))
        return self.add(op, x, **numbers)


@dataclass(frozen=True)
class Cell:
    """What the attributes say. `has` names the optional inputs that are given."""

    op_type: str
    hidden: int
    has: frozenset[str]
    activations: tuple[tuple[Activation, ...], ...]
    directions: tuple[str, ...]
    clip: float
    is_batch_first: bool
    is_linear_first: bool
    is_coupled: bool

    @property
    def gates(self) -> int:
        return GATES[self.op_type]

    @property
    def states(self) -> tuple[str, ...]:
        """The inputs that hold initial states"""
        return ("h0", "c0") if self.op_type == "LSTM" else ("h0",)

    def bounded(self, n: Nodes, x: str) -> str:
        return n.add("Clip", x, n.like(-self.clip, x), n.like(self.clip, x)) if self.clip else x


@dataclass(frozen=True)
class Weights:
    """Of one direction: r turns a state, `bias` is what the recurrent product of the last gate of a GRU adds."""

    r: str
    bias: str | None
    peepholes: tuple[str, ...]
    activations: tuple[Activation, ...]


def expanded(call: Call) -> Any | None:
    """The FunctionProto that a recurrent cell stands for; None for other operators."""
    if call.domain != "" or call.op_type not in GATES:
        return None
    cell, n = _cell(call), Nodes("r")
    x = n.add("Transpose", "X", perm=[1, 0, 2]) if cell.is_batch_first else "X"
    walked = [_direction(n, cell, x, index, call.wants(0)) for index in range(len(cell.directions))]
    ends = [_stacked(n, [states[at] for states, _ in walked], 0) for at in range(len(cell.states))]
    results = [_stacked(n, [y for _, y in walked], 1)] if call.wants(0) else [""]
    if cell.is_batch_first:
        results = [n.add("Transpose", y, perm=[2, 0, 1, 3]) if y else "" for y in results]
        ends = [n.add("Transpose", end, perm=[1, 0, 2]) for end in ends]
    function = messages().FunctionProto(name=call.op_type, input=INPUTS, output=[*results, *ends], node=n.made)
    function.opset_import.add(domain="", version=OPSET)
    return function


def _cell(call: Call) -> Cell:
    r = call.input(2)
    gates, shape = GATES[call.op_type], r.shape or ()
    hidden = call.integer("hidden_size", 0) or (shape[2] if len(shape) == 3 else 0)
    if not isinstance(hidden, int) or hidden < 1:
        raise ModelError("the size of a recurrent cell is not known", node=call.label, found=hidden)
    direction = call.text("direction", "forward")
    directions = {"forward": ("forward",), "reverse": ("reverse",), "bidirectional": ("forward", "reverse")}
    if direction not in directions:
        raise ModelError("a recurrent cell has no such direction", node=call.label, found=direction)
    count = len(directions[direction])
    for value, rank, rows in ((call.input(1), 3, gates * hidden), (r, 3, gates * hidden)):
        shown = value.shape
        is_wrong = shown is not None and (len(shown) != rank or shown[0] != count or shown[1] != rows)
        if is_wrong and all(isinstance(extent, int) for extent in shown or ()):
            raise ModelError(
                "the weights do not fit the cell", node=call.label, expected=[count, rows], found=list(shown or ())
            )
    has = frozenset(name for index, name in enumerate(INPUTS) if call.optional(index) is not None)
    functions = _activations(call, count)
    flags = [bool(call.integer(name, 0)) for name in ("layout", "linear_before_reset", "input_forget")]
    return Cell(call.op_type, hidden, has, functions, directions[direction], call.real("clip", 0.0), *flags)


def _activations(call: Call, directions: int) -> tuple[tuple[Activation, ...], ...]:
    """The functions of each direction. alpha and beta have entries for those functions alone that take one."""
    defaults = DEFAULTS[call.op_type]
    names = [item.decode() for item in _listed(call, "activations", "strings")] or defaults * directions
    if len(names) != len(defaults) * directions or any(name.lower() not in ACTIVATIONS for name in names):
        raise ModelError("the activations are not known", node=call.label, expected=sorted(ACTIVATIONS), found=names)
    given = {name: _listed(call, f"activation_{name}", "floats") for name in ("alpha", "beta")}
    made: list[Activation] = []
    for name in names:
        op, numbers = ACTIVATIONS[name.lower()]
        made.append((op, {key: given[key].pop(0) if given[key] else default for key, default in numbers.items()}))
    width = len(defaults)
    return tuple(tuple(made[start : start + width]) for start in range(0, len(made), width))


def _listed(call: Call, name: str, kind: str) -> list[Any]:
    return list(getattr(call.attributes[name], kind)) if call.has(name) else []


def _stacked(n: Nodes, items: Sequence[str], axis: int) -> str:
    wide = [n.add("Unsqueeze", item, n.numbers(axis)) for item in items]
    return wide[0] if len(wide) == 1 else n.add("Concat", *wide, axis=axis)


def _direction(n: Nodes, cell: Cell, x: str, index: int, wants_all: bool) -> tuple[list[str], str]:
    """The last states and, where they are wanted, all outputs [time, batch, hidden] of one direction."""
    r, projected, bias = _weighed(n, cell, x, index)
    peepholes = tuple(n.parts(n.item("P", 0, index), 3, cell.hidden)) if "P" in cell.has else ()
    weights = Weights(r, bias, peepholes, cell.activations[index])
    states = [_initial(n, cell, x, name, index) for name in cell.states]
    steps = _steps(n, x) if "lengths" in cell.has else ()
    scanned = [projected, *steps[:1]]
    way = [int(cell.directions[index] == "reverse")]
    body = _body(cell, weights, f"d{index}_", wants_all, steps[1:])
    results = n.add(
        "Scan", *states, *scanned, outputs=len(states) + 1, body=body,
        num_scan_inputs=len(scanned), scan_input_directions=way * len(scanned), scan_output_directions=way * wants_all,
    )  # fmt: skip
    if not wants_all:
        del n.made[-1].output[len(states) :]
    return results[: len(states)], results[len(states)]


def _weighed(n: Nodes, cell: Cell, x: str, index: int) -> tuple[str, str, str | None]:
    """r: [hidden, gates * hidden], x W' and all biases but the one that a GRU scales, and that one."""
    w, r = (n.add("Transpose", n.item(name, 0, index), perm=[1, 0]) for name in "WR")
    projected, bias = n.add("MatMul", x, w), None
    if "B" in cell.has:
        rows = cell.gates * cell.hidden
        of_input, of_state = n.parts(n.item("B", 0, index), 2, rows)
        if cell.op_type == "GRU":
            kept = n.cut(of_state, 0, 0, rows - cell.hidden)
            bias = n.cut(of_state, 0, rows - cell.hidden, rows)
            of_state = n.add("Concat", kept, n.add("Mul", bias, n.like(0.0, x)), axis=0)
        projected = n.sum(projected, n.sum(of_input, of_state))
    return r, projected, bias


def _initial(n: Nodes, cell: Cell, x: str, name: str, index: int) -> str:
    """[batch, hidden]: what is given, in the extents of the input, or zeros"""
    shape = n.add("Concat", _batch(n, x), n.numbers(cell.hidden), axis=0)
    if name in cell.has:
        return n.add("Reshape", n.item(name, int(cell.is_batch_first), index), shape)
    return n.add("Expand", n.like(0.0, x), shape)


def _batch(n: Nodes, x: str) -> str:
    return n.cut(n.add("Shape", x), 0, 1, 2)


def _steps(n: Nodes, x: str) -> tuple[str, str]:
    """[time]: 0, 1, ..., and the lengths, as far as they are looked at: looking one up fails outside 0 to time."""
    time = n.item(n.add("Shape", x), 0, 0)
    zero, one = (n.add("Constant", value_int=number) for number in range(2))
    end = n.add("Add", time, one)
    beyond = n.add("CastLike", end, "lengths")
    lengths = n.add("Reshape", "lengths", _batch(n, x))
    index = n.add("Where", n.add("Less", lengths, n.like(0.0, lengths)), beyond, lengths)
    known = n.add("Gather", n.add("Range", zero, end, one), index, axis=0)
    return n.add("Range", zero, time, one), known


def _body(cell: Cell, weights: Weights, prefix: str, wants_all: bool, lengths: Sequence[str]) -> Any:
    """The graph of one step: states, and what is scanned, to states and an output. `lengths` may name the lengths."""
    n = Nodes(prefix)
    before = [f"{prefix}{name}" for name in cell.states]
    scanned = [f"{prefix}{name}" for name in ("x", "at")[: 1 + len(lengths)]]
    after = STEPS[cell.op_type](n, cell, weights, scanned[0], before)
    output = after[0]
    if lengths:
        takes_part = n.add("Unsqueeze", n.add("Less", scanned[1], lengths[0]), n.numbers(1))
        output = n.add("Where", takes_part, output, n.like(0.0, output))
        after = [n.add("Where", takes_part, new, old) for new, old in zip(after, before, strict=True)]
    results = [n.add("Identity", name) for name in (*after, *[output] * wants_all)]
    graph = messages().GraphProto(name=f"{prefix}step", node=n.made)
    for name in (*before, *scanned):
        graph.input.add(name=name)
    for name in results:
        graph.output.add(name=name)
    return graph


def _rnn_step(n: Nodes, cell: Cell, weights: Weights, x: str, states: list[str]) -> list[str]:
    """H = f(x + H R)"""
    total = n.sum(n.add("MatMul", states[0], weights.r), x)
    return [n.activated(cell.bounded(n, total), weights.activations[0])]


def _gru_step(n: Nodes, cell: Cell, weights: Weights, x: str, states: list[str]) -> list[str]:
    """Gates z, r, h. H = (1 - z) * h + z * H, where r scales H before (or after) its product with the weights of h."""
    h, size, (gate, candidate) = states[0], cell.hidden, weights.activations
    r_gates, r_h = n.cut(weights.r, 1, 0, 2 * size), n.cut(weights.r, 1, 2 * size, 3 * size)
    x_gates, x_h = n.cut(x, -1, 0, 2 * size), n.cut(x, -1, 2 * size, 3 * size)
    if cell.is_linear_first:
        turned = n.add("MatMul", h, weights.r)
        h_gates, h_h = n.cut(turned, -1, 0, 2 * size), n.cut(turned, -1, 2 * size, 3 * size)
    else:
        h_gates = n.add("MatMul", h, r_gates)
    both = n.activated(cell.bounded(n, n.sum(h_gates, x_gates)), gate)
    update, reset = n.parts(both, 2, size)
    if cell.is_linear_first:
        recurrent = n.add("Mul", reset, n.sum(h_h, weights.bias))
    else:
        recurrent = n.sum(n.add("MatMul", n.add("Mul", reset, h), r_h), weights.bias)
    new = n.activated(cell.bounded(n, n.sum(recurrent, x_h)), candidate)
    rest = n.add("Sub", n.like(1.0, update), update)
    return [n.sum(n.add("Mul", rest, new), n.add("Mul", update, h))]


def _lstm_step(n: Nodes, cell: Cell, weights: Weights, x: str, states: list[str]) -> list[str]:
    """Gates i, o, f, c with peepholes from the cell. C = f * C + i * c, H = o * h(C)."""
    (h, c), (gate, candidate, shown) = states, weights.activations
    i, o, f, new = n.parts(n.sum(n.add("MatMul", h, weights.r), x), 4, cell.hidden)
    peeps = [n.add("Mul", p, c) for p in (*weights.peepholes[:1], *weights.peepholes[2:])] or [None, None]
    i = n.activated(cell.bounded(n, n.sum(i, peeps[0])), gate)
    if cell.is_coupled:
        f = n.add("Sub", n.like(1.0, i), i)
    else:
        f = n.activated(cell.bounded(n, n.sum(f, peeps[1])), gate)
    inner = n.activated(cell.bounded(n, new), candidate)
    c = n.sum(n.add("Mul", f, c), n.add("Mul", i, inner))
    peep = n.add("Mul", weights.peepholes[1], c) if weights.peepholes else None
    o = n.activated(cell.bounded(n, n.sum(o, peep)), gate)
    return [n.add("Mul", o, n.activated(c, shown)), c]


STEPS: dict[str, Callable[[Nodes, Cell, Weights, str, list[str]], list[str]]] = {
    "RNN": _rnn_step,
    "GRU": _gru_step,
    "LSTM": _lstm_step,
}
