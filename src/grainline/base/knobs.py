"""Every option and environment variable, declared once: name, type, default and a sentence.

A `Knob` is an environment variable. It is read when it is needed, never at import, and a malformed value is an
`OptionError` that names the variable. `Options` are the keyword options of `load`; a field left at None takes its
value from the knob of the same meaning. `ALL` is what `grainline knobs` lists.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from grainline.base.errors import OptionError

if TYPE_CHECKING:  # importing pathlib costs more than this whole package
    from pathlib import Path

T = TypeVar("T")


@dataclass(frozen=True)
class Knob(Generic[T]):
    """One environment variable. `parse` turns its text into a value and raises ValueError when it cannot."""

    name: str
    type_name: str
    default: T
    sentence: str
    parse: Callable[[str], T]

    def is_set(self, environ: Mapping[str, str] | None = None) -> bool:
        return bool((os.environ if environ is None else environ).get(self.name, "").strip())

    def read(self, environ: Mapping[str, str] | None = None) -> T:
        """The value in force now; unset and blank both mean the default."""
        text = (os.environ if environ is None else environ).get(self.name, "").strip()
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError:
            raise OptionError(
                f"the environment variable {self.name} cannot be read",
                expected=self.type_name,
                found=repr(text),
                remedy=f"Unset {self.name} or correct it; `grainline knobs` describes it.",
            ) from None


def _integer_at_least(least: int, most: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text)
        if number < least or (most is not None and number > most):
            raise ValueError(text)
        return number

    return parse


def _flag(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


def _first_of_list(text: str) -> int:
    """OpenMP allows a list, one entry per nesting level. A variable of another library never makes us fail: what is no
    bound there is none."""
    first = text.split(",")[0].strip()
    return int(first) if first.isdigit() and int(first) > 0 else 0


def _folder(path: str | os.PathLike[str]) -> Path:
    from pathlib import Path

    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # ~name, and nobody has this name
        raise ValueError(str(error)) from error


def _given_folder(path: str | os.PathLike[str]) -> Path:
    try:
        return _folder(path)
    except (ValueError, TypeError) as error:
        raise OptionError(
            "the option cache_dir cannot be used", expected="path of a folder", found=repr(path)
        ) from error


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(text)
        return text.lower()

    return parse


NUM_THREADS = Knob(
    "GRAINLINE_NUM_THREADS",
    "integer >= 0",
    0,
    "Threads one run may use, the caller included; 0 means as many as affinity and cgroup quota allow. "
    "The threads option of load wins.",
    _integer_at_least(0),
)
OMP_NUM_THREADS = Knob(
    "OMP_NUM_THREADS",
    "integer >= 1, or a list of them",
    0,
    "The usual bound on threads; honoured as the default where neither an option nor GRAINLINE_NUM_THREADS is set.",
    _first_of_list,
)
ORT_NUM_THREADS = Knob(
    "ORT_INTRA_OP_NUM_THREADS",
    "integer >= 0",
    0,
    "onnxruntime's bound on threads; honoured behind OMP_NUM_THREADS, so that a deployment keeps its limit.",
    _first_of_list,
)
HOT_THREADS = Knob(
    "GRAINLINE_HOT_THREADS",
    "flag (0 or 1)",
    True,
    "Pool threads wait for the next launch of a run by spinning, for 70 us at most; 0 lets them sleep on a condition "
    "variable, so that every launch that wants them wakes them. Read when a model is loaded, for the process.",
    _flag,
)
CACHE = Knob(
    "GRAINLINE_CACHE",
    "flag (0 or 1)",
    True,
    "Keep compiled machine code on disk between processes; 0 compiles anew in every process.",
    _flag,
)
CACHE_DIR: Knob[Path | None] = Knob(
    "GRAINLINE_CACHE_DIR",
    "path of a folder",
    None,
    "Where compiled machine code is kept; the default is the user's cache folder.",
    _folder,
)
MACHINE_FILE: Knob[Path | None] = Knob(
    "GRAINLINE_MACHINE_FILE",
    "path of a file",
    None,
    "Calibrated costs of this machine, as `grainline calibrate` writes them; the default is one file per processor "
    "model in the user's configuration folder.",
    _folder,
)
DEBUG = Knob(
    "GRAINLINE_DEBUG",
    "integer 0 to 5",
    0,
    "Ladder of detail, logged to 'grainline' at INFO: 1 steps with times, 2 graphs and passes, 3 tile programs and "
    "plans, 4 LLVM IR, 5 assembly. From 1 on, the command line shows tracebacks.",
    _integer_at_least(0, 5),
)
#: Numbers as in enum ExecutorKind of native/exec/executor_kind.h.
EXECUTORS = ("auto", "sequential", "topological", "priority-topological", "multi-worker")
#: One worker for memory, one for launches, one for the rest.
DEFAULT_WORKERS = 3
#: Each worker is a thread that looks at the others, so many more than processors help nobody.
MAX_WORKERS = 256
#: What the native core can count; a bound on threads above it is as good as it.
MAX_THREADS = (1 << 31) - 1
MAX_BYTES = (1 << 63) - 1

EXECUTOR = Knob(
    "GRAINLINE_EXECUTOR",
    "auto, sequential, topological, priority-topological or multi-worker",
    "auto",
    "Which executor runs the Main graph. auto: several workers if MAX_RUNTIME_CORE_NUMBER asks for them, else one "
    "thread in a fixed order. All give the same bits.",
    _one_of(*EXECUTORS),
)
#: The host itself, and a stand-in accelerator with memory of its own (runtime/device.py).
DEVICES = ("cpu", "discrete")

DEVICE = Knob(
    "GRAINLINE_DEVICE",
    "cpu or discrete",
    "cpu",
    "Where a model computes. discrete: a stand-in accelerator on the host, whose memory is its own and whose work "
    "completes later than it was submitted; it exercises copies and order. Both give the same bits.",
    _one_of(*DEVICES),
)
MEMORY_LIMIT_MIB = Knob(
    "GRAINLINE_MEMORY_LIMIT_MIB",
    "integer >= 0",
    0,
    "Upper bound on the native memory of the process in MiB; 0 means none. Beyond it a run raises OutOfMemory.",
    _integer_at_least(0, MAX_BYTES >> 20),
)
MAX_RUNTIME_CORE_NUMBER = Knob(
    "MAX_RUNTIME_CORE_NUMBER",
    f"integer 0 to {MAX_WORKERS}",
    1,
    "Workers of the executor, the caller included; below 2 one thread runs the graph. 3 is recommended: one for "
    "memory, one for launches, one for the rest.",
    _integer_at_least(0, MAX_WORKERS),
)
ENABLE_DYNAMIC_SHAPE_MULTI_STREAM = Knob(
    "ENABLE_DYNAMIC_SHAPE_MULTI_STREAM",
    "flag (exactly 1 is on)",
    False,
    "1 puts independent branches of a model on two streams with events between them; mixed nodes then stay whole, and "
    "every Free waits for its launches.",
    lambda text: text == "1",
)

ALL: tuple[Knob[Any], ...] = (
    NUM_THREADS,
    OMP_NUM_THREADS,
    ORT_NUM_THREADS,
    HOT_THREADS,
    CACHE,
    CACHE_DIR,
    MACHINE_FILE,
    DEBUG,
    EXECUTOR,
    DEVICE,
    MEMORY_LIMIT_MIB,
    MAX_RUNTIME_CORE_NUMBER,
    ENABLE_DYNAMIC_SHAPE_MULTI_STREAM,
)


def check_environment(environ: Mapping[str, str] | None = None) -> None:
    """OptionError when any variable is malformed, whether or not the work at hand would read it."""
    for knob in ALL:
        knob.read(environ)


@dataclass(frozen=True)
class Options:
    """How a model is compiled and run. None means: the environment decides (see the knobs above)."""

    threads: int | None = None
    cache: bool | None = None
    cache_dir: str | os.PathLike[str] | None = None
    executor: str | None = None
    memory_limit_bytes: int | None = None
    workers: int | None = None
    device: Any = None  # one of DEVICES, or a grainline.Device
    cost_policy: Any = None  # a grainline.plan.policy.ExecutionCostPolicy; None: the calibrated one

    def __post_init__(self) -> None:
        _check_integer("threads", self.threads)
        _check_integer("memory_limit_bytes", self.memory_limit_bytes, MAX_BYTES)
        _check_integer("workers", self.workers, MAX_WORKERS)
        if self.executor is not None and self.executor not in EXECUTORS:
            raise OptionError(
                "the option executor cannot be used", expected=EXECUTOR.type_name, found=repr(self.executor)
            )

        if self.device is not None and self.device_name not in DEVICES:
            raise OptionError(
                "the option device cannot be used",
                expected=f"{DEVICE.type_name}, or a grainline.Device",
                found=repr(self.device),
            )

    @property
    def device_name(self) -> str | None:
        """The name behind `device`, a string or an object with a name."""
        name = self.device if isinstance(self.device, str) else getattr(self.device, "name", None)
        return name if isinstance(name, str) else None

    def resolved(self, environ: Mapping[str, str] | None = None) -> Options:
        """The same options with every None replaced by what the environment says; threads 0 means all allowed."""
        limit_mib = MEMORY_LIMIT_MIB.read(environ)
        executor, workers = chosen_executor(self.executor, self.workers, environ)
        DEBUG.read(environ)  # a malformed variable fails here and not in the middle of a compile
        return Options(
            threads=thread_budget(self.threads, environ),
            cache=CACHE.read(environ) if self.cache is None else self.cache,
            cache_dir=CACHE_DIR.read(environ) if self.cache_dir is None else _given_folder(self.cache_dir),
            executor=executor,
            memory_limit_bytes=limit_mib << 20 if self.memory_limit_bytes is None else self.memory_limit_bytes,
            workers=workers,
            device=DEVICE.read(environ) if self.device is None else self.device,
            cost_policy=self.cost_policy,
        )


def _check_integer(name: str, number: object, most: int | None = None) -> None:
    """OptionError unless `number` is None or an integer from 0 to `most`. A bool is a slip, though Python lets it be
    an int."""
    if number is None:
        return
    if isinstance(number, int) and not isinstance(number, bool) and number >= 0 and (most is None or number <= most):
        return
    expected = "an integer >= 0" if most is None else f"an integer 0 to {most}"
    raise OptionError(f"the option {name} cannot be used", expected=expected, found=repr(number))


def thread_budget(threads: int | None, environ: Mapping[str, str] | None = None) -> int:
    """Option, then the environment's bounds as they are declared, then 0: all that affinity and quota allow."""
    bounds = (NUM_THREADS, OMP_NUM_THREADS, ORT_NUM_THREADS)
    return min(threads or next((bound for knob in bounds if (bound := knob.read(environ))), 0), MAX_THREADS)


def chosen_executor(
    executor: str | None, workers: int | None, environ: Mapping[str, str] | None = None
) -> tuple[str, int]:
    """The executor and its workers (0: one thread) that options and environment ask for; an option wins over a
    variable. OptionError when they contradict each other."""
    asked = executor or EXECUTOR.read(environ)
    of_environment = MAX_RUNTIME_CORE_NUMBER.read(environ)
    if asked in ("auto", "multi-worker"):
        default = DEFAULT_WORKERS if asked == "multi-worker" and not MAX_RUNTIME_CORE_NUMBER.is_set(environ) else 0
        number = workers if workers else default or of_environment
        if number >= 2:
            return "multi-worker", number
        if asked == "auto":
            return asked, 0
        raise OptionError(
            "a multi-worker executor cannot have fewer than 2 workers",
            expected="workers or MAX_RUNTIME_CORE_NUMBER of at least 2",
            found=number,
        )
    if workers is not None and workers >= 2:
        raise OptionError(
            f"the executor {asked!r} has one worker", expected="workers left out, or multi-worker", found=workers
        )
    return asked, 0


#: Branches of a model rarely come in more than a few at a time; every stream has memory of its own.
SEVERAL_STREAMS = 2


def stream_count(environ: Mapping[str, str] | None = None) -> int:
    """How many streams a model uses."""
    return SEVERAL_STREAMS if ENABLE_DYNAMIC_SHAPE_MULTI_STREAM.read(environ) else 1


def is_multi_worker(environ: Mapping[str, str] | None = None, workers: int | None = None) -> bool:
    """Whether mixed nodes are split and Free edges may go: several workers, and not several streams.

    `workers` as in resolved options; None: MAX_RUNTIME_CORE_NUMBER says.
    """
    number = MAX_RUNTIME_CORE_NUMBER.read(environ) if workers is None else workers
    return number > 1 and not ENABLE_DYNAMIC_SHAPE_MULTI_STREAM.read(environ)
