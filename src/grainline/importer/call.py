"""One ONNX node as the operator tables see it: resolved inputs, typed access to attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grainline.base.dtypes import DType
from grainline.base.errors import ModelError
from grainline.graph.ir import Value
from grainline.importer.builder import Decline

# AttributeProto.AttributeType
FLOAT, INT, STRING, TENSOR, GRAPH = 1, 2, 3, 4, 5
FLOATS, INTS, STRINGS, TENSORS, GRAPHS = 6, 7, 8, 9, 10

_FIELD = {
    FLOAT: "f",
    INT: "i",
    STRING: "s",
    TENSOR: "t",
    GRAPH: "g",
    FLOATS: "floats",
    INTS: "ints",
    STRINGS: "strings",
}
_NAMES = {1: "float", 2: "int", 3: "string", 4: "tensor", 5: "graph", 6: "floats", 7: "ints", 8: "strings"}


@dataclass(frozen=True, slots=True)
class Call:
    """`inputs` has None where absent; `version` is the opset of the domain; `position` counts main nodes; `narrow` is
    the type that a result is rounded to, where it is computed wider."""

    op_type: str
    domain: str
    version: int
    name: str
    inputs: tuple[Value | None, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    position: int | None = None
    narrow: DType | None = None

    @property
    def label(self) -> str:
        return self.name or f"{self.op_type} -> {', '.join(self.outputs)}"

    def input(self, index: int) -> Value:
        value = self.optional(index)
        if value is None:
            raise ModelError(
                f"{self.op_type} lacks its input {index}",
                node=self.label,
                expected=f"at least {index + 1} inputs",
                found=len(self.inputs),
            )
        if value.kind != "tensor":
            raise Decline(f"an input is a {value.kind}")
        return value

    def optional(self, index: int) -> Value | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def tensors(self) -> list[Value]:
        """All inputs of a variadic operator."""
        if not self.inputs:
            raise ModelError(f"{self.op_type} has no input", node=self.label)
        return [self.input(index) for index in range(len(self.inputs))]

    def wants(self, index: int) -> bool:
        """Whether output `index` is used."""
        return index < len(self.outputs) and self.outputs[index] != ""

    def has(self, name: str) -> bool:
        return name in self.attributes

    def integer(self, name: str, default: int | None = None) -> int:
        return self._read(name, INT, default)

    def real(self, name: str, default: float | None = None) -> float:
        return self._read(name, FLOAT, default)

    def text(self, name: str, default: str | None = None) -> str:
        found = self._read(name, STRING, default)
        return found.decode("utf-8", "replace") if isinstance(found, bytes) else found

    def integers(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        return tuple(self._read(name, INTS, default))

    def tensor(self, name: str) -> Any:
        return self._read(name, TENSOR, None)

    def maybe_ints(self, name: str) -> tuple[int, ...] | None:
        return self.integers(name) if self.has(name) else None

    def _read(self, name: str, kind: int, default: Any) -> Any:
        if name not in self.attributes:
            if default is None:
                raise ModelError(f"{self.op_type} lacks its attribute {name!r}", node=self.label)
            return default
        proto = self.attributes[name]
        if proto.type != kind:
            raise ModelError(
                f"attribute {name!r} has the wrong type", node=self.label, expected=_NAMES[kind],
                found=_NAMES.get(proto.type, proto.type),
            )  # fmt: skip
        return getattr(proto, _FIELD[kind])


def axis_of(call: Call, axis: int, rank: int) -> int:
    """The non-negative axis; ModelError when outside [-rank, rank)."""
    if not -rank <= axis < rank:
        raise ModelError("an axis is out of range", node=call.label, expected=f"[{-rank}, {rank})", found=axis)
    return axis % rank


def axes_of(call: Call, axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    found = tuple(axis_of(call, axis, rank) for axis in axes)
    if len(set(found)) != len(found):
        raise ModelError("an axis is given twice", node=call.label, found=list(axes))
    return found


def only(value: Value, *allowed: DType) -> None:
    """Declines a type that the compiled path does not carry."""
    if value.dtype not in allowed:
        raise Decline(f"{value.dtype} is not compiled for this operator")


def only_given(values: Iterable[Value | None], *allowed: DType) -> None:
    """`only` for operands of which some may be absent."""
    for value in values:
        if value is not None:
            only(value, *allowed)
