"""A thin face of `emit.FunctionText` for product kernels: f32 vectors, i64 arithmetic on plain names, argument words.

Every extent that a function needs is either a literal or a word of the kernel's argument block; words are shared by all
functions of a kernel and each function loads the ones it uses in its entry block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from grainline.base.dims import Expr
from grainline.base.dtypes import F32, I64
from grainline.codegen.emit import FunctionText, ModuleText, Reg, i64
from grainline.codegen.memory import load, store
from grainline.codegen.words import Arguments
from grainline.plan.mma import PANEL
from grainline.tile.ir import View

# Attributes of functions. A cold one is translated as it stands, in half the time.
HOT, COLD = "nounwind", "nounwind noinline optnone"


class SharedArguments(Arguments):
    """The argument block as seen by one of several functions of a kernel: all of them share one numbering of words."""

    def __init__(self, f: FunctionText, views: tuple[View, ...], numbers: dict[Expr | str, int]) -> None:
        super().__init__(f, views)
        self._numbers = numbers
        self._own: dict[str, Reg] = {}

    def bind(self, view: View, pointer: str) -> None:
        """Makes `pointer` the base of a view that is no launch argument."""
        self._pointers[view.name] = pointer

    def bind_extent(self, extent: Expr, value: Reg) -> None:
        """Makes `value` the number of an extent that is no launch argument."""
        self._words[extent] = value

    def extent(self, value: int | Expr) -> Reg:
        if isinstance(value, int):
            return i64(value)
        if value not in self._words:
            self._words[value] = self._load_word(value)
        return self._words[value]

    def own_word(self, name: str) -> Reg:
        """A word that the emitter defines; its value is not part of the text."""
        if name not in self._own:
            self._own[name] = self._load_word(name)
        return self._own[name]

    def _load_word(self, key: Expr | str) -> Reg:
        number = self._numbers.setdefault(key, len(self._numbers))
        return Reg(self._load("i64", len(self._views) + number), I64)


@dataclass(frozen=True, slots=True)
class KernelText:
    """The module of one kernel and what its functions share: views, floats of a vector, numbers of argument words."""

    module: ModuleText
    views: tuple[View, ...]
    lanes: int
    numbers: dict[Expr | str, int]

    def words(self, own: Mapping[str, int | Expr]) -> tuple[Expr, ...]:
        """What a launch passes for the numbered words; `own` holds the values of those that the emitter defines."""
        return tuple(own[key] if isinstance(key, str) else key for key in self.numbers)  # type: ignore[misc]

    def entry(self, symbol: str) -> Writer:
        """The function that a launch calls. It is cold."""
        parameters = [("ptr", "args"), ("i64", "begin"), ("i64", "end"), ("ptr", "scratch")]
        return Writer(self, self.module.function(symbol, "i32", parameters, COLD))

    def internal(
        self, name: str, parameters: Sequence[tuple[str, str]], returns: str = "void", is_cold: bool = False
    ) -> Writer:
        """A new internal function `returns @name(ptr %args, parameters...)`. What only calls others may be cold."""
        attributes = COLD if is_cold else HOT
        function = self.module.function(name, returns, [("ptr", "args"), *parameters], attributes, "internal")
        return Writer(self, function)


class Writer:
    """Writes one function whose parameter %args is the argument block. Integers and pointers are names or literals."""

    def __init__(self, kernel: KernelText, function: FunctionText) -> None:
        self.module = kernel.module
        self.lanes = kernel.lanes
        self.parts = PANEL // kernel.lanes  # vectors of a panel
        self.function = function
        self.arguments = SharedArguments(function, kernel.views, kernel.numbers)

    def view(self, view: View) -> str:
        """The base address of a view."""
        return self.arguments.pointer(view)

    def extent(self, value: int | Expr) -> str:
        return self.arguments.extent(value).text

    def own_word(self, name: str) -> str:
        return self.arguments.own_word(name).text

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

    def round_down(self, a: str, step: int) -> str:
        """`a` rounded down to a multiple of `step`, a power of two."""
        return self.binary("and", a, f"-{step}") if a.startswith("%") else str(int(a) // step * step)

    def round_up_to_panel(self, columns: str) -> str:
        """The number of panels that hold `columns`."""
        return self.binary("lshr", self.add(columns, "15"), "4")

    # ---- memory ----

    def at(self, base: str, elements: str) -> str:
        """The address `elements` floats after `base`."""
        return self.function.pointer(base, Reg(elements, I64), 4)

    def load_scalar(self, address: str) -> Reg:
        return load(self.function, address, F32)

    def load_vector(self, address: str, mask: Reg | None = None) -> Reg:
        """One vector; lanes outside the mask read 0 and touch no memory."""
        return load(self.function, address, F32, self.lanes, mask)

    def store(self, value: Reg, address: str, mask: Reg | None = None) -> None:
        store(self.function, address, value, mask)

    def first_lanes(self, count: str) -> Reg:
        """A mask whose first `count` lanes are set: none when count <= 0, all when there are enough."""
        return self.function.mask_below(Reg(self.larger(count, "0"), I64), self.lanes)

    # ---- control ----

    def choose(self, condition: str, yes: str, no: str, kind: str = "i64") -> str:
        return self.function.raw(f"select i1 {condition}, {kind} {yes}, {kind} {no}")

    def call_or_leave(self, name: str, operands: Sequence[str]) -> None:
        """Calls an i32 function; a result other than 0 ends this one with it."""
        f = self.function
        code = f.raw(f"call i32 @{name}({', '.join(operands)})")
        failed, fine = f.fresh("failed"), f.fresh("fine")
        f.do(f"br i1 {f.raw(f'icmp eq i32 {code}, 0')}, label %{fine}, label %{failed}")
        f.block(failed)
        f.do(f"ret i32 {code}")
        f.block(fine)

    def loop(self, start: str, stop: str, step: int, body: Callable[[str], None]) -> None:
        """for (i = start; i < stop; i += step) body(i)."""

        def run(index: Reg, _: Sequence[Reg]) -> list[Reg]:
            body(index.text)
            return []

        self.function.loop(Reg(start, I64), Reg(stop, I64), step, [], run)

    def loop_by(self, start: str, stop: str, step: str, body: Callable[[str], None]) -> None:
        """Like `loop`, with a positive step known at run time."""
        count = self.divide(self.add(self.sub(stop, start), self.sub(step, "1")), step)
        self.loop("0", count, 1, lambda index: body(self.add(start, self.mul(step, index))))

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
