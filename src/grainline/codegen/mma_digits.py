"""Products of f32 rows with int8 weights, exact in integers: what the digits of a row are, and the functions in them.

The largest number of a row, its peak, stands apart: networks have columns that are far larger than all others. The
rest is scaled so that its largest magnitude is the largest number of three digits: x = round(a * s), half to even, is
d0 + 256 d1 + 65536 d2 with digits of -128..127. For every digit the sum over k of d[k] * q[k][n] is computed exactly in
32 bits, four k at a time. Then

    y[n] = (65536 D2[n] + 256 D1[n] + D0[n]) / s + peak * q[k of the peak][n]

in f32. Only the rounding of x and of y is inexact: 2^-24 of the largest of the rest for each weight, less than in a
chain of f32. Integer sums do not depend on their order, and a row's digits on the row alone.

The byte products take an unsigned operand, so a byte of B is q + 128; the sums begin at -128 times that of the digits.

A row with infinities or NaN has no scale. It is computed behind the others as an f32 chain.
"""

from __future__ import annotations

from dataclasses import replace

from grainline.base.dims import Expr, ceil_div
from grainline.codegen.mma_digit_pack import pack_digits_function
from grainline.codegen.mma_digit_tile import digit_tile, odd_rows_function
from grainline.codegen.mma_text import KernelText
from grainline.codegen.mma_tile import TileForm, tile_function
from grainline.plan.mma import Product
from grainline.plan.panels import QUAD
from grainline.tile.ir import Axis


def as_words(product: Product) -> Product:
    """A product with int8 weights as the loop nest sees it: panels of 4-byte words, each four k; others as they are."""
    if product.b_form != "quads":
        return product
    return replace(product, b_form="panels", k=Axis("quads of k", ceil_div(product.k.extent, QUAD)))


def digit_functions(kernel: KernelText, form: TileForm, k: int | Expr) -> None:
    """@pack_a, @tile and what they call; `form` holds the product as words, `k` is its contracted extent."""
    assert isinstance(k, int) and kernel.lanes == 16
    tile_function(kernel, form, lambda w, rows: digit_tile(w, form, k, rows))
    odd_rows_function(kernel, k)
    pack_digits_function(kernel, form, k)
