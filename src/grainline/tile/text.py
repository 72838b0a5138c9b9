"""Tile programs as text that parses back, and the canonical form whose text identifies a kernel.

tile softmax
view x f32 [M, 768] strides [768, 1] read
root a0 "rows" M
axis a1 "n" 768
%0 = load x [a0, a1] bounds=assume : f32 (a1)
%1 = reduce %0 axis=a1 kind=max init=-inf use_init=False : f32 ()
store y [a0, a1] %4 bounds=assume
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from grainline.base import dtypes
from grainline.base.dims import Expr, parse, substitute, symbol, symbols
from grainline.tile.access import tile_axes
from grainline.tile.ir import Affine, Axis, Operation, Tile, TileProgram, View


def to_text(program: TileProgram) -> str:
    """One line per view, axis and operation, values numbered in order."""
    axes = {axis: f"a{k}" for k, axis in enumerate((*program.roots, *_all_tile_axes(program)))}
    numbers: dict[int, int] = {}
    lines = [f"tile {program.name}"]
    lines += [_view_line(view) for view in program.views]
    lines += [
        f"{'root' if axis in program.roots else 'axis'} {name} {_quoted(axis.label)} {axis.extent}"
        for axis, name in axes.items()
    ]
    for operation in program.body:
        if operation.result is not None:
            numbers[operation.result.id] = len(numbers)
        lines.append(_operation_line(operation, axes, numbers))
    return "\n".join(lines) + "\n"


def _all_tile_axes(program: TileProgram) -> tuple[Axis, ...]:
    found = dict.fromkeys(tile_axes(program))
    found.update(dict.fromkeys(o.axis for o in program.body if o.axis is not None and o.axis not in program.roots))
    return tuple(axis for axis in found if axis is not None)


def _quoted(label: str) -> str:
    return '"' + label.replace('"', "'") + '"'


def _list(items: tuple[Any, ...]) -> str:
    return "[" + ", ".join(str(item) for item in items) + "]"


def _view_line(view: View) -> str:
    base = f"view {view.name} {view.dtype} {_list(view.shape)}"
    if view.layout in ("panels", "quads"):
        return f"{base} {view.layout} {view.panel} {view.access}"
    return f"{base} strides {_list(view.strides)} {view.access}"


def _operation_line(operation: Operation, axes: Mapping[Axis, str], numbers: Mapping[int, int]) -> str:
    words = [operation.op]
    if operation.view is not None:
        items = (_index_text(item, axes, numbers) for item in operation.index)
        words += [operation.view.name, "[" + "; ".join(items) + "]"]
    words += [f"%{numbers[tile.id]}" for tile in operation.operands]
    if operation.axis is not None:
        words.append(f"axis={axes[operation.axis]}")
    words += [f"{key}={_attribute(value)}" for key, value in sorted(operation.attributes.items())]
    result = operation.result
    if result is None:
        return " ".join(words)
    space = ", ".join(axes[axis] for axis in result.space)
    return f"%{numbers[result.id]} = {' '.join(words)} : {result.dtype} ({space})"


def _attribute(value: Any) -> str:
    if isinstance(value, Expr):
        return "extent:" + str(value).replace(" ", "")
    return repr(value).replace(" ", "")


def _index_text(item: Affine | Tile, axes: Mapping[Axis, str], numbers: Mapping[int, int]) -> str:
    if isinstance(item, Tile):
        return f"%{numbers[item.id]}"
    parts = [axes[axis] if c == 1 and isinstance(c, int) else f"{axes[axis]}*({c})" for axis, c in item.terms]
    if not parts or not (isinstance(item.offset, int) and item.offset == 0):
        parts.append(f"({item.offset})")
    return " ".join(parts)


# ---- parsing ----


def from_text(text: str) -> TileProgram:
    """The program that `to_text` printed; ValueError names the first line that does not parse."""
    name, views, roots, body = "", [], [], []
    axes: dict[str, Axis] = {}
    tiles: dict[str, Tile] = {}
    for number, line in enumerate(_lines(text), 1):
        try:
            kind, rest = line.split(" ", 1)
            if kind == "tile":
                name = rest
            elif kind == "view":
                views.append(_parse_view(rest))
            elif kind in ("root", "axis"):
                axis_name, label, extent = re.fullmatch(r'(\w+) "(.*)" (.+)', rest).groups()  # type: ignore[union-attr]
                axes[axis_name] = Axis(label, parse(extent))
                if kind == "root":
                    roots.append(axes[axis_name])
            else:
                body.append(_parse_operation(line, {v.name: v for v in views}, axes, tiles))
        except (AttributeError, KeyError, ValueError, StopIteration) as error:
            raise ValueError(f"line {number} of the tile program does not parse: {line!r} ({error})") from error
    return TileProgram(name, tuple(views), tuple(roots), tuple(body))


def _lines(text: str) -> Iterator[str]:
    return (line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#"))


def _parse_view(text: str) -> View:
    match = re.fullmatch(r"(\S+) (\w+) \[(.*?)\] (?:strides \[(.*)\]|(panels|quads) (\d+)) (\w+)", text)
    if match is None:
        raise ValueError("expected: name dtype [shape] strides [...]|panels n|quads n access")
    name, dtype, shape, strides, packed, panel, access = match.groups()
    layout = packed or "strided"
    return View(
        name,
        dtypes.BY_NAME[dtype],
        _parse_extents(shape),
        _parse_extents(strides or ""),
        access,
        layout,
        int(panel or 0),
    )


def _parse_extents(text: str) -> tuple[int | Expr, ...]:
    return tuple(parse(part) for part in _split(text, ","))


def _split(text: str, separator: str) -> list[str]:
    """Splits outside parentheses."""
    parts, depth, current = [], 0, ""
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == separator and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += char
    parts.append(current)
    return [part.strip() for part in parts if part.strip()]


def _parse_operation(
    line: str, views: Mapping[str, View], axes: Mapping[str, Axis], tiles: dict[str, Tile]
) -> Operation:
    target, dtype, space = "", "", ""
    if line.startswith("%"):
        target, line = line.split(" = ", 1)
        line, kind = line.rsplit(" : ", 1)
        dtype, space = kind.split(" ", 1)
    op, *words = line.split(" ", 1)
    rest = words[0] if words else ""
    view: View | None = None
    index: tuple[Affine | Tile, ...] = ()
    if op in ("load", "store"):
        match = re.match(r"(\S+) \[(.*?)\] ?", rest)
        assert match is not None
        view, rest = views[match[1]], rest[match.end() :]
        index = tuple(_parse_index(part, axes, tiles) for part in _split(match[2], ";"))
    operands = tuple(tiles[word] for word in rest.split() if word.startswith("%"))
    pairs = dict(word.split("=", 1) for word in rest.split() if "=" in word)
    axis = axes[pairs.pop("axis")] if "axis" in pairs else None
    result = None
    if target:
        names = [part for part in space.strip("()").split(", ") if part]
        result = Tile(len(tiles), dtypes.BY_NAME[dtype], tuple(axes[part] for part in names))
        tiles[target] = result
    attributes = {key: _parse_attribute(value, key) for key, value in pairs.items()}
    return Operation(op, operands, result, view, index, axis, attributes)


def _parse_attribute(text: str, key: str) -> Any:
    if text.startswith("extent:"):
        return parse(text[len("extent:") :])
    if text in ("inf", "-inf", "nan"):
        return float(text)
    return ast.literal_eval(text)


def _parse_index(text: str, axes: Mapping[str, Axis], tiles: Mapping[str, Tile]) -> Affine | Tile:
    if text.startswith("%"):
        return tiles[text]
    terms: list[tuple[Axis, int | Expr]] = []
    offset: int | Expr = 0
    for part in _split(text, " "):
        if part.startswith("("):
            offset = parse(part[1:-1])
        elif "*" in part:
            axis, coefficient = part.split("*", 1)
            terms.append((axes[axis], parse(coefficient[1:-1])))
        else:
            terms.append((axes[part], 1))
    return Affine(tuple(terms), offset)


# ---- canonical form ----


def program_symbols(program: TileProgram) -> tuple[str, ...]:
    """Every symbol of the program, in order of first appearance: views, axes, operations."""
    found: dict[str, None] = {}
    for value in _extents(program):
        found.update(dict.fromkeys(symbols(value)))
    return tuple(found)


def _extents(program: TileProgram) -> Iterator[int | Expr]:
    for view in program.views:
        yield from (*view.shape, *view.strides)
    for axis in (*program.roots, *_all_tile_axes(program)):
        yield axis.extent
    for operation in program.body:
        for item in operation.index:
            if isinstance(item, Affine):
                yield from (*(c for _, c in item.terms), item.offset)
        yield from (v for v in operation.attributes.values() if isinstance(v, Expr))


def canonical(program: TileProgram) -> tuple[TileProgram, dict[str, str]]:
    """(the program under neutral names, original symbol -> neutral symbol).

    Symbols become s0, s1, ..., views v0, v1, ..., axes lose their labels, values are renumbered: two programs that
    differ in names only have one canonical text, `to_text(canonical(p)[0])`.
    """
    renamed = {name: f"s{k}" for k, name in enumerate(program_symbols(program))}
    return rename(program, {old: symbol(new) for old, new in renamed.items()}), renamed


def rename(program: TileProgram, extents: Mapping[str, int | Expr]) -> TileProgram:
    """Substitutes symbols everywhere and drops all names."""
    axes = {a: Axis("a", substitute(a.extent, extents)) for a in (*program.roots, *_all_tile_axes(program))}
    views = {v.name: _renamed_view(v, f"v{k}", extents) for k, v in enumerate(program.views)}
    tiles: dict[int, Tile] = {}
    body = []
    for operation in program.body:
        result = operation.result
        if result is not None:
            tiles[result.id] = Tile(len(tiles), result.dtype, tuple(axes[a] for a in result.space))
        index = tuple(_renamed_index(item, axes, tiles, extents) for item in operation.index)
        attributes = {k: substitute(v, extents) if isinstance(v, Expr) else v for k, v in operation.attributes.items()}
        body.append(
            Operation(
                operation.op,
                tuple(tiles[t.id] for t in operation.operands),
                None if result is None else tiles[result.id],
                None if operation.view is None else views[operation.view.name],
                index,
                None if operation.axis is None else axes[operation.axis],
                attributes,
            )
        )
    return TileProgram("kernel", tuple(views.values()), tuple(axes[a] for a in program.roots), tuple(body))


def _renamed_view(view: View, name: str, extents: Mapping[str, int | Expr]) -> View:
    shape = tuple(substitute(d, extents) for d in view.shape)
    strides = tuple(substitute(d, extents) for d in view.strides)
    return View(name, view.dtype, shape, strides, view.access, view.layout, view.panel)


def _renamed_index(
    item: Affine | Tile, axes: Mapping[Axis, Axis], tiles: Mapping[int, Tile], extents: Mapping[str, int | Expr]
) -> Affine | Tile:
    if isinstance(item, Tile):
        return tiles[item.id]
    terms = tuple((axes[a], substitute(c, extents)) for a, c in item.terms)
    return Affine(terms, substitute(item.offset, extents))
