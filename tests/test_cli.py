"""The command line: what it prints, what it saves, and its exit codes."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from grainline.base import knobs, progress
from grainline.base.errors import GrainlineError, OptionError
from grainline.plan.target import Target
from grainline.session.options import NodeArg
from grainline.tools import arms, calibrating, main, waiting
from grainline.tools.feeding import make_feeds
from grainline.tools.main import app, call
from tests.conftest import STRICT_NAMES


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


def test_results_that_are_no_tensors_are_shown_and_not_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["parts"], axis=0),
        helper.make_node("SequenceAt", ["parts", "zero"], ["y"]),
    ]
    outputs = [helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, None), onnx.ValueInfoProto(name="y")]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 2])]
    weights = [onnx.numpy_helper.from_array(np.array(0), "zero")]
    graph = helper.make_graph(nodes, "parts", inputs, outputs, weights)
    path, saved = tmp_path / "parts.onnx", tmp_path / "out"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    assert call(["run", str(path), "--output", str(saved)]) == 0
    printed = capsys.readouterr().out
    assert "out  parts: seq(tensor(float)) of 3, the first tensor(float)[1, 2]" in printed
    assert "not saved: parts" in printed and [file.name for file in saved.iterdir()] == ["y.npy"]


def test_a_sequence_cannot_be_made_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)
    inputs = [helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)]
    graph = helper.make_graph([node], "joined", inputs, [onnx.ValueInfoProto(name="y")])
    path = tmp_path / "joined.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    assert call(["run", str(path)]) == 2
    assert "seq(tensor(float))" in capsys.readouterr().err


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
    "input twice": (["run", "{model}", "--input", "a=x.npy", "--input", "a=y.npy"], 2),
    "input not an array": (["run", "{model}", "--input", f"a={__file__}"], 2),
    "dimension of two extents": (["run", "{model}", "--shape", "n=3,4"], 2),
    "shape beyond memory": (["run", "{model}", "--shape", "a=99999999999,16"], 2),
    "shape beyond numpy": (["run", "{model}", "--shape", "a=99999999999999999999999,16"], 2),
    "shape of many dimensions": (["run", "{model}", "--shape", "a=" + ",".join("1" * 99)], 2),
    "threads of a kernel's plan": (["explain", "{model}", "--kernel", "", "--threads", "1"], 2),
    "negative seed": (["run", "{model}", "--seed", "-1"], 2),
    "negative seed of bench": (["bench", "{model}", "--seed", "-1"], 2),
    "folder is a file": (["run", "{model}", "--output", "{model}"], 2),
    "no folder can be made": (["run", "{model}", "--output", "/proc/out"], 2),
    "trace into nothing": (["trace", "{model}", "-o", "/proc/trace.json"], 2),
    "trace onto a folder": (["trace", "{model}", "-o", "/proc"], 2),
    "calibration into nothing": (["calibrate", "-o", "/proc/machine.json"], 2),
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
    if code == 1 or printed.err.startswith("grainline"):
        assert printed.err.startswith("grainline: error: ") and printed.err.count("\n") == 1, printed.err


def complaint(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert call(arguments) == 2
    return capsys.readouterr().err


def test_complaints_about_inputs_say_what_is_wrong(
    add_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    huge = complaint(["run", add_path, "--shape", "a=99999999999,16"], capsys)
    assert f"[99999999999, 16], {99999999999 * 16 * 8} bytes" in huge
    dimension = complaint(["run", add_path, "--shape", "n=3,4"], capsys)
    assert "value 'n'" in dimension and "['a', 'b']" in dimension
    assert "names this twice (value 'n')" in complaint(["run", add_path, "--shape", "n=3", "--shape", "n=4"], capsys)


def test_files_that_hold_no_array_are_named_so(
    add_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.npy"

    def said() -> str:
        found = complaint(["run", add_path, "--input", f"a={path}"], capsys)
        assert str(path) in found and "pickle" not in found
        return found

    assert "No such file" in said()
    path.write_bytes(b"")
    assert "not a .npy file" in said()
    path.write_text("words")
    assert "not a .npy file" in said()
    np.save(path, np.array([{}], object))
    assert "damaged, or holds Python objects" in said()
    np.save(path, np.ones((3, 4), np.float32))
    path.write_bytes(path.read_bytes()[:-1])
    assert "damaged" in said()
    with path.open("wb") as archive:
        np.savez(archive, x=np.ones(3))
    assert "not a .npy file" in said()


@pytest.mark.parametrize("command", [["run", "--output"], ["trace", "-o"]], ids=["run", "trace"])
def test_an_output_is_tried_before_the_model_is_loaded(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "missing.onnx")
    assert "cannot be written" in complaint([command[0], missing, command[1], "/proc/x"], capsys)
    output = tmp_path / "new" / "output"
    assert call([command[0], missing, command[1], str(output)]) == 1, "it is the model that is missing"
    assert not output.is_file(), "nothing is left of the trial"


def test_trying_an_output_keeps_the_file_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("before")
    assert call(["trace", str(tmp_path / "missing.onnx"), "-o", str(path)]) == 1
    assert path.read_text() == "before"


def test_help_names_every_command() -> None:
    assert main.__doc__ and main.app.info.help == main.__doc__.split("\n")[0]
    named = {word.strip(".") for word in main.app.info.help.split(": ")[1].split(", ")}
    assert named == {command.callback.__name__ for command in main.app.registered_commands if command.callback}


def test_explain_gives_a_reason_for_a_branch(
    model: Callable[..., onnx.ModelProto], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
    branch = helper.make_graph([helper.make_node("Exp", ["x"], ["b"])], "branch", [], [result])
    node = helper.make_node("If", ["c"], ["y"], name="choose", then_branch=branch, else_branch=branch)
    inputs = {"c": (TensorProto.BOOL, []), "x": (TensorProto.FLOAT, [3])}
    path = tmp_path / "if.onnx"
    path.write_bytes(model([node], inputs, {"y": (TensorProto.FLOAT, [3])}).SerializeToString())
    assert call(["explain", str(path)]) == 0
    assert "If (choose): sub-graphs of 1 nodes and 1 nodes run in place" in capsys.readouterr().out


def as_module(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "grainline", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})


def test_the_package_runs_as_a_module(add_path: str) -> None:
    done = as_module(["run", add_path])
    assert done.returncode == 0 and "out  y" in done.stdout, done.stderr


def test_a_cache_that_cannot_be_used_is_one_line(add_path: str) -> None:
    done = as_module(["run", add_path], GRAINLINE_CACHE_DIR=add_path)
    assert done.returncode == 0 and "out  y" in done.stdout
    assert done.stderr.startswith(f"grainline: warning: the kernel cache {add_path} is not used: ")
    assert done.stderr.count("\n") == 1, done.stderr


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + 20
        while text not in self.getvalue():
            assert time.monotonic() < deadline, f"{text!r} did not appear in {self.getvalue()!r}"
            time.sleep(0.01)


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """stderr as a terminal on which progress shows at once. No fixture: pytest sets stderr between those and the test."""
    terminal = Terminal()
    monkeypatch.setattr(waiting, "PATIENCE_S", 0)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    return terminal


def test_results_go_to_stdout_while_progress_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with waiting.progress_on_stderr("work"):
        progress.report("step", 1, 2)
        terminal.wait_for("work: step 1/2")
        print("result")
        assert sys.stdout.getvalue() == "result\n"  # type: ignore[attr-defined]
    assert "result" not in terminal.getvalue()


def test_calibrate_shows_its_progress(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    terminal = open_terminal(monkeypatch)

    def calibrate(target: Target, tell: Callable[[str], None], repeat: int) -> None:
        tell("memory")
        terminal.wait_for("measuring this machine: memory")
        raise GrainlineError("enough")

    monkeypatch.setattr(calibrating, "calibrate", calibrate)
    assert call(["calibrate", "-o", str(tmp_path / "machine.json")]) == 1
    assert "enough" in terminal.getvalue()


COMMANDS = sorted(info.callback.__name__ for info in app.registered_commands if info.callback is not None)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "knobs"])
def test_a_malformed_variable_ends_every_command_with_code_2(
    command: str, add_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = str(tmp_path / "out")
    arguments = {
        "plan": ["rms_norm", "4x64"],
        "audit": [str(tmp_path)],
        "measure": ["-o", output],
        "calibrate": ["-o", output],
    }
    for name in STRICT_NAMES:
        monkeypatch.setenv(name, "~nobody-has-this-name")
        assert call([command, *arguments.get(command, [add_path])]) == 2
        assert f"variable {name} cannot be read" in " ".join(capsys.readouterr().err.split())
        monkeypatch.delenv(name)


def test_plan_keeps_to_the_bound_of_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    processors = len(os.sched_getaffinity(0))
    for bound, arguments, homes in (
        ("1", [], 1),
        (str(processors + 3), [], processors),
        ("1", ["--threads", "2"], 2),
    ):
        monkeypatch.setenv("GRAINLINE_NUM_THREADS", bound)
        assert call(["plan", "rms_norm", "4x64", *arguments]) == 0
        assert f": H={homes}, " in capsys.readouterr().out


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


@pytest.mark.parametrize("size", (0, 1 << 20), ids=("short", "long"))
def test_a_reader_that_leaves_is_no_complaint(size: int) -> None:
    """`grainline knobs | head`: what is printed may fit the buffers or not."""
    code = f"from grainline.tools import listing, main; lines = listing.knob_lines; " \
           f"listing.knob_lines = lambda: [*lines(), 'x' * {size}]; main.main(['knobs'])"  # fmt: skip
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], env=buffered, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode != 0
