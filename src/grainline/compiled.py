"""`CompiledModel`: what `pipeline.compile_model` makes and `saved.load` finds again."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from grainline.base.errors import KernelError
from grainline.graph.ir import Declared, ModelInfo
from grainline.graph.lookups import Lookup, blamed
from grainline.runtime.executor import ModelExecutor
from grainline.runtime.feeds import check_sequence


class CompiledModel:
    """A model that is ready to run. `run(feeds, names=None, cancel=None)` is the native call, without a frame of ours
    where all inputs are tensors.

    `explanation` is the text of `explain`: every kernel with its reason, and what runs on the host. `source` is the
    model's data: once the weights are packed, its pages are given back (those that are read in place come again).
    """

    def __init__(
        self,
        info: ModelInfo,
        executor: ModelExecutor,
        explanation: str,
        lookups: tuple[Lookup, ...] = (),
        source: memoryview | None = None,
    ) -> None:
        self.info = info
        self.lookups = lookups
        self.executor = executor.load()
        if source is not None and isinstance(source.obj, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            source.obj.madvise(mmap.MADV_DONTNEED)
        self.explanation = explanation
        sequences = {v.name: v.dtype.numpy for v in info.inputs if v.spelling.startswith("seq(tensor(")}
        run = self.executor.run
        self.run = partial(_run_with_sequences, run, sequences) if sequences else run

    @property
    def inputs(self) -> Sequence[Declared]:
        return self.info.inputs

    @property
    def outputs(self) -> Sequence[Declared]:
        return self.info.outputs

    def timed_run(self, feeds: Any, names: Any, cancel: Any = None) -> tuple[list[Any], list[dict[str, Any]]]:
        """A run, and one record per node: name, kernel, start_ns, elapsed_ns."""
        return self.executor.run_profiled(feeds, names, cancel)

    def blamed(self, error: KernelError, feeds: Any) -> KernelError:
        """A failed run's error, with the input element that caused it where that can be told."""
        return blamed(error, self.lookups, feeds) if isinstance(feeds, Mapping) else error

    def trim(self) -> int:
        """Gives the memory kept between runs back to the system; returns the bytes."""
        return self.executor.trim()

    def explain(self) -> str:
        return self.explanation


def _run_with_sequences(
    run: Callable[..., list[Any]], sequences: Mapping[str, Any], feeds: Any, names: Any = None, cancel: Any = None
) -> list[Any]:
    """The native call takes any object for a sequence, so it is looked at before."""
    for name, dtype in sequences.items():
        if isinstance(feeds, Mapping) and name in feeds:
            check_sequence(name, dtype, feeds[name])
    return run(feeds, names, cancel)
