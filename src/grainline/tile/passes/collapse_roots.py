"""Merges adjacent root axes where every address allows it: roots (a, b) -> one root of extent A*B.

The law: for every access, coefficient(a) == coefficient(b) * B, so the address depends on a*B + b only. An axis of
extent 1 disappears. Views lose the dimensions that are indexed by affine items inside their bounds: those become one
flat dimension of step 1 whose index is the address itself; dimensions with run-time or guarded indices stay.
"""

from __future__ import annotations

from dataclasses import replace

from grainline.base.dims import Expr
from grainline.tile.access import is_inside
from grainline.tile.ir import Affine, Axis, Operation, Tile, TileProgram, View


def collapse_roots(program: TileProgram) -> TileProgram:
    if len(program.roots) < 2:
        return program
    if any(view.layout != "strided" for view in program.views) or any(o.region is not None for o in program.body):
        return program
    flat = _flattened(program)
    changed = _drop_unit_roots(flat)
    position = len(changed.roots) - 2
    while position >= 0:
        merged = _merge(changed, position)
        changed = changed if merged is None else merged
        position -= 1
    return changed if len(changed.roots) < len(program.roots) else program


def _flattened(program: TileProgram) -> TileProgram:
    """Every view with its freely indexed dimensions replaced by one of step 1."""
    kept = {view.name: _kept_dimensions(program, view) for view in program.views}
    views = {view.name: _flat_view(view, kept[view.name]) for view in program.views}
    body = [
        o if o.view is None else replace(o, view=views[o.view.name], index=_flat_index(o, kept[o.view.name]))
        for o in program.body
    ]
    return replace(program, views=tuple(views.values()), body=tuple(body))


def _kept_dimensions(program: TileProgram, view: View) -> tuple[int, ...]:
    """Dimensions that some access indexes at run time or under a guard."""
    kept = set()
    for operation in program.body:
        if operation.view is None or operation.view.name != view.name:
            continue
        for dimension, item in enumerate(operation.index):
            guarded = operation.attributes["bounds"] != "assume" and not is_inside(operation, dimension)
            if isinstance(item, Tile) or guarded:
                kept.add(dimension)
    return tuple(sorted(kept))


def _flat_view(view: View, kept: tuple[int, ...]) -> View:
    length: int | Expr = 1
    for dimension, (extent, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
        if dimension not in kept:
            length = length + (extent - 1) * stride
    shape = (*(view.shape[d] for d in kept), length)
    strides = (*(view.strides[d] for d in kept), 1)
    return replace(view, shape=shape, strides=strides)


def _flat_index(operation: Operation, kept: tuple[int, ...]) -> tuple[Affine | Tile, ...]:
    assert operation.view is not None
    terms: dict[Axis, int | Expr] = {}
    offset: int | Expr = 0
    for dimension, (item, stride) in enumerate(zip(operation.index, operation.view.strides, strict=True)):
        if dimension in kept:
            continue
        assert isinstance(item, Affine)
        offset = offset + item.offset * stride
        for axis, coefficient in item.terms:
            terms[axis] = terms.get(axis, 0) + coefficient * stride
    return (*(operation.index[d] for d in kept), Affine(tuple(terms.items()), offset))


def _drop_unit_roots(program: TileProgram) -> TileProgram:
    """An axis of extent 1 has coordinate 0; one root is left if all have."""
    units = [a for a in program.roots if isinstance(a.extent, int) and a.extent == 1 and not _has_coord(program, a)]
    units = units[: len(program.roots) - 1]
    if not units:
        return program
    roots = tuple(axis for axis in program.roots if axis not in units)
    body = [_without(o, units) for o in program.body]
    return replace(program, roots=roots, body=tuple(body))


def _without(operation: Operation, axes: list[Axis]) -> Operation:
    index = tuple(
        item if isinstance(item, Tile) else Affine(tuple(t for t in item.terms if t[0] not in axes), item.offset)
        for item in operation.index
    )
    return replace(operation, index=index)


def _has_coord(program: TileProgram, axis: Axis) -> bool:
    return any(o.op == "coord" and o.axis is axis for o in program.body)


def _merge(program: TileProgram, position: int) -> TileProgram | None:
    """Merges roots `position` and `position + 1`, or None when an access or a coordinate forbids it."""
    outer, inner = program.roots[position], program.roots[position + 1]
    if _has_coord(program, outer) or _has_coord(program, inner):
        return None
    for operation in program.body:
        for item in operation.index:
            if isinstance(item, Affine) and not _is_mergeable(item, outer, inner):
                return None
    merged = Axis(f"{outer.label}.{inner.label}", outer.extent * inner.extent)
    body = [replace(o, index=tuple(_merged_item(item, outer, inner, merged) for item in o.index)) for o in program.body]
    roots = (*program.roots[:position], merged, *program.roots[position + 2 :])
    return replace(program, roots=roots, body=tuple(body))


def _is_mergeable(item: Affine, outer: Axis, inner: Axis) -> bool:
    terms = dict(item.terms)
    return terms.get(outer, 0) == terms.get(inner, 0) * inner.extent


def _merged_item(item: Affine | Tile, outer: Axis, inner: Axis, merged: Axis) -> Affine | Tile:
    if isinstance(item, Tile):
        return item
    terms = [(merged if axis is inner else axis, c) for axis, c in item.terms if axis is not outer]
    return Affine(tuple(terms), item.offset)
