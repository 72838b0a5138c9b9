"""Launch arguments: one pointer per view, then one 64-bit word per distinct run-time extent, in order of first use."""

from __future__ import annotations

from grainline.base.dims import Expr
from grainline.base.dtypes import I64
from grainline.codegen.emit import FunctionText, Reg, i64
from grainline.tile.ir import View

WORD_BYTES = 8


class Arguments:
    """Loads arguments in the entry block on first use; `words` is the order the launch must follow."""

    def __init__(self, f: FunctionText, views: tuple[View, ...], args: str = "%args") -> None:
        self._f = f
        self._args = args
        self._views = views
        self._pointers: dict[str, str] = {}
        self._words: dict[Expr, Reg] = {}

    @property
    def words(self) -> tuple[Expr, ...]:
        return tuple(self._words)

    def pointer(self, view: View) -> str:
        """The base address of a view."""
        if view.name not in self._pointers:
            position = next(k for k, v in enumerate(self._views) if v.name == view.name)
            self._pointers[view.name] = self._load("ptr", position)
        return self._pointers[view.name]

    def extent(self, value: int | Expr) -> Reg:
        """An extent as i64: a constant, or the word of its expression."""
        if isinstance(value, int):
            return i64(value)
        if value not in self._words:
            name = self._load("i64", len(self._views) + len(self._words))
            self._words[value] = Reg(name, I64)
        return self._words[value]

    def _load(self, kind: str, position: int) -> str:
        place = self._f.prologue(f"getelementptr i8, ptr {self._args}, i64 {WORD_BYTES * position}", "a")
        return self._f.prologue(f"load {kind}, ptr {place}, align 8")
