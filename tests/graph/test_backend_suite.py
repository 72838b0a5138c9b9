"""The test suite that the onnx package generates, through importer, passes and interpreter.

Every case runs but those that `EXCLUDED` names with a reason.
"""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from grainline.graph.verify import verify
from tests.fixtures.interp_session import InferenceSession

EXCLUDED = {
    r"bernoulli": "random numbers differ between engines",
    r"image_decoder": "needs Pillow",
    r"attention_.*(bf16(_expanded)?|fp16_expanded)$": "expects every step of a function rounded as the reference happens to round it",
    r"if_opt$": "compares an optional sequence with its element",
    r"gradient_of": "training operators",
}

warnings.simplefilter("ignore")


def cases() -> list[Any]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return load_model_tests(kind="node")


def excluded(name: str) -> str | None:
    return next((reason for pattern, reason in EXCLUDED.items() if re.search(pattern, name)), None)


def plain(data: Any) -> Any:
    return numpy_helper.to_array(data) if isinstance(data, TensorProto) else data


def check(found: Any, expected: Any, rtol: float, atol: float) -> None:
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for item, right in zip(found, expected, strict=True):
            check(item, right, rtol, atol)
        return
    if expected is None:
        assert found is None
        return
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    if expected.dtype.kind in "OUS":
        assert [str(item) for item in found.ravel()] == [str(item) for item in expected.ravel()]
        return
    assert found.dtype == expected.dtype
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(found.astype(wide), expected.astype(wide), rtol=rtol, atol=atol)


def run_case(case: Any) -> None:
    session = InferenceSession(case.model)
    verify(session.graph)
    names = [value.name for value in session.graph.inputs]
    for inputs, outputs in case.data_sets:
        feeds = {}
        for name, data in zip(names, map(plain, inputs), strict=False):
            feeds[name] = data if isinstance(data, list | dict) or data is None else np.asarray(data)
        for found, expected in zip(session.run(None, feeds), map(plain, outputs), strict=True):
            check(found, expected, case.rtol, case.atol)


@pytest.mark.slow
def test_the_backend_suite() -> None:
    failed = []
    for case in cases():
        if excluded(case.name):
            continue
        try:
            run_case(case)
        except Exception as error:
            failed.append(f"{case.name}: {type(error).__name__}: {str(error).splitlines()[0][:160]}")
    assert not failed, f"{len(failed)} cases fail:\n" + "\n".join(failed)
