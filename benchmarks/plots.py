"""Plots as SVG text, and the power laws drawn in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

WIDTH, HEIGHT, MARGIN = 560, 380, 60

Points = Sequence[tuple[float, float]]


def power_law(points: Points) -> tuple[float, float, float]:
    """(exponent, factor, fit) of the least-squares line through positive points on logarithmic scales.

    `fit` is the share of the variance of the logarithms that the line explains, R squared.
    """
    xs, ys = ([math.log(value) for value in side] for side in zip(*points, strict=True))
    middle_x, middle_y = sum(xs) / len(xs), sum(ys) / len(ys)
    exponent = sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True)) / sum((x - middle_x) ** 2 for x in xs)
    residue = sum((y - middle_y - exponent * (x - middle_x)) ** 2 for x, y in zip(xs, ys, strict=True))
    fit = 1 - residue / sum((y - middle_y) ** 2 for y in ys)
    return exponent, math.exp(middle_y - exponent * middle_x), fit


def scatter(points: Points, curve: Callable[[float], float], x_name: str, y_name: str, label: str) -> str:
    """An SVG of positive points on logarithmic scales, with a labelled curve through them."""
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low = 10 ** math.floor(math.log10(min(y for _, y in points)))
    high = 10 ** math.ceil(math.log10(max(y for _, y in points)))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log(x) - math.log(left)) / (math.log(right) - math.log(left))
        up = (math.log(min(max(y, low), high)) - math.log(low)) / (math.log(high) - math.log(low))
        return MARGIN + across * (WIDTH - 2 * MARGIN), HEIGHT - MARGIN - up * (HEIGHT - 2 * MARGIN)

    def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'

    dots = (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="steelblue"/>' for x, y in (place(*point) for point in points))
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(x, curve(x)) for x in sorted({x for x, _ in points})))
    x_marks = (text(place(x, low)[0], HEIGHT - MARGIN + 18, f"{x:g}") for x in sorted({x for x, _ in points}))
    decades = range(round(math.log10(low)), round(math.log10(high)) + 1)
    y_marks = (text(MARGIN - 8, place(left, 10.0**power)[1] + 4, f"{10.0**power:g}", "end") for power in decades)
    frame = f'<rect x="{MARGIN}" y="{MARGIN}" width="{WIDTH - 2 * MARGIN}" height="{HEIGHT - 2 * MARGIN}"/>'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/><g fill="none" stroke="gray">{frame}</g>',
            f'<polyline points="{line}" fill="none" stroke="firebrick"/>',
            *dots,
            *x_marks,
            *y_marks,
            text(WIDTH / 2, HEIGHT - 14, x_name),
            text(MARGIN, MARGIN - 12, y_name),
            text(WIDTH / 2, MARGIN - 12, label),
            "</svg>\n",
        ]
    )
