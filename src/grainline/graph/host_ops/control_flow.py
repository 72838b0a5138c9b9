"""If, Loop and Scan by the pseudocode of the ONNX text; their sub-graphs run in the graph interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np

from grainline.base.cancellation import raise_if_cancelled
from grainline.base.dims import evaluate, symbols
from grainline.base.errors import KernelError


def if_(call: Any) -> list[Any]:
    condition = np.asarray(call.input(0))
    if condition.size != 1:
        raise KernelError("the condition of If is not one bool", found=list(condition.shape))
    return call.subgraph("then_branch" if condition.reshape(())[()] else "else_branch", [])


def loop(call: Any) -> list[Any]:
    """Body: (iteration, condition, carried...) -> (condition, carried..., scanned...)."""
    trips, condition = call.input(0), call.input(1)
    carried = list(call.arrays[2:])
    limit = None if trips is None else int(np.asarray(trips).reshape(()))
    goes_on = True if condition is None else bool(np.asarray(condition).reshape(()))
    scanned: list[list[Any]] = [[] for _ in call.node.outputs[len(carried) :]]
    iteration = 0
    while goes_on and (limit is None or iteration < limit):
        raise_if_cancelled()
        results = call.subgraph("body", [np.array(iteration, np.int64), np.array(goes_on), *carried])
        goes_on = bool(np.asarray(results[0]).reshape(()))
        carried = results[1 : 1 + len(carried)]
        for kept, item in zip(scanned, results[1 + len(carried) :], strict=False):
            kept.append(item)
        iteration += 1
    shown = range(1 + len(carried), 1 + len(carried) + len(scanned))
    return [*carried, *(_stacked(call, items, 0, output) for items, output in zip(scanned, shown, strict=True))]


def _stacked(call: Any, items: list[Any], axis: int, output: int) -> Any:
    """Scan outputs along a new axis; with no iteration an empty tensor of the body's type and, where known, shape: an
    extent that only the body knows is 0."""
    if items:
        return np.stack(items, axis=axis)
    body = call.node.attributes["subgraphs"]["body"]
    value = body.outputs[output][1]
    known = [evaluate(d, call.env) if call.env.keys() >= set(symbols(d)) else 0 for d in value.shape or ()]
    shape = [number or extent for number, extent in zip(body.empty_extents(output), known, strict=True)]
    at = axis + len(shape) + 1 if axis < 0 else axis
    return np.zeros((*shape[:at], 0, *shape[at:]), dtype=value.dtype.numpy)


def scan(call: Any) -> list[Any]:
    """Body: (state..., one slice per scanned input...) -> (state..., one slice per scanned output...)."""
    if call.version < 9:
        return _scan_by_batch(call)
    count = call.get("num_scan_inputs")
    return _scan(call, list(call.arrays), count)


def _scan(call: Any, inputs: list[Any], count: int) -> list[Any]:
    state, sources = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
    out_count = len(call.node.outputs) - len(state)
    axes = call.get("scan_input_axes", [0] * count)
    backwards = call.get("scan_input_directions", [0] * count)
    lengths = {source.shape[axis] for source, axis in zip(sources, axes, strict=True)}
    if len(lengths) != 1:
        raise KernelError("scanned inputs have different lengths", found=sorted(lengths))
    length = lengths.pop()
    scanned: list[list[Any]] = [[] for _ in range(out_count)]
    for step in range(length):
        raise_if_cancelled()
        slices = [
            np.take(source, length - 1 - step if back else step, axis=axis)
            for source, axis, back in zip(sources, axes, backwards, strict=True)
        ]
        results = call.subgraph("body", [*state, *slices])
        state = results[: len(state)]
        for kept, item in zip(scanned, results[len(state) :], strict=True):
            kept.append(item)
    out_axes = call.get("scan_output_axes", [0] * out_count)
    out_back = call.get("scan_output_directions", [0] * out_count)
    outputs = []
    for output, (items, axis, back) in enumerate(zip(scanned, out_axes, out_back, strict=True), len(state)):
        outputs.append(_stacked(call, items[::-1] if back else items, axis, output))
    return [*state, *outputs]


def _scan_by_batch(call: Any) -> list[Any]:
    """Opset 8: every input has a leading batch axis, and an optional input 0 gives the lengths."""
    count = call.get("num_scan_inputs")
    inputs = list(call.arrays[1:])
    lengths = call.input(0)
    rows = []
    for index in range(inputs[-1].shape[0]):
        item = [data[index] for data in inputs]
        if lengths is not None:
            item[-count:] = [data[: int(lengths[index])] for data in item[-count:]]
        rows.append(_scan(call, item, count))
    return [np.stack(parts) for parts in zip(*rows, strict=True)]


def sequence_map(call: Any) -> list[Any]:
    """Body: (item of each sequence, tensors as they are) -> (item of each output sequence)."""
    first = call.input(0)
    collected: list[list[Any]] = [[] for _ in call.node.outputs]
    for index in range(len(first)):
        items = [data[index] if isinstance(data, list) else data for data in call.arrays]
        for kept, item in zip(collected, call.subgraph("body", items), strict=True):
            kept.append(item)
    return list(collected)


def optional_has_element(call: Any) -> list[Any]:
    return [np.array(call.input(0) is not None)]


TABLE = {
    ("", "SequenceMap"): sequence_map,
    ("", "OptionalHasElement"): optional_has_element,
    ("", "If"): if_,
    ("", "Loop"): loop,
    ("", "Scan"): scan,
}
