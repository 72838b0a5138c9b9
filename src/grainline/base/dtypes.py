"""Element types: one table for names, sizes, NumPy, ONNX and LLVM spellings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type. `size_bytes` is the storage size; `numpy_name` is "" for types NumPy does not have.

    There is one object of each type in a process: equal means identical, copies and pickles too.
    """

    name: str
    size_bytes: int
    kind: str  # f float, i signed, u unsigned, b bool, s string, c complex, n narrow (8 bits or less; ml_dtypes has it)
    onnx: int
    numpy_name: str
    llvm: str

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return _by_name, (self.name,)

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @property
    def onnx_name(self) -> str:
        """As ONNX writes it in the name of a type: f32 -> float, i8 -> int8, f8e5m2 -> float8e5m2."""
        return _ONNX_NAMES.get(self.name) or _ONNX_PREFIXES[self.name[0]] + self.name[1:]

    @property
    def numpy(self) -> np.dtype[Any]:
        if self.name == "bf16" or self.kind == "n":
            import ml_dtypes

            return np.dtype(getattr(ml_dtypes, self.numpy_name or "bfloat16"))
        return np.dtype(self.numpy_name)


_ONNX_NAMES = {"f32": "float", "f64": "double", "bf16": "bfloat16", "bool": "bool", "string": "string"}
_ONNX_PREFIXES = {"f": "float", "i": "int", "u": "uint", "c": "complex"}

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

#: types that only host nodes compute with; NumPy holds one element per byte
NARROW = (
    DType("f8e4m3fn", 1, "n", 17, "float8_e4m3fn", ""),
    DType("f8e4m3fnuz", 1, "n", 18, "float8_e4m3fnuz", ""),
    DType("f8e5m2", 1, "n", 19, "float8_e5m2", ""),
    DType("f8e5m2fnuz", 1, "n", 20, "float8_e5m2fnuz", ""),
    DType("u4", 1, "n", 21, "uint4", ""),
    DType("i4", 1, "n", 22, "int4", ""),
    DType("f4e2m1", 1, "n", 23, "float4_e2m1fn", ""),
    DType("f8e8m0", 1, "n", 24, "float8_e8m0fnu", ""),
    DType("u2", 1, "n", 25, "uint2", ""),
    DType("i2", 1, "n", 26, "int2", ""),
)

ALL = (F32, U8, I8, U16, I16, I32, I64, STRING, BOOL, F16, F64, U32, U64, BF16, C64, C128)
BY_NAME = {d.name: d for d in (*ALL, *NARROW)}
BY_ONNX = {d.onnx: d for d in (*ALL, *NARROW)}
_BY_NUMPY = {d.numpy_name: d for d in (*ALL, *NARROW) if d.numpy_name}


def _by_name(name: str) -> DType:
    return BY_NAME[name]


def from_numpy(dtype: np.dtype[Any]) -> DType:
    """The element type of a NumPy dtype of any byte order; KeyError for a dtype that models cannot carry."""
    if dtype.kind in "OUST":
        return STRING
    if dtype.name == "bfloat16":
        return BF16
    return _BY_NUMPY[dtype.newbyteorder("=").name]
