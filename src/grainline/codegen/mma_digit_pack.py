"""Packing of a strip of A as digits: per row its largest magnitude, its exponent, then three bytes per number."""

from __future__ import annotations

from collections.abc import Sequence

from grainline.base.dtypes import F32, I32
from grainline.codegen.emit import Reg, constant, i64
from grainline.codegen.memory import load, store
from grainline.codegen.mma_digit_tile import ADDRESS, ODD, SCALES, STARTS, byte, dot
from grainline.codegen.mma_text import KernelText, Writer
from grainline.codegen.mma_tile import TileForm
from grainline.plan.digits import DIGITS, HEAD_BYTES, DigitStrip
from grainline.plan.panels import QUAD

_LANES = 16
# x + BIAS has the digits plus 128 as its bytes; with their top bits flipped they are the digits.
_BIAS = 0x808080
# Digits reach up to 127 * 0x10101, a little less than 2^23: a larger fraction counts as the next exponent.
_NEXT_EXPONENT = 0x20000
_INFINITY = 0x7F800000
# Rows below are seen through a factor that makes the least subnormal a normal number.
_SMALL, _LIFT = 0x20000000, 64


def pack_digits_function(kernel: KernelText, form: TileForm, k: int) -> None:
    """`void @pack_a(args, source, target, rows)`: the digits of `rows` rows."""
    w = kernel.internal(f"{form.prefix}pack_a", [("ptr", "source"), ("ptr", "target"), ("i64", "rows")])
    strip, f = DigitStrip.of(k), w.function
    odd = byte(w, "%target", strip.odd)
    store(f, odd, constant(0, I32))

    def row(number: str) -> None:
        source = w.at("%source", w.mul(w.extent(form.a_row_stride), number))
        head = byte(w, "%target", w.add(str(strip.heads), w.mul(number, str(HEAD_BYTES))))
        digits = byte(w, "%target", w.mul(number, str(strip.row_bytes)))
        most = _magnitude(w, source, k)
        exponent = _exponent(w, most)
        scales = _powers(w, f.binary("sub", constant(22, I32), exponent))
        for number_, power in enumerate(_powers(w, f.binary("sub", exponent, constant(22, I32)))):
            store(f, byte(w, head, 4 * (SCALES + number_)), power)
        for digit, start in enumerate(_digits(w, source, digits, k, scales)):
            store(f, byte(w, head, 4 * (STARTS + digit)), start)
        is_odd = f.convert("zext", f.compare("icmp sge", most, constant(_INFINITY, I32)), I32)
        store(f, byte(w, head, 4 * ODD), is_odd)
        f.do(f"store ptr {source}, ptr {byte(w, head, 4 * ADDRESS)}, align 8")
        store(f, odd, f.binary("or", load(f, odd, I32), is_odd))

    w.loop("0", "%rows", 1, row)
    f.do("ret void")


def _vectors(w: Writer, source: str, k: int, start: list[Reg], step: object) -> list[Reg]:
    """Carries values through the vectors of a row: step(vector, index, carried); lanes behind the row are 0."""
    assert callable(step)
    f, whole = w.function, k // _LANES * _LANES

    def one(at: Reg, carried: Sequence[Reg], mask: Reg | None = None) -> list[Reg]:
        result: list[Reg] = step(load(f, w.at(source, at.text), F32, _LANES, mask), at, carried)
        return result

    carried = f.loop(i64(0), i64(whole), _LANES, start, one)
    if whole == k:
        return carried
    return one(i64(whole), carried, f.mask_below(i64(k - whole), _LANES))


def _magnitude(w: Writer, source: str, k: int) -> Reg:
    """The bits of the largest magnitude of a row; NaN counts as larger than infinity."""
    f = w.function

    def step(vector: Reg, _: Reg, carried: Sequence[Reg]) -> list[Reg]:
        bits = f.binary("and", f.bitcast(vector, I32), constant(0x7FFFFFFF, I32, _LANES))
        return [f.intrinsic("umax", carried[0], bits)]

    (most,) = _vectors(w, source, k, [constant(0, I32, _LANES)], step)
    return _reduced(w, "umax", most)


def _reduced(w: Writer, kind: str, vector: Reg) -> Reg:
    name = f"llvm.vector.reduce.{kind}.v{vector.lanes}i32"
    w.module.declare(f"i32 @{name}({vector.type})")
    return w.function.reg(f"call i32 @{name}({vector.typed})", I32)


def _exponent(w: Writer, most: Reg) -> Reg:
    """e with most * 2^-e in [1, 2), or in [2 - 2^-6, 2) one more; far below everything for 0."""
    f = w.function
    small = f.compare("icmp slt", most, constant(_SMALL, I32))
    lifted = f.bitcast(f.binary("fmul", f.bitcast(most, F32), constant(2.0**_LIFT, F32)), I32)
    bits = f.select(small, lifted, most)
    biased = f.binary("lshr", f.binary("add", bits, constant(_NEXT_EXPONENT, I32)), constant(23, I32))
    return f.binary("sub", biased, f.select(small, constant(127 + _LIFT, I32), constant(127, I32)))


def _powers(w: Writer, exponent: Reg) -> list[Reg]:
    """Two floats whose product is 2^exponent, for exponents that one float does not have."""
    f = w.function
    half = f.binary("ashr", exponent, constant(1, I32))
    powers = []
    for part in (half, f.binary("sub", exponent, half)):
        bits = f.binary("shl", f.binary("add", part, constant(127, I32)), constant(23, I32))
        powers.append(f.bitcast(bits, F32))
    return powers


def _digits(w: Writer, source: str, target: str, k: int, scales: list[Reg]) -> list[Reg]:
    """Stores the digits of a row; gives for each digit what its sums start from."""
    f = w.function
    factors = [f.splat(scale, _LANES) for scale in scales]
    # Of the four bytes of every number the first three, those of four consecutive k together; the rest is overwritten.
    order = [4 * (4 * quad + i) + digit for quad in range(4) for digit in range(DIGITS) for i in range(QUAD)]
    picks = ", ".join(f"i32 {place}" for place in order + order[:16])
    bias = constant(_BIAS, I32, _LANES)

    def step(vector: Reg, at: Reg, carried: Sequence[Reg]) -> list[Reg]:
        for factor in factors:
            vector = f.binary("fmul", vector, factor)
        digits = f.binary("xor", f.binary("add", _rounded(w, vector), bias), bias)
        apart = f.raw(f"bitcast {digits.typed} to <64 x i8>")
        together = f.raw(f"shufflevector <64 x i8> {apart}, <64 x i8> poison, <64 x i32> <{picks}>")
        f.do(f"store <64 x i8> {together}, ptr {f.pointer(target, at, DIGITS)}, align 1")
        return [dot(w, carried[0], "splat (i8 1)", together)]

    (totals,) = _vectors(w, source, k, [constant(0, I32, _LANES)], step)
    starts = []
    for digit in range(DIGITS):
        total = _reduced(w, "add", f.shuffle(totals, range(digit, 4 * DIGITS, DIGITS)))
        starts.append(f.binary("mul", total, constant(-128, I32)))
    return starts


def _rounded(w: Writer, vector: Reg) -> Reg:
    """The nearest integers, halves to even. Anything where a number is too large: the row is odd then."""
    name = "llvm.x86.avx512.mask.cvtps2dq.512"
    w.module.declare(f"<16 x i32> @{name}(<16 x float>, <16 x i32>, i16, i32)")
    operands = f"{vector.typed}, <16 x i32> zeroinitializer, i16 -1, i32 4"
    return w.function.reg(f"call <16 x i32> @{name}({operands})", I32, _LANES)
