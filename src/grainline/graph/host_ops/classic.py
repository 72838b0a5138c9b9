"""Operators of ai.onnx.ml, for models of tables and categories, that the reference lacks or gets wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

from grainline.base.errors import KernelError

Array = np.ndarray[Any, Any]


def zip_map(call: Any) -> list[Any]:
    """A list with one dict per row, from class to score. x: [N, C]."""
    x, classes = call.input(0), call.get("classlabels_int64s") or call.texts("classlabels_strings")
    if x.ndim == 1:
        x = x.reshape(1, -1)
    if not classes or x.ndim != 2 or x.shape[1] != len(classes):
        raise KernelError("the scores do not fit the classes", expected=len(classes or []), found=list(x.shape))
    return [[dict(zip(classes, row, strict=True)) for row in x.tolist()]]


def category_mapper(call: Any) -> list[Any]:
    """Text to number or number to text; what has no category becomes the default."""
    texts, numbers = call.texts("cats_strings"), call.get("cats_int64s") or []
    if call.input(0).dtype.kind in "OU":
        return [_mapped(call.input(0), texts, numbers, call.get("default_int64", -1), np.int64)]
    return [_mapped(call.input(0), numbers, texts, call.text("default_string", "_Unused"), object)]


def label_encoder(call: Any) -> list[Any]:
    """The first form: classes are counted from 0. Later ones are the reference's."""
    classes = call.texts("classes_strings")
    if not classes:
        return NotImplemented
    counted = list(range(len(classes)))
    if call.input(0).dtype.kind in "OU":
        return [_mapped(call.input(0), classes, counted, call.get("default_int64", -1), np.int64)]
    return [_mapped(call.input(0), counted, classes, call.text("default_string", "_Unused"), object)]


def normalizer(call: Any) -> list[Any]:
    """Rows divided by their largest element; the reference takes absolute values first, which the standard does not."""
    if call.text("norm", "MAX") != "MAX":
        return NotImplemented
    x = call.input(0).astype(np.float32)
    largest = x.max(axis=-1, keepdims=True, initial=-np.inf)
    return [x / np.where(largest == 0, np.float32(1), largest)]


def _mapped(x: Array, keys: list[Any], values: list[Any], default: Any, dtype: Any) -> Array:
    if len(keys) != len(values):
        raise KernelError("keys and values differ in number", expected=len(keys), found=len(values))
    table = dict(zip(keys, values, strict=True))
    result = np.empty(x.shape, dtype)
    result.reshape(-1)[:] = [table.get(item, default) for item in x.ravel().tolist()]
    return result


TABLE = {
    ("ai.onnx.ml", "CategoryMapper"): category_mapper,
    ("ai.onnx.ml", "LabelEncoder"): label_encoder,
    ("ai.onnx.ml", "Normalizer"): normalizer,
    ("ai.onnx.ml", "ZipMap"): zip_map,
}
