"""The map of the origin names what exists, and everything that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from grainline.execgraph.passes import ONCE, REPEATED
from grainline.execgraph.registry import KERNELS

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "origin-map.md").read_text()
NAMES = set(re.findall(r"`(\w+)`", TEXT))


def known_tests() -> set[str]:
    python = (re.findall(r"def (test_\w+)", path.read_text()) for path in (ROOT / "tests").rglob("*.py"))
    native = (
        re.findall(r"^TEST(?:_OF_BOTH_POOLS)?\((\w+)\)", path.read_text(), re.MULTILINE)
        for path in (ROOT / "native").rglob("*.cpp")
    )
    return {name for found in (*python, *native) for name in found}


def test_every_test_on_the_map_exists() -> None:
    prefixes = ("test_", "relations_", "executor_")
    named = {name for name in NAMES if name.startswith(prefixes) or re.match(r"R\d\d_", name)}
    assert len(named) > 50
    assert named <= known_tests(), f"no such tests: {sorted(named - known_tests())}"


def test_every_kernel_and_pass_is_on_the_map() -> None:
    passes = {one.name for one in (*REPEATED, *ONCE)} | {"assign_streams"}
    missing = (set(KERNELS) | passes) - NAMES
    assert not missing, f"not on the map: {sorted(missing)}"


@pytest.mark.parametrize("row", range(1, 71))
def test_every_rule_is_on_the_map(row: int) -> None:
    covered: set[int] = set()
    for cell in re.findall(r"^\| (R\d\d[^|]*) \|", TEXT, re.MULTILINE):
        numbers = [int(number) for number in re.findall(r"R(\d\d)", cell)]
        covered |= set(range(numbers[0], numbers[-1] + 1)) if " - " in cell else set(numbers)
    assert row in covered


@pytest.mark.parametrize("row", range(1, 71))
def test_every_rule_has_a_test_that_is_named_after_it(row: int) -> None:
    """`test_R49_...` in Python, `R49_...` in C++; several rows may stand in front of one name."""
    named = {
        int(number)
        for name in known_tests()
        for number in re.findall(r"R(\d\d)", re.match(r"(?:test_)?(?:R\d\d_)*", name)[0])
    }
    assert row in named


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_R32_python_figures_carry_machine_and_versions(path: Path) -> None:
    text = path.read_text()
    assert "\ndef main(" not in text or "machine()" in text, "figures are printed, but not on what"


@pytest.mark.parametrize("path", sorted((ROOT / "native" / "tests").glob("bench_*.cpp")), ids=lambda path: path.stem)
def test_R32_native_figures_carry_their_build(path: Path) -> None:
    assert "print_build();" in path.read_text().split("int main(")[1]


def test_R43_removed_mechanisms_stay_out() -> None:
    """No batch count of ready launches, no threshold per thread, no barrier before mixed kernels."""
    for path in sorted((ROOT / "native" / "exec").glob("*")):
        code = re.sub(r"//.*", "", path.read_text())
        found = re.findall(r"(?i)\w*ready_launch\w*|\w*batch\w*|\w*threshold\w*|thread_local\b.*(?:count|limit)", code)
        assert not found, f"{path.name}: {found}"
