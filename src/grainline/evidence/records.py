"""How evidence is written: canonical JSON, seals, files that are whole or absent, and gzip with reproducible bytes.

Equal contents give equal bytes. A seal is the SHA-256 of a record's canonical JSON without the seal itself, so that a
change of any field shows.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grainline.base.errors import GrainlineError, OptionError

SEAL = "seal"
FORMAT = 1


class EvidenceError(GrainlineError, ValueError):
    """A record that cannot be read or does not hold."""


def canonical(value: Any) -> bytes:
    """The one JSON text of a value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with its seal."""
    body = {key: value for key, value in record.items() if key != SEAL}
    return {**body, SEAL: sha256(canonical(body))}


def is_sealed(record: Mapping[str, Any]) -> bool:
    return record.get(SEAL) == sealed(record)[SEAL]


def write_atomically(path: Path, data: bytes) -> None:
    """The file appears whole under its name or not at all."""
    place = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        place.write_bytes(data)
        os.replace(place, path)
    finally:
        place.unlink(missing_ok=True)


def write_compressed(path: Path, data: bytes) -> None:
    """Gzip without a time stamp: equal contents give equal files."""
    write_atomically(path, gzip.compress(data, 9, mtime=0))


def write_json(path: Path, value: Any) -> None:
    """Readable JSON, compressed where the name ends in `.gz`."""
    data = json.dumps(value, sort_keys=True, indent=1, allow_nan=False).encode() + b"\n"
    (write_compressed if path.suffix == ".gz" else write_atomically)(path, data)


def read_json(path: Path) -> Any:
    """The value of a JSON file, compressed or not; `EvidenceError` names the file that is none."""
    try:
        data = path.read_bytes()
        return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    except (ValueError, EOFError, gzip.BadGzipFile) as error:
        raise EvidenceError(f"{path} is no JSON file: {error}") from None


def make_folder(path: Path) -> Path:
    """A folder that can be written to; `OptionError` otherwise."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".probe.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OptionError(f"cannot write to {path}: {error.strerror}", remedy="Name another folder with -o.") from None
    return path
