"""Collects the nodes of a graph while a model is imported, and what is known about the values.

A rule of the operator tables emits primitives through a `Builder`. It raises `Decline` when the operator's meaning, for
these types and shapes, is not something the compiled path carries; then what it emitted is taken back and the operator
becomes a `host` node. It raises `ModelError` when no run of the model could be right.

*Contents* are integer tensors of rank 0 or 1 whose elements are known as extents; they carry shape arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grainline.base import dims
from grainline.base.dims import Expr, Extent, Op, Sym, product
from grainline.base.dtypes import BOOL, I64, DType
from grainline.base.errors import ModelError
from grainline.graph.ir import Constant, Guard, Node, Shape, Value
from grainline.graph.names import Names
from grainline.importer import extents
from grainline.importer.tensors import constant_of

Array = np.ndarray[Any, Any]
Content = np.ndarray[Any, Any]  # dtype object, rank 0 or 1, elements int, bool or Expr

#: the largest tensor whose contents are looked at during import
GREATEST_CONTENT = 1024

COMPARISONS = frozenset("eq lt le gt ge and or xor".split())


class Decline(Exception):
    """The compiled path does not carry this; `reason` is shown to people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment to roll back to."""

    nodes: int
    guards: int
    replacements: int


class Builder:
    """The nodes so far, in topological order, with unique names.

    The builder of a sub-graph is given the one `around` it: a symbol means the same in both. What it learns about a
    symbol from outside holds inside only, so it becomes a guard of the sub-graph.
    """

    def __init__(self, around: Builder | None = None) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[str, Constant] = {}
        self.contents: dict[str, Content] = {}
        self.guards: list[Guard] = []
        self.replacements: dict[Sym | Op, Extent] = {}
        self._sizes: set[Extent] = set() if around is None else set(around._sizes)
        self.stem = ""
        self.node_name = ""
        self.names = Names()
        self._symbols = Names(separator="_") if around is None else around._symbols
        self._given = self._symbols.taken()
        self._literals: dict[tuple[Any, ...], Value] = {}

    # -- names ---------------------------------------------------------------------------------------------------

    def fresh_symbol(self, wish: str) -> str:
        return self._symbols.fresh(wish)

    # -- taking back ---------------------------------------------------------------------------------------------

    def mark(self) -> Mark:
        return Mark(len(self.nodes), len(self.guards), len(self.replacements))

    def roll_back(self, mark: Mark) -> None:
        del self.nodes[mark.nodes :]
        del self.guards[mark.guards :]
        for atom in list(self.replacements)[mark.replacements :]:
            del self.replacements[atom]

    def rename(self, mark: Mark, wishes: dict[str, str]) -> dict[str, Value]:
        """Renames values born since `mark` (old name -> wish); gives the new values by old name."""
        renamed: dict[str, Value] = {}
        for index in range(mark.nodes, len(self.nodes)):
            node = self.nodes[index]
            for value in node.outputs:
                if value.name in wishes and wishes[value.name] not in self.names:
                    renamed[value.name] = replace(value, name=self.names.fresh(wishes[value.name]))
                    if value.name in self.contents:
                        self.contents[wishes[value.name]] = self.contents[value.name]
            self.nodes[index] = replace(
                node,
                inputs=tuple(renamed.get(v.name, v) for v in node.inputs),
                outputs=tuple(renamed.get(v.name, v) for v in node.outputs),
            )
        return renamed

    # -- emission ------------------------------------------------------------------------------------------------

    def emit(self, op: str, inputs: Iterable[Value], dtype: DType, shape: Sequence[Extent], **attributes: Any) -> Value:
        """Appends a node with one output."""
        final = tuple(extents.apply_all(d, self.replacements) for d in shape)
        self.note_sizes(final)
        output = Value(self.names.fresh(f"{self.stem}~{op}"), dtype, final)
        self.nodes.append(Node(op, tuple(inputs), (output,), attributes, self.node_name))
        return output

    def add_constant(self, wish: str, dtype: DType, shape: Shape, constant: Constant) -> Value:
        value = Value(self.names.fresh(wish), dtype, shape)
        self.constants[value.name] = constant
        return value

    def literal(self, array: Any, dtype: DType) -> Value:
        """A small constant; equal literals share one value."""
        data = np.asarray(array, dtype=dtype.numpy)
        key = (dtype.name, data.shape, data.tobytes())
        if key not in self._literals:
            self._literals[key] = self.add_constant("literal", dtype, data.shape, constant_of(data))
        return self._literals[key]

    def show(self, content: Content, dtype: DType) -> Value:
        """A value that holds known extents."""
        if all(isinstance(item, int | bool | np.integer | np.bool_) for item in content.ravel()):
            if dtype.is_integer:
                info = np.iinfo(dtype.numpy)
                if any(not info.min <= item <= info.max for item in content.ravel()):
                    raise Decline("shape arithmetic leaves its integer type")
            return self.literal(content.astype(dtype.numpy), dtype)
        value = self.emit("extents", (), I64, content.shape, values=tuple(content.ravel()))
        if dtype != I64:
            value = self.cast(value, dtype)
        self.contents[value.name] = content
        return value

    # -- knowledge -----------------------------------------------------------------------------------------------

    def static(self, value: Value | None, greatest: int = GREATEST_CONTENT) -> Array | None:
        """The data of a small constant, or None."""
        if value is None or value.name not in self.constants or value.shape is None:
            return None
        count = product(value.shape)
        return self.constants[value.name].load() if isinstance(count, int) and count <= greatest else None

    def content(self, value: Value | None) -> Content | None:
        """The elements of an integer or bool tensor of rank 0 or 1 as extents, or None when they are not known."""
        if value is None or value.shape is None or len(value.shape) > 1:
            return None
        if value.name in self.contents:
            known = self.contents[value.name]
            return _each(lambda item: extents.apply_all(item, self.replacements), known) if self.replacements else known
        if not (value.dtype.is_integer or value.dtype == BOOL):
            return None
        data = self.static(value)
        return None if data is None else objects(data.tolist(), data.shape)

    def note_sizes(self, shape: Iterable[Extent]) -> None:
        """Extents of a tensor that exists are not negative, whatever their expressions allow."""
        self._sizes.update(extent for extent in shape if isinstance(extent, Expr))

    def is_size(self, extent: Extent) -> bool:
        """Whether the extent is at least 0 in every run that gets as far as using it."""
        return extents.is_nonnegative(extent) or extent in self._sizes

    def shape(self, value: Value) -> Shape:
        """The value's shape; Decline when even the rank is unknown."""
        if value.shape is None:
            raise Decline("the rank of an input is only known at run time")
        return tuple(extents.apply_all(d, self.replacements) for d in value.shape)

    def rank(self, value: Value) -> int:
        return len(self.shape(value))

    def equate(self, left: Extent, right: Extent, reason: str) -> None:
        """Makes `left == right` a condition of every run; ModelError when they are different integers."""
        left, right = extents.apply_all(left, self.replacements), extents.apply_all(right, self.replacements)
        difference = left - right
        if isinstance(difference, int):
            if difference != 0:
                raise ModelError(reason, node=self.node_name or self.stem, expected=left, found=right)
            return
        for one, other in ((left, right), (right, left)):
            atom = extents.lone_atom(one)
            if isinstance(atom, Op) and atom.kind in ("min", "max"):
                self.guards.append(Guard(one, other, reason, self.node_name))
                self.replacements[atom] = other
                return
            if isinstance(atom, Sym) and isinstance(other, int):
                self._replace(atom, other, reason)
                return
        a, b = extents.lone_atom(left), extents.lone_atom(right)
        if isinstance(a, Sym) and isinstance(b, Sym):
            if b.name in self._given:
                self._replace(a, right, reason)
            else:
                self._replace(b, left, reason)
            return
        self.guards.append(Guard(left, right, reason, self.node_name))

    def at_least(self, extent: Extent, least: int, reason: str) -> None:
        """Makes `extent >= least` a condition of every run."""
        if not extents.is_nonnegative(extent - least):
            self.guards.append(Guard(extent, dims.maximum(extent, least), reason, self.node_name))

    def _replace(self, symbol: Sym, by: Extent, reason: str) -> None:
        """Whoever binds the symbol checks it; for a symbol from outside nobody would."""
        if symbol.name in self._given:
            self.guards.append(Guard(dims.symbol(symbol.name), by, reason, self.node_name))
        self.replacements[symbol] = by

    def settled_guards(self) -> tuple[Guard, ...]:
        """The guards in symbols that nothing replaced. A minimum or maximum stays what its guard is about, and so does
        a symbol from outside."""
        own = {
            atom: by
            for atom, by in self.replacements.items()
            if isinstance(atom, Sym) and atom.name not in self._given
        }  # fmt: skip
        return tuple(
            replace(g, left=extents.apply_all(g.left, own), right=extents.apply_all(g.right, own)) for g in self.guards
        )

    def symbols(self) -> frozenset[str]:
        """All symbols made so far, here and around."""
        return self._symbols.taken()

    # -- primitives ----------------------------------------------------------------------------------------------

    def broadcast(self, *shapes: Shape) -> Shape:
        """The shape to which all broadcast; Decline where the run decides whether an extent is 1."""
        rank = max((len(shape) for shape in shapes), default=0)
        padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
        result: list[Extent] = []
        for axis in range(rank):
            extent: Extent = 1
            for shape in padded:
                extent = self._meet(extent, shape[axis])
            result.append(extent)
        return tuple(result)

    def _meet(self, a: Extent, b: Extent) -> Extent:
        a, b = extents.apply_all(a, self.replacements), extents.apply_all(b, self.replacements)
        if a == b or (isinstance(b, int) and b == 1):
            return a
        if isinstance(a, int) and a == 1:
            return b
        if extents.must_be_equal(a, b):
            self.equate(a, b, "extents do not broadcast")
            return extents.apply_all(a, self.replacements)
        raise Decline(f"only a run decides whether {a} and {b} are equal or one of them is 1")

    def fit(self, parameter: Value, target: Shape) -> None:
        """A parameter that broadcasts one way: an extent of 2 or more is the target's own extent."""
        shape = self.shape(parameter)
        for extent, other in zip(reversed(shape), reversed(target), strict=False):
            low = extents.bounds(extent)[0]
            if low is not None and low >= 2:
                self.equate(other, extent, "a parameter does not broadcast to its operand")

    def vector(self, parameter: Value, extent: Extent) -> None:
        """A parameter of one number for each of `extent` columns."""
        shape = self.shape(parameter)
        if len(shape) != 1:
            raise ModelError(
                "a parameter is no vector", node=self.node_name or self.stem, expected=(extent,), found=shape
            )
        self.equate(extent, shape[0], "a parameter has not one number per column")

    def unary(self, op: str, x: Value, dtype: DType | None = None) -> Value:
        return self.emit(op, (x,), dtype or x.dtype, self.shape(x))

    def binary(self, op: str, a: Value, b: Value) -> Value:
        """A pointwise operator of two operands of one type."""
        if a.dtype != b.dtype:
            raise ModelError(
                "operands have different types", node=self.node_name or self.stem, expected=a.dtype, found=b.dtype
            )
        dtype = BOOL if op in COMPARISONS else a.dtype
        return self.emit(op, (a, b), dtype, self.broadcast(self.shape(a), self.shape(b)))

    def where(self, condition: Value, a: Value, b: Value) -> Value:
        if a.dtype != b.dtype or condition.dtype != BOOL:
            raise ModelError("Where needs bool and two operands of one type", node=self.node_name or self.stem)
        shape = self.broadcast(self.shape(condition), self.shape(a), self.shape(b))
        return self.emit("where", (condition, a, b), a.dtype, shape)

    def with_scalar(self, op: str, x: Value, number: float) -> Value:
        """`op(x, number)` with the number rounded to x's type."""
        return self.binary(op, x, self.literal(number, x.dtype))

    def cast(self, x: Value, to: DType) -> Value:
        return x if x.dtype == to else self.emit("cast", (x,), to, self.shape(x), to=to.name)

    def reshape(self, x: Value, shape: Sequence[Extent]) -> Value:
        return x if tuple(shape) == self.shape(x) else self.emit("reshape", (x,), x.dtype, shape)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        if list(perm) == list(range(len(perm))):
            return x
        shape = self.shape(x)
        return self.emit("transpose", (x,), x.dtype, [shape[axis] for axis in perm], perm=tuple(perm))

    def expand(self, x: Value, shape: Sequence[Extent]) -> Value:
        return x if tuple(shape) == self.shape(x) else self.emit("expand", (x,), x.dtype, shape)

    def slice(self, x: Value, starts: Sequence[Extent], lengths: Sequence[Extent], steps: Sequence[int]) -> Value:
        """One start, length and step per axis; starts are inside."""
        whole = tuple(lengths) == self.shape(x) and all(step == 1 for step in steps)
        if whole:
            return x
        return self.emit("slice", (x,), x.dtype, lengths, starts=tuple(starts), steps=tuple(steps))

    def reduce(self, kind: str, x: Value, axes: Sequence[int]) -> Value:
        """Reduces over `axes`, which stay with extent 1."""
        ordered = tuple(sorted(axes))
        if not ordered:
            return x
        shape = [1 if axis in ordered else extent for axis, extent in enumerate(self.shape(x))]
        return self.emit("reduce", (x,), x.dtype, shape, kind=kind, axes=ordered)

    def number(self, extent: Extent) -> Value:
        """What an extent is in a run, as an i64 scalar."""
        return self.show(objects([extent], ()), I64)

    def count(self, x: Value, axes: Sequence[int], dtype: DType) -> Value:
        """The number of elements along `axes` as a scalar."""
        shape = self.shape(x)
        number = product(shape[axis] for axis in axes)
        if isinstance(number, int):
            return self.literal(number, dtype)
        return self.cast(self.number(number), dtype)

    def mean(self, x: Value, axes: Sequence[int]) -> Value:
        return self.binary("div", self.reduce("sum", x, axes), self.count(x, axes, x.dtype))


def objects(items: Any, shape: tuple[int, ...]) -> Content:
    """An object array of the shape from nested or flat Python items."""
    flat = np.empty(int(np.prod(shape, dtype=int)), dtype=object)
    flat[:] = [items] if shape == () and not isinstance(items, list) else list(items)
    return flat.reshape(shape)


def _each(function: Any, content: Content) -> Content:
    return objects([function(item) if isinstance(item, Expr) else item for item in content.ravel()], content.shape)
