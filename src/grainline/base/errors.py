"""Every error that a caller can meet, and how its message is composed.

An error says what went wrong in one sentence; where, what was expected, what was found and what to do about it are
keyword parts. The parts stay readable as attributes and are appended to the message in a fixed order:

    <sentence> (node 'n', value 'v'): expected <expected>, found <found>. <remedy>

Each class also derives from the built-in exception that fits, so that code that catches ValueError or
NotImplementedError goes on working. Errors survive pickling with their parts.
"""

from __future__ import annotations

from typing import Any


class GrainlineError(Exception):
    """The base of every error that grainline raises on purpose."""

    def __init__(
        self,
        sentence: str = "",
        *,
        node: str | None = None,
        value: str | None = None,
        expected: object = None,
        found: object = None,
        remedy: str | None = None,
    ) -> None:
        self.sentence = sentence
        self.node = node
        self.value = value
        self.expected = expected
        self.found = found
        self.remedy = remedy
        super().__init__(self._compose())

    def _compose(self) -> str:
        places = [f"{kind} {name!r}" for kind, name in (("node", self.node), ("value", self.value)) if name is not None]
        facts = [
            f"{kind} {fact}" for kind, fact in (("expected", self.expected), ("found", self.found)) if fact is not None
        ]
        message = self.sentence or type(self).__name__
        if places:
            message += f" ({', '.join(places)})"
        if facts:
            message += f": {', '.join(facts)}"
        if self.remedy:
            message = f"{message.rstrip('.')}. {self.remedy}"
        return message

    def parts(self) -> dict[str, Any]:
        """The keyword parts that this error was made from, absent ones left out."""
        names = ("node", "value", "expected", "found", "remedy")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def __reduce__(self) -> tuple[Any, ...]:
        parts = {name: part if _is_plain(part) else str(part) for name, part in self.parts().items()}
        return _rebuild, (type(self), self.sentence, parts)


class ModelError(GrainlineError, ValueError):
    """The model itself is not valid: not a protobuf, cyclic, ill-typed, its external data missing or outside."""


class FeedError(GrainlineError, ValueError):
    """What the caller passed to a run does not fit the model: names, dtype, rank, extents, requested outputs."""


class KernelError(GrainlineError, RuntimeError):
    """A node failed while the model ran: an index out of range, extents that do not meet."""


class UnsupportedError(GrainlineError, NotImplementedError):
    """The model is valid, but uses an operator, a type or an opset that grainline does not execute."""


class OutOfMemory(GrainlineError, MemoryError):
    """The system has no memory or no thread to give, or a limit that the caller set would be passed."""


class Cancelled(GrainlineError):
    """The run ended early because the caller asked for it."""


class TimedOut(GrainlineError, TimeoutError):
    """A wait took longer than the caller allowed; what was waited for goes on."""


class SynchronizationError(GrainlineError, RuntimeError):
    """Two streams touch the same memory, and nothing says which of them comes first."""


class EndOfSequence(GrainlineError):
    """A node ended the run because its input is exhausted: a normal end that is not success."""


class OptionError(GrainlineError, ValueError):
    """An option or an environment variable has a value that cannot be used."""


class BuildError(GrainlineError, ImportError):
    """The native module was not built from the sources that lie beside the Python ones."""


class StateError(GrainlineError, RuntimeError):
    """A call that does not fit the state of an executor: a run before load, an unload during a run."""


def _rebuild(kind: type[GrainlineError], sentence: str, parts: dict[str, Any]) -> GrainlineError:
    return kind(sentence, **parts)


def _is_plain(part: object) -> bool:
    if isinstance(part, tuple | list):
        return all(_is_plain(item) for item in part)
    return isinstance(part, str | int | float | bool | type(None))
