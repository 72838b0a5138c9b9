"""LLVM: IR text -> object bytes -> callable address. llvmlite is imported on first use (it costs 100 ms).

Code generation runs at level 1 without a pass pipeline: the text is already vectorised, level 1 keeps its order.
A linked object lives as long as its `LinkedObject`; library names are never reused.
"""

from __future__ import annotations

import itertools
import threading
from functools import cache, lru_cache
from typing import Any

from grainline.plan.target import Target

CODEGEN_LEVEL = 1
CODE_MODEL = "small"
RELOCATION = "pic"
_library_numbers = itertools.count()
_link_lock = threading.Lock()


class CodegenError(Exception):
    """LLVM refused the text of a kernel, or a symbol is missing: a bug in the emitter, shown with LLVM's words."""


@cache
def version() -> str:
    """Versions that decide the object bytes, without importing LLVM itself."""
    from importlib.metadata import version as package_version

    return f"llvmlite {package_version('llvmlite')}"


@lru_cache(maxsize=4)
def _machine(cpu: str, features: str, jit: bool) -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=cpu, features=features, opt=CODEGEN_LEVEL, reloc=RELOCATION, codemodel=CODE_MODEL, jit=jit
    )


def compile_object(text: str, target: Target) -> bytes:
    """Object bytes of one module; `CodegenError` with LLVM's message and the numbered text when it is invalid."""
    import llvmlite.binding as llvm

    machine = _machine(target.cpu, target.features, False)
    text = f'target datalayout = "{machine.target_data}"\ntarget triple = "{machine.triple}"\n{text}'
    try:
        module = llvm.parse_assembly(text, llvm.create_context())
        module.verify()
    except RuntimeError as error:
        numbered = "\n".join(f"{i + 1:5d} {line}" for i, line in enumerate(text.splitlines()))
        raise CodegenError(f"LLVM rejects the kernel: {error}\n{numbered}") from error
    return bytes(machine.emit_object(module))


def assembly(text: str, target: Target) -> str:
    """The machine code as text, for people."""
    import llvmlite.binding as llvm

    machine = _machine(target.cpu, target.features, False)
    return str(machine.emit_assembly(llvm.parse_assembly(text, llvm.create_context())))


class LinkedObject:
    """Machine code in memory. Its addresses stay valid exactly as long as this object."""

    __slots__ = ("_keep", "_symbols")

    def __init__(self, keep: Any, symbols: dict[str, int]) -> None:
        self._keep = keep
        self._symbols = symbols

    def address(self, symbol: str) -> int:
        return self._symbols[symbol]


@lru_cache(maxsize=1)
def _jit() -> Any:
    import llvmlite.binding as llvm

    from grainline.plan.target import host_target

    target = host_target()
    return llvm.create_lljit_compiler(_machine(target.cpu, target.features, True))


def link_object(data: bytes, symbols: tuple[str, ...]) -> LinkedObject:
    """Makes object bytes callable: by the native loader where it is built, else by LLVM's JIT linker."""
    native = _native_loader()
    if native is not None:
        try:
            loaded = native(data)
            return LinkedObject(loaded, {name: int(loaded.address(name)) for name in symbols})
        except (ValueError, KeyError):  # it refuses what it does not know, e.g. C library symbols; LLVM links all
            pass
    return _link_by_llvm(data, symbols)


def _link_by_llvm(data: bytes, symbols: tuple[str, ...]) -> LinkedObject:
    import llvmlite.binding as llvm

    with _link_lock:
        builder = llvm.JITLibraryBuilder().add_object_img(data).add_current_process()
        for name in symbols:
            builder = builder.export_symbol(name)
        try:
            tracker = builder.link(_jit(), f"grainline{next(_library_numbers)}")
        except RuntimeError as error:
            raise CodegenError(f"cannot link the kernel: {error}") from error
        return LinkedObject(tracker, {name: tracker[name] for name in symbols})


def _native_loader() -> Any:
    try:
        from grainline import _native  # type: ignore[attr-defined,unused-ignore]
    except ImportError:
        return None
    return getattr(_native, "load_object", None)
