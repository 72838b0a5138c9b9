"""The command line: what it prints, what it saves, and its exit codes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from grainline.base import knobs
from grainline.base.errors import OptionError
from grainline.session.options import NodeArg
from grainline.tools import arms
from grainline.tools.feeding import make_feeds
from grainline.tools.main import call


@pytest.fixture
def add_path(add_model: bytes, tmp_path: Path) -> str:
    path = tmp_path / "add.onnx"
    path.write_bytes(add_model)
    return str(path)


def test_run_summarises_and_saves(add_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ones = tmp_path / "ones.npy"
    np.save(ones, np.ones((3, 4), np.float32))
    saved = tmp_path / "out"
    assert call(["run", add_path, "--input", f"a={ones}", "--input", f"b={ones}", "--output", str(saved)]) == 0
    printed = capsys.readouterr()
    assert "out  y: tensor(float)[3, 4] min 2 mean 2 max 2" in printed.out
    assert not printed.err, "no progress when stderr is not a terminal"
    np.testing.assert_array_equal(np.load(saved / "y.npy"), np.full((3, 4), 2, np.float32))


@pytest.mark.parametrize("shape", ["a=5,4", "n=5", "a=[5,4]"])
def test_run_makes_inputs_of_the_shape_asked(shape: str, add_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run", add_path, "--shape", shape, "--threads", "1"]) == 0
    assert "out  y: tensor(float)[5, 4]" in capsys.readouterr().out


def test_explain_says_something(add_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["explain", add_path]) == 0
    assert capsys.readouterr().out.strip()


def test_knobs_lists_every_variable(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAINLINE_NUM_THREADS", "3")
    monkeypatch.setenv("MAX_RUNTIME_CORE_NUMBER", "several")
    assert call(["knobs"]) == 0
    printed = capsys.readouterr().out
    assert all(knob.name in printed for knob in knobs.ALL)
    assert "now 3" in printed and "not readable: 'several'" in printed


BAD_CALLS = {
    "no command": ([], 2),
    "unknown command": (["fly"], 2),
    "no model": (["run"], 2),
    "unknown option": (["run", "{model}", "--fast"], 2),
    "negative threads": (["run", "{model}", "--threads", "-1"], 2),
    "shape of nothing": (["run", "{model}", "--shape", "nope=3"], 2),
    "shape not numbers": (["run", "{model}", "--shape", "a=x,4"], 2),
    "input not a pair": (["run", "{model}", "--input", "a"], 2),
    "input not a file": (["run", "{model}", "--input", "a=/nowhere.npy"], 2),
    "unknown peer": (["bench", "{model}", "--peer", "abacus"], 2),
    "missing model": (["run", "/nowhere.onnx"], 1),
    "not a model": (["explain", __file__], 1),
    "wrong extent": (["run", "{model}", "--shape", "a=2,3"], 1),
}


@pytest.mark.parametrize("arguments, code", BAD_CALLS.values(), ids=BAD_CALLS)
def test_bad_calls_end_in_one_line(
    arguments: list[str], code: int, add_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call([argument.format(model=add_path) for argument in arguments]) == code
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    if code == 1:
        assert printed.err.startswith("grainline: error: ") and printed.err.count("\n") == 1, printed.err


def test_a_malformed_variable_ends_with_code_2(
    add_path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAINLINE_NUM_THREADS", "all")
    assert call(["run", add_path]) == 2
    assert "GRAINLINE_NUM_THREADS" in capsys.readouterr().err


def test_the_console_script_is_installed(add_path: str) -> None:
    script = Path(sys.executable).parent / "grainline"
    if not script.exists():
        pytest.skip("grainline is not installed in this environment")
    done = subprocess.run([script, "run", add_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "out  y" in done.stdout, done.stderr


INPUTS = [
    NodeArg("input_ids", "tensor(int64)", ["batch", "length"]),
    NodeArg("attention_mask", "tensor(int64)", ["batch", "length"]),
    NodeArg("token_type_ids", "tensor(int64)", ["batch", "length"]),
    NodeArg("scale", "tensor(float16)", [3, None]),
    NodeArg("flag", "tensor(bool)", []),
    NodeArg("text", "tensor(string)", ["batch"]),
]


def test_random_feeds_agree_on_symbols() -> None:
    feeds = make_feeds(INPUTS, [], ["input_ids=2,7"], seed=0)
    assert {name: array.shape for name, array in feeds.items()} == {
        "input_ids": (2, 7), "attention_mask": (2, 7), "token_type_ids": (2, 7),
        "scale": (3, 1), "flag": (), "text": (2,),
    }  # fmt: skip
    assert (feeds["attention_mask"] == 1).all() and (feeds["token_type_ids"] == 0).all()
    assert feeds["scale"].dtype == np.float16 and feeds["flag"].dtype == bool and feeds["text"].dtype == object


def test_random_feeds_depend_on_the_seed_alone() -> None:
    first, again, other = (make_feeds(INPUTS, [], ["batch=3", "length=9"], seed)["input_ids"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    with pytest.raises(OptionError, match="nope"):
        make_feeds(INPUTS, [], ["nope=3"], 0)


def test_bench_compares_with_a_peer(
    add_path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    options = ["--shape", "n=2", "--threads", "1", "--rounds", "2", "--seconds", "0.01"]
    assert call(["bench", add_path, "--peer", "onnxruntime", *options]) == 0
    printed = capsys.readouterr().out
    for arm in ("grainline ", "grainline (again)", "onnxruntime"):
        assert arm in printed


def test_an_arm_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(arms.ArmFailed, match="nowhere"), arms.arms([("a", "grainline", "/nowhere.onnx", 1)]):
        pass


def test_ratios_are_taken_round_by_round() -> None:
    make: Callable[[list[list[int]]], arms.Arm] = lambda turns: arms.Arm("x", "x", None, turns)  # type: ignore[arg-type]
    slow, fast = make([[20, 22, 21], [200, 210, 220]]), make([[10, 10, 11], [100, 105, 110]])
    assert arms.ratio(slow, fast).median == pytest.approx(2.05)
