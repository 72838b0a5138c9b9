"""The six row operators in the form that the recorded scores were computed for: a row is one program, n a tile axis."""

from __future__ import annotations

from grainline.base.dtypes import F32
from grainline.tile.build import ProgramBuilder, Value, affine
from grainline.tile.ir import TileProgram, View


class RowProgram(ProgramBuilder):
    """Loads and stores of whole rows of (rows, n) views."""

    def __init__(self, name: str, rows: int, n: int) -> None:
        super().__init__(name)
        self.shape = (rows, n)
        self.r, self.a = self.root("rows", rows), self.axis("n", n)

    def row(self, name: str) -> Value:
        return self.load(self.view(name, F32, self.shape), (self.r, self.a))

    def shared_row(self, name: str) -> Value:
        return self.load(self.view(name, F32, (1, self.shape[1])), (0, self.a))

    def write(self, value: Value) -> TileProgram:
        self.store(self.view("y", F32, self.shape, access="write"), (self.r, self.a), value)
        return self.finish()


def rms_norm(rows: int, n: int) -> TileProgram:
    p = RowProgram("rms_norm", rows, n)
    x, gamma = p.row("x"), p.shared_row("gamma")
    return p.write(x / p.sqrt(p.sum(x * x, p.a) / float(n) + 1e-5) * gamma)


def layer_norm(rows: int, n: int) -> TileProgram:
    p = RowProgram("layer_norm", rows, n)
    x, gamma, beta = p.row("x"), p.shared_row("gamma"), p.shared_row("beta")
    c = x - p.sum(x, p.a) / float(n)
    return p.write(c / p.sqrt(p.sum(c * c, p.a) / float(n) + 1e-5) * gamma + beta)


def masked_softmax(rows: int, n: int) -> TileProgram:
    p = RowProgram("masked_softmax", rows, n)
    x = p.row("x")
    valid = p.coord(p.a) <= p.mod(p.coord(p.r), p.extent(n))
    s = p.select(valid, x, p.const(-1e30))
    e = p.select(valid, p.exp(s - p.max(s, p.a)), p.const(0.0))
    return p.write(e / p.sum(e, p.a))


def swiglu(rows: int, n: int) -> TileProgram:
    p = RowProgram("swiglu", rows, n)
    x, u = p.row("x"), p.row("u")
    return p.write(x / (1.0 + p.exp(-x)) * u)


def gelu_residual(rows: int, n: int) -> TileProgram:
    p = RowProgram("gelu_residual", rows, n)
    x, u = p.row("x"), p.row("u")
    inner = (x + x * x * x * 0.044715) * 0.7978845608
    return p.write(x * 0.5 * (p.tanh(inner) + 1.0) + u)


def rope(rows: int, n: int) -> TileProgram:
    p = ProgramBuilder("rope")
    half = n // 2
    r, a = p.root("rows", rows), p.axis("n", half)

    def part(view: View, start: int) -> Value:
        return p.load(view, (r, affine((a, 1), offset=start)))

    x = p.view("x", F32, (rows, n))
    left, right = part(x, 0), part(x, half)
    u, v = part(p.view("u", F32, (rows, half)), 0), part(p.view("v", F32, (rows, half)), 0)
    y = p.view("y", F32, (rows, n), access="write")
    p.store(y, (r, affine((a, 1))), left * u - right * v)
    p.store(y, (r, affine((a, 1), offset=half)), left * v + right * u)
    return p.finish()


OPERATORS = {
    "rmsnorm": rms_norm,
    "layernorm": layer_norm,
    "masked_softmax": masked_softmax,
    "swiglu": swiglu,
    "gelu_residual": gelu_residual,
    "rope": rope,
}
