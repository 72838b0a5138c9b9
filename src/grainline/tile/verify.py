"""Validity of tile programs, as a list of rules. `verify` raises `TileError` for the first broken rule."""

from __future__ import annotations

from collections.abc import Callable

from grainline.base.dtypes import BOOL, I8, I64
from grainline.tile.ir import COMPARISONS, ELEMENTWISE, LOGICAL, Affine, Axis, Operation, Tile, TileProgram

REDUCTIONS = ("add", "mul", "min", "max")
BOUNDS = ("assume", "zero", "error")
SHAPE_OPS = frozenset({"const", "coord", "extent", "load", "store", "reduce", "scan", "mma"})
BINARY = (
    *("add", "sub", "mul", "div", "mod", "fmod", "pow", "min", "max", "eq", "ne", "lt", "le", "gt", "ge"),
    *("and", "or", "xor", "bitand", "bitor", "bitxor", "shl", "shr", "mma"),
)
ARITY = dict.fromkeys(BINARY, 2) | {"select": 3, "const": 0, "coord": 0, "extent": 0, "load": 0}


class TileError(Exception):
    """A tile program breaks a rule. The text names the program, the operation and the rule."""


def verify(program: TileProgram) -> None:
    """Raises `TileError` unless every rule of `PROGRAM_RULES` and `OPERATION_RULES` holds."""
    for program_rule in PROGRAM_RULES:
        fault = program_rule(program)
        if fault:
            raise TileError(f"tile program {program.name!r}: {fault}")
    for position, operation in enumerate(program.body):
        for rule in OPERATION_RULES:
            fault = rule(program, operation)
            if fault:
                shown = operation.result if operation.result is not None else operation.op
                raise TileError(
                    f"tile program {program.name!r}, operation {position} ({shown} {operation.op}): {fault}"
                )


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
    known: set[int] = set()
    for position, operation in enumerate(program.body):
        for tile in (*operation.operands, *(i for i in operation.index if isinstance(i, Tile))):
            if tile.id not in known:
                return f"operation {position} ({operation.op}) uses {tile} before its definition"
        if operation.result is not None:
            if operation.result.id in known:
                return f"operation {position} ({operation.op}) defines {operation.result} again"
            known.add(operation.result.id)
    return None


def has_an_effect(program: TileProgram) -> str | None:
    return None if any(o.op == "store" for o in program.body) else "nothing is stored"


def operation_is_known(program: TileProgram, operation: Operation) -> str | None:
    if operation.op not in ELEMENTWISE and operation.op not in SHAPE_OPS:
        return "unknown operation"
    if (operation.result is None) != (operation.op == "store"):
        return "exactly the stores have no result"
    expected = ARITY.get(operation.op, 1)
    found = len(operation.operands)
    return None if found == expected else f"takes {expected} operands, has {found}"


def result_space_is_the_union(program: TileProgram, operation: Operation) -> str | None:
    """Spaces hold no root axis; an elementwise result spans the union, a reduction drops its axis."""
    result = operation.result
    if result is None:
        return None
    if any(axis in program.roots for axis in result.space):
        return "a root axis appears in the result's space"
    if operation.op in ELEMENTWISE or operation.op in ("reduce", "mma"):
        joined = dict.fromkeys(axis for tile in operation.operands for axis in tile.space)
        joined.pop(operation.axis, None) if operation.axis is not None else None
        if tuple(joined) != result.space:
            return f"the space {list(result.space)} is not the union {list(joined)} of the operands' spaces"
    return None


def element_types_agree(program: TileProgram, operation: Operation) -> str | None:
    op, operands, result = operation.op, operation.operands, operation.result
    if op in ("cast", "const", "coord", "extent", "load") or result is None:
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


def access_fits_the_view(program: TileProgram, operation: Operation) -> str | None:
    view = operation.view
    if operation.op not in ("load", "store"):
        return None
    if view is None or view not in program.views:
        return "accesses a view that is not an argument of the program"
    if len(operation.index) != len(view.shape):
        return f"indexes the {len(view.shape)}-dimensional view {view.name!r} with {len(operation.index)} items"
    if operation.op == "store" and view.access == "read":
        return f"stores to the read-only view {view.name!r}"
    if operation.op == "load" and view.access == "write":
        return f"loads from the write-only view {view.name!r}"
    if operation.attributes.get("bounds") not in BOUNDS:
        return f"has the unknown bounds policy {operation.attributes.get('bounds')!r}"
    for item in operation.index:
        if isinstance(item, Tile) and item.dtype != I64:
            return f"the run-time index {item} has type {item.dtype}, expected i64"
    return None


def access_space_is_the_index_space(program: TileProgram, operation: Operation) -> str | None:
    """A load spans the axes of its index; a store spans at least the axes of its operand."""
    if operation.op not in ("load", "store"):
        return None
    axes: dict[Axis, None] = {}
    for item in operation.index:
        found = item.space if isinstance(item, Tile) else tuple(axis for axis, _ in item.terms)
        axes.update(dict.fromkeys(axis for axis in found if axis not in program.roots))
    if operation.op == "load":
        assert operation.result is not None
        return None if tuple(axes) == operation.result.space else f"spans {list(axes)}, result {operation.result.space}"
    missing = [axis for axis in operation.operands[0].space if axis not in axes]
    return f"the operand spans {missing}, which the store's index does not" if missing else None


def store_keeps_the_type(program: TileProgram, operation: Operation) -> str | None:
    if operation.op not in ("load", "store") or operation.view is None:
        return None
    tile = operation.result if operation.op == "load" else operation.operands[0]
    assert tile is not None
    if tile.dtype == operation.view.dtype:
        return None
    return f"moves {tile.dtype} through the view {operation.view.name!r} of type {operation.view.dtype}"


def reduction_is_closed(program: TileProgram, operation: Operation) -> str | None:
    if operation.op not in ("reduce", "mma"):
        return None
    if operation.axis is None or operation.axis in program.roots:
        return "needs a tile axis"
    if operation.axis not in [a for tile in operation.operands for a in tile.space]:
        return f"no operand spans the axis {operation.axis}"
    if operation.op == "reduce" and operation.attributes.get("kind") not in REDUCTIONS:
        return f"has the unknown kind {operation.attributes.get('kind')!r}"
    return None


def scan_keeps_its_axes(program: TileProgram, operation: Operation) -> str | None:
    if operation.op != "scan":
        return None
    (operand,) = operation.operands
    if operation.axis is None or operation.axis in program.roots or operation.axis not in operand.space:
        return "needs a tile axis that its operand spans"
    if operation.result is None or operation.result.space != operand.space:
        return f"has the space {operation.result and operation.result.space}, expected {operand.space}"
    if operand.dtype.kind not in "fiu" or not isinstance(operation.attributes.get("exclusive"), bool):
        return "sums numbers, and says whether it is exclusive"
    return None


def coordinates_name_an_axis(program: TileProgram, operation: Operation) -> str | None:
    if operation.op != "coord":
        return None
    assert operation.result is not None
    expected = () if operation.axis in program.roots else (operation.axis,)
    return None if operation.result.space == expected else f"has space {operation.result.space}, expected {expected}"


def indices_are_affine_or_tiles(program: TileProgram, operation: Operation) -> str | None:
    for item in operation.index:
        if not isinstance(item, Affine | Tile):
            return f"the index item {item!r} is neither affine nor a tile"
    return None


PROGRAM_RULES: tuple[Callable[[TileProgram], str | None], ...] = (
    views_have_matching_ranks,
    names_are_unique,
    operands_are_defined_before_use,
    has_an_effect,
)

OPERATION_RULES: tuple[Callable[[TileProgram, Operation], str | None], ...] = (
    operation_is_known,
    result_space_is_the_union,
    element_types_agree,
    indices_are_affine_or_tiles,
    access_fits_the_view,
    access_space_is_the_index_space,
    store_keeps_the_type,
    reduction_is_closed,
    scan_keeps_its_axes,
    coordinates_name_an_axis,
)
