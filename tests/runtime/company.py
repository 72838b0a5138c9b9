"""A model in company: run by several threads at once, and by a child of this process."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

Arrays = Sequence[np.ndarray[Any, Any]]


def are_equal(found: Arrays, expected: Arrays) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def wrong_cases(executor: Any, cases: Sequence[tuple[dict[str, Any], Arrays]]) -> list[int]:
    """Three threads run all (feeds, expected); the numbers of the cases that some thread found to differ or to fail."""
    wrong: list[int] = []

    def work() -> None:
        for number, (feeds, expected) in enumerate(cases):
            is_right = False
            try:
                is_right = are_equal(executor.run(feeds), expected)
            finally:
                if not is_right:
                    wrong.append(number)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def check_fork(executor: Any, feeds: dict[str, Any]) -> None:
    """A child of a process that has run the model gives the same, and so does the parent afterwards."""
    expected = executor.run(feeds)
    child = os.fork()
    if child == 0:
        os._exit(0 if are_equal(executor.run(feeds), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert are_equal(executor.run(feeds), expected), "the parent goes on"
