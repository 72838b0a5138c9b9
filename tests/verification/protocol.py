"""The multi-worker executor in slow motion: the protocol of `verification/executor.pml` on graphs of any size.

A `Run` takes one small step of one worker, or of the device, at a time; whoever may step next is drawn from a seeded
generator. Memory is an array of numbers that launches read and write on the device, in the order of submission, so a
block that is reused too early changes the results; recycled memory is poisoned.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator

from tests.verification.tasks import LAUNCH, MEMORY, NORMAL, Tasks

Range = tuple[list[int], int, int]  # memory, begin, units

POISON = -1
OK, OUT_OF_MEMORY, FAILED, END_OF_SEQUENCE = "ok", "out of memory", "failed", "end of sequence"


class Hang(AssertionError):
    """Nobody can take a step and the run is not over."""


class Pool:
    """Idle chunks serve requests of their own size; everything else comes from an arena, first fit."""

    def __init__(self, capacity: int) -> None:
        self.arena = [POISON] * capacity
        self.chunks: list[tuple[int, int]] = []  # (address, units), sorted
        self.idle: list[tuple[int, int]] = []

    def take(self, units: int) -> int | None:
        for chunk in reversed(self.idle):
            if chunk[1] == units:
                self.idle.remove(chunk)
                return chunk[0]
        at = 0
        for address, size in [*self.chunks, (len(self.arena), 0)]:
            if address - at >= units:
                self.chunks = sorted([*self.chunks, (at, units)])
                return at
            at = address + size
        return None

    def give_back(self, address: int, units: int) -> None:
        self.idle.append((address, units))

    def recycle(self) -> None:
        for address, units in self.idle:
            self.arena[address : address + units] = [POISON] * units
        self.chunks = [chunk for chunk in self.chunks if chunk not in self.idle]
        self.idle = []


class Run:
    """One run. `parks`: a slow allocation parks instead of blocking the memory worker.

    memory_order: the memory worker's queue; the sequential order when None. fault: (task, status) to inject.
    After `finish`, `status` and `outputs` (contents of the user outputs by task) are the result.
    """

    def __init__(
        self,
        tasks: Tasks,
        pool: Pool,
        seed: int,
        parks: bool = False,
        memory_order: tuple[int, ...] | None = None,
        fault: tuple[int, str] | None = None,
    ) -> None:
        self.tasks, self.pool, self.parks, self.fault = tasks, pool, parks, fault
        self.rng = random.Random(seed)
        self.queues = {
            worker: deque(i for i, task in enumerate(tasks) if task.worker == worker)
            for worker in (MEMORY, LAUNCH, NORMAL)
        }
        if memory_order is not None:
            self.queues[MEMORY] = deque(memory_order)
        self.workers = {
            MEMORY: self._memory(),
            LAUNCH: self._launch(),
            NORMAL: self._normal(),
            "device": self._device(),
        }
        self.weights = {name: self.rng.choice((1, 1, 8, 40)) for name in self.workers}
        self.done: set[int] = set()
        self.busy: set[str] = set()
        self.address: dict[int, int] = {}  # of an allocation; a Free leaves it readable
        self.live: set[int] = set()
        self.outputs: dict[int, list[int]] = {}
        self.submitted_gen: dict[int, int] = {}
        self.required_gen: dict[int, int] = {}
        self.free_gen: dict[int, int] = {}
        self.unmet = 0
        self.stream: deque[tuple[int, list[Range], list[Range]]] = deque()
        self.parked: deque[int] = deque()
        self.resumable = False
        self.status = OK

    # ---- the schedule ------------------------------------------------------------------------------------------

    def finish(self) -> Run:
        """Steps until the run is over. Every worker yields True after a step and False while it waits."""
        waiting: set[str] = set()
        while True:
            names = [name for name in self.workers if name not in waiting]
            if not names:
                break
            name = self.rng.choices(names, [self.weights[n] for n in names])[0]
            if next(self.workers[name]):
                waiting.clear()
            else:
                waiting.add(name)
        if self.status == OK and len(self.done) < len(self.tasks):
            left = {name: list(queue) for name, queue in self.queues.items()}
            raise Hang(f"parked {list(self.parked)}, unmet {self.unmet}, queues {left}")
        self._end()
        return self

    def _end(self) -> None:
        assert not self.stream, "the device has work left"
        if self.status == OK:
            assert self.unmet == 0, "a run that succeeded has submitted everything"
            assert not self.live, f"allocations {sorted(self.live)} leak"
        for allocation in list(self.live):  # after a failure the slots drop what they hold
            self._give_back(allocation)

    def _ready(self, index: int) -> bool:
        return self.tasks[index].before <= self.done

    def _abort(self, status: str) -> None:
        if self.status == OK:
            self.status = status
        self.resumable = True

    def _publish(self, index: int) -> None:
        assert self._ready(index) and index not in self.done, f"task {index} ran out of turn"
        self.done.add(index)

    def _fails(self, index: int) -> bool:
        if self.fault is None or self.fault[0] != index:
            return False
        self._abort(self.fault[1])
        return True

    # ---- the workers: generators that yield between two steps ---------------------------------------------------

    def _normal(self) -> Iterator[bool]:
        while True:
            while not self.queues[NORMAL] or self.status != OK or not self._ready(self.queues[NORMAL][0]):
                yield False
            index = self.queues[NORMAL].popleft()
            self.busy.add(NORMAL)
            yield True
            if not self._fails(index):
                self._publish(index)
            self.busy.discard(NORMAL)
            yield True

    def _launch(self) -> Iterator[bool]:
        while True:
            while not self.queues[LAUNCH] or self.status != OK or not self._ready(self.queues[LAUNCH][0]):
                yield False
            index = self.queues[LAUNCH].popleft()
            self.busy.add(LAUNCH)
            yield True
            if not self._fails(index):
                self._submit(index)
                yield True
                self._report_launch(index)
                yield True
                if self.status == OK:
                    self._publish(index)
            self.busy.discard(LAUNCH)
            yield True

    def _device(self) -> Iterator[bool]:
        while True:
            while not self.stream:
                yield False
            execute(*self.stream.popleft())
            yield True

    def _memory(self) -> Iterator[bool]:
        queue = self.queues[MEMORY]
        while True:
            if self.status != OK:
                yield False
            elif self.parked and self.resumable:
                yield from self._resume()
            elif queue and self._ready(queue[0]):
                index = queue.popleft()
                if self.parked and (self.tasks[index].units or self.tasks[index].related):
                    self.parked.append(index)  # it lines up, so that the pool sees the sequential order
                else:
                    yield from self._run_memory(index)
                yield True
            elif self.parked and self._is_stuck():
                self._abort(OUT_OF_MEMORY)
                yield True
            else:
                yield False

    def _is_stuck(self) -> bool:
        heads = [self.queues[worker][0] for worker in (LAUNCH, NORMAL) if self.queues[worker]]
        return not self.busy and not any(self._ready(index) for index in heads)

    def _run_memory(self, index: int) -> Iterator[bool]:
        task = self.tasks[index]
        if self._fails(index):
            return
        if task.units and not self._take(index):
            if self.parks:
                self._park(index)
                return
            yield from self._block(index)
            if self.status != OK:
                return
        elif task.frees >= 0:
            self._give_back(task.frees)
            yield True
            self._report_free(index)
        elif task.is_user_memory:
            self.outputs[index] = [0, 0]
        yield True
        if self.status == OK:
            self._publish(index)

    def _take(self, index: int) -> bool:
        address = self.pool.take(self.tasks[index].units)
        if address is None:
            return False
        self.address[index] = address
        self.live.add(index)
        return True

    def _give_back(self, allocation: int) -> None:
        self.live.remove(allocation)
        self.pool.give_back(self.address[allocation], self.tasks[allocation].units)

    def _block(self, index: int) -> Iterator[bool]:
        while self.unmet and self.status == OK:
            yield False
        if self.status != OK:
            self._abort(FAILED)  # loses against the first status
            return
        while self.stream:
            yield False
        self.pool.recycle()
        yield True
        if not self._take(index):
            self._abort(OUT_OF_MEMORY)

    def _park(self, index: int) -> None:
        self.parked.appendleft(index)
        self.resumable = self.unmet == 0

    def _resume(self) -> Iterator[bool]:
        """wait -> synchronise -> recycle -> retry, then those that lined up, as far as they get."""
        self.resumable = False
        if self.unmet:
            return
        while self.stream:
            yield False
        self.pool.recycle()
        yield True
        if not self._take(self.parked[0]):
            self._abort(OUT_OF_MEMORY)
        elif self.status == OK:
            self._publish(self.parked.popleft())
        yield True
        behind, self.parked = self.parked, deque()
        while behind and not self.parked and self.status == OK:
            yield from self._run_memory(behind.popleft())
            yield True
        self.parked += behind

    # ---- relations ---------------------------------------------------------------------------------------------

    def _report_free(self, index: int) -> None:
        row, related = self.tasks[index].row, self.tasks[index].related
        if self.status != OK or not related:
            return
        generation = self.free_gen[row] = self.free_gen.get(row, 0) + 1
        for launch in {self.tasks[i].row for i in related}:
            submitted, required = self.submitted_gen.get(launch, 0), self.required_gen.get(launch, 0)
            if required < generation:
                self.unmet += submitted >= required and submitted < generation
                self.required_gen[launch] = generation

    def _report_launch(self, index: int) -> None:
        if self.status != OK:
            return
        row = self.tasks[index].row
        submitted = self.submitted_gen[row] = self.submitted_gen.get(row, 0) + 1
        if submitted == self.required_gen.get(row, 0):
            self.unmet -= 1
            self.resumable |= self.unmet == 0

    # ---- submission --------------------------------------------------------------------------------------------

    def _submit(self, index: int) -> None:
        task = self.tasks[index]
        self.stream.append((index, [self._range(i) for i in task.reads], [self._range(i) for i in task.writes]))

    def _range(self, operand: int) -> Range:
        if self.tasks[operand].is_user_memory:
            return self.outputs[operand], 0, len(self.outputs[operand])
        return self.pool.arena, self.address[operand], self.tasks[operand].units


def execute(launch: int, reads: list[Range], writes: list[Range]) -> None:
    """What a launch does on the device: every number that it writes depends on every number that it reads."""
    values = [value for memory, begin, units in reads for value in memory[begin : begin + units]]
    assert POISON not in values, f"launch {launch} reads memory that was given back"
    for operand, (memory, begin, units) in enumerate(writes):
        for offset in range(units):
            memory[begin + offset] = hash((launch, operand, offset, *values)) & 0xFFFFFFFF


class Sequential(Run):
    """The oracle: one task after another in the order of their ids, and the device keeps up."""

    def finish(self) -> Sequential:
        for index, task in enumerate(self.tasks):
            if self._fails(index):
                break
            if task.worker == LAUNCH:
                self._submit(index)
                execute(*self.stream.popleft())
            elif task.units and not self._take(index):
                self.pool.recycle()
                if not self._take(index):
                    self.status = OUT_OF_MEMORY
                    break
            elif task.frees >= 0:
                self._give_back(task.frees)
            elif task.is_user_memory:
                self.outputs[index] = [0, 0]
        self._end()
        return self
