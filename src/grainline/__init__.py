"""Grainline compiles an ONNX model for the machine it runs on and executes it.

Only the names listed here are stable. Importing this package loads NumPy and nothing heavier: the importer, LLVM and
the thread pool come with the first `load`.
"""

from typing import TYPE_CHECKING, Any

from grainline.base.errors import (
    BuildError,
    Cancelled,
    EndOfSequence,
    FeedError,
    GrainlineError,
    KernelError,
    ModelError,
    OptionError,
    OutOfMemory,
    StateError,
    SynchronizationError,
    TimedOut,
    UnsupportedError,
)
from grainline.runtime.device import Allocator, Device, Event, Stream
from grainline.runtime.dump import DataDump, ExceptionDump
from grainline.runtime.watch import KernelTrace, NodeEvent, Subscriber
from grainline.session.binding import IOBinding
from grainline.session.inference import InferenceSession
from grainline.session.model import Model, compile, load
from grainline.session.options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    ModelMetadata,
    NodeArg,
    RunOptions,
    SessionOptions,
    disable_telemetry_events,
    enable_telemetry_events,
    get_all_providers,
    get_available_providers,
    get_device,
    set_default_logger_severity,
    set_default_logger_verbosity,
)
from grainline.session.values import OrtValue

__version__ = "0.1.0"

#: As kBindingVersion of native/bind/module.cpp: they grow together with every change of what the native module offers.
_BINDING_VERSION = 5

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """`_native` at its first import from this package; BuildError when an older or newer source built it."""
        if name != "_native":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        native = import_module("grainline._native")
        found = getattr(native, "BINDING_VERSION", None)
        if found != _BINDING_VERSION:
            globals().pop(name, None)  # the next import comes here again
            raise BuildError(
                "the native module does not fit the Python sources",
                expected=f"binding version {_BINDING_VERSION}",
                found=found,
                remedy="Run `make` to build it anew.",
            )
        return native


__all__ = [
    "Allocator",
    "BuildError",
    "Cancelled",
    "DataDump",
    "Device",
    "EndOfSequence",
    "Event",
    "ExceptionDump",
    "ExecutionMode",
    "ExecutionOrder",
    "FeedError",
    "GrainlineError",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "KernelError",
    "KernelTrace",
    "Model",
    "ModelError",
    "ModelMetadata",
    "NodeArg",
    "NodeEvent",
    "OptionError",
    "OrtValue",
    "OutOfMemory",
    "RunOptions",
    "SessionOptions",
    "StateError",
    "Stream",
    "Subscriber",
    "SynchronizationError",
    "TimedOut",
    "UnsupportedError",
    "__version__",
    "compile",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "load",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
]
