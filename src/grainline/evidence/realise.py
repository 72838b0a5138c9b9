"""One tile program under one mapping, compiled without a cache and bound to guarded memory, ready to be run and timed.

`Realisation` is machine code with what it was made from; `Bound` adds the arrays of a launch. A launch is timed at its
native entry (the bare function, one thread), or end to end through the pool: hot (inside a run whose threads are awake)
parked (each dispatch in a run of its own that finds the pool asleep), or, as "condvar", one dispatch after the other
through a pool whose threads never spin: every one wakes them from a condition variable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from grainline.base.dims import evaluate
from grainline.base.errors import GrainlineError
from grainline.codegen import llvm
from grainline.codegen.kernel import EmittedKernel, emit
from grainline.evidence.operators import ATOL, RTOL, Operator, Shape, aligned
from grainline.plan.panels import pack_panels
from grainline.plan.types import Plan
from grainline.tile.ir import View

Array = np.ndarray
GUARD = 17
GUARD_VALUE = -719.5
CHUNKS_PER_HOME = 32
STARTS = ("parked", "hot")


class OracleError(GrainlineError):
    """A kernel's output is not its FP64 meaning, or it wrote beside its output. It is not timed."""


@dataclass(frozen=True, eq=False)
class Realisation:
    """Machine code of one plan. `object_bytes` are the bytes that are loaded at `address`, not a second compilation."""

    plan: Plan
    emitted: EmittedKernel
    object_bytes: bytes
    linked: llvm.LinkedObject

    @property
    def address(self) -> int:
        return self.linked.address(self.emitted.symbol)

    @property
    def blocks(self) -> int:
        """Blocks of the whole launch; the suites' programs have no symbols."""
        return evaluate(self.plan.blocks, {})

    @property
    def scratch_bytes(self) -> int:
        return evaluate(self.plan.scratch_bytes, {})

    @property
    def llvm_sha256(self) -> str:
        return hashlib.sha256(self.emitted.text.encode()).hexdigest()

    @property
    def object_sha256(self) -> str:
        return hashlib.sha256(self.object_bytes).hexdigest()


def realise(plan: Plan) -> Realisation:
    """Emits, compiles and links a plan; nothing comes from a cache and nothing goes there."""
    emitted = emit(plan)
    data = llvm.compile_object(emitted.text, plan.target)
    return Realisation(plan, emitted, data, llvm.link_object(data, (emitted.symbol,)))


def effective_grain(blocks: int, blocks_per_task: int, homes: int) -> int:
    """G as the pool takes it: 0 means ceil(L / (32 H)), and no task is longer than the launch."""
    grain = blocks_per_task or -(-blocks // (CHUNKS_PER_HOME * homes))
    return min(grain, blocks)


class Bound:
    """A realisation with its inputs and a guarded output: 17 guards, the payload, 17 guards.

    `arrays` are the inputs as their views lie in memory. `beside` is another launch of the same operator whose output
    memory this one shares.
    """

    def __init__(
        self, realisation: Realisation, inputs: Mapping[str, Array], output_shape: Shape, beside: Bound | None = None
    ) -> None:
        self.realisation = realisation
        self.inputs = inputs
        size = int(np.prod(output_shape))
        self._memory: Array = beside._memory if beside else aligned(size + 2 * GUARD, first_element=GUARD)
        self.output = self._memory[GUARD : GUARD + size].reshape(output_shape)
        self.reset()
        views = realisation.plan.program.views
        # The engine packs constant right operands when a model is loaded; the launch does not.
        self.arrays = [_as_stored(array, view) for array, view in zip(inputs.values(), views[:-1], strict=True)]
        self._words = [array.ctypes.data for array in (*self.arrays, self.output)]
        self._words += [evaluate(word, {}) for word in realisation.emitted.words]

    def reset(self) -> None:
        """NaN in the payload, the guard value around it: what is not written is seen."""
        self._memory[:] = GUARD_VALUE
        self.output[...] = np.nan

    def guards_intact(self) -> bool:
        guards = np.concatenate([self._memory[:GUARD], self._memory[-GUARD:]])
        return bool((guards == np.float32(GUARD_VALUE)).all())

    def time_entry(self, repeat: int = 1) -> int:
        """Nanoseconds of `repeat` calls of the native entry for all blocks, on this thread."""
        from grainline import _native  # type: ignore[attr-defined,unused-ignore]

        r = self.realisation
        return int(_native.time_entry(r.address, self._words, r.blocks, r.scratch_bytes, repeat))

    def time(self, repeat: int, grain: int, homes: int, start: str, worker_slowdown: float = 1.0) -> int:
        """Nanoseconds of `repeat` dispatches through the pool; `start` is "hot", "parked" or "condvar"."""
        from grainline import _native  # type: ignore[attr-defined,unused-ignore]

        r = self.realisation
        tasks = min(grain, r.blocks) if grain else 0
        return int(
            _native.time_dispatches(
                r.address,
                self._words,
                r.blocks,
                tasks,
                homes,
                r.scratch_bytes,
                repeat,
                start == "parked",
                worker_slowdown,
                start != "condvar",
            )
        )

    def max_error(self, reference: Array) -> float:
        """The largest absolute error; `OracleError` unless every element and every guard is as it must be."""
        name = self.realisation.plan.program.name
        if not self.guards_intact():
            raise OracleError("the kernel wrote outside its output", node=name)
        if not np.isfinite(self.output).all():
            raise OracleError("the output has elements that are not finite", node=name)
        error = np.abs(self.output - reference)
        wrong = int((error > ATOL + RTOL * np.abs(reference)).sum())
        if wrong:
            raise OracleError(
                f"{wrong} of {error.size} elements differ from the FP64 oracle",
                node=name,
                expected=f"at most {ATOL} + {RTOL} * |reference|",
                found=float(error.max()),
            )
        return float(error.max())


def _as_stored(array: Array, view: View) -> Array:
    """The array as memory holds the view: packed in panels where it asks for that."""
    if view.layout != "panels":
        return array
    packed = pack_panels(array, view.panel)
    stored = aligned(packed.size).reshape(packed.shape)
    stored[...] = packed
    return stored


def bind(realisation: Realisation, operator: Operator, dims: Shape) -> Bound:
    """A launch of the operator on its own inputs."""
    return Bound(realisation, operator.inputs(dims), operator.output_shape(dims))
