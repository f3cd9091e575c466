"""Regions of tensors: of each dimension some positions, in equal steps.

A dimension that a reshape merges of several, as the elements of all heads, has a digit for each of them, like a number.
What the result of an operator is wanted at says, by the index maps of its row, where its operands are read (`Wanted`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mugraph.ir.graph import Shape
from mugraph.ir.index_maps import Index, IndexMaps


@dataclass(frozen=True, slots=True)
class Digit:
    """`count` positions of a digit that counts up to `size`: `start`, and every `step`-th from there on."""

    size: int
    start: int
    count: int
    step: int

    @classmethod
    def whole(cls, size: int) -> Digit:
        """All positions."""
        return cls(size, 0, size, 1)

    @property
    def is_whole(self) -> bool:
        """Whether it is all positions, in order."""
        return self == Digit.whole(self.size)

    def positions(self, first: int, count: int) -> Digit:
        """So many of its positions, from the `first` on."""
        return Digit(self.size, self.start + first * self.step, count, self.step)

    def times(self, inner: Digit) -> Digit:
        """The digit that this and a faster one are together; raises Unaligned where their positions are not in equal steps."""
        size, first = self.size * inner.size, self.start * inner.size + inner.start
        if self.count == 1:
            return Digit(size, first, inner.count, inner.step)
        if inner.count == 1:
            return Digit(size, first, self.count, self.step * inner.size)
        evenly = inner.count * inner.step == self.step * inner.size
        if not evenly and not (self.step == inner.step == -1 and inner.count == inner.size):
            raise Unaligned
        return Digit(size, first, self.count * inner.count, inner.step)

    def within(self, start: int, step: int, size: int) -> Digit:
        """The same positions where they count as `start`, `start + step`, ... of `size` others."""
        return Digit(size, start + self.start * step, self.count, step * self.step)

    def split(self, inner: int) -> tuple[Digit, Digit]:
        """Two digits, the second counting up to `inner`, at the same positions in the same order; raises Unaligned."""
        outer, start, count, step = self.size // inner, self.start, self.count, self.step
        last = start + (count - 1) * step
        if self.is_whole:
            return Digit.whole(outer), Digit.whole(inner)
        if step == -1 and count == self.size:
            return Digit(outer, outer - 1, outer, -1), Digit(inner, inner - 1, inner, -1)
        if start // inner == last // inner:
            return Digit(outer, start // inner, 1, 1), Digit(inner, start % inner, count, step)
        if step == 1 and start % inner == count % inner == 0:
            return Digit(outer, start // inner, count // inner, 1), Digit.whole(inner)
        if step % inner == 0:
            return Digit(outer, start // inner, count, step // inner), Digit(inner, start % inner, 1, 1)
        if step > 0 and inner % step == 0 and start < step and count * step == self.size:
            return Digit.whole(outer), Digit(inner, start, inner // step, step)
        raise Unaligned


Digits = tuple[Digit, ...]
Region = tuple[Digits, ...]
"""For each dimension, the positions wanted along its digits, slowest first; a dimension of size 1 may have none."""

ONE = Digit.whole(1)
"""The one position of a dimension of size 1."""


class Unaligned(Exception):
    """Positions that are no rectangle of the digits asked for."""


class Crossing(Exception):
    """A region lies in several parts: digit `place` of dimension `dim` is to be split.

    `finer` are digits in its place, and the one numbered `number` among them has a part's last position before each of `cuts`.
    """

    def __init__(self, dim: int, place: int, finer: Digits, number: int, cuts: Sequence[int]) -> None:
        super().__init__()
        self.dim, self.place, self.finer, self.number, self.cuts = dim, place, finer, number, cuts

    def along(self, dim: int) -> Crossing:
        """The same along another dimension."""
        return Crossing(dim, self.place, self.finer, self.number, self.cuts)

    def parts(self, digits: Digits) -> list[Digits]:
        """The digits of its dimension, part by part."""
        digit, around = self.finer[self.number], (self.finer[: self.number], self.finer[self.number + 1 :])
        spans = itertools.pairwise((0, *self.cuts, digit.count))
        finer = [(*around[0], digit.positions(first, end - first), *around[1]) for first, end in spans]
        return [(*digits[: self.place], *each, *digits[self.place + 1 :]) for each in finer]


@dataclass(frozen=True)
class Wanted:
    """Digits of each iterator of an operator's index maps, for a region of its result."""

    maps: IndexMaps
    digits: Mapping[int, Digits]
    groups: Mapping[tuple[int, int], tuple[tuple[int, int], ...]]
    """For each (dimension, place) of a digit of the region, the (iterator, place) of the digits that it is split into."""

    @classmethod
    def of(cls, maps: IndexMaps, region: Region) -> Wanted:
        """Raises Unaligned where the region is no rectangle of the iterators."""
        digits: dict[int, Digits] = {iterator: _whole(maps.sizes[iterator]) for iterator in maps.reduced}
        groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for dim, index in enumerate(maps.result):
            iterators = maps.whole(index)
            if iterators is None:
                raise Unaligned
            digits.update((iterator, ()) for iterator in iterators)
            for place, iterator, digit in _refined(region[dim], [(i, maps.sizes[i]) for i in iterators]):
                groups.setdefault((dim, place), []).append((iterator, len(digits[iterator])))
                digits[iterator] = (*digits[iterator], digit)
        return cls(maps, digits, {key: tuple(labels) for key, labels in groups.items()})

    def region(self, indices: Sequence[Index]) -> Region:
        """The digits of what is read at these indices."""
        return tuple(tuple(digit for iterator in self._iterators(index) for digit in self.digits[iterator]) for index in indices)

    def labels(self, indices: Sequence[Index]) -> list[tuple[int, int]]:
        """The (iterator, place) of each digit of the region at these indices."""
        return [label for index in indices for label in self._labels(index)]

    def parts(self, crossing: Crossing) -> list[Wanted] | None:
        """What is wanted part by part where the operand crosses, if that is reduced; else None."""
        iterator, place = self._crossed(crossing)
        if iterator not in self.maps.reduced:
            return None
        moved = Crossing(0, place, crossing.finer, crossing.number, crossing.cuts)
        return [replace(self, digits={**self.digits, iterator: part}) for part in moved.parts(self.digits[iterator])]

    def crossing(self, crossing: Crossing) -> Crossing:
        """Where the result crosses if its operand does."""
        crossed = self._crossed(crossing)
        (dim, place), labels = next((key, labels) for key, labels in self.groups.items() if crossed in labels)
        before = [self.digits[iterator][number] for iterator, number in labels[: labels.index(crossed)]]
        after = [self.digits[iterator][number] for iterator, number in labels[labels.index(crossed) + 1 :]]
        finer = (*before, *crossing.finer, *after)
        return Crossing(dim, place, finer, len(before) + crossing.number, crossing.cuts)

    def _crossed(self, crossing: Crossing) -> tuple[int, int]:
        return self._labels(self.maps.operands[0][crossing.dim])[crossing.place]

    def _labels(self, index: Index) -> list[tuple[int, int]]:
        return [(iterator, place) for iterator in self._iterators(index) for place in range(len(self.digits[iterator]))]

    def _iterators(self, index: Index) -> tuple[int, ...]:
        iterators = self.maps.whole(index)
        if iterators is None:
            raise Unaligned
        return iterators


def _refined(digits: Digits, iterators: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, Digit]]:
    """Digits and iterators (with their sizes) of one dimension, both split as finely as either: (place of a digit, iterator,
    part of both), slowest first. What counts up to 1 is left out."""
    pending = [(place, digit) for place, digit in enumerate(digits) if digit.size > 1]
    others = [(iterator, size) for iterator, size in iterators if size > 1]
    while pending and others:
        (place, digit), (iterator, size) = pending.pop(0), others.pop(0)
        if digit.size > size:
            if digit.size % size:
                raise Unaligned
            digit, rest = digit.split(digit.size // size)
            pending.insert(0, (place, rest))
        elif digit.size < size:
            if size % digit.size:
                raise Unaligned
            others.insert(0, (iterator, size // digit.size))
        yield place, iterator, digit


def _whole(size: int) -> Digits:
    return (Digit.whole(size),) if size > 1 else ()


def everything(shape: Shape) -> Region:
    """The region of a whole tensor."""
    return tuple((Digit.whole(size),) for size in shape)


def before_broadcast(shape: Shape, out: Shape, region: Sequence[Digits]) -> Region:
    """The region of an operand of this shape that is broadcast to `out`, for one of the result."""
    lead = len(out) - len(shape)
    return tuple(
        digits if size == whole else (ONE,) * len(digits)
        for size, whole, digits in zip(shape, out[lead:], region[lead:], strict=True)
    )


def with_digits(region: Region, dim: int, digits: Digits) -> Region:
    """A region with other digits in dimension `dim`."""
    return (*region[:dim], digits, *region[dim + 1 :])


def counts(region: Region) -> Shape:
    """How many positions there are along each digit."""
    return tuple(digit.count for digits in region for digit in digits)
