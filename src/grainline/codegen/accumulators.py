"""The accumulators of one reduction along the lanes of a row: registers that a loop carries, widest first.

The greatest and the least float are kept as a plain comparison keeps them, which is one instruction but loses a NaN.
Beside them stands, per pair of packets, which lanes have met no NaN; a lost one comes back at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

from grainline.base.dtypes import BOOL, I32
from grainline.codegen import reduction
from grainline.codegen.emit import FunctionText, Reg, constant
from grainline.tile.ir import Operation


@dataclass(frozen=True, slots=True)
class Accumulator:
    """States are lists: the total, then flags of `width` lanes where the reduction `has_flags`."""

    f: FunctionText
    operation: Operation
    width: int

    @property
    def has_flags(self) -> bool:
        is_extreme = self.operation.attributes["kind"] in ("max", "min")
        return is_extreme and reduction.accumulator_dtype(self.operation).is_float

    def start(self, lanes: int) -> list[Reg]:
        """The state before any element, for packets of `lanes`."""
        flags = [self._all_met_none()] * max(lanes // self.width // 2, 1) if self.has_flags else []
        return [reduction.start(self.operation, lanes), *flags]

    def step(self, state: list[Reg], value: Reg, mask: Reg | None) -> list[Reg]:
        """The state after one packet; lanes outside `mask` stay as they are."""
        total, *flags = state
        if not self.has_flags:
            return [self._masked(mask, reduction.accumulate(self.f, self.operation, total, [value]), total)]
        value = reduction.operand(self.f, value, total)
        after = [self._masked(mask, self._extreme(total, value), total)]
        for flag, pair in zip(flags, self._pairs(value), strict=True):
            after.append(self._masked(mask, self.f.binary("and", flag, self._ordered(*pair)), flag))
        return after

    def narrowed(self, state: list[Reg]) -> list[Reg]:
        """The state for packets of the width alone."""
        total, *flags = state
        while len(flags) > 1:
            flags = [self.f.binary("and", a, b) for a, b in zip(flags[::2], flags[1::2], strict=True)]
        return [self._folded(total, self.width), *flags]

    def finish(self, state: list[Reg], count: Reg) -> Reg:
        """The result of `count` elements: a scalar."""
        total, *flags = state
        scalar = self._folded(total, 0)
        if flags:
            lost = constant(float("nan"), scalar.dtype)
            scalar = self.f.select(self._holds_everywhere(flags[0]), scalar, lost)
        return reduction.finish(self.f, self.operation, scalar, count)

    def _folded(self, total: Reg, lanes: int) -> Reg:
        if not self.has_flags:
            return reduction.fold_lanes(self.f, self.operation.attributes["kind"], total, lanes)
        return reduction.fold_halves(self.f, total, lanes, self._extreme)

    def _extreme(self, a: Reg, b: Reg) -> Reg:
        order = "ogt" if self.operation.attributes["kind"] == "max" else "olt"
        return self.f.select(self.f.compare(f"fcmp {order}", a, b), a, b)

    def _masked(self, mask: Reg | None, after: Reg, before: Reg) -> Reg:
        return after if mask is None else self.f.select(mask, after, before)

    # ---- flags: bits where the processor has registers for them, else whole lanes ----

    def _all_met_none(self) -> Reg:
        return constant(True, BOOL, self.width) if self._are_bits else constant(-1, I32, self.width)

    @property
    def _are_bits(self) -> bool:
        return self.f.module.math.has_avx512

    def _pairs(self, value: Reg) -> list[tuple[Reg, Reg]]:
        parts = [self.f.part(value, k, self.width) for k in range(0, value.lanes, self.width)]
        return list(zip(parts[::2], parts[1::2] or parts, strict=True))

    def _ordered(self, a: Reg, b: Reg) -> Reg:
        """Lanes where neither is NaN."""
        bits = self.f.compare("fcmp ord", a, b)
        return bits if self._are_bits else self.f.convert("sext", bits, I32)

    def _holds_everywhere(self, flag: Reg) -> Reg:
        bits = flag if self._are_bits else self.f.compare("icmp ne", flag, constant(0, I32, flag.lanes))
        if not bits.lanes:
            return bits
        word = self.f.raw(f"bitcast {bits.typed} to i{bits.lanes}")
        return self.f.reg(f"icmp eq i{bits.lanes} {word}, -1", BOOL)
