"""CumSum compiles: every axis, exclusive and reverse, in the order and type of the input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fixtures.models import single
from tests.test_element_types import BF16, check, name_of, sample

SHAPES = [(7,), (1, 9), (4, 33), (2, 3, 19, 5), (0, 4), (4, 0)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, BF16, np.int32, np.int64], ids=name_of)
@pytest.mark.parametrize("is_reversed", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
def test_running_sums(dtype: Any, exclusive: int, is_reversed: int) -> None:
    for shape in SHAPES:
        x = sample(dtype, *shape)
        for axis in range(-1, len(shape) - 1):
            weights = {"axis": np.array(axis)}
            check(single("CumSum", {"x": x}, weights=weights, exclusive=exclusive, reverse=is_reversed), {"x": x})
