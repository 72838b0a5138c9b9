"""Where evidence comes from: the source, the binaries that ran, the versions and the machine. Hashes, no paths."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from grainline.plan.target import Target, host_target, processor_name

PACKAGE = Path(__file__).resolve().parent.parent
BINARIES = ("grainline._native", "llvmlite.binding", "numpy._core._multiarray_umath")
LIBRARIES = ("numpy", "llvmlite", "onnx")
#: variables with these beginnings are taken out of the environment of a visit
STRIPPED = ("GRAINLINE_", "MAX_RUNTIME_CORE_NUMBER", "ENABLE_DYNAMIC_SHAPE_", "OMP_", "OPENBLAS_", "MKL_")


def source_sha256() -> str:
    """One hash over names and contents of the package's Python files."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def binary_closure() -> dict[str, str]:
    """SHA-256 of every binary that takes part: the core, LLVM, NumPy's core and the interpreter."""
    paths = {"python": Path(sys.executable).resolve()}
    for module in BINARIES:
        spec = find_spec(module)
        assert spec is not None and spec.origin is not None, f"{module} is installed"
        folder = Path(spec.origin)
        paths[module] = next(folder.parent.glob("libllvmlite*"), folder) if module == "llvmlite.binding" else folder
    return {name: _file_sha256(path, path.stat().st_mtime_ns) for name, path in sorted(paths.items())}


@lru_cache(maxsize=16)
def _file_sha256(path: Path, modified_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def machine() -> dict[str, Any]:
    """What the measurements depend on and a reader wants to know."""
    target: Target = host_target()
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor_name() or platform.processor(),
        "cpu": target.cpu,
        "features_sha256": hashlib.sha256(target.features.encode()).hexdigest(),
        "vector_bytes": target.vector_bytes,
        "packet_width": target.packet_width,
        "processors": len(os.sched_getaffinity(0)),
    }


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}


def source() -> dict[str, Any]:
    """What every visit of a record must agree on."""
    return {"source_sha256": source_sha256(), "binaries": binary_closure(), "versions": versions()}


def visit_environment() -> dict[str, str]:
    """This process's environment without what could steer a measurement."""
    return {name: value for name, value in os.environ.items() if not name.startswith(STRIPPED)}
