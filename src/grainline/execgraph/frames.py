"""Sub-graphs of an execution graph, and what an edge means that crosses their borders.

A *frame* is one sub-graph: a branch of an If, the frame of a loop, or the body inside it. Its nodes carry its number as
their owner. `entry` and `exit` are nodes of the parent: the frame begins behind its entry and is over with its exit.

    If      entry SwitchNotify -> BranchPivot, branch, BranchDone (one frame per branch) -> exit WaitAnyone
    loop    entry Enter -> WaitAnyone, InferShape, SwitchTurn (the frame) -> BranchPivot -> exit Exit
                           ^                       |
                           '-- BranchDone <- body <- BranchPivot (a frame inside; its exit is its BranchDone)

A node inside may run many times or never, a node outside runs once for all of them. So only entry and exit have edges
across a border: an order between two nodes of different frames is one between the ancestors that share a frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """`group` is the InferShape group that runs first in every turn: nothing of this frame is known before it."""

    owner: int
    parent: int
    entry: int
    exit: int
    group: int


def lifted(frames: Mapping[int, Frame], earlier: tuple[int, int], later: tuple[int, int]) -> tuple[int, int] | None:
    """The edge that makes `earlier` come first, both given as (node, owner); None where no edge is needed: the frame
    sees to it, or the two never run both (branches of one If)."""
    frame = _common(frames, earlier[1], later[1])
    first, second = _child(frames, earlier[1], frame), _child(frames, later[1], frame)
    if first is not None and second is not None and first.entry == second.entry:
        return None
    edge = (earlier[0] if first is None else first.exit, later[0] if second is None else second.entry)
    return None if edge[0] == edge[1] else edge


def path(frames: Mapping[int, Frame], owner: int) -> list[int]:
    """The frame and all around it, inside out; the last is 0, the graph itself."""
    found = [owner]
    while found[-1] in frames:
        found.append(frames[found[-1]].parent)
    return found


def outermost(frames: Iterable[Frame]) -> dict[int, Frame]:
    """By owner: the frame of the graph itself that holds it, or that it is."""
    by_owner = {frame.owner: frame for frame in frames}
    return {owner: by_owner[path(by_owner, owner)[-2]] for owner in by_owner}


def _common(frames: Mapping[int, Frame], one: int, other: int) -> int:
    around = set(path(frames, other))
    return next(owner for owner in path(frames, one) if owner in around)


def _child(frames: Mapping[int, Frame], owner: int, frame: int) -> Frame | None:
    """The frame directly inside `frame` that holds `owner`, or None when `owner` is `frame` itself."""
    inside = None
    for each in path(frames, owner):
        if each == frame:
            return inside
        inside = frames[each]
    raise ValueError(f"frame {owner} does not lie in {frame}")
