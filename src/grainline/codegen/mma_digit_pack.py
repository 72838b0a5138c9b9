"""Packing of a strip of A as digits: per row its peak, the scale of the rest, then three bytes per number."""

from __future__ import annotations

from collections.abc import Sequence

from grainline.base.dtypes import BOOL, F32, I32, I64
from grainline.codegen.emit import Reg, constant, i64
from grainline.codegen.memory import load, store
from grainline.codegen.mma_digit_tile import ADDRESS, ODD, PEAK, PEAK_DIGIT, PEAK_LINE, SCALES, STARTS, byte, dot
from grainline.codegen.mma_text import KernelText, Writer
from grainline.codegen.mma_tile import TileForm
from grainline.plan.digits import DIGITS, HEAD_BYTES, DigitStrip
from grainline.plan.panels import QUAD

_LANES = 16
# x + BIAS has the digits plus 128 as its bytes; with their top bits flipped they are the digits.
_BIAS = 0x808080
# Digits reach up to 127 * 0x10101; a little less, so that no rounding leads beyond.
_LARGEST = 127.0 * 0x10101 - 3.0
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
        most, next_ = _magnitudes(w, source, k)
        scales, back = _scales(w, next_)
        for position, scale in enumerate(back):
            store(f, byte(w, head, 4 * (SCALES + position)), scale)
        starts, peak = _digits(w, source, digits, (k, next_), scales)
        for digit, start in enumerate(starts):
            store(f, byte(w, head, 4 * (STARTS + digit)), start)
        _store_peak(w, head, peak)
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


def _magnitudes(w: Writer, source: str, k: int) -> tuple[Reg, Reg]:
    """The bits of the two largest magnitudes of a row; NaN counts as larger than infinity."""
    f = w.function

    def step(vector: Reg, _: Reg, carried: Sequence[Reg]) -> list[Reg]:
        bits, (first, second) = _magnitude(w, vector), carried
        return [f.intrinsic("umax", first, bits), f.intrinsic("umax", second, f.intrinsic("umin", first, bits))]

    first, second = _vectors(w, source, k, [constant(0, I32, _LANES)] * 2, step)
    most = _reduced(w, "umax", first)
    # Of the lanes that hold the largest one gives way to the second of its own.
    equal = f.compare("icmp eq", first, f.splat(most, _LANES))
    lanes = f.raw(f"bitcast {equal.typed} to i16")
    lowest = f.raw(f"and i16 {lanes}, {f.raw(f'sub i16 0, {lanes}')}")
    one = Reg(f.raw(f"bitcast i16 {lowest} to <{_LANES} x i1>"), BOOL, _LANES)
    return most, _reduced(w, "umax", f.select(one, second, first))


def _magnitude(w: Writer, vector: Reg) -> Reg:
    return w.function.binary("and", w.function.bitcast(vector, I32), constant(0x7FFFFFFF, I32, _LANES))


def _reduced(w: Writer, kind: str, vector: Reg) -> Reg:
    name = f"llvm.vector.reduce.{kind}.v{vector.lanes}i32"
    w.module.declare(f"i32 @{name}({vector.type})")
    return w.function.reg(f"call i32 @{name}({vector.typed})", I32)


def _scales(w: Writer, most: Reg) -> tuple[list[Reg], list[Reg]]:
    """Two factors that bring `most` to the largest digits, and two that bring them back."""
    f = w.function
    small = f.compare("icmp slt", most, constant(_SMALL, I32))
    lift, sink = (f.select(small, constant(2.0**e, F32), constant(1.0, F32)) for e in (_LIFT, -_LIFT))
    lifted = f.binary("fmul", f.bitcast(most, F32), lift)
    # A row of zeros has any scale.
    is_zero = f.compare("icmp eq", most, constant(0, I32))
    lifted = f.select(is_zero, constant(1.0, F32), lifted)
    scale = f.binary("fdiv", constant(_LARGEST, F32), lifted)
    return [lift, scale], [f.binary("fdiv", constant(1.0, F32), scale), sink]


def _digits(
    w: Writer, source: str, target: str, size: tuple[int, Reg], scales: list[Reg]
) -> tuple[list[Reg], tuple[Reg, Reg]]:
    """Stores the digits of a row; gives for each digit what its sums start from, and the peak: (bits, place) or zeros.

    `size` is (numbers of a row, bits of the magnitude that only the peak exceeds).
    """
    f, (k, next_) = w.function, size
    factors = [f.splat(scale, _LANES) for scale in scales]
    # Of the four bytes of every number the first three, those of four consecutive k together; the rest is overwritten.
    order = [4 * (4 * quad + i) + digit for quad in range(4) for digit in range(DIGITS) for i in range(QUAD)]
    picks = ", ".join(f"i32 {place}" for place in order + order[:16])
    bias = constant(_BIAS, I32, _LANES)

    def step(vector: Reg, at: Reg, carried: Sequence[Reg]) -> list[Reg]:
        total, peak, place = carried
        above = f.compare("icmp ugt", _magnitude(w, vector), f.splat(next_, _LANES))
        peak = f.select(above, f.bitcast(vector, I32), peak)
        place = f.select(above, f.lane_index(f.convert("trunc", at, I32), _LANES), place)
        vector = f.select(above, constant(0.0, F32, _LANES), vector)
        for factor in factors:
            vector = f.binary("fmul", vector, factor)
        digits = f.binary("xor", f.binary("add", _rounded(w, vector), bias), bias)
        apart = f.raw(f"bitcast {digits.typed} to <64 x i8>")
        together = f.raw(f"shufflevector <64 x i8> {apart}, <64 x i8> poison, <64 x i32> <{picks}>")
        f.do(f"store <64 x i8> {together}, ptr {f.pointer(target, at, DIGITS)}, align 1")
        return [dot(w, total, "splat (i8 1)", together), peak, place]

    totals, peak, place = _vectors(w, source, k, [constant(0, I32, _LANES)] * 3, step)
    starts = []
    for digit in range(DIGITS):
        total = _reduced(w, "add", f.shuffle(totals, range(digit, 4 * DIGITS, DIGITS)))
        starts.append(f.binary("mul", total, constant(-128, I32)))
    return starts, (_reduced(w, "or", peak), _reduced(w, "or", place))


def _store_peak(w: Writer, head: str, peak: tuple[Reg, Reg]) -> None:
    """The number, the digit 1 at its place among four, and where in a panel the line of the four lies."""
    f, (number, place) = w.function, peak
    store(f, byte(w, head, 4 * PEAK), number)
    bit = f.binary("shl", f.binary("and", place, constant(QUAD - 1, I32)), constant(3, I32))
    store(f, byte(w, head, 4 * PEAK_DIGIT), f.binary("shl", constant(1, I32), bit))
    line = f.binary("lshr", place, constant(2, I32))
    store(f, byte(w, head, 4 * PEAK_LINE), f.convert("zext", f.binary("shl", line, constant(6, I32)), I64))


def _rounded(w: Writer, vector: Reg) -> Reg:
    """The nearest integers, halves to even. Anything where a number is too large: the row is odd then."""
    name = "llvm.x86.avx512.mask.cvtps2dq.512"
    w.module.declare(f"<16 x i32> @{name}(<16 x float>, <16 x i32>, i16, i32)")
    operands = f"{vector.typed}, <16 x i32> zeroinitializer, i16 -1, i32 4"
    return w.function.reg(f"call <16 x i32> @{name}({operands})", I32, _LANES)
