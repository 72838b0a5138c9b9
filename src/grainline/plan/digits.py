"""How rows of A wait as digits for a product with int8 weights; see `codegen/mma_digits.py` for what digits mean."""

from __future__ import annotations

from dataclasses import dataclass

from grainline.base.dims import Expr
from grainline.plan.panels import STRIP_ROWS
from grainline.plan.target import Target

#: digits of one number, each a signed byte
DIGITS = 3
# |digit| <= 128 and a byte of B <= 255: so many products stay within 32 bits.
BYTE_PRODUCTS = 60_000
#: what belongs to a whole row: up to sixteen words
HEAD_BYTES = 64
# With fewer, what is done once per number of a row and per result counts more than the products.
FEW_K = 96
_LINE_BYTES = 64
_LANES = 16


def in_digits(target: Target, k: int) -> bool:
    """Whether products with an i8 matrix of `k` rows and its column scales are computed in integers.

    A rule of the program and the instruction set alone: bits must not depend on the rows of a call.
    """
    return target.has_byte_products and FEW_K <= k <= BYTE_PRODUCTS


@dataclass(frozen=True, slots=True)
class DigitStrip:
    """A strip of A: per row bytes [quad of k][digit][4], a head per row, one line whose first word tells of odd rows.

    Rows are stored by whole vectors of 16 numbers and one line: `row_bytes` holds what they write.
    """

    row_bytes: int

    @staticmethod
    def of(k: int | Expr) -> DigitStrip:
        """The strip of rows of `k` numbers."""
        assert isinstance(k, int), "the integers of a constant matrix have constant extents"
        written = -(-k // _LANES) * _LANES * DIGITS + _LINE_BYTES - _LANES * DIGITS
        # An odd number of lines, so that rows do not fall on the same cache sets.
        lines = -(-written // _LINE_BYTES) | 1
        return DigitStrip(lines * _LINE_BYTES)

    @property
    def heads(self) -> int:
        """Where the heads begin."""
        return STRIP_ROWS * self.row_bytes

    @property
    def odd(self) -> int:
        """Where the word of the strip lies."""
        return self.heads + STRIP_ROWS * HEAD_BYTES

    @property
    def size_bytes(self) -> int:
        return self.odd + _LINE_BYTES
