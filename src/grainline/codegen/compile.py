"""Emitted kernels become callable: from the cache or through LLVM, shared by everyone in the process who uses them.

`CompiledKernel` objects are shared by symbol while somebody holds one; with the last holder the code is unmapped.
"""

from __future__ import annotations

import os
import struct
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grainline.codegen import cache, llvm

if TYPE_CHECKING:
    from grainline.codegen.kernel import EmittedKernel


SECTION_HAS_INSTRUCTIONS = 4  # SHF_EXECINSTR of ELF


@dataclass(frozen=True, eq=False)
class CompiledKernel:
    """Machine code. `address` is valid while this object lives; `from_cache` says where it came from.

    `code_bytes` is the size of the executable sections.
    """

    symbol: str
    address: int
    from_cache: bool
    keepalive: llvm.LinkedObject
    code_bytes: int = 0


_live: weakref.WeakValueDictionary[tuple[str, str], CompiledKernel] = weakref.WeakValueDictionary()
#: Held over a fork: the child finds it free, and neither LLVM nor a kernel half made by a thread that it does not have.
_lock = threading.RLock()


def compile_kernels(
    emitted: Sequence[EmittedKernel], store: cache.ObjectCache | None = None
) -> dict[str, CompiledKernel]:
    """One `CompiledKernel` per distinct symbol. Keep the result as long as the code may run."""
    store = store if store is not None else cache.open_cache()
    kernels: dict[str, CompiledKernel] = {}
    with _lock:
        for item in emitted:
            if item.symbol not in kernels:
                kernels[item.symbol] = _shared(item, store)
    return kernels


def _shared(item: EmittedKernel, store: cache.ObjectCache) -> CompiledKernel:
    name = entry_name(item)
    found = _live.get((item.symbol, name))
    if found is not None:
        return found
    kernel = _build(item, name, store)
    _live[item.symbol, name] = kernel
    return kernel


def _build(item: EmittedKernel, name: str, store: cache.ObjectCache) -> CompiledKernel:
    data = store.read(name)
    if data is not None:
        try:
            linked = llvm.link_object(data, (item.symbol,))
            return CompiledKernel(item.symbol, linked.address(item.symbol), True, linked, code_bytes(data))
        except llvm.CodegenError:  # sound hash, unusable object: build it again
            pass
    data = llvm.compile_object(item.text, item.target)
    store.write(name, data)
    linked = llvm.link_object(data, (item.symbol,))
    return CompiledKernel(item.symbol, linked.address(item.symbol), False, linked, code_bytes(data))


def saved_kernel(symbol: str, name: str, store: cache.ObjectCache) -> CompiledKernel | None:
    """The kernel whose object is the cache entry `name`; None when there is no usable entry."""
    with _lock:
        found = _live.get((symbol, name))
        if found is not None:
            return found
        data = store.read(name)
        if data is None:
            return None
        try:
            linked = llvm.link_object(data, (symbol,))
        except llvm.CodegenError:
            return None
        kernel = CompiledKernel(symbol, linked.address(symbol), True, linked, code_bytes(data))
        _live[symbol, name] = kernel
        return kernel


def code_bytes(data: bytes) -> int:
    """The executable bytes of an object: its sections of instructions (ELF), or the whole object where it is no ELF."""
    if not data.startswith(b"\x7fELF\x02\x01"):
        return len(data)
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    headers = (struct.unpack_from("<IIQQQQ", data, table + size * k) for k in range(count))
    return sum(section[5] for section in headers if section[2] & SECTION_HAS_INSTRUCTIONS)


def entry_name(item: EmittedKernel) -> str:
    """The cache entry of a kernel's object."""
    return cache.key(item.text, item.target, item.emitter_version)


def live_kernels() -> int:
    """Kernels that somebody in this process holds."""
    return len(_live)


def _register_fork_hooks() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


_register_fork_hooks()
