"""The house rules as tests: who may import whom, how long files and functions may be, which words names may not use."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "grainline"
NATIVE = ROOT / "native"

# Everything may import `base`. The rooms at the end may import everything. An edge that is not listed is an error.
MAY_IMPORT: dict[str, set[str]] = {
    "base": set(),
    "graph": set(),
    "execgraph": set(),
    "tile": set(),
    "importer": {"graph"},
    "kernels": {"tile"},
    "plan": {"tile", "_native"},
    "codegen": {"plan", "tile", "_native"},  # the object loader
    "lower": {"graph", "tile", "kernels", "execgraph"},
    "runtime": {"execgraph", "_native"},
    "evidence": {"tile", "kernels", "plan", "codegen", "runtime", "_native"},  # clocks around a kernel
}
FREE_ROOMS = {"compiled", "pipeline", "saved", "tools", "session", "__init__", "__main__"}

# native: a folder may include itself, `base`, and what stands here. Only `bind` includes Python.
MAY_INCLUDE: dict[str, set[str]] = {
    "base": set(),
    "cost": set(),
    "memory": set(),
    "threads": set(),
    "device": {"memory", "threads", "cost"},
    "exec": {"cost", "memory", "threads", "device"},
    "bind": {"exec", "cost", "memory", "threads", "device"},
}

LONGEST_FILE = 600
LONGEST_FUNCTION = 40
# Tables and emit lists, by name; everything else is split before it grows past the stop.
LONG_FUNCTIONS: set[str] = set()
LONG_FILES: set[str] = set()
BANNED_WORDS = ("Manager", "Helper", "Utils", "Handler", "Impl", "V2")


def python_files(*folders: str) -> list[Path]:
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert files, f"no Python files under {folders}"
    return files


def room_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported_rooms(path: Path) -> Iterator[tuple[int, str]]:
    """(line, room) of every import of the package in a file, inside functions and type-checking blocks too."""
    package = ("grainline", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            modules = [f"{module}.{alias.name}" for alias in node.names] if module == "grainline" else [module]
        else:
            continue
        for module in modules:
            parts = module.split(".")
            if parts[0] == "grainline":
                yield node.lineno, parts[1] if len(parts) > 1 else "__init__"


def test_imports_follow_the_table() -> None:
    wrong = []
    for path in python_files("src/grainline"):
        room = room_of(path)
        if room in FREE_ROOMS:
            continue
        assert room in MAY_IMPORT, f"{path.relative_to(ROOT)} is in a room that the table does not know"
        allowed = MAY_IMPORT[room] | {"base", room}
        for line, target in imported_rooms(path):
            if target not in allowed:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {room} may not import {target}")
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_three_irs_do_not_know_each_other() -> None:
    for room in ("graph", "execgraph", "tile"):
        assert MAY_IMPORT[room] == set(), f"{room} is an IR and imports base alone"


def test_native_includes_follow_the_table() -> None:
    wrong = []
    for path in sorted([*NATIVE.rglob("*.h"), *NATIVE.rglob("*.cpp")]):
        folder = path.relative_to(NATIVE).parts[0]
        if folder == "tests":
            continue
        assert folder in MAY_INCLUDE, f"native/{folder} is not in the table"
        for target, is_python in included(path):
            if is_python and folder != "bind":
                wrong.append(f"{path.relative_to(ROOT)}: only bind includes Python")
            if target in MAY_INCLUDE and target not in MAY_INCLUDE[folder] | {"base", folder}:
                wrong.append(f"{path.relative_to(ROOT)}: {folder} may not include {target}")
    assert not wrong, "\n" + "\n".join(wrong)


def test_R41_allocators_take_no_lock() -> None:
    """One run leases an allocator; whatever the room does share, it shares without ever waiting."""
    waiting = re.compile(r"\bstd::(?:\w*mutex|\w*lock\w*|condition_variable\w*)|\bsleep_on\b|\bpthread_\w*lock")
    wrong = [
        f"{path.relative_to(ROOT)}: {found.group()}"
        for path in sorted([*(NATIVE / "memory").rglob("*.h"), *(NATIVE / "memory").rglob("*.cpp")])
        for found in waiting.finditer(path.read_text())
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def included(path: Path) -> Iterator[tuple[str, bool]]:
    """(folder, whether it is Python's or nanobind's) of every include; headers without a folder are the system's."""
    for target in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE):
        yield target.split("/")[0] if "/" in target else "", target.startswith(("Python.h", "nanobind"))


def test_files_stay_readable() -> None:
    source = [*python_files("src", "tests", "benchmarks", "examples"), *NATIVE.rglob("*.h"), *NATIVE.rglob("*.cpp")]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in source}
    too_long = {name: n for name, n in lengths.items() if n >= LONGEST_FILE and name not in LONG_FILES}
    assert not too_long, f"files of {LONGEST_FILE} lines or more: {too_long}"


def test_functions_stay_readable() -> None:
    too_long = []
    for path in python_files("src", "benchmarks", "examples"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{path.relative_to(ROOT)}:{node.name}"
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines >= LONGEST_FUNCTION and name not in LONG_FUNCTIONS:
                    too_long.append(f"{name} has {lines} lines")
    assert not too_long, f"\nfunctions of {LONGEST_FUNCTION} lines or more:\n" + "\n".join(too_long)


def test_names_avoid_empty_words() -> None:
    wrong = []
    for path in [*python_files("src", "benchmarks", "examples"), *NATIVE.rglob("*.h"), *NATIVE.rglob("*.cpp")]:
        wrong += [f"file {path.name}" for word in BANNED_WORDS if word.lower() in re.split(r"[_.]", path.name.lower())]
        pattern = rf"^\s*(?:class|struct)\s+(\w*(?:{'|'.join(BANNED_WORDS)})\w*)"
        wrong += [f"{path.name}: {name}" for name in re.findall(pattern, path.read_text(), re.MULTILINE)]
    assert not wrong, f"names with banned words: {wrong}"


def test_exceptions_are_needed() -> None:
    """A name on an exception list that no longer exists is removed from it."""
    for name in LONG_FILES:
        assert (ROOT / name).exists(), f"{name} is gone; take it off the list"
    for name in LONG_FUNCTIONS:
        path, function = name.split(":")
        assert f"def {function}(" in (ROOT / path).read_text(), f"{name} is gone; take it off the list"


@pytest.mark.parametrize("module", ["onnx", "llvmlite", "onnxruntime", "rich", "typer", "logging"])
def test_import_stays_light(module: str) -> None:
    import subprocess
    import sys

    code = f"import grainline, sys; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0, f"`import grainline` imports {module}"


def test_import_starts_no_thread() -> None:
    import subprocess
    import sys

    code = (
        "import numpy, os; before = len(os.listdir('/proc/self/task'))\n"
        "import grainline, sys; sys.exit(len(os.listdir('/proc/self/task')) - before)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0, "`import grainline` starts threads"
