"""Whether an output can be written, asked before the work begins and by writing: permission bits do not tell."""

from __future__ import annotations

import tempfile
from pathlib import Path

from grainline.base.errors import OptionError


def check_folder(folder: Path) -> None:
    """Makes the folder, and in it a file that is gone again; `OptionError` when the system refuses either."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _refused(folder, error) from None


def check_file(path: Path) -> None:
    """Opens the file for writing; one that exists keeps its contents, a new one is gone again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        with path.open("ab"):
            pass
        if is_new:
            path.unlink()
    except OSError as error:
        raise _refused(path, error) from None


def _refused(path: Path, error: OSError) -> OptionError:
    return OptionError(f"--output {path} cannot be written", found=error.strerror or str(error))
