"""Index maps: the points at which an operator computes, and which element of every operand and of the result each point reads
and writes (the iteration spaces and indexing maps of structured operations; glossary in docs/glossary.md).

An application of an operator runs over a product of *iterators*, each counting from 0 up to its size. Every dimension of an
operand is read, and of the result written, at an affine function of them. What no dimension of the result depends on is reduced.
From the maps follow the axes of a program, what a slice of a result depends on, and how many operations there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from mugraph.ir.graph import Shape


class Structure(StrEnum):
    """What an operator does with its index maps."""

    LEAF = "leaf"
    """A value that no operator makes: an input, a constant."""
    BOUNDARY = "boundary"
    """Between levels: what a block reads of a device tensor, puts together over a loop, and writes."""
    ELEMENTWISE = "elementwise"
    """A function of one element of each operand."""
    CONTRACTION = "contraction"
    """A sum of products of two operands' elements, or several such sums added up."""
    REDUCTION = "reduction"
    """All elements of one operand that the reduced iterators run over, in one: a sum, a maximum."""
    SCAN = "scan"
    """At every position of a dimension, all elements of the operand up to there in one (`mugraph.ir.scans`)."""
    VIEW = "view"
    """Elements of the operand as they are, in other places."""
    DEFINED = "defined"
    """What other operators compute together (`mugraph.ir.definitions`)."""


class Affine(NamedTuple):
    """An index: `offset` plus, for each (iterator, stride) of `terms`, the iterator's position times the stride."""

    terms: tuple[tuple[int, int], ...]
    offset: int = 0

    @property
    def iterator(self) -> int | None:
        """The iterator that alone is the index; None where there is none."""
        return self.terms[0][0] if len(self.terms) == 1 and self.terms[0][1] == 1 and not self.offset else None


Index = Affine | None
"""Where a dimension is read or written; None where that is no affine function of the iterators, or leaves positions out."""

ZERO = Affine(())


@dataclass(frozen=True)
class IndexMaps:
    """Sizes of all iterators, and an index for every dimension of each operand and of the result."""

    sizes: tuple[int, ...]
    operands: tuple[tuple[Index, ...], ...]
    result: tuple[Index, ...]

    @cached_property
    def reduced(self) -> frozenset[int]:
        """The iterators that no dimension of the result depends on."""
        written = {iterator for index in self.result if index is not None for iterator, _ in index.terms}
        return frozenset(range(len(self.sizes))) - written

    @cached_property
    def points(self) -> int:
        """At how many points something is computed from the operands: the iterators that some operand depends on."""
        read = {iterator for dims in self.operands for index in dims if index is not None for iterator, _ in index.terms}
        return math.prod(self.sizes[iterator] for iterator in read)

    def carried(self, operand: int, dim: int) -> int | None:
        """The dimension of the result that runs over what a dimension of an operand runs over, one position by one; or None."""
        index = self.operands[operand][dim]
        if index is None or index.iterator is None:
            return None
        return next((place for place, other in enumerate(self.result) if other == index), None)

    def whole(self, index: Index) -> tuple[int, ...] | None:
        """The iterators that an index runs over like the digits of a number, slowest first; None for any other index."""
        if index is None or index.offset:
            return None
        stride = 1
        for iterator, step in reversed(index.terms):
            if step != stride:
                return None
            stride *= self.sizes[iterator]
        return tuple(iterator for iterator, _ in index.terms)


MapRule = Callable[[Sequence[Shape], Shape], IndexMaps]
"""From the shapes of the operands and of the result."""


class Space:
    """An iteration space under construction."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def iterator(self, size: int) -> Affine:
        """A new iterator, as the index that it alone is."""
        self.sizes.append(size)
        return Affine(((len(self.sizes) - 1, 1),))

    def iterators(self, shape: Shape) -> tuple[Affine, ...]:
        """One for each dimension."""
        return tuple(map(self.iterator, shape))

    def digits(self, *indices: Affine) -> Affine:
        """The number whose digits are these iterators, slowest first."""
        terms: list[tuple[int, int]] = []
        stride = 1
        for ((iterator, _),) in reversed([index.terms for index in indices]):
            terms.append((iterator, stride))
            stride *= self.sizes[iterator]
        return Affine(tuple(reversed(terms)))

    def maps(self, operands: Sequence[Sequence[Index]], result: Sequence[Index]) -> IndexMaps:
        """The maps over all iterators so far."""
        return IndexMaps(tuple(self.sizes), tuple(map(tuple, operands)), tuple(result))


def broadcast(shape: Shape, result: Sequence[Affine], sizes: Sequence[int]) -> tuple[Affine, ...]:
    """How an operand is read, its last dimensions aligned with those of the result; one element serves for many."""
    last = result[len(result) - len(shape) :]
    wanted = sizes[len(sizes) - len(shape) :]
    return tuple(index if size == whole else ZERO for size, whole, index in zip(shape, wanted, last, strict=True))


def elementwise_maps(shapes: Sequence[Shape], out: Shape) -> IndexMaps:
    """An iterator for each dimension of the result; operands are broadcast."""
    space = Space()
    result = space.iterators(out)
    return space.maps([broadcast(shape, result, out) for shape in shapes], result)


def contraction_maps(products: Sequence[tuple[int, int]]) -> MapRule:
    """Products of matrices: of each pair of operands the last dimension of the first and the last but one of the second meet."""

    def maps(shapes: Sequence[Shape], out: Shape) -> IndexMaps:
        space = Space()
        result = space.iterators(out)
        operands: list[tuple[Affine, ...]] = [()] * len(shapes)
        for left, right in products:
            inner = space.iterator(shapes[left][-1])
            *batch, row, column = result
            sizes = out[:-2]
            operands[left] = (*broadcast(shapes[left][:-2], batch, sizes), row, inner)
            operands[right] = (*broadcast(shapes[right][:-2], batch, sizes), inner, column)
        return space.maps(operands, result)

    return maps


def grouped_maps(dim: int) -> MapRule:
    """Groups of neighbours along a dimension, each reduced to one element."""

    def maps(shapes: Sequence[Shape], out: Shape) -> IndexMaps:
        space, (shape,) = Space(), shapes
        result = space.iterators(out)
        group = space.iterator(shape[dim] // out[dim])
        return space.maps([(*result[:dim], space.digits(result[dim], group), *result[dim + 1 :])], result)

    return maps


def transposed_maps(permutation: Sequence[int]) -> MapRule:
    """Dimension i of the result is dimension `permutation[i]` of the operand."""

    def maps(shapes: Sequence[Shape], out: Shape) -> IndexMaps:
        space = Space()
        result = space.iterators(out)
        return space.maps([[result[permutation.index(dim)] for dim in range(len(out))]], result)

    return maps


def repeated_maps(dim: int) -> MapRule:
    """The operand several times along a dimension, one after the other; so are the parts of a tensor from the turns of a loop."""

    def maps(shapes: Sequence[Shape], out: Shape) -> IndexMaps:
        space, (shape,) = Space(), shapes
        operand = space.iterators(shape)
        times = space.iterator(out[dim] // shape[dim])
        return space.maps([operand], (*operand[:dim], space.digits(times, operand[dim]), *operand[dim + 1 :]))

    return maps


def part_maps(dim: int) -> MapRule:
    """What reads some positions of a dimension, those up to one, or positions of several operands: no index says which."""

    def maps(shapes: Sequence[Shape], out: Shape) -> IndexMaps:
        space = Space()
        result = space.iterators(out)
        return space.maps([(*result[:dim], None, *result[dim + 1 :]) for _ in shapes], result)

    return maps


def reshaped_maps(shapes: Sequence[Shape], out: Shape) -> IndexMaps:
    """The same elements in the same order: dimensions are split and merged. Where the ends of one shape's dimensions fall between
    those of the other's, the index is no affine function."""
    space, (shape,) = Space(), shapes
    operand: list[Index] = [None] * len(shape)
    result: list[Index] = [None] * len(out)
    for ours, theirs in _equal_stretches(shape, out):
        parts = _common_parts([shape[dim] for dim in ours], [out[dim] for dim in theirs])
        if parts is None:
            for place in theirs:
                result[place] = space.iterator(out[place])
            continue
        iterators = [space.iterator(part) for part in parts]
        for dims, sizes, indices in ((ours, shape, operand), (theirs, out, result)):
            rest = list(iterators)
            for dim in dims:
                digits = [rest.pop(0)]
                while math.prod(space.sizes[digit.terms[0][0]] for digit in digits) < sizes[dim]:
                    digits.append(rest.pop(0))
                indices[dim] = space.digits(*digits)
    for dim, index in enumerate(operand):
        operand[dim] = ZERO if index is None and shape[dim] == 1 else index
    for dim, index in enumerate(result):
        result[dim] = space.iterator(1) if index is None else index
    return space.maps([operand], result)


def _equal_stretches(shape: Shape, out: Shape) -> list[tuple[list[int], list[int]]]:
    """Dimensions of both shapes, from the first on, in the shortest stretches of equal numbers of elements.

    A dimension of size 1 belongs with one that stands behind as many elements, if there is one; else to no stretch.
    """
    stretches: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(shape) and j < len(out):
        if shape[i] == 1 and out[j] == 1:
            stretches.append(([i], [j]))
            i, j = i + 1, j + 1
        elif shape[i] == 1 or out[j] == 1:
            i, j = (i + 1, j) if shape[i] == 1 else (i, j + 1)
        else:
            ours, theirs = [i], [j]
            i, j = i + 1, j + 1
            while (left := math.prod(shape[dim] for dim in ours)) != (right := math.prod(out[dim] for dim in theirs)):
                if left < right:
                    ours, i = [*ours, *([i] if shape[i] > 1 else [])], i + 1
                else:
                    theirs, j = [*theirs, *([j] if out[j] > 1 else [])], j + 1
            stretches.append((ours, theirs))
    return stretches


def _common_parts(left: Sequence[int], right: Sequence[int]) -> list[int] | None:
    """Sizes whose products, in order, are both lists; None where there are none but 1."""
    ours, theirs, parts = list(left), list(right), []
    while ours:
        a, b = ours.pop(0), theirs.pop(0)
        small, large, rest = (a, b, theirs) if a <= b else (b, a, ours)
        if large % small:
            return None
        parts.append(small)
        if large > small:
            rest.insert(0, large // small)
    return parts
