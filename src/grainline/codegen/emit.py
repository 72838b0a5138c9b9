"""Writes LLVM IR as text: values, blocks, loops with carried values, constants.

`ModuleText` collects declarations and functions; `FunctionText` appends instructions to one function. A `Reg` is an SSA
name or a constant with its element type and lane count (0 = scalar). Booleans are i1 in registers and i8 in memory.
Nothing here knows tiles or plans. Every text is a function of the calls alone: emitting twice gives the same text.

    f = module.function("k", "i32", [("ptr", "args"), ("i64", "begin")])
    total = f.loop(f.i64(0), n, 16, [zero], lambda i, carried: [f.fadd(carried[0], ...)])[0]
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from ctypes import c_float
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from grainline.base.dtypes import BF16, BOOL, F16, F32, F64, I32, I64, DType


@dataclass(frozen=True, slots=True)
class Reg:
    """A register or constant. `lanes` 0 is a scalar; `text` is what instructions print, without the type."""

    text: str
    dtype: DType
    lanes: int = 0

    @property
    def type(self) -> str:
        return llvm_type(self.dtype, self.lanes)

    @property
    def typed(self) -> str:
        return f"{self.type} {self.text}"


def element_type(dtype: DType) -> str:
    """The register type of one element; bf16 lives in a float register."""
    if dtype == BOOL:
        return "i1"
    return "float" if dtype == BF16 else dtype.llvm


def vector_type(element: str, lanes: int) -> str:
    return f"<{lanes} x {element}>" if lanes else element


@cache
def llvm_type(dtype: DType, lanes: int) -> str:
    return vector_type(element_type(dtype), lanes)


@cache
def memory_type(dtype: DType, lanes: int) -> str:
    return vector_type("i16" if dtype == BF16 else dtype.llvm, lanes)


@cache
def suffix(dtype: DType, lanes: int) -> str:
    """The mangled type of an overloaded intrinsic: f32, v16f32, v8i64."""
    short = {"float": "f32", "double": "f64", "half": "f16"}.get(element_type(dtype), element_type(dtype))
    return f"v{lanes}{short}" if lanes else short


def literal(value: Any, dtype: DType) -> str:
    """The text of a scalar constant; floats are the 16 hexadecimal digits of the double (half: 0xH)."""
    if dtype == BOOL:
        return "true" if value else "false"
    if not dtype.is_float:
        return str(int(value))
    if dtype == F16:
        import numpy as np

        return f"0xH{int(np.float16(value).view(np.uint16)):04X}"
    number = float(value)
    if dtype != F64:
        number = c_float(number).value
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


def constant(value: Any, dtype: DType, lanes: int = 0) -> Reg:
    text = literal(value, dtype)
    if not lanes:
        return Reg(text, dtype)
    return Reg(f"splat ({element_type(dtype)} {text})", dtype, lanes)


# Where `FunctionText.prefetch` brings a line; LLVM's numbers.
FIRST_LEVEL, SECOND_LEVEL, FAR = 3, 2, 1


def i64(value: int) -> Reg:
    return Reg(str(value), I64)


@dataclass(frozen=True, slots=True)
class MathForm:
    """How the vector functions of a module are realised.

    has_avx512: a power of two multiplies at once, and one of 16 numbers is looked up in a register.
    is_accurate: the slower tier of `math.double`.
    """

    has_avx512: bool = False
    is_accurate: bool = False


@dataclass(frozen=True, slots=True)
class FunctionLines:
    """What is written of one function; `prologue` comes before the body."""

    header: str
    prologue: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join([self.header, "entry:", *self.prologue, "  br label %body", "body:", *self.body, "}"])


class ModuleText:
    """One module of LLVM IR: declarations in order of first use, then functions."""

    def __init__(self, math: MathForm = MathForm()) -> None:
        self.math = math
        self._declarations: dict[str, None] = {}
        # The lines and not their writers: those hold the module, and a cycle would keep every kernel's text.
        self._functions: list[FunctionLines] = []
        # What was emitted, for `plan.facts`: "load contiguous" or a mathematical primitive -> how often.
        self.accesses: Counter[str] = Counter()
        self.math_calls: Counter[str] = Counter()

    def declare(self, text: str) -> None:
        self._declarations[f"declare {text}"] = None

    def function(
        self, name: str, returns: str, parameters: Sequence[tuple[str, str]], attributes: str = "", linkage: str = ""
    ) -> FunctionText:
        """A new function; `parameters` are (type and attributes, name). Insertion point: its entry block."""
        listed = ", ".join(f"{kind} %{label}" for kind, label in parameters)
        start = " ".join(part for part in ("define", linkage, returns) if part)
        lines = FunctionLines(f"{start} @{name}({listed}) {attributes}".rstrip() + " {")
        self._functions.append(lines)
        return FunctionText(self, name, lines)

    def calls(self, name: str) -> bool:
        """Whether a function emitted so far calls @name."""
        return any(f"@{name}(" in line for function in self._functions for line in function.body)

    @property
    def text(self) -> str:
        parts = [*self._declarations, "", *(function.text for function in self._functions)]
        return "\n".join(parts) + "\n"


class FunctionText:
    """Appends instructions to the current block of one function."""

    def __init__(self, module: ModuleText, name: str, lines: FunctionLines) -> None:
        self.module = module
        self.name = name
        self._prologue = lines.prologue
        self._lines = lines.body
        self._counter = 0
        self.current = "body"

    # ---- instructions ----

    def fresh(self, prefix: str = "v") -> str:
        self._counter += 1
        return f"{prefix}{self._counter}"

    def raw(self, instruction: str, prefix: str = "v") -> str:
        """Appends `%name = instruction`, returns `%name`."""
        name = f"%{self.fresh(prefix)}"
        self._lines.append(f"  {name} = {instruction}")
        return name

    def do(self, instruction: str) -> None:
        """Appends an instruction without a result."""
        self._lines.append(f"  {instruction}")

    def prologue(self, instruction: str, prefix: str = "w") -> str:
        """Like `raw`, but in the entry block, which dominates everything."""
        name = f"%{self.fresh(prefix)}"
        self._prologue.append(f"  {name} = {instruction}")
        return name

    def reg(self, instruction: str, dtype: DType, lanes: int = 0) -> Reg:
        return Reg(self.raw(instruction), dtype, lanes)

    def binary(self, opcode: str, a: Reg, b: Reg) -> Reg:
        """`opcode` on two registers of one type, e.g. fadd, mul, and."""
        return self.reg(f"{opcode} {a.typed}, {b.text}", a.dtype, a.lanes)

    def compare(self, opcode: str, a: Reg, b: Reg) -> Reg:
        """`opcode` is `icmp slt`, `fcmp olt`, ...; the result is bool."""
        return self.reg(f"{opcode} {a.typed}, {b.text}", BOOL, a.lanes)

    def select(self, condition: Reg, a: Reg, b: Reg) -> Reg:
        return self.reg(f"select {condition.typed}, {a.typed}, {b.typed}", a.dtype, a.lanes)

    def convert(self, opcode: str, a: Reg, to: DType) -> Reg:
        return self.reg(f"{opcode} {a.typed} to {llvm_type(to, a.lanes)}", to, a.lanes)

    def bitcast(self, a: Reg, to: DType) -> Reg:
        return self.convert("bitcast", a, to)

    def intrinsic(self, name: str, *args: Reg) -> Reg:
        """Calls `llvm.<name>.<type of the first argument>`, all arguments and the result of that type."""
        full = f"llvm.{name}.{suffix(args[0].dtype, args[0].lanes)}"
        self.module.declare(f"{args[0].type} @{full}({', '.join(a.type for a in args)})")
        return self.reg(
            f"call {args[0].type} @{full}({', '.join(a.typed for a in args)})", args[0].dtype, args[0].lanes
        )

    def fma(self, a: Reg, b: Reg, c: Reg) -> Reg:
        return self.intrinsic("fma", a, b, c)

    def splat(self, a: Reg, lanes: int) -> Reg:
        """A scalar in every lane; a vector stays as it is."""
        if a.lanes or not lanes:
            return a
        if not a.text.startswith("%"):
            return Reg(f"splat ({element_type(a.dtype)} {a.text})", a.dtype, lanes)
        kind = llvm_type(a.dtype, lanes)
        one = self.raw(f"insertelement {kind} poison, {a.typed}, i64 0")
        return self.reg(f"shufflevector {kind} {one}, {kind} poison, <{lanes} x i32> zeroinitializer", a.dtype, lanes)

    def extract(self, a: Reg, lane: int) -> Reg:
        return self.reg(f"extractelement {a.typed}, i64 {lane}", a.dtype)

    def part(self, a: Reg, first: int, lanes: int) -> Reg:
        """Lanes first, first + 1, ... of `a`; `first` is a multiple of `lanes`."""
        if lanes == a.lanes:
            return a
        kind, size = llvm_type(a.dtype, lanes), suffix(a.dtype, a.lanes)
        name = f"llvm.vector.extract.{suffix(a.dtype, lanes)}.{size}"
        self.module.declare(f"{kind} @{name}({a.type}, i64)")
        return self.reg(f"call {kind} @{name}({a.typed}, i64 {first})", a.dtype, lanes)

    def shuffle(self, a: Reg, lanes: Sequence[int], b: Reg | None = None) -> Reg:
        """Lanes of `a` (then of `b`) in the given order."""
        other = b.text if b is not None else "poison"
        picks = ", ".join(f"i32 {lane}" for lane in lanes)
        return self.reg(
            f"shufflevector {a.typed}, {a.type} {other}, <{len(lanes)} x i32> <{picks}>", a.dtype, len(lanes)
        )

    def concatenated(self, parts: Sequence[Reg]) -> Reg:
        """One register from parts of equal length, a power of two of them."""
        while len(parts) > 1:
            parts = [self.shuffle(a, range(2 * a.lanes), b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def iota(self, lanes: int, dtype: DType = I64) -> Reg:
        listed = ", ".join(f"{element_type(dtype)} {lane}" for lane in range(lanes))
        return Reg(f"<{listed}>", dtype, lanes)

    # ---- integers ----

    def add(self, a: Reg, b: Reg | int) -> Reg:
        """Integer a + b; folds zero and constants."""
        b = Reg(str(b), a.dtype, 0) if isinstance(b, int) else b
        if b.text == "0":
            return a
        if a.text == "0" and a.lanes == b.lanes:
            return b
        folded = _fold(a, b, lambda x, y: x + y)
        return folded if folded is not None else self.binary("add", a, self.splat(b, a.lanes))

    def sub(self, a: Reg, b: Reg | int) -> Reg:
        b = Reg(str(b), a.dtype, 0) if isinstance(b, int) else b
        if b.text == "0":
            return a
        folded = _fold(a, b, lambda x, y: x - y)
        return folded if folded is not None else self.binary("sub", a, self.splat(b, a.lanes))

    def mul(self, a: Reg, b: Reg | int) -> Reg:
        b = Reg(str(b), a.dtype, 0) if isinstance(b, int) else b
        if b.text == "1":
            return a
        if a.text == "1" and a.lanes == b.lanes:
            return b
        if "0" in (a.text, b.text):
            return constant(0, a.dtype, a.lanes)
        folded = _fold(a, b, lambda x, y: x * y)
        return folded if folded is not None else self.binary("mul", a, self.splat(b, a.lanes))

    def minimum(self, a: Reg, b: Reg) -> Reg:
        """Signed integer minimum; folds constants."""
        folded = _fold(a, b, min)
        return folded if folded is not None else self.intrinsic("smin", a, b)

    def lane_index(self, base: Reg, lanes: int) -> Reg:
        """base + 0, 1, ... lanes - 1."""
        return self.binary("add", self.splat(base, lanes), self.iota(lanes, base.dtype))

    def mask_below(self, count: Reg, lanes: int) -> Reg:
        """Lane k is true for k < count (i64; any value)."""
        few = self.intrinsic("smin", count, i64(lanes))
        narrow = Reg(self.raw(f"trunc {few.typed} to i32"), I32)
        return self.compare("icmp slt", self.iota(lanes, I32), self.splat(narrow, lanes))

    def prefetch(self, pointer: str, level: int, is_written: bool = False) -> None:
        """Asks for the line at `pointer` in a level of cache, FIRST_LEVEL to FAR. Never faults."""
        self.module.declare("void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.do(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 {int(is_written)}, i32 {level}, i32 1)")

    def any(self, mask: Reg) -> Reg:
        """Whether a lane of a bool vector is true, as a scalar."""
        if not mask.lanes:
            return mask
        bits = self.raw(f"bitcast {mask.typed} to i{mask.lanes}")
        return self.reg(f"icmp ne i{mask.lanes} {bits}, 0", BOOL)

    # ---- memory ----

    def pointer(self, base: str, offset: Reg, size_bytes: int) -> str:
        """base + offset elements of size_bytes bytes."""
        if offset.text == "0":
            return base
        return self.raw(f"getelementptr inbounds [{size_bytes} x i8], ptr {base}, i64 {offset.text}", "p")

    # ---- control ----

    def moved(self, place: Reg, step: Reg) -> Reg:
        """place + step, for what a loop counts by. The compiler must not know that it is a sum.

        It would see induction variables and weigh every address of the loop against every other (loop strength
        reduction): up to half of all compile time. A place that is a multiple of the index is carried by its loop.
        """
        return self.reg(f'call i64 asm "", "=r,0"({self.binary("add", place, step).typed})', I64)

    def unmerged(self, pointer: str) -> str:
        """The same address; what is read there is not found equal to what is read through another name."""
        return self.raw(f'call ptr asm "", "=r,0"(ptr {pointer})', "p")

    def block(self, label: str) -> None:
        """Starts a block; the current one must have been closed by a branch."""
        self._lines.append(f"{label}:")
        self.current = label

    def jump(self, label: str) -> None:
        self.do(f"br label %{label}")

    def branch(self, condition: Reg, yes: str, no: str) -> None:
        self.do(f"br i1 {condition.text}, label %{yes}, label %{no}")

    def phi(self, dtype: DType, lanes: int, incoming: Sequence[tuple[Reg, str]]) -> Reg:
        pairs = ", ".join(f"[ {value.text}, %{label} ]" for value, label in incoming)
        return self.reg(f"phi {llvm_type(dtype, lanes)} {pairs}", dtype, lanes)

    def loop(
        self,
        start: Reg,
        stop: Reg,
        step: int,
        carried: Sequence[Reg],
        body: Callable[[Reg, list[Reg]], Sequence[Reg]],
    ) -> list[Reg]:
        """for (i = start; i < stop; i += step) carried = body(i, carried); returns the last carried values.

        A constant range that is empty emits nothing. `i` is i64; `body` may open blocks of its own.
        """
        known = _constant_range(start, stop)
        if known is not None and known[0] >= known[1]:
            return list(carried)
        inside, done = self.fresh("loop"), self.fresh("done")
        before = self.current
        if known is None:
            self.branch(self.compare("icmp slt", start, stop), inside, done)
        else:
            self.jump(inside)
        self.block(inside)
        at = len(self._lines)
        index = Reg(f"%{self.fresh('i')}", I64)
        states = [Reg(f"%{self.fresh('c')}", value.dtype, value.lanes) for value in carried]
        results = list(body(index, states))
        after = self.moved(index, i64(step))
        latch = self.current
        self.branch(self.compare("icmp slt", after, stop), inside, done)
        phis = [f"  {index.text} = phi i64 [ {start.text}, %{before} ], [ {after.text}, %{latch} ]"]
        for state, initial, result in zip(states, carried, results, strict=True):
            pairs = f"[ {initial.text}, %{before} ], [ {result.text}, %{latch} ]"
            phis.append(f"  {state.text} = phi {state.type} {pairs}")
        self._lines[at:at] = phis
        self.block(done)
        if known is not None:
            return results
        joins = zip(carried, results, strict=True)
        return [self.phi(a.dtype, a.lanes, [(a, before), (b, latch)]) for a, b in joins]

    def when(
        self, condition: Reg, carried: Sequence[Reg], body: Callable[[], Sequence[Reg]], weights: str = ""
    ) -> list[Reg]:
        """if (condition) carried = body(); returns the joined values. Constant conditions emit no branch."""
        if condition.text in ("true", "false"):
            return list(body()) if condition.text == "true" else list(carried)
        inside, done = self.fresh("then"), self.fresh("join")
        before = self.current
        self.branch(condition, inside, done)
        self.block(inside)
        results = list(body())
        last = self.current
        self.jump(done)
        self.block(done)
        joins = zip(carried, results, strict=True)
        return [self.phi(a.dtype, a.lanes, [(a, before), (b, last)]) for a, b in joins]

    def fail_if(self, condition: Reg, code: int) -> None:
        """Returns `code` from the function when the scalar condition holds."""
        failed, fine = self.fresh("fault"), self.fresh("fine")
        self.branch(condition, failed, fine)
        self.block(failed)
        self.do(f"ret i32 {code}")
        self.block(fine)


def _fold(a: Reg, b: Reg, compute: Callable[[int, int], int]) -> Reg | None:
    if a.lanes or b.lanes or a.text.startswith("%") or b.text.startswith("%"):
        return None
    return Reg(str(compute(int(a.text), int(b.text))), a.dtype)


def _constant_range(start: Reg, stop: Reg) -> tuple[int, int] | None:
    if start.text.startswith("%") or stop.text.startswith("%"):
        return None
    return int(start.text), int(stop.text)


__all__ = ["F32", "FunctionText", "ModuleText", "Reg", "constant", "i64", "llvm_type", "memory_type", "suffix"]
