"""`OrtValue`: an array with onnxruntime's calls, the NumPy protocol and DLPack. Nothing is copied on a CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from grainline.base import dtypes
from grainline.base.errors import FeedError, UnsupportedError
from grainline.session.options import onnx_type

_BY_SPELLING = {onnx_type(d.onnx): d for d in dtypes.ALL}


def numpy_dtype(kind: Any) -> np.dtype[Any]:
    """The NumPy dtype of 'tensor(float)', of an ONNX element number, or of anything NumPy understands."""
    if isinstance(kind, str) and kind in _BY_SPELLING:
        return _BY_SPELLING[kind].numpy
    if isinstance(kind, int):
        if kind not in dtypes.BY_ONNX:
            raise FeedError("no such ONNX element type", found=kind)
        return dtypes.BY_ONNX[kind].numpy
    return np.dtype(kind)


def array_at(pointer: int, shape: Sequence[int], kind: Any) -> np.ndarray:
    """A dense array over memory that the caller owns and keeps alive."""
    dtype = numpy_dtype(kind)
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return np.empty(shape, dtype)
    raw = (ctypes.c_byte * (count * dtype.itemsize)).from_address(pointer)
    return np.frombuffer(raw, dtype).reshape(shape)


def require_cpu(device_type: str) -> None:
    if str(device_type).lower() != "cpu":
        raise UnsupportedError("values live on the CPU", expected="device 'cpu'", found=repr(device_type))


class OrtValue:
    """A tensor value. Make one with the class methods."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: np.ndarray, /, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Shares the memory of a dense array; any other layout is copied."""
        require_cpu(device_type)
        array = np.asarray(numpy_obj)
        try:
            dtypes.from_numpy(array.dtype)
        except KeyError:
            raise FeedError("models cannot carry this element type", found=array.dtype) from None
        return cls(np.ascontiguousarray(array).reshape(array.shape))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: np.ndarray, /, onnx_element_type: int) -> OrtValue:
        """Reads the same bytes as another type of the same size, such as uint16 as bfloat16."""
        dtype = numpy_dtype(int(onnx_element_type))
        if dtype.itemsize != data.dtype.itemsize:
            raise FeedError("reinterpreting needs equal sizes", expected=f"{dtype.itemsize} bytes", found=data.dtype)
        return cls(np.ascontiguousarray(data).view(dtype))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
        memory_info: Any = None,
    ) -> OrtValue:
        """An uninitialised value."""
        require_cpu(device_type)
        return cls(np.empty(tuple(shape), numpy_dtype(element_type)))

    @classmethod
    def from_dlpack(cls, data: Any, /) -> OrtValue:
        return cls(np.from_dlpack(data))

    def numpy(self) -> np.ndarray:
        return self._array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        wanted = self._array.dtype if dtype is None else np.dtype(dtype)
        if copy is False and wanted != self._array.dtype:
            raise ValueError(f"a view as {wanted} needs a copy, the value is {self._array.dtype}")
        return np.array(self._array, dtype=wanted) if copy else self._array.astype(wanted, copy=False)

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def update_inplace(self, data: Any) -> None:
        """Copies `data` into this value's memory."""
        source = np.asarray(data)
        if source.size != self._array.size:
            raise RuntimeError(
                "The input size of numpy arrays does not match the size of the OrtValue: "
                f"expected {self._array.shape}, found {source.shape}"
            )
        np.copyto(self._array, source.reshape(self._array.shape), casting="equiv")

    def data_ptr(self) -> int:
        return int(self._array.ctypes.data)

    def device_name(self) -> str:
        return "cpu"

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def data_type(self) -> str:
        return onnx_type(self._array.dtype)

    def element_type(self) -> int:
        return dtypes.from_numpy(self._array.dtype).onnx

    def tensor_size_in_bytes(self) -> int:
        return int(self._array.nbytes)

    def has_value(self) -> bool:
        return True

    def is_tensor(self) -> bool:
        return True

    def is_tensor_sequence(self) -> bool:
        return False

    def is_sparse_tensor(self) -> bool:
        return False
