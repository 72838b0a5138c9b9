"""Plots as inline SVG: series over named positions, a scatter against the diagonal, and a histogram.

Values are positive and shown on logarithmic axes where times are compared. A plot is a string; nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 380, 240
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 26, 34
COLOURS = ("#1f6fb4", "#d1622b", "#2f9e44", "#9c36b5", "#c2255c", "#5c6370", "#b08900")
Scale = Callable[[float], float]


def lines(title: str, positions: Sequence[str], series: Mapping[str, Sequence[float]], unit: str) -> str:
    """One line per series over the named positions; the value axis is logarithmic."""
    y, marks = _log_axis([v for values in series.values() for v in values], HEIGHT - BOTTOM, TOP)
    step = (WIDTH - LEFT - RIGHT) / max(len(positions), 1)
    xs = [LEFT + step * (i + 0.5) for i in range(len(positions))]
    parts = [_horizontal(y(mark), _short(mark)) for mark in marks]
    parts += [_text(x, HEIGHT - BOTTOM + 14, label, "middle") for x, label in zip(xs, positions, strict=True)]
    for colour, (name, values) in zip(COLOURS * 9, series.items(), strict=False):
        points = " ".join(f"{x:.1f},{y(v):.1f}" for x, v in zip(xs, values, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        for x, value in zip(xs, values, strict=True):
            parts.append(_dot(x, y(value), colour, f"{name}: {value:.3f} {unit}"))
    return _frame(f"{title} ({unit})", parts, list(series))


def scatter(title: str, groups: Mapping[str, Sequence[tuple[float, float]]], x_name: str, y_name: str) -> str:
    """Points (x, y) by group on two logarithmic axes of one range, with the diagonal."""
    values = [v for points in groups.values() for point in points for v in point]
    x, marks = _log_axis(values, LEFT, WIDTH - RIGHT)
    y, _ = _log_axis(values, HEIGHT - BOTTOM, TOP)
    parts = [_horizontal(y(mark), _short(mark)) for mark in marks]
    parts += [_text(x(mark), HEIGHT - BOTTOM + 14, _short(mark), "middle") for mark in marks]
    low, high = marks[0], marks[-1]
    parts.append(
        f'<line x1="{x(low):.1f}" y1="{y(low):.1f}" x2="{x(high):.1f}" y2="{y(high):.1f}" stroke="#888" '
        'stroke-dasharray="4 3"/>'
    )
    for colour, (name, points) in zip(COLOURS * 9, groups.items(), strict=False):
        parts += [_dot(x(a), y(b), colour, f"{name}: {a:.3g}, {b:.3g}", 2) for a, b in points]
    parts.append(_text(WIDTH - RIGHT, HEIGHT - 4, x_name, "end"))
    return _frame(f"{title}: {y_name} over {x_name}", parts, list(groups))


def histogram(title: str, values: Sequence[float], edges: Sequence[float], unit: str) -> str:
    """How many values lie between neighbouring edges; the last bin takes everything above."""
    bounds = [*edges[1:], float("inf")]
    counts = [sum(a <= v < b for v in values) for a, b in zip(edges, bounds, strict=True)]
    top = max([*counts, 1])
    step = (WIDTH - LEFT - RIGHT) / len(edges)
    parts = [_horizontal(_linear(mark, top), str(mark)) for mark in sorted({0, top // 2, top})]
    for number, (edge, count) in enumerate(zip(edges, counts, strict=True)):
        x, y = LEFT + step * number, _linear(count, top)
        label = f"{edge:g}+" if number == len(edges) - 1 else f"{edge:g}"
        parts.append(
            f'<rect x="{x + 1:.1f}" y="{y:.1f}" width="{step - 2:.1f}" height="{HEIGHT - BOTTOM - y:.1f}" '
            f'fill="{COLOURS[0]}"><title>{label} {escape(unit)}: {count}</title></rect>'
        )
        parts.append(_text(x + step / 2, HEIGHT - BOTTOM + 14, label, "middle"))
    return _frame(f"{title} ({unit})", parts, [])


def _linear(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / top


def _log_axis(values: Sequence[float], start: float, stop: float) -> tuple[Scale, list[float]]:
    """(position of a value, decades to mark) of an axis that holds all values."""
    low = floor(log10(min(values))) if values else 0
    high = max(ceil(log10(max(values))) if values else 1, low + 1)
    return lambda v: start + (stop - start) * (log10(v) - low) / (high - low), [10.0**k for k in range(low, high + 1)]


def _short(value: float) -> str:
    return f"{value:g}"


def _dot(x: float, y: float, colour: str, tip: str, radius: float = 2.6) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}"><title>{escape(tip)}</title></circle>'


def _horizontal(y: float, label: str) -> str:
    line = f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#8884"/>'
    return line + _text(LEFT - 6, y + 4, label, "end")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _frame(title: str, parts: Sequence[str], names: Sequence[str]) -> str:
    legend = "".join(
        f'<span style="color:{colour}">■ {escape(name)}</span> '
        for colour, name in zip(COLOURS * 9, names, strict=False)
    )
    drawing = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'
    return f"<figure><figcaption>{escape(title)}</figcaption>{drawing}<div>{legend}</div></figure>"
