"""Where a tensor has an axis: a dimension, and how slices along the axis lie in it.

A dimension may be put together of several stretches, each of which has all slices one after the other: queries, keys and values
that one product of matrices makes have their heads three times. So slice i of n is, in every stretch, so many neighbours as the
stretch's width says, the i-th of n. docs/theory.md ("Parallel axes") has what that means for proofs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from mugraph.ir.index_maps import Index, IndexMaps

Widths = tuple[int, ...]
"""How many neighbours of each stretch of a dimension belong to one slice."""

ONE: Widths = (1,)
"""Slices are single positions of the dimension."""

_STRETCHES = 1 << 13
"""A dimension of more stretches is not followed."""


class Mark(NamedTuple):
    """Dimension `dim` of a value is the axis; `cuts` says, level by level, which grid dimensions run over its parts.

    `dim` is None where those parts are single slices: then every operator treats slices alike. `loops` says, level by level,
    whether the value has the part of one iteration of a for-loop over the axis. `widths` says how slices lie along `dim`, and
    `taken` how many the graph that is built has of them.

    Of a value that is `summed`, the sum over all those parts is what the slices add up to, and anything that no slice has a part
    in: `dim` has sums of some slices, or there is one.
    """

    dim: int | None
    cuts: tuple[tuple[int, ...], ...] = ()
    loops: tuple[bool, ...] = ()
    summed: bool = False
    widths: Widths = ONE
    taken: int = 1

    @property
    def looped(self) -> bool:
        """Whether the for-loop of the graph around it runs over the axis, and the value is inside."""
        return bool(self.loops) and self.loops[-1]

    @property
    def complete(self) -> bool:
        """Whether the value is the sum of all slices."""
        return self.summed and self.dim is None and not any(self.cuts) and not any(self.loops)


def carried(maps: IndexMaps | None, operand: int, mark: Mark) -> Mark | None:
    """The axis of an operand in the result of an operator; None where its slices are not kept apart, or not in order."""
    if mark.dim is None:
        return mark
    found = None if maps is None else moved(maps, maps.operands[operand][mark.dim], mark.widths, maps.result)
    return None if found is None else mark._replace(dim=found[0], widths=found[1])


def moved(maps: IndexMaps, source: Index, widths: Widths, targets: Sequence[Index]) -> tuple[int, Widths] | None:
    """Which of the `targets` has the slices that an index `source` has with these widths, and with which widths; or None.

    What numbers the slices are digits of the source: the target must have the same ones beside each other. What stands before
    them there are stretches, and what stands behind them neighbours.
    """
    if source is not None and source.iterator is not None:
        same = next((place for place, other in enumerate(targets) if other == source), None)
        if same is not None:
            return same, widths
    numbering = slice_digits(maps, source, widths)
    if numbering is None:
        return None
    axis, before, behind = numbering
    for place, index in enumerate(targets):
        digits = digits_of(maps, index) or ()
        for start in range(len(digits) - len(axis) + 1):
            if digits[start : start + len(axis)] == axis:
                sizes = [maps.sizes[digit] for digit in digits]
                stretches = before * math.prod(sizes[:start])
                width = behind * math.prod(sizes[start + len(axis) :])
                return None if stretches > _STRETCHES else (place, (width,) * stretches)
    return None


def slice_digits(maps: IndexMaps, index: Index, widths: Widths) -> tuple[tuple[int, ...], int, int] | None:
    """The iterators that number the slices along an index, slowest first; how many stretches the first of them runs over, and
    how many neighbours of the last of them are one slice's. None if slices are not numbered so."""
    digits, before, behind = digits_of(maps, index), len(widths), widths[0]
    if len({*widths}) > 1:
        return None
    while digits and behind >= maps.sizes[digits[-1]]:
        behind, rest = divmod(behind, maps.sizes[digits[-1]])
        digits = () if rest else digits[:-1]
    while digits and before >= maps.sizes[digits[0]]:
        before, rest = divmod(before, maps.sizes[digits[0]])
        digits = () if rest else digits[1:]
    if not digits:
        return None
    first, last = maps.sizes[digits[0]], maps.sizes[digits[-1]]
    whole = first % (before * behind) == 0 if len(digits) == 1 else first % before == last % behind == 0
    return (digits, before, behind) if whole else None


def digits_of(maps: IndexMaps, index: Index) -> tuple[int, ...] | None:
    """The iterators of more than one step that an index runs over like the digits of a number, slowest first; or None."""
    whole = maps.whole(index)
    return None if whole is None else tuple(iterator for iterator in whole if maps.sizes[iterator] > 1)


def iterators_of(maps: IndexMaps, index: Index) -> set[int]:
    """The iterators of more than one step that an index depends on."""
    return set() if index is None else {iterator for iterator, _ in index.terms if maps.sizes[iterator] > 1}


def stretches_between(widths: Widths, slices: int, start: int, end: int) -> tuple[int, int] | None:
    """Which stretches of a dimension of so many slices lie from `start` to `end`, as the first and the one behind the last of
    them; None where these positions are not ends of stretches."""
    ends = [0, *(slices * width for width in itertools.accumulate(widths))]
    if start not in ends or end not in ends:
        return None
    return ends.index(start), ends.index(end)
