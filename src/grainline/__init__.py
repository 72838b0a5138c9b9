"""Grainline compiles an ONNX model for the machine it runs on and executes it.

Only the names listed here are stable. Importing this package loads NumPy and nothing heavier: the importer, LLVM and
the thread pool come with the first `load`.
"""

from grainline.base.errors import (
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
    GraphOptimizationLevel,
    ModelMetadata,
    NodeArg,
    RunOptions,
    SessionOptions,
    get_available_providers,
    get_device,
    set_default_logger_severity,
)
from grainline.session.values import OrtValue

__version__ = "0.1.0"

__all__ = [
    "Allocator",
    "Cancelled",
    "DataDump",
    "Device",
    "EndOfSequence",
    "Event",
    "ExceptionDump",
    "ExecutionMode",
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
    "get_available_providers",
    "get_device",
    "load",
    "set_default_logger_severity",
]
