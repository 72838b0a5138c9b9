"""Names that are made on the way: a wish, or the wish with a number where something else has it."""

from __future__ import annotations

from collections.abc import Iterable

from grainline.graph.ir import Graph


class Names:
    """The names that are taken. What a model calls its own values is for the model to say, so no suffix is free."""

    def __init__(self, taken: Iterable[str] = (), separator: str = ".") -> None:
        self._taken = {"", *taken}
        self._separator = separator

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def fresh(self, wish: str) -> str:
        """`wish`, or `wish` with a number, so that nothing has it yet."""
        name, number = wish, 0
        while name in self._taken:
            number += 1
            name = f"{wish}{self._separator}{number}"
        self._taken.add(name)
        return name

    def taken(self) -> frozenset[str]:
        return frozenset(self._taken - {""})


def names_of(graph: Graph) -> Names:
    made = (value.name for node in graph.nodes for value in node.outputs)
    return Names((*(value.name for value in graph.inputs), *graph.constants, *made))
