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
#: what belongs to a whole row: eight words
HEAD_BYTES = 32
# With fewer, what is done once per number of a row and per result counts more than the products.
FEW_K = 96
_LINE_BYTES = 64


def in_digits(target: Target, k: int) -> bool:
    """Whether products with an i8 matrix of `k` rows and its column scales are computed in integers.

    A rule of the program and the instruction set alone: bits must not depend on the rows of a call.
    """
    return target.has_byte_products and FEW_K <= k <= BYTE_PRODUCTS


@dataclass(frozen=True, slots=True)
class DigitStrip:
    """A strip of A: bytes [row][digit][row_bytes], a head per row, one line whose first word tells of odd rows."""

    row_bytes: int

    @staticmethod
    def of(k: int | Expr) -> DigitStrip:
        """The strip of rows of `k` numbers."""
        assert isinstance(k, int), "the integers of a constant matrix have constant extents"
        # An odd number of lines, so that rows do not fall on the same cache sets.
        lines = -(-k // _LINE_BYTES) | 1
        return DigitStrip(lines * _LINE_BYTES)

    @property
    def heads(self) -> int:
        """Where the heads begin."""
        return STRIP_ROWS * DIGITS * self.row_bytes

    @property
    def odd(self) -> int:
        """Where the word of the strip lies."""
        return self.heads + STRIP_ROWS * HEAD_BYTES

    @property
    def size_bytes(self) -> int:
        return self.odd + _LINE_BYTES
