"""Turns array-like feeds into arrays and says what does not fit. Used only after a run was refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from grainline.base.errors import FeedError
from grainline.session.options import NodeArg
from grainline.session.values import OrtValue, numpy_dtype

#: what a run raises before it starts: the feeds do not fit, or are no mapping of names to arrays
REFUSALS = (FeedError, TypeError, ValueError)


def normalised(feeds: Any, inputs: list[NodeArg]) -> Any:
    """`feeds` itself when all its values are arrays already, else a dict with arrays; FeedError names a bad one."""
    if not isinstance(feeds, Mapping):
        raise AttributeError(
            f"'{type(feeds).__name__}' object has no attribute 'keys'; feeds map input names to arrays"
        )
    if all(type(array) is np.ndarray for array in feeds.values()):
        return feeds
    types = {info.name: info.type for info in inputs}
    return {name: _as_array(name, value, types.get(name)) for name, value in feeds.items()}


def _as_array(name: str, value: Any, wanted: str | None) -> Any:
    if wanted is not None and not wanted.startswith("tensor("):
        return value  # a sequence or an optional: the run judges it
    if isinstance(value, OrtValue):
        return value.numpy()
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if value is None:
        raise FeedError("an input has no value", value=name, expected=wanted, found="None")
    if hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    return _from_python(name, value, wanted)


def _from_python(name: str, value: Any, wanted: str | None) -> np.ndarray:
    try:
        if wanted is None:
            return np.asarray(value)
        if wanted == "tensor(string)":
            return np.asarray(value, dtype=object)
        return np.asarray(value, dtype=numpy_dtype(wanted))
    except (ValueError, TypeError, OverflowError) as problem:
        raise FeedError(
            "an input cannot become an array", value=name, expected=wanted, found=f"{type(value).__name__}: {problem}"
        ) from None


def checked_outputs(names: Any, outputs: list[NodeArg]) -> list[str] | None:
    """The requested names as a list; an empty request means all."""
    if names is None:
        return None
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise TypeError(f"output names are a list of strings, found {names!r}")
    wanted = list(names) if not isinstance(names, list) else names
    known = [info.name for info in outputs]
    for name in wanted:
        if not isinstance(name, str):
            raise TypeError(f"output names are a list of strings, found {name!r} in it")
        if name not in known:
            raise FeedError("the model has no such output", value=name, expected=f"one of {known}")
    return wanted or None
