"""Plots as SVG text, and the power laws drawn in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

WIDTH, HEIGHT, MARGIN = 560, 380, 60
COLOURS = ("steelblue", "firebrick", "goldenrod", "seagreen", "gray")

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


def bars(groups: Mapping[str, Mapping[str, float]], y_name: str) -> str:
    """An SVG of groups of vertical bars from 0 on; every group has some of the series, and a line marks 1."""
    series = list(dict.fromkeys(name for of in groups.values() for name in of))
    highest = math.ceil(max(value for of in groups.values() for value in of.values()))
    step = (WIDTH - 2 * MARGIN) / len(groups)
    wide = 0.8 * step / len(series)

    def height(value: float) -> float:
        return value / highest * (HEIGHT - 2 * MARGIN)

    def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="10">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for place, (group, of) in enumerate(groups.items()):
        left = MARGIN + (place + 0.1) * step
        for name, value in of.items():
            x, colour = left + series.index(name) * wide, COLOURS[series.index(name) % len(COLOURS)]
            top = HEIGHT - MARGIN - height(value)
            lines.append(f'<rect x="{x:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{height(value):.1f}" fill="{colour}"/>')
        lines.append(text(left + 0.4 * step, HEIGHT - MARGIN + 14, group))
    one = HEIGHT - MARGIN - height(1.0)
    lines.append(f'<path d="M{MARGIN} {one:.1f}H{WIDTH - MARGIN}" stroke="black" stroke-dasharray="3 3"/>')
    lines += [text(MARGIN - 8, HEIGHT - MARGIN - height(mark) + 4, f"{mark}", "end") for mark in range(highest + 1)]
    for place, name in enumerate(series):
        x = MARGIN + place * (WIDTH - 2 * MARGIN) / len(series)
        lines.append(f'<rect x="{x:.1f}" y="{HEIGHT - 24}" width="10" height="10" fill="{COLOURS[place % len(COLOURS)]}"/>')
        lines.append(text(x + 14, HEIGHT - 15, name, "start"))
    return "\n".join([*lines, text(MARGIN, MARGIN - 12, y_name, "start"), "</svg>\n"])
