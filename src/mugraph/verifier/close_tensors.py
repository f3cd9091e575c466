"""Which of many tensors may be close to another one, without comparing it with each: close tensors have close products with any
vector, and what is sorted by such a product is searched and not walked.

A first element would not do: rows of causal attention begin with the same numbers in every layer.
"""

from __future__ import annotations

import bisect
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.ir.graph import Shape

Name = TypeVar("Name")

Column = Sequence[Array | None]
"""What a tensor is at some points, None where some of it is not finite."""

_FIRST = operator.itemgetter(0)


class CloseTensors(Generic[Name]):
    """Tensors, of which those are found that may be close to another.

    Two are close at a point if |x - y| <= c (max |x| + |y|) for all elements, where c is the `closeness`; they are close if they
    are so at every point where both are finite, and there is such a point. No tensor is missed that is close.

    Why: for a vector r whose elements have absolute values that add up to 1/2 at most, |r x - r y| is at most
    c (max |x| + max |y|) / 2, and max |x| at most (1 + c) / (1 - c) max |y|. Products of n elements in float64 are within
    n e max |x| / 2 of r x, where e = 2**-52, or within n times the least number there is; and cannot overflow.
    """

    def __init__(self, tensors: Mapping[Name, Column], closeness: float) -> None:
        self._names, self._columns = list(tensors), list(tensors.values())
        self._closeness = closeness
        self._vectors: dict[Shape, Array] = {}
        self._lines: dict[tuple[int, Shape], list[tuple[float, int]]] = {}
        """For each point and shape the products of the tensors that are finite there, in order, with the tensors' numbers."""
        for number, column in enumerate(self._columns):
            for point, array in enumerate(column):
                if array is not None:
                    self._lines.setdefault((point, array.shape), []).append((self._product(array), number))
        for line in self._lines.values():
            line.sort()

    def near(self, column: Column) -> list[Name]:
        """Those that may be close to a tensor, in their order: their products are close wherever both are finite."""
        times = Counter[int]()
        for point, array in enumerate(column):
            if array is not None:
                times.update(number for _, number in self._window(point, array))
        return [self._names[number] for number in sorted(times) if times[number] == self._common(number, column)]

    def _window(self, point: int, array: Array) -> list[tuple[float, int]]:
        line = self._lines.get((point, array.shape), [])
        middle, width = self._product(array), self._width(array)
        first = bisect.bisect_left(line, middle - width, key=_FIRST)
        return line[first : bisect.bisect_right(line, middle + width, lo=first, key=_FIRST)]

    def _common(self, number: int, column: Column) -> int:
        """At how many points a tensor and another are both finite."""
        return sum(x is not None and y is not None for x, y in zip(self._columns[number], column, strict=True))

    def _product(self, array: Array) -> float:
        """With the vector of the array's shape."""
        if array.shape not in self._vectors:
            drawn = np.random.default_rng(0).standard_normal(array.size)
            self._vectors[array.shape] = drawn / (2 * max(float(np.abs(drawn).sum()), 1.0))
        return float(np.dot(self._vectors[array.shape], np.asarray(array, np.float64).ravel()))

    def _width(self, array: Array) -> float:
        """How far from an array's product those of close ones are at most, and as much again."""
        float64 = np.finfo(np.float64)
        largest = float(np.abs(np.asarray(array, np.float64)).max(initial=0.0))
        return 2 * (self._closeness + array.size * float(float64.eps)) * largest + float(float64.tiny)
