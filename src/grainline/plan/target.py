"""The machine a plan is for: what the processor offers *and* the operating system keeps across context switches."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

VECTOR_FEATURES = ("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd")
#: what tells two processors apart: the names of x86-64, then those of aarch64
IDENTITY_FIELDS = (
    *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features"),
)
TARGET_FILE = "target.txt"


@dataclass(frozen=True, slots=True)
class Target:
    """`cpu` and `features` are LLVM's names; `vector_bytes` is the widest register worth using; `homes` threads."""

    cpu: str
    features: str
    vector_bytes: int
    homes: int

    @property
    def packet_width(self) -> int:
        """Lanes of one packet: 16 four-byte elements on every target (two registers on AVX2, one on AVX-512)."""
        return 16

    @property
    def has_avx512(self) -> bool:
        return "+avx512bw" in self.features and "+avx512vl" in self.features

    @property
    def has_byte_products(self) -> bool:
        """Whether four products of bytes are summed into 32 bits by one instruction, on the widest registers."""
        return self.has_avx512 and "+avx512vnni" in self.features


@lru_cache(maxsize=4)
def host_target(memory: Path | None = None) -> Target:
    """This machine. LLVM is asked once; `memory`, a private folder, keeps its answer for later processes.

    A remembered answer is used only for the same processor, flags and LLVM, so importing LLVM (100 ms) is saved.
    """
    identity = _processor_identity()
    described = _recall(memory, identity) if identity else None
    if described is None:
        described = _ask_llvm()
        _keep(memory, identity, described)
    cpu, features = described
    on = {name[1:] for name in features.split(",") if name.startswith("+")}
    return Target(cpu, features, _vector_bytes(on), len(os.sched_getaffinity(0)))


def _ask_llvm() -> tuple[str, str]:
    """LLVM's name and features of this processor, without vector states that the kernel does not admit."""
    import llvmlite.binding as llvm

    enabled = dict(llvm.get_host_cpu_features())
    flags = _kernel_flags()
    for name in VECTOR_FEATURES:
        if flags and enabled.get(name) and name not in flags:
            enabled[name] = False
    text = ",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(enabled.items()))
    return llvm.get_host_cpu_name(), text


def _processor_identity() -> str:
    """A hash of the processor's description and LLVM's wheel; empty when the system does not describe it."""
    lines = [line for line in _cpuinfo() if line.split(":", 1)[0].strip() in IDENTITY_FIELDS]
    if not lines:
        return ""
    return hashlib.sha256("".join([*lines, repr(llvm_stamp())]).encode()).hexdigest()


@lru_cache(maxsize=1)
def llvm_stamp() -> tuple[str, int, int] | None:
    """Path, size and time of the LLVM library in use: what tells two of them apart where a version would do, but the
    module that reads versions costs 25 ms of a start."""
    found = importlib.util.find_spec("llvmlite")
    if found is None or found.origin is None:
        return None
    library = next(Path(found.origin).parent.glob("binding/libllvmlite.*"), Path(found.origin))
    status = library.stat()
    return str(library), status.st_size, status.st_mtime_ns


def _recall(memory: Path | None, identity: str) -> tuple[str, str] | None:
    if memory is None:
        return None
    try:
        words = (memory / TARGET_FILE).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    return (words[1], words[2]) if len(words) == 3 and words[0] == identity else None


def _keep(memory: Path | None, identity: str, described: tuple[str, str]) -> None:
    if memory is None or not identity:
        return
    place = memory / f".{TARGET_FILE}-{os.getpid()}"
    try:
        place.write_text("\n".join([identity, *described]), encoding="ascii")
        os.replace(place, memory / TARGET_FILE)
    except OSError:
        return


def _vector_bytes(features: set[str]) -> int:
    if {"avx512bw", "avx512vl"} <= features:
        return 64
    return 32 if "avx2" in features else 16


def _cpuinfo() -> list[str]:
    """The first processor's lines of /proc/cpuinfo; empty where there is none."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            text = file.read().split("\n\n", 1)[0]
    except (OSError, UnicodeDecodeError):
        return []
    return text.splitlines(keepends=True)


def processor_name() -> str:
    """The model as the system names it; empty where it does not."""
    lines = dict(line.split(":", 1) for line in _cpuinfo() if ":" in line)
    named = {key.strip(): value.strip() for key, value in lines.items()}
    return named.get("model name") or " ".join(named.get(key, "") for key in ("CPU implementer", "CPU part")).strip()


def _kernel_flags() -> frozenset[str]:
    """Processor flags that the Linux kernel admits; empty where they are not listed."""
    for line in _cpuinfo():
        if line.startswith("flags"):
            return frozenset(line.split(":", 1)[1].split())
    return frozenset()
