"""How constant right operands of products lie in memory. Small and on its own: saved models need it at every start."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: columns of one packed panel: the width of the register tile, the same on every machine
PANEL = 16
#: rows of a strip of the left operand, which share a panel while it is read: 6x16 leaves 3 of the 16 AVX2 registers for
#: B and the broadcast; AVX-512 reads two panels at once, NEON has 24 accumulators
STRIP_ROWS = 6
#: the same where 32 registers hold a whole panel each: 12 rows of two panels halve how often B passes from the second
#: level of cache, which is what bounds machines with two multiply-adds a cycle
WIDE_STRIP_ROWS = 12
#: consecutive k of one column that lie together in packed int8 weights: what one integer instruction sums
QUAD = 4


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


def pack_quads(matrix: NDArray[np.int8], panel: int = PANEL) -> NDArray[np.int8]:
    """Packs i8[1..., K, N] (any strides) as i8[ceil(N/panel), ceil(K/4), panel, 4], 0 as padding, top bits flipped."""
    matrix = matrix.reshape(matrix.shape[-2:])
    k, n = matrix.shape
    quads, panels = -(-k // QUAD), -(-n // panel)
    padded = np.zeros((quads, QUAD, panels * panel), np.uint8)
    padded.reshape(quads * QUAD, -1)[:k, :n] = matrix.view(np.uint8)
    # Four bytes as one word: transposing words is three times as fast as transposing bytes.
    words = np.zeros((quads, panels * panel), "<u4")
    for byte in range(QUAD):
        words |= padded[:, byte].astype("<u4") << (8 * byte)
    words ^= 0x80808080
    packed = np.ascontiguousarray(words.reshape(quads, panels, panel).transpose(1, 0, 2))
    return packed.view(np.int8).reshape(panels, quads, panel, QUAD)
