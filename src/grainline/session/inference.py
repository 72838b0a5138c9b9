"""`InferenceSession`: the calls of onnxruntime's class of the same name, on a grainline model.

Names, argument orders and output types are onnxruntime's, so that a program changes one import. There is one provider,
the CPU; others are named in a warning and passed over.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from grainline.base.errors import Cancelled, GrainlineError, KernelError, OptionError
from grainline.base.knobs import Options
from grainline.session.binding import IOBinding
from grainline.session.feeds import REFUSALS
from grainline.session.model import Model, Source
from grainline.session.options import (
    ExecutionMode,
    ModelMetadata,
    NodeArg,
    RunOptions,
    SessionOptions,
    get_available_providers,
)
from grainline.session.values import OrtValue

_OPTION_ENTRIES = ("grainline.executor", "grainline.workers", "grainline.cache", "grainline.device")


class InferenceSession:
    """A compiled model behind onnxruntime's calls. Safe to use from several threads at once; can be pickled."""

    def __init__(
        self,
        path_or_bytes: Source,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        _check_providers(providers, provider_options)
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            raise TypeError(f"sess_options is a grainline.SessionOptions, found {_kind(sess_options)}")
        self._sess_options = SessionOptions() if sess_options is None else sess_options
        self._model = Model(path_or_bytes, _options_of(self._sess_options))
        self._execute = self._model._execute
        fixed = self._sess_options.free_dimensions
        self._inputs = [_with_extents(v, fixed) for v in self._model.inputs]
        self._outputs = [_with_extents(v, fixed) for v in self._model.outputs]
        self._trace: Any = None
        if self._sess_options.enable_profiling:
            self._start_profiling()

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: dict[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[np.ndarray]:
        """Computes the outputs named in `output_names` (None or empty: all), in that order."""
        if run_options is not None:
            return self._run_with_options(output_names, input_feed, run_options)
        if output_names is not None:
            return self._model.run_chosen(input_feed, output_names)
        try:
            return self._execute(input_feed, None)
        except (*REFUSALS, KernelError):  # again, with everything that helps a refused or failed run
            return self._model.run(input_feed)

    def _run_with_options(self, output_names: Any, input_feed: Any, run_options: RunOptions) -> list[np.ndarray]:
        if not isinstance(run_options, RunOptions):
            raise TypeError(f"run_options is a grainline.RunOptions, found {_kind(run_options)}")
        if run_options.terminate:
            raise Cancelled("the run was not started: the terminate flag of its options is set")
        return self._model.run_chosen(input_feed, output_names, cancel=run_options.cancel_word)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: dict[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        feeds = {name: value.numpy() for name, value in input_dict_ort_values.items()}
        return [OrtValue(array) for array in self.run(output_names, feeds, run_options)]

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        if iobinding._session is not self:
            raise ValueError("IOBinding must be used with the session that created it.")
        iobinding.run(run_options)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: dict[str, Any],
        callback: Callable[[Any, Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Runs in a thread of its own, then calls `callback(arrays, user_data, error)`; error is "" on success."""
        import threading

        def work() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except (GrainlineError, TypeError, ValueError) as problem:
                results, error = [], str(problem)
            callback(results, user_data, error)

        threading.Thread(target=work, name="grainline-async", daemon=True).start()

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def get_inputs(self) -> list[NodeArg]:
        return self._inputs

    def get_outputs(self) -> list[NodeArg]:
        return self._outputs

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Initializers that the model also lists as inputs: a feed may replace them."""
        from grainline.session.metadata import overridable_initializers

        return overridable_initializers(self._model._source)

    def get_modelmeta(self) -> ModelMetadata:
        from grainline.session.metadata import model_metadata

        return model_metadata(self._model._source)

    def get_session_options(self) -> SessionOptions:
        return self._sess_options

    def get_providers(self) -> list[str]:
        return get_available_providers()

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {name: {} for name in get_available_providers()}

    def set_providers(self, providers: Sequence[Any] | None = None, provider_options: Any = None) -> None:
        """Checks the names; the CPU stays the provider."""
        _check_providers(providers, provider_options)

    def enable_fallback(self) -> None:
        """Kept without effect."""

    def disable_fallback(self) -> None:
        """Kept without effect."""

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str, device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id, vendor_id)

    def explain(self) -> str:
        """Every choice that was made for this model, with its reason."""
        return self._model.explain()

    def trim(self) -> None:
        """Gives the memory that is kept between runs back to the system."""
        self._model.trim()

    def _start_profiling(self) -> None:
        from grainline.session.trace import Trace

        self._trace = Trace()
        compiled = self._model._compiled

        def traced(feeds: Any, names: Any = None, cancel: Any = None) -> list[np.ndarray]:
            return self._trace.measure(compiled, feeds, names, cancel)

        self._execute = self._model._execute = traced

    def end_profiling(self) -> str:
        """Writes the trace as JSON for a trace viewer and returns its path; "" when profiling was not enabled."""
        if self._trace is None:
            return ""
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        path = f"{self._sess_options.profile_file_prefix}{stamp}_{os.getpid()}.json"
        trace, self._trace = self._trace, None
        self._execute = self._model._execute = self._model._compiled.run
        trace.save(path)
        return path

    def get_profiling_start_time_ns(self) -> int:
        return 0 if self._trace is None else int(self._trace.start_ns)

    def __reduce__(self) -> tuple[Any, ...]:
        return InferenceSession, (self._model._source, self._sess_options)

    def __repr__(self) -> str:
        return f"<grainline.InferenceSession of {self._model!r}>"


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _options_of(settings: SessionOptions) -> Options:
    entries = {key: settings._entries.get(key) for key in _OPTION_ENTRIES}
    cache = entries["grainline.cache"]
    executor, workers = _executor_of(settings)
    return Options(
        threads=max(0, settings.intra_op_num_threads),
        cache=None if cache is None else cache != "0",
        executor=executor,
        workers=workers,
        device=entries["grainline.device"],
    )


def _executor_of(settings: SessionOptions) -> tuple[str | None, int | None]:
    """An entry says it plainly; otherwise ORT_PARALLEL asks for inter_op_num_threads workers (0: as many as usual)."""
    executor = settings._entries.get("grainline.executor")
    text = settings._entries.get("grainline.workers")
    if text is not None and not text.isdigit():
        raise OptionError("the entry grainline.workers cannot be used", expected="a number", found=repr(text))
    if text is None and executor is None and settings.execution_mode == ExecutionMode.ORT_PARALLEL:
        return "multi-worker", _parallel_workers(settings.inter_op_num_threads)
    return executor, None if text is None else int(text)


def _parallel_workers(threads: int) -> int | None:
    if threads == 1:
        raise OptionError(
            "ORT_PARALLEL cannot run with one worker", expected="inter_op_num_threads of 0 or at least 2", found=threads
        )
    return max(0, threads) or None


def _with_extents(info: NodeArg, fixed: dict[str, int]) -> NodeArg:
    shape = [fixed.get(dim, dim) if isinstance(dim, str) else dim for dim in info.shape]
    return NodeArg(info.name, info.type, shape)


def _check_providers(providers: Any, provider_options: Any) -> None:
    if providers is None:
        return
    if isinstance(providers, str) or not isinstance(providers, Sequence):
        raise ValueError("'providers' should be a sequence.")
    if provider_options is not None and len(provider_options) != len(providers):
        raise ValueError("'providers' and 'provider_options' should be the same length if both are given.")
    available = get_available_providers()
    for provider in providers:
        name = provider if isinstance(provider, str) else _name_of_pair(provider)
        if name not in available:
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names. "
                f"Available providers: '{', '.join(available)}'",
                stacklevel=3,
            )


def _name_of_pair(provider: Any) -> str:
    is_pair = isinstance(provider, tuple) and len(provider) == 2
    if not is_pair or not isinstance(provider[0], str) or not isinstance(provider[1], dict):
        raise ValueError("'providers' values must be either strings or (string, dict) tuples.")
    return provider[0]
