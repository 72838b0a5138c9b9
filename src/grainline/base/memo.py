"""`kept_with_first`: results that are remembered exactly as long as what they were computed from lives.

A cache of the last so many calls would keep the programs and graphs of dropped models, each a tree of small objects
that pins memory around it; this one gives everything back with its subject.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeVar

Subject = TypeVar("Subject")
Rest = ParamSpec("Rest")
Result = TypeVar("Result")


def kept_with_first(
    compute: Callable[Concatenate[Subject, Rest], Result],
) -> Callable[Concatenate[Subject, Rest], Result]:
    """`compute(subject, *rest)`, computed once per subject and rest. Results are shared: do not change them.

    Subjects are told apart by identity and can be weakly referred to; `rest` is hashable, and what is left out of it
    has its default. A result must not hold its subject, or neither would ever go.
    """
    parameters = list(signature(compute).parameters.values())[1:]
    defaults = tuple(each.default for each in parameters)
    known: dict[int, tuple[weakref.ref[Any], dict[Any, Result]]] = {}

    def results_of(subject: Any) -> dict[Any, Result]:
        number = id(subject)
        entry = known.get(number)
        if entry is None:
            entry = known[number] = (weakref.ref(subject, lambda _: known.pop(number, None)), {})
        return entry[1]

    @wraps(compute)
    def remembered(subject: Any, *rest: Any, **named: Any) -> Result:
        results = results_of(subject)
        key = (rest, *named.items()) if named else rest + defaults[len(rest) :]
        if key not in results:
            results[key] = compute(subject, *rest, **named)
        return results[key]

    return remembered  # type: ignore[return-value]
