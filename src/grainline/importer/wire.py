"""Finds the large tensors of a serialised model without copying them.

Protobuf would copy every weight into its own memory, and once more for each reader. `split(data)` walks the outermost
wire fields, cuts out the `raw_data` of large initialisers and `Constant` nodes, and gives the small rest, which
protobuf parses, with the places of what was cut out. Whatever looks unusual is left to protobuf: then nothing is
cut out."""

from __future__ import annotations

from dataclasses import dataclass

LARGE_BYTES = 4096

# Field numbers of onnx.proto.
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INITIALISER = 1, 5
_NODE_ATTRIBUTE, _ATTRIBUTE_TENSOR = 5, 5
_TENSOR_RAW = 9

_LENGTH_DELIMITED = 2

Span = tuple[int, int]  # offset and length in the data


@dataclass(frozen=True, slots=True)
class Split:
    """`rest` parses as the model without the data at `initialisers[i]` and `nodes[i]` (i counts in file order)."""

    rest: bytes
    initialisers: dict[int, Span]
    nodes: dict[int, Span]


class _Unusual(Exception):
    """The bytes are not what a plain writer makes; protobuf decides about them."""


@dataclass(frozen=True, slots=True)
class _Field:
    number: int
    wire_type: int
    start: int  # of the tag
    body: int  # of the payload
    end: int


def split(data: memoryview) -> Split:
    """Separates large tensors from the rest; never fails."""
    whole = Split(b"", {}, {})
    try:
        return _split(data)
    except (_Unusual, IndexError):
        return Split(bytes(data), whole.initialisers, whole.nodes)


def _split(data: memoryview) -> Split:
    model = list(_fields(data, 0, len(data)))
    graphs = [f for f in model if f.number == _MODEL_GRAPH]
    if len(graphs) != 1 or graphs[0].wire_type != _LENGTH_DELIMITED:
        raise _Unusual
    initialisers: dict[int, Span] = {}
    nodes: dict[int, Span] = {}
    pieces: list[bytes] = []
    counts = {_GRAPH_NODE: 0, _GRAPH_INITIALISER: 0}
    for item in _fields(data, graphs[0].body, graphs[0].end):
        path = _PATHS.get(item.number)
        if path is None:
            pieces.append(bytes(data[item.start : item.end]))
            continue
        found = initialisers if item.number == _GRAPH_INITIALISER else nodes
        body, span = _without_raw(data, item, path)
        if span is not None:
            found[counts[item.number]] = span
        counts[item.number] += 1
        pieces.append(body)
    graph = _delimited(_MODEL_GRAPH, b"".join(pieces))
    before, after = data[: graphs[0].start], data[graphs[0].end :]
    return Split(bytes(before) + graph + bytes(after), initialisers, nodes)


_PATHS = {
    _GRAPH_INITIALISER: (_TENSOR_RAW,),
    _GRAPH_NODE: (_NODE_ATTRIBUTE, _ATTRIBUTE_TENSOR, _TENSOR_RAW),
}


def _without_raw(data: memoryview, item: _Field, path: tuple[int, ...]) -> tuple[bytes, Span | None]:
    """The message `item` with the one large field at `path` removed, and where that field is."""
    whole = bytes(data[item.start : item.end]) if item.end - item.body < LARGE_BYTES else None
    if whole is not None:
        return whole, None
    if item.wire_type != _LENGTH_DELIMITED:
        raise _Unusual
    inner = list(_fields(data, item.body, item.end))
    targets = [f for f in inner if f.number == path[0]]
    if len(targets) != 1 or targets[0].end - targets[0].body < LARGE_BYTES:
        return bytes(data[item.start : item.end]), None
    target = targets[0]
    if len(path) == 1:
        replacement, span = b"", (target.body, target.end - target.body)
    else:
        replacement, span = _without_raw(data, target, path[1:])
    if span is None:
        return bytes(data[item.start : item.end]), None
    body = bytes(data[item.body : target.start]) + replacement + bytes(data[target.end : item.end])
    return _delimited(item.number, body), span


def _fields(data: memoryview, position: int, end: int):
    while position < end:
        start = position
        tag, position = _varint(data, position, end)
        wire_type = tag & 7
        if wire_type == 0:
            body = position
            _, position = _varint(data, position, end)
        elif wire_type == _LENGTH_DELIMITED:
            length, body = _varint(data, position, end)
            position = body + length
        elif wire_type in (1, 5):
            body = position
            position += 8 if wire_type == 1 else 4
        else:
            raise _Unusual
        if position > end:
            raise _Unusual
        yield _Field(tag >> 3, wire_type, start, body, position)


def _varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 64:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise _Unusual


def _delimited(number: int, body: bytes) -> bytes:
    return _encoded(number << 3 | _LENGTH_DELIMITED) + _encoded(len(body)) + body


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
