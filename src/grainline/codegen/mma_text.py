"""A thin face of `emit.FunctionText` for product kernels: f32 vectors of 8, i64 arithmetic on plain names, argument words.

Every extent that a function needs is either a literal or a word of the kernel's argument block; words are shared by all
functions of a kernel and each function loads the ones it uses in its entry block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from grainline.base.dims import Expr
from grainline.base.dtypes import F32, I64
from grainline.codegen.emit import FunctionText, ModuleText, Reg, constant

VECTOR = "<8 x float>"
LANES = 8
ZERO = constant(0.0, F32, LANES)


@dataclass
class Words:
    """The argument block of a kernel: `pointers` views, then one i64 per extent of `extents` in order."""

    pointers: int
    extents: dict[Expr, int] = field(default_factory=dict)

    def slot(self, extent: Expr) -> int:
        return self.pointers + self.extents.setdefault(extent, len(self.extents))


class Writer:
    """Writes one function whose parameter %args is the argument block. Integers and pointers are names or literals."""

    def __init__(self, module: ModuleText, words: Words, function: FunctionText) -> None:
        self.module = module
        self.words = words
        self.function = function
        self._loaded: dict[int, str] = {}

    # ---- argument words ----

    def word(self, slot: int, kind: str) -> str:
        """The argument word `slot` as i64 or ptr."""
        if slot not in self._loaded:
            at = self.function.prologue(f"getelementptr i64, ptr %args, i64 {slot}")
            self._loaded[slot] = self.function.prologue(f"load {kind}, ptr {at}, align 8")
        return self._loaded[slot]

    def extent(self, value: int | Expr) -> str:
        return str(value) if isinstance(value, int) else self.word(self.words.slot(value), "i64")

    # ---- integers ----

    def add(self, a: str, b: str) -> str:
        return self.function.add(Reg(a, I64), Reg(b, I64)).text

    def sub(self, a: str, b: str) -> str:
        return self.function.sub(Reg(a, I64), Reg(b, I64)).text

    def mul(self, a: str, b: str) -> str:
        return self.function.mul(Reg(a, I64), Reg(b, I64)).text

    def smaller(self, a: str, b: str) -> str:
        return self.function.minimum(Reg(a, I64), Reg(b, I64)).text

    def larger(self, a: str, b: str) -> str:
        return self.function.intrinsic("smax", Reg(a, I64), Reg(b, I64)).text

    def divide(self, a: str, b: str) -> str:
        return self.binary("udiv", a, b)

    def remainder(self, a: str, b: str) -> str:
        return self.binary("urem", a, b)

    def binary(self, opcode: str, a: str, b: str) -> str:
        return self.function.raw(f"{opcode} i64 {a}, {b}")

    def less(self, a: str, b: str) -> str:
        return self.function.raw(f"icmp slt i64 {a}, {b}")

    def round_up_to_panel(self, columns: str) -> str:
        """The number of panels that hold `columns`."""
        return self.binary("lshr", self.add(columns, "15"), "4")

    # ---- memory ----

    def at(self, base: str, elements: str) -> str:
        """The address `elements` floats after `base`."""
        return self.function.pointer(base, Reg(elements, I64), 4)

    def load_scalar(self, address: str) -> Reg:
        return self.function.reg(f"load float, ptr {address}, align 4", F32)

    def load_vector(self, address: str) -> Reg:
        return self.function.reg(f"load {VECTOR}, ptr {address}, align 4", F32, LANES)

    def store_scalar(self, value: Reg, address: str) -> None:
        self.function.do(f"store {value.typed}, ptr {address}, align 4")

    def store_vector(self, value: Reg, address: str) -> None:
        self.function.do(f"store {value.typed}, ptr {address}, align 4")

    def masked_load(self, address: str, mask: Reg) -> Reg:
        """Lanes outside the mask read 0 and touch no memory."""
        self.module.declare(f"{VECTOR} @llvm.masked.load.v8f32.p0(ptr, i32, <8 x i1>, {VECTOR})")
        arguments = f"ptr {address}, i32 4, {mask.typed}, {VECTOR} zeroinitializer"
        return self.function.reg(f"call {VECTOR} @llvm.masked.load.v8f32.p0({arguments})", F32, LANES)

    def masked_store(self, value: Reg, address: str, mask: Reg) -> None:
        self.module.declare(f"void @llvm.masked.store.v8f32.p0({VECTOR}, ptr, i32, <8 x i1>)")
        self.function.do(
            f"call void @llvm.masked.store.v8f32.p0({value.typed}, ptr {address}, i32 4, {mask.typed})"
        )

    def first_lanes(self, count: str) -> Reg:
        """<8 x i1> whose first `count` lanes are set: none when count <= 0, all when count >= 8."""
        return self.function.mask_below(Reg(self.larger(count, "0"), I64), LANES)

    def prefetch(self, address: str, offset_bytes: int = 0, for_write: bool = False) -> None:
        self.module.declare("void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        if offset_bytes:
            address = self.function.raw(f"getelementptr i8, ptr {address}, i64 {offset_bytes}", "p")
        self.function.do(f"call void @llvm.prefetch.p0(ptr {address}, i32 {int(for_write)}, i32 3, i32 1)")

    # ---- control ----

    def loop(self, start: str, stop: str, step: int, body: Callable[[str], None]) -> None:
        """for (i = start; i < stop; i += step) body(i)."""

        def run(index: Reg, _: Sequence[Reg]) -> list[Reg]:
            body(index.text)
            return []

        self.function.loop(Reg(start, I64), Reg(stop, I64), step, [], run)

    def either(self, condition: str, yes: Callable[[], None], no: Callable[[], None]) -> None:
        """if (condition) yes() else no()."""
        first, second, done = (self.function.fresh(stem) for stem in ("yes", "no", "join"))
        self.function.do(f"br i1 {condition}, label %{first}, label %{second}")
        self.function.block(first)
        yes()
        self.function.jump(done)
        self.function.block(second)
        no()
        self.function.jump(done)
        self.function.block(done)


def internal(module: ModuleText, words: Words, name: str, parameters: Sequence[tuple[str, str]]) -> Writer:
    """A new internal function `void @name(ptr %args, parameters...)`."""
    function = module.function(name, "void", [("ptr", "args"), *parameters], "nounwind", "internal")
    return Writer(module, words, function)
