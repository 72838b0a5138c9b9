"""The machine a plan is for: what the processor offers *and* the operating system keeps across context switches."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache


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
    def has_fma(self) -> bool:
        return "+fma" in self.features or "+neon" in self.features


@lru_cache(maxsize=1)
def host_target() -> Target:
    """This machine; asks LLVM once per process."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()  # LLVM already masks AVX states that XGETBV does not report as enabled
    enabled = {name: on for name, on in features.items() if on is not None}
    flags = _kernel_flags()
    if flags:
        for name in ("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd"):
            if enabled.get(name) and name not in flags:
                enabled[name] = False
    text = ",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(enabled.items()))
    return Target(llvm.get_host_cpu_name(), text, _vector_bytes(enabled), len(os.sched_getaffinity(0)))


def _vector_bytes(enabled: dict[str, bool]) -> int:
    if enabled.get("avx512bw") and enabled.get("avx512vl"):
        return 64
    return 32 if enabled.get("avx2") else 16


def _kernel_flags() -> frozenset[str]:
    """Processor flags that the Linux kernel admits; empty where they cannot be read or are named differently."""
    try:
        with open("/proc/cpuinfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("flags"):
                    return frozenset(line.split(":", 1)[1].split())
    except (OSError, UnicodeDecodeError):
        return frozenset()
    return frozenset()
