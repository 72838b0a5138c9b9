"""Settings and descriptions with onnxruntime's names: what goes into a session and what it tells about itself.

Settings without a meaning here (arena switches, log levels, optimisation levels) are accepted, type-checked and kept,
so that code written for onnxruntime runs unchanged. Unknown attributes are errors, as they are there.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grainline.base.dtypes import BY_ONNX, DType
from grainline.base.errors import UnsupportedError
from grainline.base.log import logger


class GraphOptimizationLevel(enum.IntEnum):
    """Kept for compatibility: grainline always compiles fully."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """ORT_PARALLEL runs the execution graph with several workers, as many as `inter_op_num_threads` says."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    """Kept for compatibility: the order of nodes is grainline's own."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class _Settings:
    """Attributes with fixed names and types, and a table of free entries. Copies by pickle."""

    _defaults: dict[str, Any] = {}  # noqa: RUF012 - a declared table, never written

    def __init__(self) -> None:
        object.__setattr__(self, "_values", dict(self._defaults))
        object.__setattr__(self, "_entries", {})

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name not in values:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._defaults:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self._values[name] = _checked(name, value, type(self._defaults[name]))

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._defaults})

    def __getstate__(self) -> dict[str, Any]:
        return {"values": self._values, "entries": self._entries}

    def __setstate__(self, state: dict[str, Any]) -> None:
        _Settings.__init__(self)
        self._values.update(state["values"])
        self._entries.update(state["entries"])

    def _add(self, key: str, value: str) -> None:
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(
                f"a configuration entry is two strings, found {type(key).__name__} and {type(value).__name__}"
            )
        self._entries[key] = value

    def _get(self, key: str) -> str:
        if key not in self._entries:
            raise RuntimeError(f"{type(self).__name__} does not have configuration with key: {key}")
        return str(self._entries[key])


def _checked(name: str, value: Any, wanted: type) -> Any:
    if wanted is bool and isinstance(value, bool | int | np.bool_):
        return bool(value)
    if wanted is int and hasattr(value, "__index__") and not isinstance(value, str):
        return int(value.__index__())
    if wanted not in (bool, int) and isinstance(value, wanted):
        return value
    raise TypeError(f"{name} takes {wanted.__name__}, found {type(value).__name__}")


class SessionOptions(_Settings):
    """How a session is made. `intra_op_num_threads` bounds the threads of a run; 0 leaves it to the environment."""

    _defaults = {  # noqa: RUF012
        "intra_op_num_threads": 0,
        "inter_op_num_threads": 0,
        "enable_profiling": False,
        "profile_file_prefix": "grainline_profile_",
        "graph_optimization_level": GraphOptimizationLevel.ORT_ENABLE_ALL,
        "execution_mode": ExecutionMode.ORT_SEQUENTIAL,
        "execution_order": ExecutionOrder.DEFAULT,
        "enable_cpu_mem_arena": True,
        "enable_mem_pattern": True,
        "enable_mem_reuse": True,
        "log_severity_level": -1,
        "log_verbosity_level": 0,
        "logid": "",
        "optimized_model_filepath": "",
        "use_deterministic_compute": False,
        "use_per_session_threads": True,
    }

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "free_dimensions", {})

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"free_dimensions": self.free_dimensions}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        object.__setattr__(self, "free_dimensions", dict(state["free_dimensions"]))

    def add_session_config_entry(self, key: str, value: str) -> None:
        self._add(key, value)

    def get_session_config_entry(self, key: str) -> str:
        return self._get(key)

    def add_free_dimension_override_by_name(self, name: str, extent: int) -> None:
        """Declares the extent of a named dimension; inputs and outputs then show it as a number."""
        self.free_dimensions[str(name)] = int(extent)

    def add_free_dimension_override_by_denotation(self, denotation: str, extent: int) -> None:
        """Kept without effect: grainline compiles one object for all shapes."""

    def add_provider(self, name: str, options: dict[str, str]) -> None:
        """Kept without effect: the CPU is the only provider."""

    def has_providers(self) -> bool:
        return False

    def add_initializer(self, name: str, value: Any) -> None:
        raise UnsupportedError(
            "replacing an initializer through session options", value=name, remedy="Store it in the model."
        )

    def register_custom_ops_library(self, path: str) -> None:
        raise UnsupportedError("libraries of custom operators for onnxruntime cannot be loaded", found=path)


class RunOptions(_Settings):
    """What belongs to one run. Setting `terminate` from any thread ends the runs that use these options."""

    _defaults = {  # noqa: RUF012
        "log_severity_level": -1,
        "log_verbosity_level": 0,
        "logid": "",
        "only_execute_path_to_fetches": False,
    }

    def __init__(self) -> None:
        super().__init__()
        # A word of memory, because the native executor polls it without entering Python.
        object.__setattr__(self, "cancel_word", np.zeros(1, np.int32))

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "terminate":
            self.cancel_word[0] = _checked(name, value, bool)
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        return bool(self.cancel_word[0]) if name == "terminate" else super().__getattr__(name)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        object.__setattr__(self, "cancel_word", np.zeros(1, np.int32))

    def add_run_config_entry(self, key: str, value: str) -> None:
        self._add(key, value)

    def get_run_config_entry(self, key: str) -> str:
        return self._get(key)


@dataclass(frozen=True)
class NodeArg:
    """One input or output: its name, its type as ONNX writes it, and its shape.

    A dimension is an int, the name of a symbol, or None where the model leaves it open.
    """

    name: str
    type: str
    shape: list[int | str | None]

    def __str__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape!r})"

    __repr__ = __str__


@dataclass(frozen=True)
class ModelMetadata:
    """What the model file says about itself."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


def onnx_type(dtype: DType | np.dtype[Any] | int) -> str:
    """`f32 -> 'tensor(float)'`, for our element types, NumPy's, and ONNX element numbers."""
    if isinstance(dtype, int):
        dtype = BY_ONNX[dtype]
    if not isinstance(dtype, DType):
        from grainline.base import dtypes

        dtype = dtypes.from_numpy(np.dtype(dtype))
    return f"tensor({dtype.onnx_name})"


def get_available_providers() -> list[str]:
    return ["CPUExecutionProvider"]


def get_all_providers() -> list[str]:
    return get_available_providers()


def get_device() -> str:
    return "CPU"


def set_default_logger_verbosity(verbosity: int) -> None:
    """Kept without effect: GRAINLINE_DEBUG says how much detail is logged."""


def disable_telemetry_events() -> None:
    """Kept without effect: nothing is ever sent."""


def enable_telemetry_events() -> None:
    """Kept without effect: nothing is ever sent."""


def set_default_logger_severity(severity: int) -> None:
    """0 verbose, 1 info, 2 warning, 3 error, 4 fatal: the level of the 'grainline' logger."""
    logger().setLevel(10 * (max(0, min(int(severity), 4)) + 1))
