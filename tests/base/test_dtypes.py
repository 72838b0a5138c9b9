"""Element types: one object of each in a process."""

from __future__ import annotations

import copy
import pickle

import pytest

from grainline.base.dtypes import BY_NAME, F32, F64, I32, U32, DType


@pytest.mark.parametrize("dtype", BY_NAME.values(), ids=str)
def test_copies_are_the_type_itself(dtype: DType):
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert copy.copy(dtype) is dtype and copy.deepcopy({"kind": dtype})["kind"] is dtype


def test_types_of_one_size_and_spelling_differ():
    assert len(set(BY_NAME.values())) == len(BY_NAME)
    assert len({F32, F64, I32, U32}) == 4
