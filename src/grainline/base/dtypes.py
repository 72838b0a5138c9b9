"""Element types: one table for names, sizes, NumPy, ONNX and LLVM spellings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """An element type. `size_bytes` is the storage size; `numpy_name` is "" for types NumPy does not have."""

    name: str
    size_bytes: int
    kind: str  # f float, i signed, u unsigned, b bool, s string
    onnx: int
    numpy_name: str
    llvm: str

    def __str__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @property
    def numpy(self) -> np.dtype[Any]:
        if self.name == "bf16":
            import ml_dtypes

            return np.dtype(ml_dtypes.bfloat16)
        return np.dtype(self.numpy_name)


F32 = DType("f32", 4, "f", 1, "float32", "float")
U8 = DType("u8", 1, "u", 2, "uint8", "i8")
I8 = DType("i8", 1, "i", 3, "int8", "i8")
U16 = DType("u16", 2, "u", 4, "uint16", "i16")
I16 = DType("i16", 2, "i", 5, "int16", "i16")
I32 = DType("i32", 4, "i", 6, "int32", "i32")
I64 = DType("i64", 8, "i", 7, "int64", "i64")
STRING = DType("string", 0, "s", 8, "object", "")
BOOL = DType("bool", 1, "b", 9, "bool", "i8")
F16 = DType("f16", 2, "f", 10, "float16", "half")
F64 = DType("f64", 8, "f", 11, "float64", "double")
U32 = DType("u32", 4, "u", 12, "uint32", "i32")
U64 = DType("u64", 8, "u", 13, "uint64", "i64")
BF16 = DType("bf16", 2, "f", 16, "", "bfloat")
C64 = DType("c64", 8, "c", 14, "complex64", "")
C128 = DType("c128", 16, "c", 15, "complex128", "")

ALL = (F32, U8, I8, U16, I16, I32, I64, STRING, BOOL, F16, F64, U32, U64, BF16, C64, C128)
BY_NAME = {d.name: d for d in ALL}
BY_ONNX = {d.onnx: d for d in ALL}
_BY_NUMPY = {d.numpy_name: d for d in ALL if d.numpy_name}


def from_numpy(dtype: np.dtype[Any]) -> DType:
    """The element type of a NumPy dtype of any byte order; KeyError for a dtype that models cannot carry."""
    if dtype.kind in "OUST":
        return STRING
    if dtype.name == "bfloat16":
        return BF16
    return _BY_NUMPY[dtype.newbyteorder("=").name]
