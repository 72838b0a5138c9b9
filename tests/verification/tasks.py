"""The executor's protocol as data: tasks with their edges, and the order in which the sequential executor runs them.

`random_graph` makes graphs with everything that endangers the removal of Launch-to-Free edges: launches in place and
without a block of their own, user outputs, workspaces (several Frees per launch), late readers, tasks of the normal
worker in front of launches, loops, nested graphs whose edges into the outer graph stay.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

MEMORY, LAUNCH, NORMAL = "memory", "launch", "normal"


@dataclass(frozen=True)
class Task:
    """One execution of a node. Task ids are positions in the sequential order.

    before: tasks that come first. units > 0: it allocates. frees: the allocation that it gives back, or -1.
    reads, writes: of a launch, the allocations and user outputs whose memory it touches. related: of a Free, the
    launches whose edges were removed. row: the execution id, which the rounds of a loop share. owner: the owner graph.
    """

    worker: str
    before: frozenset[int] = frozenset()
    units: int = 0
    frees: int = -1
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    related: frozenset[int] = frozenset()
    row: int = 0
    owner: int = 0
    is_user_memory: bool = False


Tasks = tuple[Task, ...]


def random_graph(seed: int) -> Tasks:
    """A graph with all of its edges; nothing is removed yet."""
    return _Random(random.Random(seed)).finish()


@dataclass
class _Block:
    allocation: int
    row: int
    owner: int
    users: list[int]


class _Random:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.tasks: list[Task] = []
        self.names = 0  # the next row or owner

    def finish(self) -> Tasks:
        self._graph([], self.rng.randint(3, 7), depth=0)
        return tuple(self.tasks)

    def _name(self) -> int:
        self.names += 1
        return self.names

    def _add(self, task: Task) -> int:
        self.tasks.append(task)
        return len(self.tasks) - 1

    def _graph(self, outer: list[_Block], operators: int, depth: int) -> None:
        owner, live = self._name(), []
        for _ in range(operators):
            if depth < 2 and self.rng.random() < 0.15:
                self._nested([*outer, *live], depth + 1)
            live = self._drop(live, owner, chance=0.5)
            live += self._operator(outer, live, owner)
        self._drop(live, owner, chance=1.0)

    def _nested(self, outer: list[_Block], depth: int) -> None:
        """A loop of one to three rounds. They make the same choices, so a row stands for one node of the body.

        A pivot (a task of the normal worker) opens a round when the last task of the one before it is done.
        """
        rng, choices, rounds = self.rng, self.rng.randrange(1 << 30), self.rng.randint(1, 3)
        names = self.names
        for _ in range(rounds):
            self.rng, self.names = random.Random(choices), names
            last = {len(self.tasks) - 1} if self.tasks else set()
            pivot = self._add(Task(NORMAL, frozenset(last), row=self._name(), owner=names))
            self._graph(outer, self.rng.randint(1, 3), depth)
            for index in range(pivot + 1, len(self.tasks)):
                self.tasks[index] = replace(self.tasks[index], before=self.tasks[index].before | {pivot})
        self.rng = rng

    def _operator(self, outer: list[_Block], live: list[_Block], owner: int) -> list[_Block]:
        rng, own, before = self.rng, [], set()
        readable = [*outer, *live]
        reads = rng.sample(readable, min(len(readable), rng.randint(0, 2)))
        writes: list[int] = []
        if rng.random() < 0.4:
            before.add(self._add(Task(NORMAL, frozenset(self._late()), row=self._name(), owner=owner)))
        if rng.random() < 0.25:
            before.add(self._add(Task(MEMORY, frozenset(self._late()), row=self._name(), owner=owner)))
        kind = rng.choice(("own", "own", "own", "in place", "user"))
        if kind == "user":
            writes.append(self._add(Task(MEMORY, row=self._name(), owner=owner, is_user_memory=True)))
        elif kind == "in place" and live:
            reads.append(rng.choice(live))
            writes.append(reads[-1].allocation)
        else:
            own.append(self._block(owner))
            writes.append(own[0].allocation)
        workspace = [self._block(owner)] if rng.random() < 0.3 else []
        touched = {block.allocation for block in reads} | set(writes) | {block.allocation for block in workspace}
        launch = Task(LAUNCH, frozenset(before | touched), row=self._name(), owner=owner)
        writes += [block.allocation for block in workspace]
        launch_id = self._add(replace(launch, reads=tuple(block.allocation for block in reads), writes=tuple(writes)))
        for block in (*readable, *own, *workspace):
            if block.allocation in touched:
                block.users.append(launch_id)
        self._drop(workspace, owner, chance=1.0)
        return own

    def _late(self) -> Iterator[int]:
        """Sometimes a task that must have run first, which makes the new one late."""
        is_late, place = self.rng.random() < 0.4, self.rng.random()  # in every round as much from the generator
        if is_late and self.tasks:
            yield int(place * len(self.tasks))

    def _block(self, owner: int) -> _Block:
        row = self._name()
        return _Block(self._add(Task(MEMORY, units=self.rng.randint(1, 4), row=row, owner=owner)), row, owner, [])

    def _drop(self, live: list[_Block], owner: int, chance: float) -> list[_Block]:
        kept = []
        for block in live:
            if self.rng.random() >= chance:
                kept.append(block)
                continue
            before = frozenset({block.allocation, *block.users})
            self._add(Task(MEMORY, before, frees=block.allocation, row=self._name(), owner=owner))
        return kept


def ordered(tasks: Tasks) -> Tasks:
    """The same tasks with the order of launches as edges: host submissions happen in one fixed order."""
    launches = [index for index, task in enumerate(tasks) if task.worker == LAUNCH]
    before = dict(zip(launches[1:], launches))
    return tuple(
        replace(task, before=task.before | {before[index]}) if index in before else task
        for index, task in enumerate(tasks)
    )


def without_free_edges(tasks: Tasks) -> Tasks:
    """Every edge from a launch to a Free of the same owner graph becomes a relation."""
    changed = []
    for task in tasks:
        if task.frees >= 0:
            related = frozenset(i for i in task.before if tasks[i].worker == LAUNCH and tasks[i].owner == task.owner)
            task = replace(task, before=task.before - related, related=related)
        changed.append(task)
    return tuple(changed)


def peak_units(tasks: Tasks) -> int:
    """The most that is allocated at a time in the sequential order."""
    live = peak = 0
    for task in tasks:
        live += task.units if task.frees < 0 else -tasks[task.frees].units
        peak = max(peak, live)
    return peak


def memory_order(tasks: Tasks, is_proven: bool) -> tuple[int, ...]:
    """A memory queue with every Free as early as its edges allow.

    is_proven: and behind every memory task that a related launch needs, where need includes the order of launches.
    """
    needs: list[set[int]] = []
    for index, task in enumerate(tasks):
        needs.append(set().union(*({i, *needs[i]} for i in task.before)))
        if is_proven:
            for launch in task.related:
                needs[index] |= {i for i in needs[launch] if tasks[i].worker == MEMORY}
    waiting = [index for index, task in enumerate(tasks) if task.worker == MEMORY]
    chosen: list[int] = []
    placed: set[int] = set()
    memory = set(waiting)
    while waiting:
        due = [i for i in waiting if needs[i] & memory <= placed]
        chosen.append(next((i for i in due if tasks[i].frees >= 0), due[0]))
        placed.add(chosen[-1])
        waiting.remove(chosen[-1])
    return tuple(chosen)
