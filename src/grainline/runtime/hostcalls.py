"""Wraps host operations so that what they return can stay in slots of a run.

A host operation sees NumPy views of memory that is reused as soon as it returns. The adapter therefore copies every
result that shares memory with an argument, and makes tensors dense, native-endian and of the declared element type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from grainline.base.dtypes import DType
from grainline.execgraph.ir import ExecuteGraph, Slot

Array = np.ndarray[Any, Any]


def adapters(graph: ExecuteGraph) -> list[Callable[..., tuple[Any, ...]]]:
    """One callable per entry of `graph.host_ops`, in order."""
    results: dict[int, Sequence[Slot]] = {
        node.attributes["host_op"]: [graph.slots[slot] for slot in node.outputs]
        for node in graph.main
        if node.kernel == "HostCall"
    }
    return [_adapter(op.call, results.get(index, ())) for index, op in enumerate(graph.host_ops)]


def _adapter(call: Callable[..., tuple[Any, ...]] | None, slots: Sequence[Slot]) -> Callable[..., tuple[Any, ...]]:
    dtypes = [slot.dtype for slot in slots]

    def run(*arguments: Any) -> tuple[Any, ...]:
        assert call is not None, "the graph was read from text: its host operations cannot run"
        results = call(*arguments)
        if len(results) != len(dtypes):
            raise ValueError(f"expected {len(dtypes)} results, found {len(results)}")
        arrays = [argument for argument in arguments if isinstance(argument, np.ndarray)]
        return tuple(_settled(result, dtype, arrays) for result, dtype in zip(results, dtypes, strict=True))

    return run


def _settled(result: Any, dtype: DType | None, arguments: Sequence[Array]) -> Any:
    if isinstance(result, np.generic):
        result = np.asarray(result)
    if not isinstance(result, np.ndarray):
        return _detached(result, arguments)
    if dtype is not None and dtype.kind != "s":
        result = _of_dtype(result, dtype.numpy)
    result = np.require(result, requirements=("C_CONTIGUOUS", "ALIGNED"))
    return _detached(result, arguments)


def _of_dtype(result: Array, wanted: np.dtype[Any]) -> Array:
    """Reference implementations are loose about widths (a float64 mean of float32): same kind is converted."""
    if result.dtype == wanted and result.dtype.isnative:
        return result
    if result.dtype.kind != wanted.kind and not np.can_cast(result.dtype, wanted):
        raise TypeError(f"expected a result of dtype {wanted}, found {result.dtype}")
    return result.astype(wanted)


def _detached(value: Any, arguments: Sequence[Array]) -> Any:
    """`value` without memory of the arguments; containers are searched."""
    if isinstance(value, np.ndarray):
        return value.copy() if any(np.may_share_memory(value, one) for one in arguments) else value
    if isinstance(value, list | tuple):
        return type(value)([_detached(item, arguments) for item in value])
    if isinstance(value, dict):
        return {key: _detached(item, arguments) for key, item in value.items()}
    return value
