"""Where the elements of a value lie inside a buffer.

A `Layout` maps the logical axes of a value to addresses. Each axis is a tuple of factors (extent, stride), outermost
first, in elements; an axis of extent 1 has no factor. Keeping factors apart lets views compose that a single stride per
axis cannot express: merging [B, H] to [B*H] and splitting it again costs nothing, whatever the strides are.

Every function is pure; `reshape`, `slice_` and `windows` return None where no layout without a copy exists.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from grainline.base.dims import Expr, coefficients, exact_div, maximum, minimum, product, row_major_strides

Factor = tuple["int | Expr", "int | Expr"]
Axes = tuple[tuple[Factor, ...], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """`axes[i]` are the factors of logical axis i; `offset` is the first element's position in the buffer."""

    axes: Axes
    offset: int | Expr = 0

    @property
    def shape(self) -> tuple[int | Expr, ...]:
        return tuple(product(extent for extent, _ in factors) for factors in self.axes)

    def is_dense(self) -> bool:
        """Whether the elements lie in row-major order without gaps (at any offset)."""
        if any(extent == 0 for axis in self.axes for extent, _ in axis):
            return True
        factors = merge([f for axis in self.axes for f in axis])
        return not factors or (len(factors) == 1 and factors[0][1] == 1)


def dense(shape: tuple[int | Expr, ...], offset: int | Expr = 0) -> Layout:
    return strided(shape, row_major_strides(shape), offset)


def strided(shape: tuple[int | Expr, ...], strides: tuple[int | Expr, ...], offset: int | Expr = 0) -> Layout:
    axes = tuple(() if extent == 1 else ((extent, stride),) for extent, stride in zip(shape, strides, strict=True))
    return Layout(axes, offset)


def permuted(shape: tuple[int | Expr, ...], perm: tuple[int, ...]) -> Layout:
    """A dense buffer whose physical axis order is `perm`: `transpose(result, perm)` is row-major."""
    physical = row_major_strides(tuple(shape[a] for a in perm))
    strides: list[int | Expr] = [0] * len(shape)
    for position, axis in enumerate(perm):
        strides[axis] = physical[position]
    return strided(shape, tuple(strides))


def merge(factors: list[Factor]) -> list[Factor]:
    """Joins neighbours that are one run: (a, b*s), (b, s) -> (a*b, s)."""
    merged: list[Factor] = []
    for extent, stride in factors:
        if merged and merged[-1][1] == extent * stride:
            merged[-1] = (merged[-1][0] * extent, stride)
        else:
            merged.append((extent, stride))
    return merged


def transpose(layout: Layout, perm: tuple[int, ...]) -> Layout:
    return replace(layout, axes=tuple(layout.axes[a] for a in perm))


def expand(layout: Layout, shape: tuple[int | Expr, ...]) -> Layout:
    """Broadcasts to `shape`: new and unit axes get stride 0."""
    missing = len(shape) - len(layout.axes)
    axes: list[tuple[Factor, ...]] = []
    for position, extent in enumerate(shape):
        own = layout.axes[position - missing] if position >= missing else ()
        axes.append(own if own or extent == 1 else ((extent, 0),))
    return replace(layout, axes=tuple(axes))


def slice_(
    layout: Layout,
    starts: tuple[int | Expr, ...],
    steps: tuple[int, ...],
    shape: tuple[int | Expr, ...],
) -> Layout | None:
    axes: list[tuple[Factor, ...]] = []
    offset = layout.offset
    for factors, start, step, extent in zip(layout.axes, starts, steps, shape, strict=True):
        if start == 0 and step == 1 and extent == product(e for e, _ in factors):
            axes.append(factors)
            continue
        single = merge(list(factors))
        if len(single) > 1:
            return None
        stride = single[0][1] if single else 0
        offset = offset + _inside(start, single, extent) * stride
        axes.append(() if extent == 1 else ((extent, stride * step),))
    return Layout(tuple(axes), offset)


def windows(
    layout: Layout, axis: int, step: int, dilation: int, extents: tuple[int | Expr, int | Expr]
) -> Layout | None:
    """`axis` becomes two of these extents: windows, `step` elements apart, and their taps, `dilation` apart."""
    single = merge(list(layout.axes[axis]))
    if len(single) > 1:
        return None
    stride = single[0][1] if single else 0
    made = tuple(
        () if extent == 1 else ((extent, stride * apart),)
        for extent, apart in zip(extents, (step, dilation), strict=True)
    )
    return replace(layout, axes=(*layout.axes[:axis], *made, *layout.axes[axis + 1 :]))


def _inside(start: int | Expr, source: list[Factor], extent: int | Expr) -> int | Expr:
    """The start of a slice of `extent` elements. A slice of nothing may begin one past the end, which lies before the
    buffer when the axis runs backward: there the start is bounded by the last element."""
    is_forward = all(coefficient > 0 for _, stride in source for coefficient in coefficients(stride))
    if start == 0 or is_forward or (isinstance(extent, int) and extent > 0):
        return start
    return minimum(start, maximum(product(e for e, _ in source) - 1, 0))


def reshape(layout: Layout, shape: tuple[int | Expr, ...]) -> Layout | None:
    """None also where both shapes are known to differ in size. Otherwise a dense layout can have any shape: that the
    sizes are equal need not be provable, the graph's guards say it."""
    if any(extent == 0 for extent in shape):
        return dense(shape, layout.offset)
    if layout.is_dense():
        excess = product(shape) - product(layout.shape)
        return None if isinstance(excess, int) and excess != 0 else dense(shape, layout.offset)
    pending = merge([f for axis in layout.axes for f in axis])
    pending.reverse()
    axes: list[tuple[Factor, ...]] = []
    for extent in shape:
        taken = _take(pending, extent)
        if taken is None:
            return None
        axes.append(tuple(taken))
    return None if pending else Layout(tuple(axes), layout.offset)


def _take(pending: list[Factor], extent: int | Expr) -> list[Factor] | None:
    """Takes factors of total extent `extent` off the end of `pending` (outermost last), splitting one if needed."""
    taken: list[Factor] = []
    remaining: int | Expr = extent
    while remaining != 1:
        if not pending:
            return None
        size, stride = pending.pop()
        whole = exact_div(remaining, size)
        if whole is not None:
            taken.append((size, stride))
            remaining = whole
            continue
        inner = exact_div(size, remaining)
        if inner is None:
            return None
        taken.append((remaining, stride * inner))
        pending.append((inner, stride))
        remaining = 1
    return taken


def refine(extents: list[list[int | Expr]]) -> list[int | Expr] | None:
    """The coarsest factorisation that refines all the given factorisations of one extent; None if there is none."""
    common: list[int | Expr] = []
    for factorisation in extents:
        if not factorisation:
            continue
        refined = _refine_pair(common, factorisation) if common else list(factorisation)
        if refined is None:
            return None
        common = refined
    return common


def _refine_pair(a: list[int | Expr], b: list[int | Expr]) -> list[int | Expr] | None:
    left, right = list(reversed(a)), list(reversed(b))
    out: list[int | Expr] = []
    while left and right:
        x, y = left.pop(), right.pop()
        rest = exact_div(x, y)
        if rest is not None:
            out.append(y)
            if rest != 1:
                left.append(rest)
            continue
        rest = exact_div(y, x)
        if rest is None:
            return None
        out.append(x)
        right.append(rest)
    return out if not left and not right else None


def split(factors: tuple[Factor, ...], extents: list[int | Expr]) -> list[int | Expr] | None:
    """The strides of `factors` over the finer factorisation `extents`; None if they do not refine it."""
    strides: list[int | Expr] = []
    position = 0
    for size, stride in factors:
        group: list[int | Expr] = []
        covered: int | Expr = 1
        while covered != size and position < len(extents):
            group.append(extents[position])
            covered = covered * extents[position]
            position += 1
        if covered != size:
            return None
        inner: int | Expr = stride
        steps: list[int | Expr] = []
        for extent in reversed(group):
            steps.append(inner)
            inner = inner * extent
        strides.extend(reversed(steps))
    return strides if position == len(extents) else None
