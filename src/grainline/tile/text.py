"""Tile programs as text that parses back, and the canonical form whose text identifies a kernel.

tile softmax
view x f32 [M, 768] strides [768, 1] read
root a0 "rows" M
axis a1 "n" 768
%0 = load x [a0, a1] bounds=assume : f32 (a1)
%1 = reduce %0 axis=a1 kind=max init=-inf use_init=False : f32 ()
store y [a0, a1] %4 bounds=assume

A loop names its results, initial values and carried values, and closes with what it yields:

%7 = serial %5 axis=a2 carried %6 {
%8 = add %6 %4 : f32 ()
} yield %8
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grainline.base import dtypes
from grainline.base.dims import Expr, parse, substitute, symbol, symbols
from grainline.base.dtypes import DType
from grainline.tile.access import tile_axes
from grainline.tile.ir import Affine, Axis, Operation, Region, Tile, TileProgram, View

INDEXED = ("load", "store", "extract")


def to_text(program: TileProgram) -> str:
    """One line per view, axis and operation, values numbered in order."""
    axes = {axis: f"a{k}" for k, axis in enumerate((*program.roots, *_all_tile_axes(program)))}
    numbers: dict[int, int] = {}
    lines = [f"tile {program.name}" if program.scope == "automatic" else f"tile {program.name} scope={program.scope}"]
    lines += [_view_line(view) for view in program.views]
    lines += [
        f"{'root' if axis in program.roots else 'axis'} {name} {_quoted(axis.label)} {axis.extent}"
        for axis, name in axes.items()
    ]
    _print_body(program.body, axes, numbers, lines)
    return "\n".join(lines) + "\n"


def _print_body(body: Sequence[Operation], axes: Mapping[Axis, str], numbers: dict[int, int], lines: list[str]) -> None:
    for operation in body:
        region = operation.region
        for tile in (*operation.defined, *(region.carried if region is not None else ())):
            numbers[tile.id] = len(numbers)
        line = _operation_line(operation, axes, numbers)
        if region is None:
            lines.append(line)
            continue
        lines.append(" ".join([line, "carried", *_names(region.carried, numbers), "{"]))
        _print_body(region.body, axes, numbers, lines)
        lines.append(" ".join(["}", "yield", *_names(region.yields, numbers)]))


def _names(tiles: Sequence[Tile], numbers: Mapping[int, int]) -> list[str]:
    return [f"%{numbers[tile.id]}" for tile in tiles]


def _all_tile_axes(program: TileProgram) -> tuple[Axis, ...]:
    found = dict.fromkeys(tile_axes(program))
    found.update(dict.fromkeys(o.axis for o in program.operations() if o.axis is not None))
    return tuple(axis for axis in found if axis is not None and axis not in program.roots)


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
        words.append(operation.view.name)
    if operation.op in INDEXED:
        items = (_index_text(item, axes, numbers) for item in operation.index)
        words.append("[" + "; ".join(items) + "]")
    words += _names(operation.operands, numbers)
    if operation.axis is not None:
        words.append(f"axis={axes[operation.axis]}")
    words += [f"{key}={_attribute(value)}" for key, value in sorted(operation.attributes.items())]
    result = operation.result
    if operation.results:
        words = [*_names(operation.results, numbers), "=", *words]
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


@dataclass
class _Reading:
    """What has been read so far; `loops` are the open ones, each with its operation so far and the body around it."""

    name: str = ""
    scope: str = "automatic"
    views: dict[str, View] = field(default_factory=dict)
    axes: dict[str, Axis] = field(default_factory=dict)
    roots: list[Axis] = field(default_factory=list)
    tiles: dict[str, Tile] = field(default_factory=dict)
    body: list[Operation] = field(default_factory=list)
    loops: list[tuple[Operation, list[Operation]]] = field(default_factory=list)

    def new_tile(self, name: str, dtype: DType, space: tuple[Axis, ...]) -> Tile:
        self.tiles[name] = Tile(len(self.tiles), dtype, space)
        return self.tiles[name]


def from_text(text: str) -> TileProgram:
    """The program that `to_text` printed; ValueError names the first line that does not parse."""
    reading = _Reading()
    for number, line in enumerate(_lines(text), 1):
        try:
            _read_line(reading, line)
        except (AttributeError, KeyError, ValueError, StopIteration, IndexError) as error:
            raise ValueError(f"line {number} of the tile program does not parse: {line!r} ({error})") from error
    if reading.loops:
        raise ValueError("the tile program ends inside of a loop")
    views, roots = tuple(reading.views.values()), tuple(reading.roots)
    return TileProgram(reading.name, views, roots, tuple(reading.body), reading.scope)


def _read_line(reading: _Reading, line: str) -> None:
    kind, rest = line.split(" ", 1)
    if kind == "tile":
        reading.name, _, scope = rest.partition(" scope=")
        reading.scope = scope or "automatic"
    elif kind == "view":
        view = _parse_view(rest)
        reading.views[view.name] = view
    elif kind in ("root", "axis"):
        axis_name, label, extent = re.fullmatch(r'(\w+) "(.*)" (.+)', rest).groups()  # type: ignore[union-attr]
        reading.axes[axis_name] = Axis(label, parse(extent))
        if kind == "root":
            reading.roots.append(reading.axes[axis_name])
    elif kind == "}":
        _close_loop(reading, rest)
    elif line.endswith("{"):
        _open_loop(reading, line)
    else:
        reading.body.append(_parse_operation(line, reading))


def _open_loop(reading: _Reading, line: str) -> None:
    """Carried values and results have the types and spaces of the initial values."""
    head, carried_text = line[:-1].split(" carried", 1)
    target, _, head = head.rpartition(" = ") if " = " in head else ("", "", head)
    op, *words = head.split()
    operands = tuple(reading.tiles[word] for word in words if word.startswith("%"))
    pairs = dict(word.split("=", 1) for word in words if "=" in word)
    axis = reading.axes[pairs.pop("axis")]
    attributes = {key: _parse_attribute(value) for key, value in pairs.items()}
    rows = [
        tuple(reading.new_tile(name, t.dtype, t.space) for name, t in zip(names.split(), operands, strict=True))
        for names in (target, carried_text)
    ]
    region = Region(rows[1], (), ())
    reading.loops.append((Operation(op, operands, None, None, (), axis, attributes, rows[0], region), reading.body))
    reading.body = []


def _close_loop(reading: _Reading, text: str) -> None:
    loop, around = reading.loops.pop()
    assert loop.region is not None
    yields = tuple(reading.tiles[name] for name in text.split()[1:])
    around.append(replace(loop, region=Region(loop.region.carried, tuple(reading.body), yields)))
    reading.body = around


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


def _parse_operation(line: str, reading: _Reading) -> Operation:
    target, dtype, space = "", "", ""
    if line.startswith("%"):
        target, line = line.split(" = ", 1)
        line, kind = line.rsplit(" : ", 1)
        dtype, space = kind.split(" ", 1)
    op, *words = line.split(" ", 1)
    rest = words[0] if words else ""
    view: View | None = None
    index: tuple[Affine | Tile, ...] = ()
    if op in INDEXED:
        match = re.match(r"(?:(\S+) )?\[(.*?)\] ?", rest)
        assert match is not None
        view = reading.views[match[1]] if match[1] else None
        rest = rest[match.end() :]
        index = tuple(_parse_index(part, reading.axes, reading.tiles) for part in _split(match[2], ";"))
    operands = tuple(reading.tiles[word] for word in rest.split() if word.startswith("%"))
    pairs = dict(word.split("=", 1) for word in rest.split() if "=" in word)
    axis = reading.axes[pairs.pop("axis")] if "axis" in pairs else None
    result = None
    if target:
        names = [part for part in space.strip("()").split(", ") if part]
        result = reading.new_tile(target, dtypes.BY_NAME[dtype], tuple(reading.axes[part] for part in names))
    attributes = {key: _parse_attribute(value) for key, value in pairs.items()}
    return Operation(op, operands, result, view, index, axis, attributes)


def _parse_attribute(text: str) -> Any:
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
    for operation in program.operations():
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
    body = _Renaming(axes, views, extents).body(program.body)
    return TileProgram("kernel", tuple(views.values()), tuple(axes[a] for a in program.roots), body, program.scope)


@dataclass
class _Renaming:
    axes: Mapping[Axis, Axis]
    views: Mapping[str, View]
    extents: Mapping[str, int | Expr]
    tiles: dict[int, Tile] = field(default_factory=dict)

    def body(self, body: Sequence[Operation]) -> tuple[Operation, ...]:
        return tuple(self.operation(operation) for operation in body)

    def operation(self, operation: Operation) -> Operation:
        attributes = operation.attributes.items()
        return Operation(
            operation.op,
            self.known(operation.operands),
            None if operation.result is None else self.new(operation.result),
            None if operation.view is None else self.views[operation.view.name],
            tuple(_renamed_index(item, self.axes, self.tiles, self.extents) for item in operation.index),
            None if operation.axis is None else self.axes[operation.axis],
            {k: substitute(v, self.extents) if isinstance(v, Expr) else v for k, v in attributes},
            tuple(self.new(tile) for tile in operation.results),
            None if operation.region is None else self.region(operation.region),
        )

    def region(self, region: Region) -> Region:
        carried = tuple(self.new(tile) for tile in region.carried)
        return Region(carried, self.body(region.body), self.known(region.yields))

    def known(self, tiles: Sequence[Tile]) -> tuple[Tile, ...]:
        return tuple(self.tiles[tile.id] for tile in tiles)

    def new(self, tile: Tile) -> Tile:
        self.tiles[tile.id] = Tile(len(self.tiles), tile.dtype, tuple(self.axes[a] for a in tile.space))
        return self.tiles[tile.id]


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
