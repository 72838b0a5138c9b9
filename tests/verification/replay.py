"""Replays an event log of the native executor on the protocol: every event must be one that the model allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.verification.tasks import LAUNCH, MEMORY, Tasks

STARTED, ENDED, PARKED, RESUMED = "s", "e", "p", "r"
CALLER, MEMORY_WORKER = 0, 1


@dataclass
class Replay:
    """`order` is the static order of the tasks, `workers` their number. `replay` raises AssertionError."""

    tasks: Tasks
    order: Sequence[int]
    workers: int
    done: set[int] = field(default_factory=set)
    started: set[int] = field(default_factory=set)
    running: dict[int, int] = field(default_factory=dict)  # worker -> task
    parked: list[int] = field(default_factory=list)
    resumed: int | None = None
    last: dict[int, int] = field(default_factory=dict)  # worker -> static position
    has_parked: bool = False
    has_moved: bool = False  # a memory task ran since an allocation was last resumed

    def replay(self, events: Sequence[tuple[str, int, int]]) -> None:
        position = {task: at for at, task in enumerate(self.order)}
        for number, (kind, task, worker) in enumerate(events):
            where = f"event {number}: {kind} of task {task} on worker {worker}"
            if kind == STARTED:
                self._start(task, worker, position[task], where)
            elif kind == RESUMED:
                assert self.parked and self.parked[0] == task, f"{where}: it is not the first that was parked"
                unmet = set() if self.has_moved else self._unmet()
                assert not unmet, f"{where}: launches {unmet} are still to be submitted, and no memory task ran"
                self.has_moved = False
                self.resumed = task
            else:
                self._leave(kind, task, worker, where)

    def end(self) -> None:
        """The run succeeded: everything ran, nothing waits."""
        assert not self.running and not self.parked, f"{self.running} run, {self.parked} wait"
        assert self.done == set(range(len(self.tasks))), "every task is done once"

    def _start(self, task: int, worker: int, place: int, where: str) -> None:
        row = self.tasks[task]
        assert worker in self._homes(row.worker), f"{where}: not a worker of {row.worker or 'normal'} tasks"
        assert worker not in self.running, f"{where}: the worker is at task {self.running.get(worker)}"
        assert task not in self.done, f"{where}: it is done already"
        missing = row.before - self.done
        assert not missing, f"{where}: tasks {sorted(missing)} must come first"
        if task != self.resumed:
            assert task not in self.parked, f"{where}: it is parked and was not resumed"
            if self.parked:
                assert not row.related, f"{where}: a Free with relations passes a parked allocation"
            if not self.has_parked or worker != MEMORY_WORKER:
                assert place > self.last.get(worker, -1), f"{where}: the static order is broken"
            self.last[worker] = place
        self.running[worker] = task
        self.started.add(task)

    def _leave(self, kind: str, task: int, worker: int, where: str) -> None:
        assert self.running.pop(worker, None) == task, f"{where}: it was not running there"
        if kind == PARKED:
            assert self.tasks[task].units, f"{where}: only allocations are parked"
            if task != self.resumed:
                self.parked.append(task)
            self.has_parked = True
        elif kind == ENDED:
            self.done.add(task)
            self.has_moved |= worker == MEMORY_WORKER
            if task == self.resumed:
                self.parked.remove(task)
        if task == self.resumed:
            self.resumed = None

    def _unmet(self) -> set[int]:
        """Launches of executed Frees that nobody has begun to submit. A report may precede the event of its end."""
        return {launch for i in self.done for launch in self.tasks[i].related} - self.started

    def _homes(self, section: str) -> range:
        if section == MEMORY:
            return range(MEMORY_WORKER, MEMORY_WORKER + 1)
        if section == LAUNCH or self.workers == 2:
            return range(CALLER, CALLER + 1)
        return range(MEMORY_WORKER + 1, self.workers)
