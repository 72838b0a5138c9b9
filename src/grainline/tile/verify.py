"""Validity of tile programs, as a list of rules. `verify` raises `TileError` for the first broken rule.

A rule takes the program, or an operation and its place, and returns what is wrong in words, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from grainline.base.dtypes import BOOL, I8, I64
from grainline.tile.ir import (
    COMPARISONS,
    ELEMENTWISE,
    LOGICAL,
    LOOPS,
    POLICIES,
    Affine,
    Axis,
    Operation,
    Tile,
    TileProgram,
)

REDUCTIONS = ("add", "mul", "min", "max")
BOUNDS = ("assume", "zero", "error")
SCOPES = ("automatic", "worker")
SHAPE_OPS = frozenset(
    {"const", "coord", "extent", "load", "store", "extract", "splat", "reduce", "scan", "mma", "stage"}
)
WITHOUT_RESULT = frozenset({"store", "stage", *LOOPS})
LARGEST_VOLUME = (1 << 32) - 1
BINARY = (
    *("add", "sub", "mul", "div", "mod", "fmod", "pow", "min", "max", "eq", "ne", "lt", "le", "gt", "ge"),
    *("and", "or", "xor", "bitand", "bitor", "bitxor", "shl", "shr", "mma"),
)
ARITY = dict.fromkeys(BINARY, 2) | {"select": 3} | dict.fromkeys(("const", "coord", "extent", "load", "stage"), 0)


class TileError(Exception):
    """A tile program breaks a rule. The text names the program, the operation and the rule."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operation stands: the axes that are bound there and the innermost loop around it."""

    program: TileProgram
    bound: frozenset[Axis]
    loop: Operation | None = None

    def inside(self, loop: Operation) -> Place:
        own = frozenset() if loop.axis is None else frozenset({loop.axis})
        return Place(self.program, self.bound | own, loop)


def verify(program: TileProgram) -> None:
    """Raises `TileError` unless every rule of `PROGRAM_RULES` and `OPERATION_RULES` holds."""
    for program_rule in PROGRAM_RULES:
        fault = program_rule(program)
        if fault:
            raise TileError(f"tile program {program.name!r}: {fault}")
    _verify_body(Place(program, frozenset(program.roots)), program.body)


def _verify_body(place: Place, body: Sequence[Operation]) -> None:
    for position, operation in enumerate(body):
        fault = next((found for rule in OPERATION_RULES if (found := rule(place, operation))), None)
        if fault:
            inside = f" of the loop over {place.loop.axis}" if place.loop is not None else ""
            shown = operation.result if operation.result is not None else operation.op
            name = place.program.name
            raise TileError(f"tile program {name!r}, operation {position}{inside} ({shown} {operation.op}): {fault}")
        if operation.region is not None:
            _verify_body(place.inside(operation), operation.region.body)


def views_have_matching_ranks(program: TileProgram) -> str | None:
    for view in program.views:
        if view.layout == "strided" and len(view.shape) != len(view.strides):
            return f"view {view.name!r} has {len(view.shape)} dimensions and {len(view.strides)} strides"
        if view.layout in ("panels", "quads") and (len(view.shape) != 2 or view.panel <= 0):
            return f"view {view.name!r} in layout {view.layout} needs shape (K, N) and a positive panel width"
        if view.layout == "quads" and view.dtype is not I8:
            return f"view {view.name!r} in layout quads has type {view.dtype}, expected i8"
        if view.access not in ("read", "write", "readwrite"):
            return f"view {view.name!r} has the unknown access {view.access!r}"
    return None


def names_are_unique(program: TileProgram) -> str | None:
    names = [view.name for view in program.views]
    return None if len(set(names)) == len(names) else f"two views share a name: {names}"


def operands_are_defined_before_use(program: TileProgram) -> str | None:
    return _undefined(program.body, set(), set())


def _undefined(body: Sequence[Operation], visible: set[int], ever: set[int]) -> str | None:
    """`visible` are the tiles that exist before the body, `ever` all that were defined so far, elsewhere too."""
    known = set(visible)
    for position, operation in enumerate(body):
        region = operation.region
        for tile in (*operation.operands, *(i for i in operation.index if isinstance(i, Tile))):
            if tile.id not in known:
                return f"operation {position} ({operation.op}) uses {tile} before its definition"
        for tile in (*operation.defined, *(region.carried if region is not None else ())):
            if tile.id in ever:
                return f"operation {position} ({operation.op}) defines {tile} again"
            ever.add(tile.id)
        if region is not None:
            inner = known | {tile.id for tile in region.carried}
            fault = _undefined(region.body, inner, ever)
            inner |= {tile.id for o in region.body for tile in o.defined}
            missing = [tile for tile in region.yields if tile.id not in inner]
            if fault or missing:
                return fault or f"operation {position} ({operation.op}) yields {missing[0]}, which its region lacks"
        known |= {tile.id for tile in operation.defined}
    return None


def scope_is_known(program: TileProgram) -> str | None:
    return None if program.scope in SCOPES else f"has the execution scope {program.scope!r}, expected one of {SCOPES}"


def volumes_are_addressable(program: TileProgram) -> str | None:
    spaces = {tile.space for o in program.operations() for tile in o.defined}
    for space in spaces:
        extents = [axis.extent for axis in space if isinstance(axis.extent, int)]
        if any(extent < 0 for extent in extents) or prod(extents) > LARGEST_VOLUME:
            return f"the space {list(space)} has more than {LARGEST_VOLUME} elements, or a negative extent"
    return None


def has_an_effect(program: TileProgram) -> str | None:
    return None if any(o.op == "store" for o in program.operations()) else "nothing is stored"


def operation_is_known(place: Place, operation: Operation) -> str | None:
    if operation.op not in ELEMENTWISE and operation.op not in SHAPE_OPS and operation.op not in LOOPS:
        return "unknown operation"
    if (operation.result is None) != (operation.op in WITHOUT_RESULT):
        return "exactly the stores, stage cuts and loops have no single result"
    if (operation.region is None) != (operation.op not in LOOPS):
        return "exactly the loops have a region"
    if operation.op in LOOPS:
        return None
    expected = ARITY.get(operation.op, 1)
    found = len(operation.operands)
    return None if found == expected else f"takes {expected} operands, has {found}"


def result_space_is_the_union(place: Place, operation: Operation) -> str | None:
    """Spaces hold no root axis; an elementwise result spans the union, a reduction drops its axis."""
    result = operation.result
    if result is None:
        return None
    if any(axis in place.program.bound_axes for axis in result.space):
        return "a root or loop axis appears in the result's space"
    if operation.op in ELEMENTWISE or operation.op in ("reduce", "mma"):
        joined = dict.fromkeys(axis for tile in operation.operands for axis in tile.space)
        joined.pop(operation.axis, None) if operation.axis is not None else None
        if tuple(joined) != result.space:
            return f"the space {list(result.space)} is not the union {list(joined)} of the operands' spaces"
    return None


def element_types_agree(place: Place, operation: Operation) -> str | None:
    op, operands, result = operation.op, operation.operands, operation.result
    if op in ("cast", "const", "coord", "extent", "load", "extract") or result is None:
        return None
    values = operands[1:] if op == "select" else operands
    if op == "select" and operands[0].dtype != BOOL:
        return f"the condition has type {operands[0].dtype}, expected bool"
    if len({tile.dtype.name for tile in values}) > 1:
        return f"operands have different types {[str(t.dtype) for t in values]}"
    expected = BOOL if op in COMPARISONS else values[0].dtype
    if result.dtype != expected:
        return f"the result has type {result.dtype}, expected {expected}"
    if op in ("and", "or", "xor", "not") and values[0].dtype != BOOL:
        return f"needs bool operands, has {values[0].dtype}"
    if op in LOGICAL[4:] and not (values[0].dtype.is_integer or values[0].dtype == BOOL):
        return f"needs integer operands, has {values[0].dtype}"
    return None


def access_fits_the_view(place: Place, operation: Operation) -> str | None:
    view = operation.view
    if operation.op not in ("load", "store"):
        return None
    if view is None or view not in place.program.views:
        return "accesses a view that is not an argument of the program"
    if len(operation.index) != len(view.shape):
        return f"indexes the {len(view.shape)}-dimensional view {view.name!r} with {len(operation.index)} items"
    if operation.op == "store" and view.access == "read":
        return f"stores to the read-only view {view.name!r}"
    if operation.op == "load" and view.access == "write":
        return f"loads from the write-only view {view.name!r}"
    if operation.attributes.get("bounds") not in BOUNDS:
        return f"has the unknown bounds policy {operation.attributes.get('bounds')!r}"
    return None


def access_space_is_the_index_space(place: Place, operation: Operation) -> str | None:
    """A load spans the axes of its index; a store spans at least the axes of its operand."""
    if operation.op not in ("load", "store", "extract"):
        return None
    axes: dict[Axis, None] = {}
    for item in operation.index:
        found = item.space if isinstance(item, Tile) else tuple(axis for axis, _ in item.terms)
        axes.update(dict.fromkeys(axis for axis in found if axis not in place.bound))
    if operation.op != "store":
        assert operation.result is not None
        return None if tuple(axes) == operation.result.space else f"spans {list(axes)}, result {operation.result.space}"
    missing = [axis for axis in operation.operands[0].space if axis not in axes]
    return f"the operand spans {missing}, which the store's index does not" if missing else None


def store_keeps_the_type(place: Place, operation: Operation) -> str | None:
    if operation.op not in ("load", "store") or operation.view is None:
        return None
    tile = operation.result if operation.op == "load" else operation.operands[0]
    assert tile is not None
    if tile.dtype == operation.view.dtype:
        return None
    return f"moves {tile.dtype} through the view {operation.view.name!r} of type {operation.view.dtype}"


def reduction_is_closed(place: Place, operation: Operation) -> str | None:
    if operation.op not in ("reduce", "mma"):
        return None
    if operation.axis is None or operation.axis in place.bound:
        return "needs a tile axis"
    if operation.axis not in [a for tile in operation.operands for a in tile.space]:
        return f"no operand spans the axis {operation.axis}"
    if operation.op == "reduce" and operation.attributes.get("kind") not in REDUCTIONS:
        return f"has the unknown kind {operation.attributes.get('kind')!r}"
    if operation.op == "reduce" and operation.attributes.get("policy") not in POLICIES:
        return f"has the unknown policy {operation.attributes.get('policy')!r}, expected one of {POLICIES}"
    return None


def scan_keeps_its_axes(place: Place, operation: Operation) -> str | None:
    if operation.op != "scan":
        return None
    (operand,) = operation.operands
    if operation.axis is None or operation.axis in place.bound or operation.axis not in operand.space:
        return "needs a tile axis that its operand spans"
    if operation.result is None or operation.result.space != operand.space:
        return f"has the space {operation.result and operation.result.space}, expected {operand.space}"
    if operand.dtype.kind not in "fiu" or not isinstance(operation.attributes.get("exclusive"), bool):
        return "sums numbers, and says whether it is exclusive"
    return None


def coordinates_name_an_axis(place: Place, operation: Operation) -> str | None:
    if operation.op != "coord":
        return None
    assert operation.result is not None
    expected = () if operation.axis in place.bound else (operation.axis,)
    return None if operation.result.space == expected else f"has space {operation.result.space}, expected {expected}"


def indices_are_affine_or_tiles(place: Place, operation: Operation) -> str | None:
    for item in operation.index:
        if not isinstance(item, Affine | Tile):
            return f"the index item {item!r} is neither affine nor a tile"
        if isinstance(item, Tile) and item.dtype != I64:
            return f"the run-time index {item} has type {item.dtype}, expected i64"
    return None


def extract_names_every_axis(place: Place, operation: Operation) -> str | None:
    if operation.op != "extract":
        return None
    (operand,) = operation.operands
    if len(operation.index) != len(operand.space):
        return f"indexes a tile over {list(operand.space)} with {len(operation.index)} items"
    if operation.result is None or operation.result.dtype != operand.dtype:
        return f"has another type than its operand, {operand.dtype}"
    if operation.attributes.get("bounds") not in ("assume", "zero"):
        return f"has the bounds policy {operation.attributes.get('bounds')!r}, expected assume or zero"
    return None


def splat_adds_axes(place: Place, operation: Operation) -> str | None:
    if operation.op != "splat" or operation.result is None:
        return None
    missing = [axis for axis in operation.operands[0].space if axis not in operation.result.space]
    return f"loses the axes {missing}" if missing else None


def loop_axes_are_used_inside(place: Place, operation: Operation) -> str | None:
    """The coordinate of a loop exists in its region only."""
    named = [axis for item in operation.index if isinstance(item, Affine) for axis, _ in item.terms]
    named += [operation.axis] if operation.axis is not None and operation.op == "coord" else []
    outside = [axis for axis in named if axis in place.program.bound_axes and axis not in place.bound]
    return f"uses the coordinate of the loop over {outside[0]} outside of it" if outside else None


def loop_carries_agree(place: Place, operation: Operation) -> str | None:
    """Operands, carried values, yields and results of a loop correspond in number, type and space."""
    region = operation.region
    if region is None:
        return None
    if operation.axis is None or operation.axis in place.bound:
        return "needs an axis of its own"
    rows = (operation.operands, region.carried, region.yields, operation.results)
    if len({len(row) for row in rows}) > 1:
        return f"has {len(rows[0])} initial values, carries {len(rows[1])}, yields {len(rows[2])}"
    for start, *others in zip(*rows, strict=True):
        wrong = [tile for tile in others if (tile.dtype, tile.space) != (start.dtype, start.space)]
        if wrong:
            found, wanted = wrong[0], f"{start.dtype} over {list(start.space)}"
            return f"carries {wanted}, but {found} is {found.dtype} over {list(found.space)}"
    return None


def stages_cut_pipelines(place: Place, operation: Operation) -> str | None:
    if operation.op == "pipeline" and int(operation.attributes.get("stages", 0)) < 1:
        return "needs at least one stage"
    if operation.op != "stage" or (place.loop is not None and place.loop.op == "pipeline"):
        return None
    return "a stage cut stands outside of a pipeline"


PROGRAM_RULES: tuple[Callable[[TileProgram], str | None], ...] = (
    views_have_matching_ranks,
    names_are_unique,
    operands_are_defined_before_use,
    has_an_effect,
    scope_is_known,
    volumes_are_addressable,
)

OPERATION_RULES: tuple[Callable[[Place, Operation], str | None], ...] = (
    operation_is_known,
    result_space_is_the_union,
    element_types_agree,
    indices_are_affine_or_tiles,
    access_fits_the_view,
    access_space_is_the_index_space,
    store_keeps_the_type,
    reduction_is_closed,
    scan_keeps_its_axes,
    loop_axes_are_used_inside,
    coordinates_name_an_axis,
    extract_names_every_axis,
    splat_adds_axes,
    loop_carries_agree,
    stages_cut_pipelines,
)
