"""The uncalibrated prior: work of one packet in abstract units, from what a program says rather than how it runs.

Let g = gathered_lane * W, c = contiguous_memory, s = broadcast_load; a tile is *large* when it has more than
LARGE_ELEMENTS elements, or lanes > 1 and at least as many elements as lanes. it(N) is N for whole programs, ceil(N /
lanes) for packet-local ones with N >= lanes.

    load            it * w; plus it * g for the snapshot when large
    store           it * w, and the stored value is read once per element
    w               by the slope of the address along the lanes: 0 and a load s, +-1 c, else g
    elementwise     it arithmetic and the reads of its operands; plus it * g when large with several uses
    recipe          a large elementwise value of one use: evaluated where it is read, 1 arithmetic and its reads
    read            g of a large value, 2 arithmetic of a small one in a loop, constants and indices free
    reduction       per element an extract (4 + 3 * rank arithmetic), the read, 1 arithmetic; 2 log2(lanes) + 2 more
                    when the lanes are folded
    coordinates     a tile of them is a map: 1 arithmetic and a snapshot per element
    ragged packets  memory counts twice when a whole program's lane axis is no multiple of W
"""

from __future__ import annotations

from collections.abc import Mapping as Table
from math import ceil, log2
from typing import TYPE_CHECKING

from grainline.base.dims import Expr, evaluate, product
from grainline.tile.access import dataflow, effect_axes, linear_access
from grainline.tile.ir import Axis, Operation, Tile, TileProgram

if TYPE_CHECKING:
    from grainline.plan.policy import CostCoefficients
    from grainline.plan.types import Mapping

LARGE_ELEMENTS = 64
# A program's values are tiles of (1, n): one coordinate each for the row and for the column.
EXTRACT_ARITHMETIC = 4 + 3 * 2
UNIT_READ_ARITHMETIC = 2
INDEX_OPERATIONS = ("const", "extent")


def prior_work(
    program: TileProgram, mapping: Mapping, coefficients: CostCoefficients, extents: Table[str, int]
) -> tuple[float, float]:
    """(arithmetic, memory) of one packet of `program` under `mapping`."""
    return _Prior(program, mapping, coefficients, extents).run()


class _Prior:
    def __init__(
        self, program: TileProgram, mapping: Mapping, coefficients: CostCoefficients, extents: Table[str, int]
    ) -> None:
        self.program, self.mapping, self.prices, self.extents = program, mapping, coefficients, extents
        self.flow = dataflow(program)
        self.lanes = mapping.width if mapping.is_local else 1
        self.snapshot = coefficients.gathered_lane * mapping.width
        self.arithmetic = 0.0
        self.memory = 0.0
        self.is_unit_tile: dict[int, bool] = {}

    def run(self) -> tuple[float, float]:
        for operation in self.program.body:
            self._charge(operation)
        if not self.mapping.is_local and self.mapping.lane_axis is not None:
            ragged = self._value(self.mapping.lane_axis.extent) % self.mapping.width != 0
            self.memory *= 2 if ragged else 1
        return self.arithmetic, self.memory

    def _charge(self, operation: Operation) -> None:
        result = operation.result
        if result is not None:
            self.is_unit_tile[result.id] = operation.op in ("load", "reduce", "mma") or any(
                self.is_unit_tile.get(tile.id, False) for tile in operation.operands
            )
        if operation.op in ("load", "store"):
            self._access(operation)
        elif operation.op == "reduce":
            self._reduction(operation)
        elif operation.op == "mma":
            self._product(operation)
        elif operation.op == "coord":
            self._coordinates(operation)
        elif operation.op not in INDEX_OPERATIONS and result is not None and not self._is_recipe(result):
            times = self._iterations(result.space)
            self.arithmetic += times * self.prices.arithmetic
            for tile in operation.operands:
                self._read(tile, times, bool(result.space))
            if self._is_large(result):
                self.memory += times * self.snapshot

    def _access(self, operation: Operation) -> None:
        space = effect_axes(operation, self.program.roots)
        times = self._iterations(space)
        self.memory += times * self._slope_price(operation, space)
        if operation.op == "store":
            self._read(operation.operands[0], times, bool(space))
        elif operation.result is not None and self._is_large(operation.result):
            self.memory += times * self.snapshot

    def _slope_price(self, operation: Operation, space: tuple[Axis, ...]) -> float:
        form = linear_access(operation)
        axis = self.mapping.lane_axis
        if form.dynamic or axis is None:
            return self.snapshot
        slope: int | Expr = form.coefficient(axis)
        if self.mapping.is_local and axis not in space:
            slope = 0
        if slope == 0 and operation.op == "load":
            return self.prices.broadcast_load
        return self.prices.contiguous_memory if slope in (1, -1) else self.snapshot

    def _reduction(self, operation: Operation) -> None:
        assert operation.axis is not None and operation.result is not None
        operand = operation.operands[0]
        times = self._iterations((*operation.result.space, operation.axis))
        self.arithmetic += times * (EXTRACT_ARITHMETIC + 1) * self.prices.arithmetic
        self._read(operand, times, True)
        if self.mapping.is_local and self._value(operation.axis.extent) >= self.lanes:
            self.arithmetic += (2 * log2(self.lanes) + 2) * self.prices.arithmetic

    def _product(self, operation: Operation) -> None:
        assert operation.axis is not None and operation.result is not None
        times = self._iterations(operation.result.space) * self._value(operation.axis.extent)
        self.arithmetic += 2 * times * self.prices.arithmetic
        for tile in operation.operands:
            self._read(tile, times, True)

    def _coordinates(self, operation: Operation) -> None:
        assert operation.result is not None
        if not operation.result.space:
            return
        times = self._iterations(operation.result.space)
        self.arithmetic += times * self.prices.arithmetic
        if self._is_large(operation.result):
            self.memory += times * self.snapshot

    def _read(self, tile: Tile, times: float, in_loop: bool) -> None:
        """One read of `tile` in each of `times` iterations; a recipe is evaluated there."""
        definition = self.flow.define(tile)
        if definition.op in INDEX_OPERATIONS:
            return
        if self._is_recipe(tile):
            self.arithmetic += times * self.prices.arithmetic
            for operand in definition.operands:
                self._read(operand, times, in_loop)
        elif self._is_large(tile):
            self.memory += times * self.snapshot
        elif in_loop and self.is_unit_tile[tile.id]:
            volume = self._value(product(axis.extent for axis in tile.space))
            self.arithmetic += times * UNIT_READ_ARITHMETIC * volume * self.prices.arithmetic

    def _is_recipe(self, tile: Tile) -> bool:
        operation = self.flow.define(tile)
        is_elementwise = operation.op not in ("load", "reduce", "mma", "scan", "coord", *INDEX_OPERATIONS)
        users = self.flow.users[tile.id]
        uses = sum(user.operands.count(tile) for user in users)
        return is_elementwise and self._is_large(tile) and uses == 1

    def _is_large(self, tile: Tile) -> bool:
        volume = self._value(product(axis.extent for axis in tile.space))
        return volume > LARGE_ELEMENTS or (self.lanes > 1 and bool(tile.space) and volume >= self.lanes)

    def _iterations(self, space: tuple[Axis, ...]) -> float:
        total = 1
        for axis in space:
            extent = self._value(axis.extent)
            is_shared = self.mapping.is_local and axis is self.mapping.lane_axis and extent >= self.lanes
            total *= ceil(extent / self.lanes) if is_shared else extent
        return total

    def _value(self, extent: int | Expr) -> int:
        return evaluate(extent, self.extents)
