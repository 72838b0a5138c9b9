"""The meaning of a tile program in NumPy: slow and obvious, the oracle of every pass and emitter.

Arguments are flat or shaped NumPy arrays, one per view; elements are addressed through the view's strides from the
array's first element (`ravel` must be a view). Instances run one after the other, optionally in a random order. A load
copies (snapshot). An unordered reduction folds in NumPy's order of `reduce`, which is one of the allowed groupings.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grainline.base.dims import evaluate
from grainline.tile.interp_elementwise import ELEMENTWISE_MEANING, cast
from grainline.tile.ir import FOLD_RIGHT, UNORDERED, Axis, Operation, Region, Tile, TileProgram

Array = np.ndarray
FOLDS: dict[str, Any] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
FAULT_INDEX = 1
FAULT_DIVISION = 2


class Fault(Exception):
    """An instance ended with a fault; `code` is what the compiled kernel returns."""

    def __init__(self, code: int) -> None:
        super().__init__(f"fault {code}")
        self.code = code


def interpret(
    program: TileProgram,
    arguments: Sequence[Array],
    env: Mapping[str, int],
    order: np.random.Generator | None = None,
) -> int:
    """Runs every instance, changing the written arrays in place; returns 0 or the first fault's code."""
    flat = [np.reshape(a, -1, copy=False) for a in arguments]
    buffers = {view.name: array for view, array in zip(program.views, flat, strict=True)}
    instances = list(itertools.product(*(range(evaluate(axis.extent, env)) for axis in program.roots)))
    if order is not None:
        order.shuffle(instances)
    with np.errstate(all="ignore"):
        try:
            for instance in instances:
                _Instance(program, buffers, env, dict(zip(program.roots, instance, strict=True))).run()
        except Fault as fault:
            return fault.code
    return 0


class _Instance:
    """One program instance. Tile values are arrays with one dimension per axis of their space."""

    def __init__(
        self, program: TileProgram, buffers: Mapping[str, Array], env: Mapping[str, int], roots: Mapping[Axis, int]
    ) -> None:
        self.program = program
        self.buffers = buffers
        self.env = env
        self.bound = dict(roots)
        self.values: dict[int, Array] = {}

    def run(self) -> None:
        self._run(self.program.body)

    def _run(self, body: Sequence[Operation]) -> None:
        for operation in body:
            if operation.op == "store":
                self._store(operation)
            elif operation.region is not None:
                self._loop(operation, operation.region)
            elif operation.result is not None:
                self.values[operation.result.id] = self._value(operation, operation.result)

    def _loop(self, operation: Operation, region: Region) -> None:
        assert operation.axis is not None
        state = [self.values[tile.id] for tile in operation.operands]
        for coordinate in range(evaluate(operation.axis.extent, self.env)):
            self.bound[operation.axis] = coordinate
            self.values |= {tile.id: value for tile, value in zip(region.carried, state, strict=True)}
            self._run(region.body)
            state = [self.values[tile.id] for tile in region.yields]
        self.bound.pop(operation.axis, None)
        self.values |= {tile.id: value for tile, value in zip(operation.results, state, strict=True)}

    def _value(self, operation: Operation, result: Tile) -> Array:
        op, attributes = operation.op, operation.attributes
        if op == "const":
            return np.asarray(attributes["value"], dtype=np.float64 if result.dtype.is_float else None).astype(
                result.dtype.numpy
            )
        if op == "extent":
            return np.asarray(evaluate(attributes["value"], self.env), dtype=np.int64)
        if op == "coord":
            assert operation.axis is not None
            return self._coordinate(operation.axis, (operation.axis,) if result.space else ())
        if op == "load":
            return self._load(operation, result)
        if op == "extract":
            return self._extract(operation, result)
        if op == "reduce":
            return self._reduce(operation)
        if op == "scan":
            return self._scan(operation)
        if op == "mma":
            return self._mma(operation, result)
        operands = [self._spread(tile, result.space) for tile in operation.operands]
        if op == "splat":
            return np.broadcast_to(operands[0], self._shape(result.space)).copy()
        if op == "cast":
            return cast(operands[0], operation.operands[0].dtype, result.dtype)
        if op in ("div", "mod", "fmod") and not operation.operands[0].dtype.is_float and bool(np.any(operands[1] == 0)):
            raise Fault(FAULT_DIVISION)
        value = ELEMENTWISE_MEANING[op](*operands)
        return np.broadcast_to(value.astype(result.dtype.numpy), self._shape(result.space)).copy()

    def _shape(self, space: tuple[Axis, ...]) -> tuple[int, ...]:
        return tuple(evaluate(axis.extent, self.env) for axis in space)

    def _spread(self, tile: Tile, space: tuple[Axis, ...]) -> Array:
        """The tile's value laid out for broadcasting over `space`."""
        value = self.values[tile.id]
        present = [axis for axis in space if axis in tile.space]
        value = np.transpose(value, [tile.space.index(axis) for axis in present])
        sizes = iter(value.shape)
        return value.reshape([next(sizes) if axis in tile.space else 1 for axis in space])

    def _coordinate(self, axis: Axis, space: tuple[Axis, ...]) -> Array:
        if axis in self.bound:
            return np.asarray(self.bound[axis], dtype=np.int64)
        shape = [-1 if other is axis else 1 for other in space]
        return np.arange(evaluate(axis.extent, self.env), dtype=np.int64).reshape(shape)

    def _index(self, operation: Operation, space: tuple[Axis, ...]) -> list[Array]:
        """One integer array per view dimension, broadcast over `space`."""
        found = []
        for item in operation.index:
            if isinstance(item, Tile):
                value = self._spread(item, space)
            else:
                value = np.asarray(evaluate(item.offset, self.env), dtype=np.int64)
                for axis, coefficient in item.terms:
                    value = value + self._coordinate(axis, space) * evaluate(coefficient, self.env)
            found.append(np.broadcast_to(value, self._shape(space)))
        return found

    def _locate(self, operation: Operation, space: tuple[Axis, ...]) -> tuple[Array, Array]:
        """(flat element offsets, mask of indices inside). Raises the fault of policy "error"."""
        view = operation.view
        assert view is not None
        offsets, inside = np.zeros(self._shape(space), np.int64), np.ones(self._shape(space), bool)
        steps = view.strides if view.layout == "strided" else ()
        indices = self._index(operation, space)
        for index, extent in zip(indices, view.shape, strict=True):
            inside &= (index >= 0) & (index < evaluate(extent, self.env))
        if view.layout == "panels":
            depth = evaluate(view.shape[0], self.env)
            offsets = (indices[1] // view.panel * depth + indices[0]) * view.panel + indices[1] % view.panel
        elif view.layout == "quads":
            depth = -(-evaluate(view.shape[0], self.env) // 4)
            line = indices[1] // view.panel * depth + indices[0] // 4
            offsets = (line * view.panel + indices[1] % view.panel) * 4 + indices[0] % 4
        else:
            for index, step in zip(indices, steps, strict=True):
                offsets = offsets + index * evaluate(step, self.env)
        if operation.attributes["bounds"] == "error" and not bool(inside.all()):
            raise Fault(FAULT_INDEX)
        if operation.attributes["bounds"] == "assume":
            assert bool(inside.all()), f"an access to {view.name!r} that assumes its bounds leaves them"
        return offsets, inside

    def _load(self, operation: Operation, result: Tile) -> Array:
        assert operation.view is not None
        buffer = self.buffers[operation.view.name]
        offsets, inside = self._locate(operation, result.space)
        if buffer.size == 0:
            return np.zeros(offsets.shape, buffer.dtype)
        loaded = buffer[np.where(inside, offsets, 0)]
        if operation.view.layout == "quads":
            loaded = loaded ^ np.int8(-128)
        return np.where(inside, loaded, np.zeros((), buffer.dtype)).astype(buffer.dtype)

    def _extract(self, operation: Operation, result: Tile) -> Array:
        (operand,) = operation.operands
        value, indices = self.values[operand.id], self._index(operation, result.space)
        inside = np.ones(self._shape(result.space), bool)
        for index, extent in zip(indices, value.shape, strict=True):
            inside &= (index >= 0) & (index < extent)
        if operation.attributes["bounds"] == "assume":
            assert bool(inside.all()), f"an extract from {operand} that assumes its bounds leaves them"
        if value.size == 0:
            return np.zeros(inside.shape, value.dtype)
        found = value[tuple(np.where(inside, index, 0) for index in indices)]
        return np.where(inside, found, np.zeros((), value.dtype)).astype(value.dtype)

    def _store(self, operation: Operation) -> None:
        assert operation.view is not None
        axes = dict.fromkeys(
            axis
            for item in operation.index
            for axis in (item.space if isinstance(item, Tile) else (a for a, _ in item.terms))
            if axis not in self.bound
        )
        space = tuple(axes)
        offsets, inside = self._locate(operation, space)
        value = np.broadcast_to(self._spread(operation.operands[0], space), offsets.shape)
        self.buffers[operation.view.name][offsets[inside]] = value[inside]

    def _reduce(self, operation: Operation) -> Array:
        (operand,) = operation.operands
        assert operation.axis is not None
        value = self.values[operand.id]
        position = operand.space.index(operation.axis)
        attributes, dtype = operation.attributes, operand.dtype.numpy
        init = np.asarray(attributes["init"]).astype(dtype)
        if value.shape[position] == 0:
            shape = value.shape[:position] + value.shape[position + 1 :]
            return np.full(shape, init, dtype)
        if attributes["policy"] != UNORDERED:
            return _strict_fold(attributes, np.moveaxis(value, position, 0), init)
        folded = _fold(attributes["kind"], value, position)
        if attributes["use_init"]:
            folded = _fold(attributes["kind"], np.stack([np.broadcast_to(init, folded.shape), folded]), 0)
        return folded

    def _scan(self, operation: Operation) -> Array:
        (operand,) = operation.operands
        assert operation.axis is not None
        value = np.moveaxis(self.values[operand.id], operand.space.index(operation.axis), 0)
        exclusive = operation.attributes["exclusive"]
        total = np.zeros(value.shape[1:], value.dtype)
        sums = np.empty_like(value)
        for position, item in enumerate(value):
            after = item if position == 0 and not exclusive else (total + item).astype(value.dtype)
            sums[position] = total if exclusive else after
            total = after
        return np.moveaxis(sums, 0, operand.space.index(operation.axis))

    def _mma(self, operation: Operation, result: Tile) -> Array:
        assert operation.axis is not None
        space = (*result.space, operation.axis)
        a, b = (self._spread(tile, space).astype(np.float64) for tile in operation.operands)
        return np.sum(np.broadcast_to(a * b, self._shape(space)), axis=-1).astype(result.dtype.numpy)


def _strict_fold(attributes: Mapping[str, Any], elements: Array, init: Array) -> Array:
    """Folds the first dimension in order: from the left, or from the right for fold_right; every step in the type."""
    kind, dtype = attributes["kind"], elements.dtype
    from_right = attributes["policy"] == FOLD_RIGHT
    remaining = list(elements[::-1] if from_right else elements)
    total = np.broadcast_to(init, elements.shape[1:]) if attributes["use_init"] else remaining.pop(0)
    for element in remaining:
        pair = (element, total) if from_right else (total, element)
        total = np.asarray(FOLDS[kind](*pair)).astype(dtype)
    return np.array(total, dtype)


def _fold(kind: str, value: Array, position: int) -> Array:
    if value.dtype == bool:
        table: dict[str, Any] = {"add": np.any, "max": np.any, "mul": np.all, "min": np.all}
        return np.asarray(table[kind](value, axis=position))
    wide = np.float64 if kind in ("add", "mul") and value.dtype.kind in "fV" else value.dtype
    return np.asarray(FOLDS[kind].reduce(value.astype(wide), axis=position, dtype=wide)).astype(value.dtype)
