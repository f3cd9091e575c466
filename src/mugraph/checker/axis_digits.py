"""An axis that is a digit of a dimension: how dimensions that merge, are parted, grouped, repeated or joined carry it.

A dimension of `outer * count * inner` positions has the slices of an axis in its digit `(position // inner) % count`. So has one
that is the axis alone (`inner` and `outer` are 1), one that merges a batch with heads, and one in which every slice is several
neighbours. A rule here gives the digit of a result that holds the same slices, or None where positions of several slices meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mugraph.checker.saved_files import Json


@dataclass(frozen=True, slots=True)
class Digit:
    """The digit of a dimension that is the number of a slice."""

    dim: int
    inner: int
    """Neighbours that are of one slice."""
    count: int
    """Slices."""

    @property
    def period(self) -> int:
        """Positions after which the digit begins again."""
        return self.inner * self.count

    def is_of(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of that shape has it."""
        return min(self.inner, self.count) >= 1 and 0 <= self.dim < len(shape) and shape[self.dim] % self.period == 0


DigitRule = Callable[[Json, Sequence[Sequence[int]], int, Digit, Sequence[int]], Digit | None]
"""The digit of a result, from attributes, the shapes of all operands, an operand's number, its digit, and the result's shape."""


def regrouped(
    attributes: Json, shapes: Sequence[Sequence[int]], number: int, digit: Digit, result: Sequence[int]
) -> Digit | None:
    """Of a reshape: the dimension that has the same positions between slices in memory. Of several, which there are of one slice
    alone, that of its size."""
    stride = digit.inner * math.prod(shapes[number][digit.dim + 1 :])
    found = []
    for dim, size in enumerate(result):
        inner, rest = divmod(stride, math.prod(result[dim + 1 :]))
        if inner and not rest and size % (inner * digit.count) == 0:
            found.append((size != digit.count, dim, inner))
    if not found:
        return None
    _, dim, inner = min(found)
    return Digit(dim, inner, digit.count)


def grouped(attributes: Json, shapes: Sequence[Sequence[int]], number: int, digit: Digit, result: Sequence[int]) -> Digit | None:
    """Of a reduction of neighbours: they must be of one slice."""
    if digit.dim != attributes["dim"]:
        return digit
    inner, rest = divmod(digit.inner, attributes["size"])
    return None if rest else replace(digit, inner=inner)


def kept(attributes: Json, shapes: Sequence[Sequence[int]], number: int, digit: Digit, result: Sequence[int]) -> Digit:
    """Of what stands one behind the other, each whole: tensors, repetitions of one, or what iterations made."""
    return digit


def taken(attributes: Json, shapes: Sequence[Sequence[int]], number: int, digit: Digit, result: Sequence[int]) -> Digit | None:
    """Of a slice of a dimension, that begins and ends where the digit does."""
    if digit.dim != attributes["dim"]:
        return digit
    whole = attributes["step"] == 1 and attributes["start"] % digit.period == 0 and attributes["size"] % digit.period == 0
    return digit if whole else None


def parted(digit: Digit, size: int, parts: int) -> tuple[Digit, Digit | None] | None:
    """Of a dimension of `size` positions that is cut into equal `parts`: the digit in a part, and that of the part's number, of
    which the dimension is 0, if it has one. None where neither is whole."""
    length = size // parts
    if length % digit.period == 0:
        return digit, None
    if length % digit.inner == 0 and digit.period % length == 0:
        here = length // digit.inner
        return replace(digit, count=here), Digit(0, 1, digit.count // here)
    if digit.inner % length == 0:
        return Digit(digit.dim, 1, 1), Digit(0, digit.inner // length, digit.count) if digit.count > 1 else None
    return None


def stacked(digit: Digit, size: int, of_number: Digit) -> Digit | None:
    """Of parts of `size` positions that are put one behind the other, whose numbers have the slower part of the digit; None where
    it is no digit any more."""
    stride = of_number.inner * size
    if digit.count == 1:
        return Digit(digit.dim, stride, of_number.count)
    return replace(digit, count=digit.count * of_number.count) if stride == digit.period else None
