"""Plots as SVG text, and the power laws drawn in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, MARGIN = 560, 380, 60
COLOURS = ("steelblue", "firebrick", "goldenrod", "seagreen", "gray", "rebeccapurple")

Points = Sequence[tuple[float, float]]


def power_law(points: Points) -> tuple[float, float, float]:
    """(exponent, factor, fit) of the least-squares line through positive points on logarithmic scales.

    `fit` is the share of the variance of the logarithms that the line explains, R squared; 1 where all y are equal, as the
    line goes through all points then.
    """
    xs, ys = ([math.log(value) for value in side] for side in zip(*points, strict=True))
    middle_x, middle_y = sum(xs) / len(xs), sum(ys) / len(ys)
    exponent = sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True)) / sum((x - middle_x) ** 2 for x in xs)
    residue = sum((y - middle_y - exponent * (x - middle_x)) ** 2 for x, y in zip(xs, ys, strict=True))
    variance = sum((y - middle_y) ** 2 for y in ys)
    return exponent, math.exp(middle_y - exponent * middle_x), 1 - residue / variance if variance else 1.0


@dataclass(frozen=True, slots=True)
class _Scales:
    """Logarithmic scales of both axes: x from `left` to `right`, y from `low` to `high`, which are two powers of ten."""

    left: float
    right: float
    low: float
    high: float

    @classmethod
    def of(cls, points: Points) -> _Scales:
        """Those that positive points fit on."""
        ends = [function(y for _, y in points) for function in (min, max)]
        low, high = (10 ** rounded(math.log10(end)) for rounded, end in zip((math.floor, math.ceil), ends, strict=True))
        if low == high:  # all y are one power of ten, which is drawn at the foot of the decade that it begins
            high = 10 * low
        return cls(min(x for x, _ in points), max(x for x, _ in points), low, high)

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Where a point is, in the units of the picture."""
        wide = math.log(self.right) - math.log(self.left)
        across = (math.log(x) - math.log(self.left)) / wide if wide else 0.5  # a single x stands in the middle
        up = (math.log(min(max(y, self.low), self.high)) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return MARGIN + across * (WIDTH - 2 * MARGIN), HEIGHT - MARGIN - up * (HEIGHT - 2 * MARGIN)

    def line(self, points: Points) -> str:
        """The places of points, as a polyline has them."""
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.place(*point) for point in points))

    def marks(self, xs: Iterable[float]) -> list[str]:
        """Numbers at these places of the horizontal axis, and at powers of ten of the vertical one."""
        powers = range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)
        return [
            *(_text(self.place(x, self.low)[0], HEIGHT - MARGIN + 18, f"{x:g}") for x in xs),
            *(_text(MARGIN - 8, self.place(self.left, 10.0**power)[1] + 4, f"{10.0**power:g}", "end") for power in powers),
        ]


def _text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


def _framed(parts: Iterable[str], size: int) -> str:
    """A picture of parts in a frame, with text of a size."""
    frame = f'<rect x="{MARGIN}" y="{MARGIN}" width="{WIDTH - 2 * MARGIN}" height="{HEIGHT - 2 * MARGIN}"/>'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="{size}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/><g fill="none" stroke="gray">{frame}</g>',
    ]
    return "\n".join([*lines, *parts, "</svg>\n"])


def scatter(points: Points, curve: Callable[[float], float], x_name: str, y_name: str, label: str) -> str:
    """An SVG of positive points on logarithmic scales, with a labelled curve through them."""
    scales, xs = _Scales.of(points), sorted({x for x, _ in points})
    dots = (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="steelblue"/>' for x, y in (scales.place(*point) for point in points))
    parts = [
        f'<polyline points="{scales.line([(x, curve(x)) for x in xs])}" fill="none" stroke="firebrick"/>',
        *dots,
        *scales.marks(xs),
        _text(WIDTH / 2, HEIGHT - 14, x_name),
        _text(MARGIN, MARGIN - 12, y_name),
        _text(WIDTH / 2, MARGIN - 12, label),
    ]
    return _framed(parts, 12)


def lines(series: Mapping[str, Points], x_name: str, y_name: str) -> str:
    """An SVG of lines through positive points on logarithmic scales; a name and points of each."""
    scales = _Scales.of([point for points in series.values() for point in points])
    parts = scales.marks(sorted({x for points in series.values() for x, _ in points}))
    for number, (name, points) in enumerate(series.items()):
        colour, left = COLOURS[number % len(COLOURS)], MARGIN + number * (WIDTH - 2 * MARGIN) / len(series)
        parts.append(f'<polyline points="{scales.line(sorted(points))}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}"/>' for x, y in (scales.place(*at) for at in points)]
        parts.append(f'<rect x="{left:.1f}" y="{MARGIN - 32}" width="8" height="8" fill="{colour}"/>')
        parts.append(_text(left + 11, MARGIN - 24, name, "start"))
    return _framed([*parts, _text(WIDTH / 2, HEIGHT - 14, x_name), _text(MARGIN - 8, MARGIN - 8, y_name, "start")], 10)


def against(clusters: Mapping[str, Points], x_name: str, y_name: str) -> str:
    """An SVG of named clusters of positive points on logarithmic scales, each with its name beside it, and the line on which x is
    y. Clusters whose names begin with the same word have one colour."""
    every = [point for points in clusters.values() for point in points]
    scales, kinds = _Scales.of(every), list(dict.fromkeys(name.split()[0] for name in clusters))
    ends = max(scales.left, scales.low), min(scales.right, scales.high)
    powers = range(math.ceil(math.log10(scales.left)), math.floor(math.log10(scales.right)) + 1)
    parts = [f'<polyline points="{scales.line([(x, x) for x in ends])}" fill="none" stroke="black" stroke-dasharray="3 3"/>']
    for name, points in clusters.items():
        colour = COLOURS[kinds.index(name.split()[0]) % len(COLOURS)]
        places = [scales.place(*point) for point in points]
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.5" fill="{colour}"><title>{name}</title></circle>' for x, y in places]
        right, height = max(places)
        parts.append(f'<g fill="{colour}" font-size="5">{_text(right + 3, height + 2, name, "start")}</g>')
    parts += scales.marks([10.0**power for power in powers])
    return _framed([*parts, _text(WIDTH / 2, HEIGHT - 14, x_name), _text(MARGIN - 8, MARGIN - 8, y_name, "start")], 10)


def bars(groups: Mapping[str, Mapping[str, float]], y_name: str) -> str:
    """An SVG of groups of vertical bars from 0 on; every group has some of the series, and a line marks 1."""
    series = list(dict.fromkeys(name for of in groups.values() for name in of))
    highest = math.ceil(max(value for of in groups.values() for value in of.values()))
    step = (WIDTH - 2 * MARGIN) / len(groups)
    wide = 0.8 * step / len(series)

    def height(value: float) -> float:
        return value / highest * (HEIGHT - 2 * MARGIN)

    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="10">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for place, (group, of) in enumerate(groups.items()):
        left = MARGIN + (place + 0.1) * step
        for name, value in of.items():
            x, colour = left + series.index(name) * wide, COLOURS[series.index(name) % len(COLOURS)]
            top = HEIGHT - MARGIN - height(value)
            drawn.append(f'<rect x="{x:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{height(value):.1f}" fill="{colour}"/>')
        drawn.append(_text(left + 0.4 * step, HEIGHT - MARGIN + 14, group))
    one = HEIGHT - MARGIN - height(1.0)
    drawn.append(f'<path d="M{MARGIN} {one:.1f}H{WIDTH - MARGIN}" stroke="black" stroke-dasharray="3 3"/>')
    drawn += [_text(MARGIN - 8, HEIGHT - MARGIN - height(mark) + 4, f"{mark}", "end") for mark in range(highest + 1)]
    for place, name in enumerate(series):
        x = MARGIN + place * (WIDTH - 2 * MARGIN) / len(series)
        drawn.append(f'<rect x="{x:.1f}" y="{HEIGHT - 24}" width="10" height="10" fill="{COLOURS[place % len(COLOURS)]}"/>')
        drawn.append(_text(x + 14, HEIGHT - 15, name, "start"))
    return "\n".join([*drawn, _text(MARGIN, MARGIN - 12, y_name, "start"), "</svg>\n"])
