"""TensorProto -> Constant: checked at import, read only when somebody loads it.

Sizes, types and places are verified without touching the data, so a malformed initialiser costs no memory. External
data must lie in the model's folder: no absolute path, no "..", no link, no device; offset and length inside the file.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from grainline.base.dtypes import BY_ONNX, DType
from grainline.base.errors import ModelError
from grainline.base.files import stamp
from grainline.graph.ir import Constant, Held
from grainline.importer.proto import OpenModel

EXTERNAL = 1
GREATEST_ELEMENTS = 1 << 40

#: field that carries a type's values when raw_data does not, and the dtype of one stored item
_FIELDS = {
    "f32": ("float_data", "float32"), "c64": ("float_data", "float32"),
    "f64": ("double_data", "float64"), "c128": ("double_data", "float64"),
    "i64": ("int64_data", "int64"), "u64": ("uint64_data", "uint64"), "u32": ("uint64_data", "uint64"),
    "string": ("string_data", "object"),
}  # fmt: skip
_NARROW_BITS = {17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8, 25: 2, 26: 2}
_INT32_FIELD = ("int32_data", "int32")
_BITS_IN_INT32 = {"f16": "uint16", "bf16": "uint16"}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A checked tensor: its type and shape, and the constant that gives the data."""

    dtype: DType
    shape: tuple[int, ...]
    constant: Constant


def read_tensor(proto: Any, model: OpenModel, span: tuple[int, int] | None = None, label: str = "") -> Tensor:
    """Checks a TensorProto; `span` says where its raw data was cut out of `model.data`. ModelError when malformed."""
    name = label or proto.name
    if proto.data_type in _NARROW_BITS:
        return _narrow(proto, model, span, name)
    if proto.data_type not in BY_ONNX:
        raise ModelError("a tensor has an element type that models cannot carry", value=name, found=proto.data_type)
    dtype = BY_ONNX[proto.data_type]
    shape = tuple(proto.dims)
    count = _element_count(shape, name)
    if proto.HasField("segment"):
        raise ModelError("a tensor is stored in segments, which ONNX does not define", value=name)
    if proto.data_location == EXTERNAL:
        constant = _external(proto, dtype, shape, count, model, name)
    elif span is not None:
        constant = _raw(dtype, shape, count, model.data[span[0] : span[0] + span[1]], name, model, span)
    elif proto.HasField("raw_data"):
        constant = _raw(dtype, shape, count, memoryview(proto.raw_data), name, model, None)
    else:
        constant = _typed(proto, dtype, shape, count, name)
    return Tensor(dtype, shape, constant)


def _narrow(proto: Any, model: OpenModel, span: tuple[int, int] | None, name: str) -> Tensor:
    """A tensor of 8-bit floats or packed 4- and 2-bit numbers; the onnx package unpacks it when it is loaded."""
    dtype, shape = BY_ONNX[proto.data_type], tuple(proto.dims)
    size_bytes = -(-_element_count(shape, name) * _NARROW_BITS[proto.data_type] // 8)
    if proto.data_location == EXTERNAL:
        raise ModelError(f"external tensors of {dtype} are not supported", value=name)
    plain = type(proto)()
    plain.CopyFrom(proto)
    if span is not None:
        plain.raw_data = bytes(model.data[span[0] : span[0] + span[1]])
    found = len(plain.raw_data) if plain.HasField("raw_data") else len(plain.int32_data)
    if found != size_bytes:
        raise _mismatch(name, shape, f"{size_bytes} bytes", f"{found}")
    return Tensor(dtype, shape, Constant(partial(_unpacked, plain.SerializeToString()), ""))


def _unpacked(data: bytes) -> np.ndarray[Any, Any]:
    from onnx import TensorProto, numpy_helper

    return numpy_helper.to_array(TensorProto.FromString(data))


def constant_of(array: np.ndarray[Any, Any]) -> Constant:
    """A constant that holds a small array."""
    frozen = np.array(array, order="C")
    frozen.setflags(write=False)
    if frozen.dtype.kind == "O":
        return Constant(Held(frozen), "")
    digest = hashlib.sha256(frozen.tobytes()).hexdigest()
    return Constant(Held(frozen), f"bytes:{frozen.dtype.name}:{frozen.shape}:{digest}")


def _element_count(shape: tuple[int, ...], name: str) -> int:
    if any(extent < 0 for extent in shape):
        raise ModelError("a tensor has a negative extent", value=name, found=list(shape))
    count = prod(shape)
    if count > GREATEST_ELEMENTS:
        raise ModelError("a tensor is larger than any machine", value=name, found=list(shape))
    return count


def _mismatch(name: str, shape: tuple[int, ...], expected: str, found: str) -> ModelError:
    return ModelError(
        f"the data of a tensor of shape {list(shape)} has the wrong size", value=name, expected=expected, found=found
    )


def _raw(
    dtype: DType,
    shape: tuple[int, ...],
    count: int,
    data: memoryview,
    name: str,
    model: OpenModel,
    span: tuple[int, int] | None,
) -> Constant:
    if dtype.kind == "s":
        raise ModelError("a string tensor cannot have raw data", value=name)
    expected = count * dtype.size_bytes
    if len(data) != expected:
        raise _mismatch(name, shape, f"{expected} bytes", f"{len(data)} bytes")
    if span is None:
        return constant_of(_view(data, dtype, shape))
    identity = f"{model.identity}:{span[0]}:{dtype}:{shape}" if model.identity else ""
    return Constant(partial(_span, model.data, span, dtype, shape), identity)


def _span(data: memoryview, span: tuple[int, int], dtype: DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The array at (offset, length) of the model's data."""
    return _view(data[span[0] : span[0] + span[1]], dtype, shape)


def _view(data: memoryview, dtype: DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The array over the bytes; copied only where they do not lie on a multiple of the element's size."""
    array = np.frombuffer(data, dtype.numpy.newbyteorder("<") if dtype.name != "bf16" else dtype.numpy)
    array = array.reshape(shape)
    return np.require(array, requirements=["C", "A"])


def _typed(proto: Any, dtype: DType, shape: tuple[int, ...], count: int, name: str) -> Constant:
    field, stored = _FIELDS.get(dtype.name, _INT32_FIELD)
    items = getattr(proto, field)
    expected = count * 2 if dtype.kind == "c" else count
    if len(items) != expected:
        raise _mismatch(name, shape, f"{expected} items in {field}", f"{len(items)}")
    if dtype.kind == "s":
        strings = np.empty(count, dtype=object)
        strings[:] = [text_of(item) for item in items]
        return constant_of(strings.reshape(shape))
    values = np.array(items, dtype=stored)
    if dtype.name in _BITS_IN_INT32:
        values = values.astype("uint16").view(dtype.numpy)
    elif dtype.kind == "c":
        values = values.view(dtype.numpy)
    return constant_of(values.astype(dtype.numpy).reshape(shape))


def text_of(data: bytes | str) -> str:
    """A string element; bytes that are not UTF-8 survive as surrogates."""
    return data.decode("utf-8", "surrogateescape") if isinstance(data, bytes) else data


def _external(proto: Any, dtype: DType, shape: tuple[int, ...], count: int, model: OpenModel, name: str) -> Constant:
    if dtype.kind == "s":
        raise ModelError("a string tensor cannot be external", value=name)
    entries = {entry.key: entry.value for entry in proto.external_data}
    path = _external_path(entries.get("location", ""), model.folder, name)
    status = os.stat(path)
    offset = _number(entries.get("offset", "0"), "offset", name)
    expected = count * dtype.size_bytes
    length = _number(entries["length"], "length", name) if "length" in entries else expected
    if length != expected:
        raise _mismatch(name, shape, f"{expected} bytes", f"length {length}")
    if offset + length > status.st_size:
        raise ModelError(
            "external data ends after its file", value=name, expected=f"at most {status.st_size} bytes",
            found=f"offset {offset} + {length}",
        )  # fmt: skip
    model.other_files.add(path)
    identity = f"{path}:{stamp(status)}:{offset}:{dtype}:{shape}"
    return Constant(partial(_read_file, path, offset, length, dtype, shape, name), identity)


def _number(text: str, key: str, name: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ModelError(f"the {key} of external data is not a number", value=name, found=repr(text))
    return int(text)


def _external_path(location: str, folder: str | None, name: str) -> str:
    """The file of a location; every step of the way must be an ordinary folder, its end an ordinary file."""
    if folder is None:
        raise ModelError("external data needs a model that was opened by its path", value=name, found=repr(location))
    parts = location.replace("\\", "/").split("/")
    if not location or os.path.isabs(location) or ".." in parts or "\0" in location or ":" in parts[0]:
        raise ModelError(
            "external data must lie in the model's folder", value=name, expected="a relative path inside it",
            found=repr(location),
        )  # fmt: skip
    path = folder
    for part in (part for part in parts if part not in ("", ".")):
        path = os.path.join(path, part)
        mode = _mode(path, name)
        if stat.S_ISLNK(mode) or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise ModelError(
                "external data must be an ordinary file, not a link or device", value=name, found=repr(location)
            )
    if not stat.S_ISREG(_mode(path, name)):
        raise ModelError("external data is not a file", value=name, found=repr(location))
    return path


def _mode(path: str, name: str) -> int:
    try:
        return os.lstat(path).st_mode
    except (OSError, ValueError) as error:
        raise ModelError("external data cannot be read", value=name, found=str(error)) from error


def _read_file(
    path: str, offset: int, length: int, dtype: DType, shape: tuple[int, ...], name: str
) -> np.ndarray[Any, Any]:
    if length == 0:
        return np.zeros(shape, dtype.numpy)
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        try:
            mapped = mmap.mmap(handle, offset + length, access=mmap.ACCESS_READ)
        finally:
            os.close(handle)
    except (OSError, ValueError) as error:
        raise ModelError("external data cannot be read", value=name, found=str(error)) from error
    return _view(memoryview(mapped)[offset : offset + length], dtype, shape)
