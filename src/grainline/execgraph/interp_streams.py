"""Runs an ExecuteGraph on several streams that complete when they please.

Submitted work lies in the queue of its stream; between any two nodes some of it runs, chosen at random, in the order of
each stream and behind the events it waits for. Memory has a pool per stream. A block that another stream used as well
returns to the pool of its birth only when the birth stream has waited for that use: the event that says so carries it.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grainline.execgraph.interp import INTERPRETED, Interpreter, TileCallable
from grainline.execgraph.ir import ExecuteGraph, ExecuteNode
from grainline.execgraph.memory_model import DEVICE, Block, Pool

Work = Callable[[], None]


@dataclass(slots=True, eq=False)
class Shared:
    """A block of one stream that others use: who has not been waited for yet, and whether the last owner is gone."""

    block: Block
    birth: int
    users: set[int] = field(default_factory=set)
    is_free: bool = False


class StreamInterpreter(Interpreter):
    """`tracks_users=False` leaves the bookkeeping of shared blocks out, to show what it is for."""

    def __init__(
        self,
        graph: ExecuteGraph,
        feeds: Mapping[str, Any],
        kernels: Mapping[str, TileCallable],
        seed: int,
        *,
        device: str = "cpu",
        tracks_users: bool = True,
    ) -> None:
        self.rng = random.Random(seed)
        self.pace = self.rng.choice((0.05, 0.3, 0.6))  # how far the device keeps up with the host
        self.tracks_users = tracks_users
        self.stream = 0
        self.queues: dict[int, deque[tuple[tuple[int, ...], Work]]] = defaultdict(deque)
        self.happened: set[int] = set()
        self.pools: dict[int, Pool] = defaultdict(Pool)
        self.shared: dict[int, Shared] = {}
        self.freed_on: dict[int, list[Shared]] = defaultdict(list)
        self.carried: dict[int, list[tuple[Shared, int]]] = {}
        super().__init__(graph, feeds, kernels, device=device)

    def walk(self, order: Sequence[ExecuteNode]) -> None:
        for node in order:
            self.stream = node.attributes.get("stream", 0)
            _KERNELS.get(node.kernel, INTERPRETED[node.kernel])(self, node)
            while self.rng.random() < self.pace and self._step():
                pass

    # ---- device work -------------------------------------------------------------------------------------------

    def submit(self, node: ExecuteNode, work: Work) -> None:
        self.queues[self.stream].append(((), work))

    def _step(self) -> bool:
        """Runs one piece of work that may run."""
        able = [queue for queue in self.queues.values() if queue and self.happened.issuperset(queue[0][0])]
        if not able:
            return False
        self.rng.choice(able).popleft()[1]()
        return True

    def synchronise(self) -> None:
        while self._step():
            pass
        assert not any(self.queues.values()), "a stream waits for an event that nobody sends"

    def send_events(self, node: ExecuteNode) -> None:
        for event in node.attributes["events"]:
            self.queues[self.stream].append(((), lambda event=event: self.happened.add(event)))  # type: ignore[misc]
            self.carried[event] = [(shared, self.stream) for shared in self.freed_on[self.stream]]

    def wait_events(self, node: ExecuteNode) -> None:
        self.queues[self.stream].append((node.attributes["events"], lambda: None))
        for event in node.attributes["events"]:
            for shared, user in self.carried[event]:
                if shared.birth == self.stream:
                    shared.users.discard(user)
                    self._settle(shared)

    # ---- memory ------------------------------------------------------------------------------------------------

    def take(self, size_bytes: int, place: str = DEVICE) -> Block:
        block = self.pools[self.stream].allocate(size_bytes)
        self.shared[id(block)] = Shared(block, self.stream)
        return block

    def access_mem_cross_stream(self, node: ExecuteNode) -> None:
        self.share(node.inputs[0], node.outputs[0])
        block = self.owned.get(node.outputs[0])
        if block is not None and self.tracks_users:
            self.shared[id(block)].users.add(self.stream)

    def release(self, slot: int) -> None:
        block = self.owned.pop(slot, None)
        if block is None:
            return
        shared = self.shared[id(block)]
        if self.stream != shared.birth:
            self.freed_on[self.stream].append(shared)
        shared.is_free = block.users == 1
        if not shared.is_free:
            block.users -= 1
        self._settle(shared)

    def _settle(self, shared: Shared) -> None:
        if shared.is_free and not shared.users:
            shared.is_free = False
            self.pools[shared.birth].free(shared.block)


_KERNELS: dict[str, Callable[[Any, ExecuteNode], None]] = {
    "SendEvents": StreamInterpreter.send_events,
    "WaitEvents": StreamInterpreter.wait_events,
    "AccessMemCrossStream": StreamInterpreter.access_mem_cross_stream,
}
