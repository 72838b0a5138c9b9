"""How constant right operands of products lie in memory. Small and on its own: saved models need it at every start."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: columns of one packed panel: the width of the register tile, the same on every machine
PANEL = 16


def pack_panels(matrix: NDArray[np.float32], panel: int = PANEL) -> NDArray[np.float32]:
    """Packs f32[1..., K, N] (any strides) as f32[ceil(N/panel), K, panel], the last panel padded with zeros."""
    matrix = matrix.reshape(matrix.shape[-2:])
    k, n = matrix.shape
    whole = n // panel
    packed = np.empty((-(-n // panel), k, panel), np.float32)
    packed[:whole] = matrix[:, : whole * panel].reshape(k, whole, panel).transpose(1, 0, 2)
    if whole < len(packed):
        packed[whole, :, : n - whole * panel] = matrix[:, whole * panel :]
        packed[whole, :, n - whole * panel :] = 0.0
    return packed
