"""The slow path of feeding: everything that is not a dense array of the declared element type already.

The native binding takes such arrays as they are and comes here for the rest, and for every complaint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grainline.base.errors import FeedError, OutOfMemory

_TEXT_KINDS = "OUST"


def convert(name: str, dtype: np.dtype[Any] | None, rank: int, value: Any) -> Any:
    """`value` as a C-contiguous, aligned, native-endian array of `dtype`; `value` itself when `dtype` is None.

    FeedError when that would change what the values mean, OutOfMemory when there is no room for a dense copy. `rank` is
    -1 where any rank will do; it is checked later.
    """
    if dtype is None:
        return value
    try:
        return _converted(name, dtype, value)
    except FeedError:
        raise
    except MemoryError as problem:
        raise OutOfMemory("a feed has no room in dense memory", value=name, found=str(problem)) from problem
    except ValueError as problem:  # what NumPy says of too many elements, or of bytes that are no text
        raise FeedError(
            "a feed cannot become a dense array", value=name, expected=f"dtype {dtype}", found=str(problem)
        ) from problem


def _converted(name: str, dtype: np.dtype[Any], value: Any) -> np.ndarray[Any, Any]:
    if dtype.kind == "O":
        return _strings(name, value)
    if not isinstance(value, np.ndarray | np.generic):
        value = _array(name, dtype, value)
    if np.dtype(value.dtype).newbyteorder("=") != dtype:
        raise _wrong(name, dtype, f"dtype {value.dtype}")
    return np.require(value, dtype=dtype, requirements=("C_CONTIGUOUS", "ALIGNED"))


def _array(name: str, dtype: np.dtype[Any], value: Any) -> np.ndarray[Any, Any]:
    """From a Python scalar, a (nested) list, or anything that converts itself to an array."""
    if value is None:
        raise _wrong(name, dtype, "None")
    try:
        array = np.asarray(value)
        if not isinstance(value, bool | int | float | complex | list | tuple):
            return array  # it has an element type of its own, which must fit
        if array.size and not _is_same_kind(array.dtype, dtype):
            raise _wrong(name, dtype, f"Python values of kind {array.dtype}")
        return np.array(value, dtype=dtype)
    except (TypeError, ValueError, OverflowError) as problem:
        if isinstance(problem, FeedError):
            raise
        raise _wrong(name, dtype, f"{type(value).__name__} ({problem})") from problem


def _is_same_kind(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether Python numbers of this kind clearly mean the wanted type: int as float yes, float as int no."""
    order = "biufc"
    wanted_kind = wanted.kind if wanted.kind in order else "f"  # bfloat16 is of kind V
    if given.kind not in order or (given.kind == "b") != (wanted_kind == "b"):
        return False
    return given.kind in "iu" or order.index(given.kind) <= order.index(wanted_kind)


def _strings(name: str, value: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(value)
    if array.dtype.kind not in _TEXT_KINDS:
        raise FeedError("a feed has the wrong element type", value=name, expected="strings", found=str(array.dtype))
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8").astype(object)
    return np.ascontiguousarray(array, dtype=object).reshape(array.shape)


def _wrong(name: str, dtype: np.dtype[Any], found: str) -> FeedError:
    return FeedError("a feed has the wrong element type", value=name, expected=f"dtype {dtype}", found=found)


def check_sequence(name: str, dtype: np.dtype[Any], value: Any) -> None:
    """FeedError unless `value` is a list of arrays of `dtype`."""
    wanted = f"a list of arrays of {'strings' if dtype.kind == 'O' else dtype}"
    if not isinstance(value, list | tuple):
        raise FeedError("a feed is no sequence", value=name, expected=wanted, found=type(value).__name__)
    for index, item in enumerate(value):
        found = item.dtype if isinstance(item, np.ndarray | np.generic) else None
        is_text = dtype.kind == "O" and found is not None and found.kind in _TEXT_KINDS
        if found != dtype and not is_text:
            shown = type(item).__name__ if found is None else f"dtype {found}"
            raise FeedError(
                "a feed has an element of the wrong type", value=name, expected=wanted, found=f"{shown} at {index}"
            )


def refuse_names(feeds: Mapping[Any, Any], required: Sequence[str], optional: Sequence[str]) -> None:
    """Raises the FeedError that names every missing and every unknown feed and what the model knows."""
    missing = [name for name in required if name not in feeds]
    unknown = [str(name) for name in feeds if name not in required and name not in optional]
    parts = []
    if missing:
        parts.append(f"no feed for {', '.join(map(repr, missing))}")
    if unknown:
        parts.append(f"the model has no input {', '.join(map(repr, unknown))}")
    known = [*required, *(f"{name} (optional)" for name in optional)]
    raise FeedError(
        " and ".join(parts) or "the feeds do not match the inputs",
        value=(missing or unknown or [None])[0],
        expected=f"inputs {known}",
        found=f"{sorted(map(str, feeds))}",
    )


def refuse_output(name: Any, known: Mapping[str, int]) -> None:
    """Raises the FeedError for a requested output that the model does not have."""
    raise FeedError("the model has no such output", value=str(name), expected=f"one of {list(known)}")
