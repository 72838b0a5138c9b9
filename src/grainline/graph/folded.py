"""A constant that is computed from constants when it is first loaded.

It stands apart from the pass that makes it so that a saved model can load its weights without the passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from grainline.graph.ir import Constant, Node
from grainline.graph.primitives import MEANINGS


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """The single result of `node` on `inputs` (None where absent): C-contiguous, read-only."""

    node: Node
    inputs: tuple[Constant | None, ...]

    def __call__(self) -> np.ndarray[Any, Any]:
        arrays = [None if constant is None else constant.load() for constant in self.inputs]
        shape = tuple(int(extent) for extent in self.node.output.shape or ())  # type: ignore[arg-type]
        result = np.ascontiguousarray(self._evaluate(arrays)).reshape(shape)
        result.setflags(write=False)
        return result

    def _evaluate(self, arrays: list[Any]) -> Any:
        meaning = MEANINGS.get(self.node.op)
        if meaning is not None:
            with np.errstate(all="ignore"):
                return meaning(self.node, arrays, {})
        from grainline.graph.interp import evaluate_node

        return evaluate_node(self.node, arrays, {})[0]
