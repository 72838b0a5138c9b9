"""The register tile of products with int8 weights: `rows` x 3 digits x `panels` accumulators of 16 sums.

One step reads four k: a line of a panel, and four bytes of a digit of a row for all of its columns. Each accumulator is
converted and the digits joined behind the last step, so that the epilogues of f32 products follow.
"""

from __future__ import annotations

from collections.abc import Sequence

from grainline.base.dtypes import F32, I32, I64
from grainline.codegen.emit import Reg, constant, i64
from grainline.codegen.memory import load, store
from grainline.codegen.mma_stream import fetch
from grainline.codegen.mma_text import KernelText, Writer
from grainline.codegen.mma_tile import TileForm, each_group
from grainline.plan.digits import DIGITS, HEAD_BYTES, DigitStrip
from grainline.plan.panels import PANEL, QUAD

# By rows, the panels read together: enough independent sums to hide the latency, few enough to stay in registers. All
# divide the panels of a chunk and of a column range.
PANELS_OF_ROWS = {1: 6, 2: 3, 3: 2, 4: 2, 5: 1, 6: 1}
# Words of a row's head.
SCALES, STARTS, ODD, ADDRESS, PEAK, PEAK_DIGIT, PEAK_LINE = 0, 2, 5, 6, 8, 9, 10
LINE_BYTES = PANEL * QUAD


def digit_tile(w: Writer, form: TileForm, k: int, rows: int) -> None:
    """The tile of `rows` rows; the left operand is a strip of digits."""
    panels, strip = PANELS_OF_ROWS[rows], DigitStrip.of(k)

    def results(bases: list[str], fetching: list[Reg]) -> list[Reg]:
        sums = _contract(w, (strip, -(-k // QUAD)), rows, bases, fetching)
        joined = []
        for slot in range(panels * rows):
            row, value = slot % rows, _join(w, strip, slot % rows, sums[slot * DIGITS :][:DIGITS])
            joined.append(_with_peak(w, strip, row, bases[slot // rows], value))
        odd = load(w.function, byte(w, "%a", strip.odd), I32)
        is_odd = w.function.compare("icmp ne", odd, constant(0, I32))
        return w.function.when(is_odd, joined, lambda: _mend(w, strip, rows, bases, joined))

    each_group(w, form, (rows, panels), results)


def byte(w: Writer, base: str, offset: int | str) -> str:
    return w.function.pointer(base, Reg(str(offset), I64), 1)


def head(strip: DigitStrip, row: int, word: int) -> int:
    """The place of a word of a row's head in the strip."""
    return strip.heads + row * HEAD_BYTES + 4 * word


def dot(w: Writer, total: Reg, unsigned: str, signed: str) -> Reg:
    """total + the sums of four products of bytes each; the operands are vectors of bytes."""
    bits, count = total.lanes * 32, total.lanes * QUAD
    name = f"llvm.x86.avx512.vpdpbusd.{bits}"
    w.module.declare(f"{total.type} @{name}({total.type}, <{count} x i8>, <{count} x i8>)")
    operands = f"{total.typed}, <{count} x i8> {unsigned}, <{count} x i8> {signed}"
    return w.function.reg(f"call {total.type} @{name}({operands})", I32, total.lanes)


def _contract(w: Writer, size: tuple[DigitStrip, int], rows: int, bases: list[str], fetching: list[Reg]) -> list[Reg]:
    """The sums, numbered [panel][row][digit]; `size` is (the strip, steps of four k)."""
    strip, steps = size
    starts = [
        load(w.function, byte(w, "%a", head(strip, r, STARTS + d)), I32) for r in range(rows) for d in range(DIGITS)
    ]
    sums = [w.function.splat(start, PANEL) for _ in bases for start in starts]
    unroll = 4 if len(bases) == 1 else 2
    whole = steps // unroll * unroll
    strides = [i64(unroll * DIGITS * QUAD), i64(unroll * LINE_BYTES)]

    def several(_at: Reg, carried: Sequence[Reg]) -> list[Reg]:
        places, sums = carried[: len(strides)], carried[len(strides) : fixed]
        ahead = fetch(w, carried[fixed:], len(bases) * unroll)
        sums = _steps(w, strip, (rows, bases), sums, places, unroll)
        return [*map(w.function.moved, places, strides), *sums, *ahead]

    # An address without an index: processors take a multiplication apart from a load that has one.
    start = Reg(w.function.raw("ptrtoint ptr %a to i64"), I64)
    fixed = len(strides) + len(sums)
    sums = w.function.loop(i64(0), i64(whole), unroll, [start, i64(0), *sums, *fetching], several)
    return _steps(w, strip, (rows, bases), sums[len(strides) : fixed], sums[: len(strides)], steps - whole)


def _steps(
    w: Writer,
    strip: DigitStrip,
    reads: tuple[int, list[str]],
    sums: Sequence[Reg],
    places: Sequence[Reg],
    count: int,
) -> list[Reg]:
    """`count` consecutive steps, straight-line; `reads` are rows of A and panels of B.

    `places` of the first step: its address in the first row of A, then the bytes before it in a panel of B.
    """
    current, (rows, bases), f = list(sums), reads, w.function
    a = f.raw(f"inttoptr i64 {places[0].text} to ptr")
    for step in range(count):
        lines = []
        for base in bases:
            place = f.pointer(byte(w, base, step * LINE_BYTES), places[1], 1)
            lines.append(f.raw(f"load <{LINE_BYTES} x i8>, ptr {place}, align 1"))
        for row_digit in range(rows * DIGITS):
            row, digit = divmod(row_digit, DIGITS)
            start = byte(w, a, row * strip.row_bytes + (step * DIGITS + digit) * QUAD)
            four = f.splat(load(f, start, I32), PANEL)
            digits = f.raw(f"bitcast {four.typed} to <{LINE_BYTES} x i8>")
            for panel, line in enumerate(lines):
                slot = panel * rows * DIGITS + row_digit
                current[slot] = dot(w, current[slot], line, digits)
    return current


def _join(w: Writer, strip: DigitStrip, row: int, sums: list[Reg]) -> Reg:
    """The f32 results of a row: its digits joined, then scaled by both factors of a power of two."""
    f = w.function
    low, middle, high = (f.convert("sitofp", each, F32) for each in sums)
    value = f.fma(middle, constant(256.0, F32, PANEL), low)
    value = f.fma(high, constant(65536.0, F32, PANEL), value)
    for number in range(2):
        scale = load(f, byte(w, "%a", head(strip, row, SCALES + number)), F32)
        value = f.binary("fmul", value, f.splat(scale, PANEL))
    return value


def _with_peak(w: Writer, strip: DigitStrip, row: int, base: str, value: Reg) -> Reg:
    """The results of a row and a panel with what its peak adds."""
    f = w.function
    number, digit = (load(f, byte(w, "%a", head(strip, row, PEAK + i)), kind) for i, kind in enumerate((F32, I32)))
    offset = load(f, byte(w, "%a", head(strip, row, PEAK_LINE)), I64)
    line = f.raw(f"load <{LINE_BYTES} x i8>, ptr {byte(w, base, offset.text)}, align 1")
    digits = f.raw(f"bitcast {f.splat(digit, PANEL).typed} to <{LINE_BYTES} x i8>")
    weights = f.convert("sitofp", dot(w, constant(-128, I32, PANEL), line, digits), F32)
    return f.fma(f.splat(number, PANEL), weights, value)


def _mend(w: Writer, strip: DigitStrip, rows: int, bases: list[str], joined: list[Reg]) -> list[Reg]:
    """The results with those of odd rows computed as f32 chains."""
    f = w.function
    spill = f.prologue(f"alloca [{len(joined) * PANEL} x float], align 64")
    places = [w.at(spill, str(slot * PANEL)) for slot in range(len(joined))]
    for place, value in zip(places, joined, strict=True):
        store(f, place, value)
    for panel, base in enumerate(bases):
        heads, place = byte(w, "%a", strip.heads), places[panel * rows]
        f.do(f"call void @odd_rows(ptr %args, ptr {heads}, ptr {base}, ptr {place}, i64 {rows})")
    return [load(f, place, F32, PANEL) for place in places]


def odd_rows_function(kernel: KernelText, k: int) -> None:
    """`void @odd_rows(args, heads, panel, target, rows)`: in target[rows][16] the odd rows, as f32 chains."""
    w = kernel.internal("odd_rows", [("ptr", "heads"), ("ptr", "panel"), ("ptr", "target"), ("i64", "rows")])
    f = w.function

    def row(number: str) -> None:
        head = byte(w, "%heads", w.mul(number, str(HEAD_BYTES)))
        odd = f.compare("icmp ne", load(f, byte(w, head, 4 * ODD), I32), constant(0, I32))
        f.when(odd, [], lambda: chain(head, w.at("%target", w.mul(number, str(PANEL)))))

    def chain(head: str, target: str) -> list[Reg]:
        source = f.raw(f"load ptr, ptr {byte(w, head, 4 * ADDRESS)}, align 8")

        def step(at: Reg, carried: Sequence[Reg]) -> list[Reg]:
            number = f.splat(load(f, w.at(source, at.text), F32), PANEL)
            return [f.fma(number, _weights(w, at), carried[0])]

        (total,) = f.loop(i64(0), i64(k), 1, [constant(0.0, F32, PANEL)], step)
        store(f, target, total)
        return []

    w.loop("0", "%rows", 1, row)
    f.do("ret void")


def _weights(w: Writer, k: Reg) -> Reg:
    """The weights of one k in the panel, as floats."""
    f = w.function
    line = f.pointer("%panel", Reg(w.binary("lshr", k.text, "2"), I64), LINE_BYTES)
    shift = f.convert("trunc", Reg(w.mul(w.binary("and", k.text, "3"), "8"), I64), I32)
    words = f.binary("lshr", load(f, line, I32, PANEL), f.splat(shift, PANEL))
    unsigned = f.binary("and", words, constant(255, I32, PANEL))
    return f.convert("sitofp", f.binary("sub", unsigned, constant(128, I32, PANEL)), F32)
