"""Numeric signatures: mappings of one signature give equal bits, so only they may be chosen among by a measurement.

A reduction of a packet-local program is merged from W * unroll partial sums; whole programs add in order, whichever
axis their lanes run along. A program that adds nothing up has one signature. Which one a program gets is a shipped
rule: the mapping that the reference machine prices lowest on one thread. It depends on the program, its extents and the
packet width, which the instruction set fixes, and neither on threads nor on a calibration.
"""

from __future__ import annotations

from grainline.plan.cost import launch_cost, typical
from grainline.plan.types import Mapping
from grainline.tile.ir import TileProgram

MERGING = frozenset(("reduce", "mma", "scan"))


def signature_of(program: TileProgram, mapping: Mapping) -> str:
    """The name of what decides the bits of `program` under `mapping`."""
    if all(operation.op not in MERGING for operation in program.operations()):
        return "elementwise"
    return f"{mapping.width}x{mapping.unroll} partial sums" if mapping.is_local else "sums in order"


def of_one_signature(program: TileProgram, mappings: tuple[Mapping, ...]) -> tuple[Mapping, ...]:
    """The mappings that share the signature of the reference machine's choice, in their order."""
    if len({signature_of(program, mapping) for mapping in mappings}) <= 1:
        return mappings
    chosen = min(mappings, key=lambda mapping: typical(launch_cost(program, mapping, 0)))
    wanted = signature_of(program, chosen)
    return tuple(mapping for mapping in mappings if signature_of(program, mapping) == wanted)
