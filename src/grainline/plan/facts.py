"""Realised facts: what the code of one kernel really does, counted while it is emitted.

The planner predicts with `plan.work` before there is code; these facts say what came out of it, `explain` prints them,
and a test holds the two together. Counts are of emitted instructions: a body that exists for wide packets, for single
packets and for the tail counts three times, so the kinds say which forms exist and how large the code is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from grainline.base.dims import Expr

#: the kinds of `RealisedFacts.accesses`; each appears as "load KIND" or "store KIND"
ACCESS_KINDS = ("scalar", "contiguous", "masked", "indexed", "private")


@dataclass(frozen=True, slots=True)
class RealisedFacts:
    """One compiled variant.

    packet_width       W; 0 where the mapping decides its own register tiles (matrix products)
    packets_in_flight  packets of the widest main body
    direct_control_flow  branches are scalar: no lane has a program counter of its own
    full_packet_body   a body without an active-lane mask exists for complete packets
    accesses           "load contiguous" -> emitted instructions; masked: contiguous under a mask, indexed: lane by
                       lane, private: a row or slot of the workspace
    math_calls         primitive (exp, tanh, div, ...) -> emitted vector evaluations
    workspace_bytes    scratch of one home
    code_bytes         machine code, 0 until compiled
    """

    name: str
    mapping: str
    packet_width: int
    packets_in_flight: int
    direct_control_flow: bool
    full_packet_body: bool
    workspace_bytes: int | Expr
    accesses: Mapping[str, int] = field(default_factory=dict)
    math_calls: Mapping[str, int] = field(default_factory=dict)
    code_bytes: int = 0

    def __str__(self) -> str:
        flow = "direct control flow" if self.direct_control_flow else "lane program counters"
        body = "full-packet body" if self.full_packet_body else "no full-packet body"
        parts = [flow, body, f"workspace {self.workspace_bytes} bytes"]
        parts += [f"{count} {kind}" for kind, count in sorted((*self.accesses.items(), *self.math_calls.items()))]
        return ", ".join([*parts, f"code {self.code_bytes} bytes"] if self.code_bytes else parts)
