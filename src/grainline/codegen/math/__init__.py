"""Vector mathematics as IR text: f32 by own polynomials, f64 through the C library lane by lane.

`emit_math(f, name, x)` is the one entry; `names()` lists what it knows.
"""

from grainline.codegen.math.dispatch import emit_math, names

__all__ = ["emit_math", "names"]
