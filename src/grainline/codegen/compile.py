"""Emitted kernels become callable: from the cache or through LLVM, shared by everyone in the process who uses them.

`Kernel` objects are shared by symbol while somebody holds one; the machine code is unmapped with the last holder.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grainline.codegen import cache, llvm

if TYPE_CHECKING:
    from grainline.codegen.kernel import EmittedKernel


@dataclass(frozen=True, eq=False)
class Kernel:
    """Machine code. `address` is valid while this object lives; `from_cache` says where it came from."""

    symbol: str
    address: int
    from_cache: bool
    keepalive: llvm.LinkedObject


_live: weakref.WeakValueDictionary[tuple[str, str], Kernel] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def compile_kernels(emitted: Sequence[EmittedKernel], store: cache.ObjectCache | None = None) -> dict[str, Kernel]:
    """One `Kernel` per distinct symbol. Keep the result as long as the code may run."""
    store = store if store is not None else cache.open_cache()
    kernels: dict[str, Kernel] = {}
    with _lock:
        for item in emitted:
            if item.symbol not in kernels:
                kernels[item.symbol] = _shared(item, store)
    return kernels


def _shared(item: EmittedKernel, store: cache.ObjectCache) -> Kernel:
    name = entry_name(item)
    found = _live.get((item.symbol, name))
    if found is not None:
        return found
    kernel = _build(item, name, store)
    _live[item.symbol, name] = kernel
    return kernel


def _build(item: EmittedKernel, name: str, store: cache.ObjectCache) -> Kernel:
    data = store.read(name)
    if data is not None:
        try:
            linked = llvm.link_object(data, (item.symbol,))
            return Kernel(item.symbol, linked.address(item.symbol), True, linked)
        except llvm.CodegenError:  # sound hash, unusable object: build it again
            pass
    data = llvm.compile_object(item.text, item.target)
    store.write(name, data)
    linked = llvm.link_object(data, (item.symbol,))
    return Kernel(item.symbol, linked.address(item.symbol), False, linked)


def saved_kernel(symbol: str, name: str, store: cache.ObjectCache) -> Kernel | None:
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
        kernel = Kernel(symbol, linked.address(symbol), True, linked)
        _live[symbol, name] = kernel
        return kernel


def entry_name(item: EmittedKernel) -> str:
    """The cache entry of a kernel's object."""
    return cache.key(item.text, item.target, item.emitter_version)


def live_kernels() -> int:
    """Kernels that somebody in this process holds."""
    return len(_live)
