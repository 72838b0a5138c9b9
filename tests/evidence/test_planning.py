"""`grainline plan` and `grainline explain --kernel`: every candidate, the pick, what is measured, and wrong calls."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

from grainline.plan.machine import machine_of
from grainline.plan.target import host_target
from grainline.tools import planning
from grainline.tools.main import call


def test_plan_prints_every_candidate_and_the_pick(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["plan", "masked_softmax", "40x66", "--threads", "2", "--rows", "500"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if re.match(r" [* ][! ] \w+ along", line)]
    scores = [float(line.split()[-1]) for line in rows]
    assert scores == sorted(scores) and len(rows) > 10
    assert sum(line.startswith(" *") for line in rows) == 1, "one pick"
    assert {line[4:].split()[0] for line in rows} == {"whole", "local"}
    for line in rows:
        *terms, total = map(float, line.split()[-7:])
        assert sum(terms) == pytest.approx(total, abs=0.05), "the terms are the prediction, up to a launch"


def test_what_does_not_fit_as_products_is_a_whole_program_and_plan_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["plan", "attention", "1x1x1x100000x100000x8x8", "--rows", "1"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^ \*  whole", out, re.MULTILINE) and re.search("refused mma: .* MiB of scratch", out)


def test_plan_says_whose_prices_chose(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    origin = machine_of(host_target()).origin
    monkeypatch.setenv("GRAINLINE_HOT_THREADS", "0")
    assert call(["plan", "rms_norm", "64x256", "--threads", "2", "--rows", "1"]) == 0
    assert f"prices: {origin}" in capsys.readouterr().out
    monkeypatch.setenv("GRAINLINE_HOT_THREADS", "maybe")
    assert call(["plan", "rms_norm", "64x256"]) == 2
    assert "GRAINLINE_HOT_THREADS" in capsys.readouterr().err


def test_plan_measures_beside_the_prediction(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "TURN_NS", 20_000)
    assert call(["plan", "rms_norm", "5x34", "--threads", "1", "--measure", "--parked", "--rows", "3"]) == 0
    out = capsys.readouterr().out
    assert "H=1, parked start" in out and "measured" in out and "candidates in all" in out
    assert re.search(r"^ [* ]! ", out, re.MULTILINE), "the fastest is marked"
    assert re.search(r"the pick is the fastest|the pick takes [\d.]+% longer", out)


@pytest.mark.parametrize(
    ("operator", "shape", "forms"),
    [
        ("matmul", "45x64x700", {"strips", "columns"}),
        ("matmul_unpacked", "20x16x40", {"strips"}),
        ("attention", "1x4x2x16x32x16x16", {"chain"}),
    ],
)
@pytest.mark.parametrize("threads", ["1", "2"])
def test_products_have_candidates_terms_and_times(
    operator: str,
    shape: str,
    forms: set[str],
    threads: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every variant in every grain, checked by the oracle before it is timed, the launch's choice marked."""
    monkeypatch.setattr(planning, "TURN_NS", 20_000)
    assert call(["plan", operator, shape, "--threads", threads, "--rows", "500", "--measure"]) == 0
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if "epilogue in" in line]
    assert sum(line.startswith(" *") for line in rows) == 1 and sum(line[2] == "!" for line in rows) == 1
    assert forms <= {line[4:].split()[0] for line in rows}
    assert len(rows) > len({line[4:].split("epilogue")[0] for line in rows}), "every variant in several grains"
    for line in rows:
        *terms, total, measured = map(float, line.split()[-8:])
        assert sum(terms) == pytest.approx(total, rel=0.01, abs=0.01) and measured > 0
    assert re.search(r"the pick is the fastest|the pick takes [\d.]+% longer", out)
    assert "refused local: it contains a matrix product" in out


def test_a_models_product_is_explained_with_its_terms(
    model: Callable[..., onnx.ModelProto], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    tensors = {"x": (TensorProto.FLOAT, ["M", 8]), "w": (TensorProto.FLOAT, [8, 8])}
    path.write_bytes(model([node], tensors, {"y": (TensorProto.FLOAT, ["M", 8])}).SerializeToString())
    assert call(["explain", str(path), "--kernel", ""]) == 0
    out = capsys.readouterr().out
    assert "predicted" in out and re.search(r"^ \*  .*epilogue in", out, re.MULTILINE)


def test_refusals_are_printed(add_model: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "add.onnx"
    path.write_bytes(add_model)
    assert call(["explain", str(path), "--kernel", ""]) == 0
    out = capsys.readouterr().out
    assert "refused local: " in out and " *  whole" in out


def test_a_kernel_is_chosen_by_the_names_that_explain_prints(
    model: Callable[..., onnx.ModelProto], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two products of one shape are one kernel with the names of both groups."""
    flat, wide = (TensorProto.FLOAT, [4, 8]), (TensorProto.FLOAT, [8, 8])
    nodes = [
        onnx.helper.make_node("Softmax", ["x"], ["s"]),
        onnx.helper.make_node("MatMul", ["s", "w"], ["t"]),
        onnx.helper.make_node("MatMul", ["t", "w"], ["y"]),
    ]
    path = tmp_path / "m.onnx"
    path.write_bytes(model(nodes, {"x": flat, "w": wide}, {"y": flat}).SerializeToString())
    assert call(["explain", str(path)]) == 0
    printed = dict(re.findall(r"^(grainline_\w+) \((.+?)\): ", capsys.readouterr().out, re.MULTILINE))
    assert len(printed) > 1 and "kernel" not in printed.values()
    for symbol, names in printed.items():
        for name in (symbol, *names.split(", ")):
            assert call(["explain", str(path), "--kernel", name]) == 0
            assert f"{names}, {symbol}" in capsys.readouterr().out
    assert call(["explain", str(path), "--kernel", "zzz"]) == 2
    said = capsys.readouterr().err
    assert "no such kernel" in said and all(name in said for name in ", ".join(printed.values()).split(", "))


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["plan", "conv", "3x3"], "no such operator"),
        (["plan", "rms_norm", "3by3"], "shape cannot be read"),
        (["plan", "rms_norm", "3"], "takes two extents"),
        (["plan", "rms_norm", "0x4"], "at least 1"),
        (["plan", "rope", "3x7"], "even length"),
        (["plan", "rms_norm", "99999999999x99999999999"], "at most 4294967295 elements"),
        (["plan", "rms_norm", "4294967296x1"], "at most 4294967295 elements"),
        (["plan", "rope", f"1x{2**32}"], "at most 4294967295 elements"),
        (["plan", "attention", f"1x1x1x1x{2**30}x8x8"], "at most 4294967295 elements"),
        (["plan", "attention", "3x7"], "seven extents"),
        (["plan", "attention", "1x3x2x4x4x8x8"], "multiple of Hkv"),
        (["plan", "rms_norm", "3x8", "--measure", "--threads", "999"], "threads cannot be timed"),
        (["plan", "matmul", "3x7"], "three extents"),
        (["plan", "matmul_unpacked", "3x0x4"], "at least 1"),
    ],
)
def test_wrong_calls(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(arguments) == 2
    assert re.search(sentence, capsys.readouterr().err)
