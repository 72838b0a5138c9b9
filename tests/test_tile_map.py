"""The map of the tile planner has every requirement, a state for each, and names only what exists."""

from __future__ import annotations

import re

import pytest

from tests.test_origin_map import ROOT, known_tests

TEXT = (ROOT / "docs" / "tile-map.md").read_text()
COUNTS = {"P": 16, "W": 6, "K": 10, "R": 7, "B": 9, "C": 8, "O": 7}
STATES = ("shown", "partly", "differs", "not shown", "not reproduced", "open")
ROWS = {
    cells[0]: cells[1:]
    for line in TEXT.splitlines()
    if re.match(r"\| [A-Z]-\d\d \|", line)
    for cells in [[cell.strip() for cell in line.strip("|").split(" | ")]]
}


def test_every_requirement_has_one_row() -> None:
    wanted = [f"{kind}-{number:02}" for kind, count in COUNTS.items() for number in range(1, count + 1)]
    assert re.findall(r"^\| ([A-Z]-\d\d) \|", TEXT, re.MULTILINE) == wanted


@pytest.mark.parametrize("row", ROWS)
def test_a_row_has_a_state_and_what_it_rests_on(row: str) -> None:
    *_, state, proof = ROWS[row]
    assert state.startswith(STATES)
    assert proof or state.startswith(("not shown", "open")), "nothing shows it, and the state does not say so"
    assert "`" in proof or not state.startswith("shown"), "what is shown is shown by a test or a command"


def test_every_test_and_file_on_the_map_exists() -> None:
    quoted = {word for cells in ROWS.values() for cell in cells for word in re.findall(r"`([^` ]+)`", cell)}
    files = {word for word in quoted if "/" in word}
    tests = {word for word in quoted - files if re.fullmatch(r"[a-z]\w*_\w+", word)}
    assert len(files) > 20 and len(tests) > 60
    assert tests <= known_tests(), f"no such tests: {sorted(tests - known_tests())}"
    missing = [name for name in files if not ((ROOT / name).exists() or (ROOT / "src" / "grainline" / name).exists())]
    assert not missing, f"no such files: {missing}"
