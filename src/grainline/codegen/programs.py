"""Walks the programs of a launch: root coordinates from a running number, by carry instead of division."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grainline.base.dtypes import I64
from grainline.codegen.emit import FunctionText, Reg, i64


def decode(f: FunctionText, number: Reg, extents: Sequence[Reg]) -> list[Reg]:
    """The mixed-radix digits of `number`, outermost first."""
    digits: list[Reg] = []
    rest = number
    for extent in reversed(extents[1:]):
        divisor = f.intrinsic("umax", extent, i64(1)) if extent.text.startswith("%") else extent
        quotient = f.binary("udiv", rest, divisor)  # an empty launch has extents of 0
        digits.append(f.sub(rest, f.mul(quotient, extent)))
        rest = quotient
    digits.append(rest)
    return digits[::-1]


def advance(f: FunctionText, digits: Sequence[Reg], extents: Sequence[Reg]) -> list[Reg]:
    """The digits of the next number."""
    result: list[Reg] = []
    carry = i64(1)
    for digit, extent in reversed(list(zip(digits[1:], extents[1:], strict=True))):
        moved = f.add(digit, carry)
        wraps = f.compare("icmp eq", moved, extent)
        result.append(f.select(wraps, i64(0), moved))
        carry = f.convert("zext", wraps, I64)
    result.append(f.add(digits[0], carry))
    return result[::-1]


def for_each(f: FunctionText, first: Reg, last: Reg, extents: Sequence[Reg], body: Callable[[list[Reg]], None]) -> None:
    """Calls `body` with the digits of every number in [first, last). Without extents the digits are empty."""
    if len(extents) <= 1:

        def plain(number: Reg, _carried: list[Reg]) -> list[Reg]:
            body([number] if extents else [])
            return []

        f.loop(first, last, 1, [], plain)
        return

    def step(_number: Reg, digits: list[Reg]) -> list[Reg]:
        body(digits)
        return advance(f, digits, extents)

    f.loop(first, last, 1, decode(f, first, extents), step)


def for_each_led(
    f: FunctionText,
    first: Reg,
    last: Reg,
    extents: Sequence[Reg],
    lead: Callable[[list[Reg]], list[Reg]],
    body: Callable[[list[Reg], list[Reg], Callable[[], None]], None],
) -> None:
    """Like `for_each`, with what `lead` computes of a number made while the number before it is walked.

    `body(digits, led, follow)` gets the results of `lead(digits)` and calls `follow` once, where the lead of the next
    number, if there is one, is to be computed.
    """

    def walk() -> list[Reg]:
        digits = decode(f, first, extents)
        f.loop(first, last, 1, [*digits, *lead(digits)], step)
        return []

    def step(number: Reg, carried: list[Reg]) -> list[Reg]:
        digits, led = carried[: len(extents)], carried[len(extents) :]
        following = advance(f, digits, extents)
        state = [*following, *led]

        def follow() -> None:
            has_next = f.compare("icmp slt", f.add(number, 1), last)
            state[len(extents) :] = f.when(has_next, led, lambda: lead(following))

        body(digits, led, follow)
        return state

    f.when(f.compare("icmp slt", first, last), [], walk)
