"""How a mapping realises a program: choices that change the code and never a bit of the result."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Switches:
    """may_alias                  see `tile.access.clobbers`
    fuse_load_reduction        a row is reduced while it is loaded; else it is loaded into a private row first
    fuse_expression_reduction  an expression is reduced while it is evaluated; else it is kept in a private row first
    keeps_rows                 dear rows are kept between passes; else every pass computes them again (streaming)
    """

    may_alias: bool = False
    fuse_load_reduction: bool = True
    fuse_expression_reduction: bool = True
    keeps_rows: bool = True

    def streaming(self) -> Switches:
        """The same without private rows, but for snapshots."""
        return replace(self, fuse_load_reduction=True, fuse_expression_reduction=True, keeps_rows=False)


DEFAULT_SWITCHES = Switches()
