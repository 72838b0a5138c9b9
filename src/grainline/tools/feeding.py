"""Feeds for a model: read from files, or made at random from what the model says about its inputs.

Random floats are normal; random integers are small and not negative, so that they are valid token ids; an input whose
name speaks of a mask is all ones, one that speaks of a type is all zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from grainline.base.errors import OptionError
from grainline.base.memory import memory_bytes
from grainline.session.options import NodeArg
from grainline.session.values import numpy_dtype

DEFAULT_EXTENT = 1
TOKEN_BOUND = 1000
RANDOM_BYTES = 8  # an element as it is drawn, before it takes the input's type


def split_pairs(option: str, pairs: Sequence[str]) -> dict[str, str]:
    """`["a=1", "b=2"] -> {"a": "1", "b": "2"}`; a name may contain '=' and ends at the last one."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, text = pair.rpartition("=")
        if not equals or not name or not text:
            raise OptionError(f"{option} cannot be read", expected="NAME=VALUE", found=repr(pair))
        if name in found:
            raise OptionError(f"{option} names this twice", value=name, found=f"{found[name]!r} and {text!r}")
        found[name] = text
    return found


def parse_shape(name: str, text: str) -> tuple[int, ...]:
    try:
        extents = tuple(int(part) for part in text.strip("[]()").split(",") if part.strip())
    except ValueError:
        extents = (-1,)
    if any(extent < 0 for extent in extents):
        raise OptionError("--shape cannot be read", value=name, expected="extents such as 1,128", found=repr(text))
    return extents


def read_array(name: str, path: str) -> np.ndarray:
    try:
        with open(path, "rb") as file:
            is_array = file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX
            file.seek(0)
            return np.lib.format.read_array(file, allow_pickle=False)
    except OSError as problem:
        fault = problem.strerror or str(problem)
    except ValueError:
        fault = "a .npy file that is damaged, or holds Python objects" if is_array else "not a .npy file"
    raise OptionError("--input cannot be read", value=name, found=f"{path}: {fault}")


def make_feeds(
    inputs: Sequence[NodeArg], input_options: Sequence[str], shape_options: Sequence[str], seed: int
) -> dict[str, np.ndarray]:
    """A feed for every input. `shape_options` name inputs or dimension symbols."""
    files = split_pairs("--input", input_options)
    shapes = {name: parse_shape(name, text) for name, text in split_pairs("--shape", shape_options).items()}
    symbols = _symbol_extents(inputs, shapes)
    _check_names({info.name for info in inputs}, symbols, files, shapes)
    rng = np.random.default_rng(seed)
    feeds = {}
    for info in inputs:
        if info.name in files:
            feeds[info.name] = read_array(info.name, files[info.name])
        elif not info.type.startswith("tensor("):
            raise OptionError(
                "an input that is no tensor has no random value",
                value=info.name,
                found=info.type,
                remedy="Run this model from Python.",
            )
        else:
            feeds[info.name] = _sized_array(info, shapes.get(info.name) or _shape_of(info, symbols), rng)
    return feeds


def _check_names(
    known: set[str], symbols: dict[str, int], files: dict[str, str], shapes: dict[str, tuple[int, ...]]
) -> None:
    """Every option names an input; a shape may name a dimension instead and then is one extent."""
    for name in [*files, *(name for name in shapes if name not in symbols)]:
        if name not in known:
            raise OptionError("the model has no such input", value=name, expected=f"one of {sorted(known)}")
    for name, shape in shapes.items():
        if name not in known and len(shape) != 1:
            raise OptionError(
                "--shape gives a dimension, which is no input, several extents or none",
                value=name,
                expected=f"one extent, or the name of an input: {sorted(known)}",
                found=list(shape),
            )


def _symbol_extents(inputs: Sequence[NodeArg], shapes: dict[str, tuple[int, ...]]) -> dict[str, int]:
    """Extents of dimension symbols: given as NAME=4, or read off the shapes given for inputs."""
    names = {dim for info in inputs for dim in info.shape if isinstance(dim, str)}
    extents = {name: shape[0] for name, shape in shapes.items() if name in names and len(shape) == 1}
    for info in inputs:
        for dim, extent in zip(info.shape, shapes.get(info.name, ())):
            if isinstance(dim, str):
                extents.setdefault(dim, extent)
    return dict.fromkeys(names, DEFAULT_EXTENT) | extents


def _shape_of(info: NodeArg, symbols: dict[str, int]) -> tuple[int, ...]:
    return tuple(dim if isinstance(dim, int) else symbols.get(dim or "", DEFAULT_EXTENT) for dim in info.shape)


def _sized_array(info: NodeArg, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """A random array, if it fits into memory; numpy would ask for pages that the system cannot give."""
    size_bytes = math.prod(shape) * RANDOM_BYTES
    try:
        if size_bytes > memory_bytes():
            raise MemoryError("more than the memory of this machine")
        return random_array(info, shape, rng)
    except (MemoryError, ValueError) as problem:  # ValueError: more dimensions than numpy has
        raise OptionError(
            "no random input of this shape can be made",
            value=info.name,
            found=f"{list(shape)}, {size_bytes} bytes: {problem}",
        ) from None


def random_array(info: NodeArg, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if info.type == "tensor(string)":
        return np.full(shape, "grain", dtype=object)
    dtype: np.dtype[Any] = numpy_dtype(info.type)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind not in "iu":
        return rng.standard_normal(shape).astype(dtype)
    if "mask" in info.name:
        return np.ones(shape, dtype)
    bound = 1 if "type" in info.name else min(TOKEN_BOUND, int(np.iinfo(dtype).max))
    return rng.integers(0, bound, shape).astype(dtype)
