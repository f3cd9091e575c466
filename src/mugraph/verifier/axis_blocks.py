"""How blocks and iterations cut an axis: which digits of their numbers say what slices they have, and how slices lie in a tile.

A dimension of m stretches of n slices, each w neighbours, is cut into parts of t positions. The number of a part is then the
number of a stretch, or these and the slower part of the number of a slice, or also which part of the slice it is. docs/theory.md
("Parallel axes") has the proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mugraph.verifier.axis_marks import ONE, Widths

LOOP = -1
"""Instead of the position of a grid dimension: the for-loop, which is the fastest."""


class Numbers(NamedTuple):
    """The numbers of parts along a grid dimension, or of iterations, as three digits, slowest first: one of `before` steps, one
    of `slices` that says which slices a part has, and one of `behind` steps."""

    before: int
    slices: int
    behind: int

    @property
    def rest(self) -> int:
        """How many parts one slice has."""
        return self.before * self.behind


class Tile(NamedTuple):
    """How slices lie along the axis' dimension of a tile: so many `slices`, with these widths; and by grid dimension and LOOP
    what numbers the parts.

    A tile `alone` has one slice, or a part of one.
    """

    widths: Widths
    slices: int
    numbers: Mapping[int, Numbers]

    @property
    def alone(self) -> bool:
        """Whether all of it is of one slice."""
        return self.slices == 1


def cut_into_tiles(widths: Widths, slices: int, cuts: Iterable[tuple[int, int]]) -> Tile | None:
    """The tiles of a dimension that is cut into so many parts by these grid dimensions, slowest first; None where a tile has
    parts of several slices."""
    numbers: dict[int, Numbers] = {}
    stretches, width, equal = len(widths), widths[0], len({*widths}) == 1
    for position, count in cuts:
        if count == 1 or slices == 1:  # what is in a slice, numbers none
            continue
        size, rest = divmod(stretches * slices * width, count)
        if rest or not equal:
            return None
        if size % (slices * width) == 0:
            stretches = size // (slices * width)
        elif size % width == 0 and slices * width % size == 0:
            here = size // width
            numbers[position] = Numbers(stretches, slices // here, 1)
            stretches, slices = 1, here
        elif width % size == 0:
            numbers[position] = Numbers(stretches, slices, width // size)
            stretches, slices, width = 1, 1, size
        else:
            return None
    return Tile((width,) * stretches if equal else widths, slices, numbers)


def put_together(widths: Widths, alone: bool, cuts: Iterable[tuple[int, int]], numbers: Mapping[int, Numbers]) -> Widths | None:
    """How slices lie in a dimension that is put together of tiles by these grid dimensions, fastest first; None where they are
    not in order. `alone` says that a tile is of one slice."""
    for position, count in cuts:
        here = numbers.get(position)
        if here is None:
            widths = (widths[0] * count,) if alone else widths * count
        elif alone:
            widths, alone = (widths[0] * here.behind,) * here.before, False
        elif here.behind == 1 and len(widths) == 1:
            widths = widths * here.before
        else:
            return None
    return ONE if alone else widths
