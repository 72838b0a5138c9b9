"""Laws of `kept_with_first`: computed once per subject and rest, forgotten with the subject."""

from __future__ import annotations

import weakref

import pytest

from grainline.base.memo import kept_with_first


class Subject:
    """Equal to every other, to show that identity decides."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subject)

    __hash__ = None  # type: ignore[assignment]


class Result:
    pass


def test_once_per_subject_and_rest() -> None:
    calls = []

    @kept_with_first
    def compute(subject: Subject, *rest: int, **named: int) -> Result:
        calls.append((id(subject), rest, named))
        return Result()

    one, other = Subject(), Subject()
    assert compute(one) is compute(one)
    assert compute(one, 1) is compute(one, 1)
    assert compute(one, of=1) is compute(one, of=1)
    assert len({compute(one), compute(one, 1), compute(one, 2), compute(one, of=1), compute(other)}) == 5
    assert len(calls) == 5, f"one call per subject and rest, found {calls}"


def test_what_is_left_out_has_its_default() -> None:
    @kept_with_first
    def compute(_subject: Subject, _one: int, _two: int = 2, _three: int = 3) -> Result:
        return Result()

    subject = Subject()
    assert compute(subject, 1) is compute(subject, 1, 2) is compute(subject, 1, 2, 3)
    assert compute(subject, 1) is not compute(subject, 1, 2, 4)


def test_results_go_with_their_subject_and_no_sooner() -> None:
    @kept_with_first
    def compute(_subject: Subject, _number: int) -> Result:
        return Result()

    subject, stays = Subject(), Subject()
    results = [weakref.ref(compute(subject, number)) for number in range(100)]
    kept = weakref.ref(compute(stays, 0))
    assert all(result() is not None for result in results), "as long as the subject lives nothing is forgotten"
    del subject
    assert all(result() is None for result in results), "without a collection of cycles"
    assert kept() is compute(stays, 0)


def test_a_failure_is_not_remembered() -> None:
    fails = [True, False]

    @kept_with_first
    def compute(_subject: Subject) -> int:
        if fails.pop(0):
            raise ValueError("once")
        return 1

    subject = Subject()
    with pytest.raises(ValueError, match="once"):
        compute(subject)
    assert compute(subject) == 1


def test_a_subject_at_the_address_of_a_dead_one_is_new() -> None:
    compute = kept_with_first(lambda subject: subject.number)
    for number in range(1000):
        subject = Subject()
        subject.number = number
        assert compute(subject) == number
