"""Opens a model: a path, bytes, or a ModelProto already in memory.

Only the message classes of the onnx package are loaded here; its checker, helpers and reference operators cost several
times more to import than a compiled model needs. Large tensors are left in the file and mapped (see `wire`).
"""

from __future__ import annotations

import importlib.util
import mmap
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from grainline.base.errors import ModelError
from grainline.base.files import stamp
from grainline.importer import wire

Source = "str | os.PathLike[str] | bytes | bytearray | memoryview | ModelProto"


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A parsed model; `data` holds what `split` cut out; `folder` is where external data may lie;
    `other_files` are those that hold some: each external tensor that is read adds its own."""

    proto: Any
    data: memoryview = field(default_factory=lambda: memoryview(b""))
    split: wire.Split = field(default_factory=lambda: wire.Split(b"", {}, {}))
    folder: str | None = None
    identity: str = ""
    other_files: set[str] = field(default_factory=set)


def messages() -> ModuleType:
    """The module with the message classes, shared with the onnx package whether or not that is imported."""
    name = "onnx.onnx_ml_pb2"
    if name in sys.modules:
        return sys.modules[name]
    package = importlib.util.find_spec("onnx")
    if package is None or package.origin is None:
        raise ModelError("the onnx package is not installed", remedy="Install onnx.")
    path = os.path.join(os.path.dirname(package.origin), "onnx_ml_pb2.py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def attribute(name: str, value: Any) -> Any:
    """An AttributeProto that holds a number, integers, or a graph."""
    made = messages().AttributeProto(name=name)
    if isinstance(value, int):
        made.type, made.i = made.INT, value
    elif isinstance(value, float):
        made.type, made.f = made.FLOAT, value
    elif isinstance(value, list):
        made.type = made.INTS
        made.ints.extend(value)
    else:
        made.type = made.GRAPH
        made.g.CopyFrom(value)
    return made


def open_model(source: Any) -> OpenModel:
    """Opens and parses; ModelError when the source is not a model."""
    if isinstance(source, str | os.PathLike):
        return _open_path(Path(source))
    if isinstance(source, bytes | bytearray | memoryview):
        return _parse(memoryview(bytes(source) if isinstance(source, bytearray) else source), None, "")
    if hasattr(source, "SerializeToString") and hasattr(source, "graph"):
        return OpenModel(source)
    raise ModelError("not a model", expected="a path, bytes or a ModelProto", found=type(source).__name__)


def _open_path(path: Path) -> OpenModel:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = _mapped(file, status.st_size)
    except OSError as error:
        raise ModelError(f"the model file {str(path)!r} cannot be read", found=error.strerror) from error
    real = os.path.realpath(path)
    return _parse(data, os.path.dirname(real), f"{real}:{stamp(status)}")


def _mapped(file: Any, size: int) -> memoryview:
    if size == 0:
        return memoryview(b"")
    return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))


def _parse(data: memoryview, folder: str | None, identity: str) -> OpenModel:
    if len(data) == 0:
        raise ModelError("the model is empty", expected="a serialised ONNX ModelProto", found="0 bytes")
    parts = wire.split(data)
    model = messages().ModelProto()
    try:
        model.ParseFromString(parts.rest)
    except Exception as error:
        raise ModelError(
            "the model cannot be parsed", expected="a serialised ONNX ModelProto", found=str(error).split("\n")[0]
        ) from error
    return OpenModel(model, data, parts, folder, identity)
