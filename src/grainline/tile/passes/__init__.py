"""Rewrites of tile programs, one per file. `PASSES` is the order; `simplify` runs it."""

from __future__ import annotations

from collections.abc import Callable

from grainline.tile.ir import TileProgram
from grainline.tile.passes.collapse_roots import collapse_roots
from grainline.tile.passes.common_subexpressions import merge_common_subexpressions
from grainline.tile.passes.dead_code import remove_dead_code
from grainline.tile.passes.drop_unit_axes import drop_unit_axes
from grainline.tile.passes.fold_constants import fold_constants

PASSES: tuple[tuple[str, Callable[[TileProgram], TileProgram]], ...] = (
    ("fold_constants", fold_constants),
    ("merge_common_subexpressions", merge_common_subexpressions),
    ("remove_dead_code", remove_dead_code),
    ("drop_unit_axes", drop_unit_axes),
    ("collapse_roots", collapse_roots),
)


def simplify(program: TileProgram) -> TileProgram:
    """All passes in order. Valid in, valid out, same meaning; view names, their order and types stay."""
    for _name, rewrite in PASSES:
        program = rewrite(program)
    return program
