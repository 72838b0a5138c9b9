"""`IOBinding`: inputs and outputs that are fixed before a run, with onnxruntime's calls.

A bound buffer receives a copy of the result, which a run computes in memory of its own: so a buffer may overlap inputs
and other buffers. Buffers are filled in the order of binding. A result of another shape or type than the bound buffer
is an error that leaves every buffer as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from grainline.base.errors import FeedError, StateError
from grainline.session.values import OrtValue, array_at, require_cpu

if TYPE_CHECKING:
    from grainline.session.inference import InferenceSession


class IOBinding:
    """The bindings of one session; made by `InferenceSession.io_binding`."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, np.ndarray] = {}
        self._targets: dict[str, np.ndarray | None] = {}
        self._results: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        self._check(name, [v.name for v in self._session.get_inputs()])
        self._inputs[name] = np.asarray(arr_on_cpu)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        require_cpu(device_type)
        self.bind_cpu_input(name, array_at(buffer_ptr, shape, element_type))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        self.bind_cpu_input(name, ortvalue.numpy())

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Binds an output to a buffer, or, without `buffer_ptr`, to memory that the run allocates."""
        require_cpu(device_type)
        self._check(name, [v.name for v in self._session.get_outputs()])
        if buffer_ptr is None:
            self._targets[name] = None
            return
        if element_type is None or shape is None:
            raise ValueError("`element_type` and `shape` are to be provided if pre-allocated memory is provided")
        self._targets[name] = array_at(buffer_ptr, shape, element_type)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        self._check(name, [v.name for v in self._session.get_outputs()])
        self._targets[name] = ortvalue.numpy()

    def get_outputs(self) -> list[OrtValue]:
        """The outputs of the last run, in the order in which they were bound."""
        return list(self._results)

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        return [value.numpy().copy() for value in self._results]

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._targets.clear()
        self._results = []

    def synchronize_inputs(self) -> None:
        """Nothing to wait for on a CPU."""

    def synchronize_outputs(self) -> None:
        """Nothing to wait for on a CPU."""

    def run(self, run_options: Any = None) -> None:
        """Runs the session with what is bound; called by `InferenceSession.run_with_iobinding`."""
        if not self._targets:
            raise StateError("no output is bound", remedy="Call bind_output for each output that is wanted.")
        names = list(self._targets)
        arrays = self._session.run(names, self._inputs, run_options)
        for name, array in zip(names, arrays):
            self._check_fits(name, array)
        self._results = [OrtValue(self._delivered(name, array)) for name, array in zip(names, arrays)]

    def _check_fits(self, name: str, array: np.ndarray) -> None:
        target = self._targets[name]
        if target is None or (target.shape == array.shape and target.dtype == array.dtype):
            return
        raise FeedError(
            "the buffer bound to an output does not fit the result",
            value=name,
            expected=f"{array.dtype}{list(array.shape)}",
            found=f"{target.dtype}{list(target.shape)}",
        )

    def _delivered(self, name: str, array: np.ndarray) -> np.ndarray:
        target = self._targets[name]
        if target is None:
            return array
        np.copyto(target, array)
        return target

    @staticmethod
    def _check(name: str, known: list[str]) -> None:
        if name not in known:
            raise FeedError("the model has no value of this name to bind", value=name, expected=f"one of {known}")
