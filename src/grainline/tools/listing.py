"""`grainline knobs`: the table of environment variables."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from grainline.base import knobs
from grainline.base.errors import OptionError


def knob_lines() -> Iterator[str]:
    for knob in knobs.ALL:
        default = "unset" if knob.default is None else knob.default
        yield f"{knob.name}  ({knob.type_name}; default {default}; now {_in_force(knob)})"
        yield from textwrap.wrap(knob.sentence, 96, initial_indent="    ", subsequent_indent="    ")


def _in_force(knob: knobs.Knob[object]) -> str:
    try:
        value = knob.read()
    except OptionError as error:
        return f"not readable: {error.found}"
    return "unset" if value is None else str(value)
