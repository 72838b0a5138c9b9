"""`load` compiles a model; `Model` runs it.

The arguments of a run go to the compiled model untouched. Only when it refuses them is it looked whether something
that is not an array (a list, an `OrtValue`, a DLPack object) can become one, and the run is tried again: the common
case pays nothing for the rare one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from grainline.base.errors import KernelError, ModelError
from grainline.base.knobs import Options
from grainline.session.feeds import REFUSALS, checked_outputs, normalised
from grainline.session.options import NodeArg, onnx_type

if TYPE_CHECKING:
    from grainline.plan.policy import ExecutionCostPolicy
    from grainline.runtime.device import Device
    from grainline.runtime.watch import Subscriber
    from grainline.session.trace import Trace

Source = str | bytes | os.PathLike[str]


class Model:
    """A compiled model. Safe to use from several threads at once; every run has its own state.

    `inputs` and `outputs` are lists of `NodeArg`. A model can be pickled: the copy compiles the same source again,
    which the cache on disk makes quick.
    """

    def __init__(self, source: Source, options: Options) -> None:
        self._source = _checked_source(source)
        from grainline import saved  # not before the first model: importing grainline stays light

        self._options = options
        self._compiled = saved.open_or_compile(self._source, options.resolved())
        self._execute = self._compiled.run
        self._whole: Any = None
        self.inputs = [describe(v) for v in self._compiled.inputs]
        self.outputs = [describe(v) for v in self._compiled.outputs]
        self._output_names = frozenset(info.name for info in self.outputs)

    def run(self, feeds: Mapping[str, Any], outputs: Iterable[str] | None = None) -> list[np.ndarray]:
        """Runs the model once. `feeds` maps every input name to an array.

        Returns the arrays of `outputs` in that order, or of all outputs in the model's order. The arrays are the
        caller's. Raises FeedError when the feeds do not fit, KernelError when a node fails.
        """
        if outputs is not None:
            return self.run_chosen(feeds, outputs)
        try:
            return self._execute(feeds, None)
        except REFUSALS:
            return self._run_again(feeds, None)
        except KernelError as error:
            raise self._compiled.blamed(error, feeds) from error.__cause__

    def run_chosen(self, feeds: Any, outputs: Any, **cancel: Any) -> list[np.ndarray]:
        """A run with checked output names; `cancel` is the word that ends the run when it is set."""
        is_plain = type(outputs) is list and outputs and self._output_names.issuperset(outputs)
        names = outputs if is_plain else checked_outputs(outputs, self.outputs)
        try:
            return self._execute(feeds, names, **cancel)
        except REFUSALS:
            return self._run_again(feeds, names, **cancel)
        except KernelError as error:
            raise self._compiled.blamed(error, feeds) from error.__cause__

    def _run_again(self, feeds: Any, names: Any, **cancel: Any) -> list[np.ndarray]:
        """The second try of a refused run, with everything array-like made an array; raises the refusal otherwise.

        The refusal is the error in flight. As an argument it would be a cycle of error and frame that keeps the model.
        """
        better = normalised(feeds, self.inputs)
        if better is feeds:
            raise
        return self._execute(better, names, **cancel)

    def __call__(self, **feeds: Any) -> Any:
        """Runs with the inputs as keyword arguments.

        Returns the array itself when the model has one output, else a dict from output name to array.
        """
        arrays = self.run(feeds)
        if len(arrays) == 1:
            return arrays[0]
        return {info.name: array for info, array in zip(self.outputs, arrays)}

    def explain(self) -> str:
        """Every choice that was made for this model, with its reason."""
        return self._compiled.explain()

    @property
    def compiled(self) -> Any:
        """The compiled model with its execution graph, for tools. A saved model has none; it is compiled once more."""
        if self._whole is None:
            from grainline import saved

            has_graph = bool(self._compiled.executor.graph.main)
            options = replace(self._options.resolved(), cache=False)
            self._whole = self._compiled if has_graph else saved.open_or_compile(self._source, options)
        return self._whole

    def trim(self) -> None:
        """Gives the memory that is kept between runs back to the system."""
        self._compiled.trim()

    def profile(self, feeds: Mapping[str, Any], runs: int = 1) -> Trace:
        """Runs `runs` times and returns what was measured, event by event."""
        from grainline.session.trace import Trace

        trace = Trace()
        for _ in range(runs):
            self._run_observed(lambda arrays: trace.measure(self._compiled, arrays, None), feeds)
        return trace

    def run_watched(self, feeds: Mapping[str, Any], *subscribers: Subscriber) -> list[np.ndarray]:
        """As `run`, with subscribers (`KernelTrace`, `DataDump`, `ExceptionDump`, or your own) told of every node."""
        executor = self.compiled.executor
        return self._run_observed(lambda arrays: executor.run_watched(arrays, subscribers), feeds)

    def _run_observed(self, execute: Callable[[Any], list[np.ndarray]], feeds: Any) -> list[np.ndarray]:
        """`execute(feeds)`, which takes and refuses what `run` does. The feeds are looked at first: an observer would
        see a second try."""
        arrays = normalised(feeds, self.inputs)
        try:
            return execute(arrays)
        except KernelError as error:
            raise self._compiled.blamed(error, arrays) from error.__cause__

    def __reduce__(self) -> tuple[Any, ...]:
        return Model, (self._source, self._options)

    def __repr__(self) -> str:
        inputs = ", ".join(f"{v.name}: {v.type}{v.shape}" for v in self.inputs)
        return f"<grainline.Model ({inputs}) -> {[v.name for v in self.outputs]}>"


def load(
    path_or_bytes: Source,
    *,
    threads: int | None = None,
    cache: bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    executor: str | None = None,
    memory_limit_bytes: int | None = None,
    workers: int | None = None,
    device: str | Device | None = None,
    cost_policy: ExecutionCostPolicy | None = None,
) -> Model:
    """Compiles an ONNX model, from a path or its bytes, for this machine and all its shapes.

    threads: bound on the threads of a run, the caller included; 0 or None leaves it to the environment.
    executor, workers: "multi-worker" runs the execution graph with so many workers (at least 2, the caller included).
    device: "cpu", "discrete" (a stand-in accelerator with memory of its own), or a `Device`.
    cost_policy: what chooses mappings, tasks and threads instead of the calibrated costs, while the model compiles.
    cache: whether machine code is kept on disk for the next process; on unless GRAINLINE_CACHE=0.
    Raises ModelError for a model that is not valid and UnsupportedError for one that cannot be executed.
    """
    options = Options(threads, cache, cache_dir, executor, memory_limit_bytes, workers, device, cost_policy)
    return Model(path_or_bytes, options)


def compile(path_or_bytes: Source, **options: Any) -> Model:
    """The same as `load`; the name for programs that only want the cache on disk to be filled."""
    return load(path_or_bytes, **options)


def describe(value: Any) -> NodeArg:
    """The `NodeArg` of a compiled model's input or output; a shape of unknown rank is shown as empty."""
    return NodeArg(value.name, value.spelling or onnx_type(value.dtype), list(value.shape or ()))


def _checked_source(source: Any) -> str | bytes:
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if not isinstance(source, str | os.PathLike):
        remedy = ". Give its SerializeToString()." if hasattr(source, "SerializeToString") else ""
        raise TypeError(f"Unable to load from type '{type(source)}'{remedy}")
    path = os.fspath(source)
    if not os.path.isfile(path):
        raise ModelError("there is no model file at this path", found=repr(path))
    return os.path.abspath(path)  # whoever asks for the file later may be in another folder
