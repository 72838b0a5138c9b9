"""The normalised operators of the compute graph, one row each: arity, family, and the meaning in one line.

Attributes (by operator):
* `cast`: to (DType name), numeric conversions follow NumPy and C.
* `reduce`: kind in {sum, prod, max, min}, axes (sorted non-negative ints). The reduced axes stay with extent 1.
* `cumsum`: axis, exclusive (bool): running sums in increasing order, in the type of the input; exclusive ones leave
  their own element out and begin with 0.
* `matmul`: inputs have rank >= 2; NumPy broadcasting of the leading axes; accumulation in f32 for f32.
* `reshape`: no attribute; the target is the output value's shape. Same elements in row-major order.
* `transpose`: perm. `expand`: target is the output's shape (broadcast).
* `slice`: starts, steps (one extent per axis; steps are non-zero ints; a start is already clamped and non-negative).
* `windows`: axis, step, dilation (positive ints); axis becomes two, of the output's extents: element [.., i, j, ..] is
  input[.., i * step + j * dilation, ..]. A view in which elements show more than once.
* `concat`: axis. `pad`: before (extents per axis, >= 0), value (Python scalar); the output's shape says the rest.
* `gather`: axis; inputs (data, indices of i32/i64); negative indices count from the end; out of range is an error.
* `gather_nd`: inputs (data, i0, i1, ...): element [i0[...], i1[...], trailing axes]; the indices broadcast together.
* `iota`: output[..., i, ...] = start + step * i along `axis` (start, step: Python numbers or extents).
* `extents`: values (tuple of extents): an i64 tensor of rank 0 or 1 that shows them.
* `host`: op_type, domain, opset, proto (serialised NodeProto without its sub-graphs), subgraphs (attribute name ->
  Graph), captures (attribute name -> positions in the node's inputs that feed the sub-graph's last inputs), formals
  (how many leading inputs are the operator's own), reason (why it is not compiled); inputs may contain values of
  any kind; an absent optional input or output is the value named "".

Pointwise operators broadcast like NumPy. Integer arithmetic wraps; integer `div` truncates toward zero and raises on a
zero divisor; `min`, `max`, `relu`, `clip` pass NaN through; `round` is half to even; comparisons give bool.
"""

from __future__ import annotations

UNARY = (
    "neg abs exp log sqrt rsqrt reciprocal tanh erf sigmoid sin cos floor ceil round sign relu not isnan isinf "
    "log1p softplus"
).split()
BINARY = "add sub mul div mod fmod pow min max eq lt le gt ge and or xor bitand bitor bitxor shl shr".split()

#: operator -> number of inputs
POINTWISE: dict[str, int] = {
    **dict.fromkeys(UNARY, 1),
    **dict.fromkeys(BINARY, 2),
    "cast": 1,
    "where": 3,
}

VIEWS = frozenset({"reshape", "transpose", "slice", "expand", "windows"})
OTHER = frozenset({"reduce", "cumsum", "matmul", "concat", "pad", "gather", "gather_nd", "iota", "extents", "host"})
ALL = frozenset(POINTWISE) | VIEWS | OTHER


def is_pointwise(op: str) -> bool:
    return op in POINTWISE


def is_view(op: str) -> bool:
    return op in VIEWS
