"""Object bytes on disk. A cache entry can be missing, foreign, damaged or written at the same time; it is then rebuilt.

The folder is $GRAINLINE_CACHE_DIR or the user's cache folder, mode 0700 and owned by the user, because it holds machine
code. The key is a hash of the IR text, CPU and features, LLVM's version, the emitter's version and the code generation
options; the task grain is not part of it. An entry is 32 bytes of SHA-256 over the rest, then the object bytes. Writes
go to a temporary name and are renamed. A cache that cannot be used costs compile time and one warning, nothing else.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from functools import lru_cache
from pathlib import Path

from grainline.base import knobs, log
from grainline.codegen import llvm
from grainline.plan.target import Target

FORMAT = 1
DIGEST_BYTES = 32
#: what the body of an entry begins with: objects (ELF, Mach-O), and saved models
MAGICS = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"GRAINLINE")


def key(text: str, target: Target, emitter_version: int) -> str:
    """The name of the entry for this text on this target."""
    parts = [
        text,
        target.cpu,
        target.features,
        llvm.version(),
        str(emitter_version),
        str(FORMAT),
        str(llvm.CODEGEN_LEVEL),
        llvm.CODE_MODEL,
        llvm.RELOCATION,
    ]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part.encode())
    return digest.hexdigest()


class ObjectCache:
    """A folder of object files. `folder` None keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def read(self, name: str) -> bytes | None:
        """The object bytes of an entry, or None when there is no sound entry of that name."""
        if self.folder is None:
            return None
        try:
            data = self._path(name).read_bytes()
        except OSError:
            return None
        digest, body = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
        sound = hashlib.sha256(name.encode() + body).digest() == digest and body.startswith(MAGICS)
        return body if sound else None

    def write(self, name: str, body: bytes) -> None:
        """Stores an entry; a failure is a warning, once per process and cause."""
        if self.folder is None:
            return
        temporary = ""
        try:
            path = self._path(name)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            with os.fdopen(handle, "wb") as out:
                out.write(hashlib.sha256(name.encode() + body).digest() + body)
            os.replace(temporary, path)
        except OSError as error:
            _remove(temporary)
            log.warn_once(f"the kernel cache {self.folder} cannot be written ({error.strerror}); kernels stay uncached")

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}.o"


def _remove(path: str) -> None:
    try:
        if path:
            os.unlink(path)
    except OSError:
        return


def default_folder() -> Path:
    chosen = knobs.CACHE_DIR.read()
    if chosen is not None:
        return chosen
    import platformdirs

    return Path(platformdirs.user_cache_dir("grainline")) / "objects"


def open_cache(folder: Path | None = None) -> ObjectCache:
    """The cache in `folder` (default: `default_folder()`); an unusable or foreign folder gives a cache of nothing."""
    return _opened(folder if folder is not None else default_folder())


@lru_cache(maxsize=16)
def _opened(path: Path) -> ObjectCache:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        fault = _fault(path.stat())
    except OSError as error:
        fault = error.strerror or str(error)
    if fault:
        log.warn_once(f"the kernel cache {path} is not used: {fault}; kernels are compiled again in every process")
        return ObjectCache(None)
    return ObjectCache(path)


def _fault(found: os.stat_result) -> str:
    """Why a folder must not be trusted with machine code; empty when it may."""
    if not stat.S_ISDIR(found.st_mode):
        return "it is not a folder"
    if found.st_uid != os.geteuid():
        return "it belongs to another user"
    return "other users may write to it" if found.st_mode & 0o022 else ""
