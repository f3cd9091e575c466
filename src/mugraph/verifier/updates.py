"""What changes in large inputs from one kind of numbers to the next, so that no more of them is written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.ir.graph import Shape


@dataclass(frozen=True, slots=True)
class Update:
    """What changes in an array: its elements at an index, as one of a shape, become these numbers, or these again and again."""

    shape: Shape
    index: Any
    numbers: Array


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a table: the slices at these places along a dimension."""

    dim: int
    places: Array

    def repeat(self, numbers: Array, into: Array) -> None:
        """Write to the rows of a contiguous array what they have where it is filled with numbers again and again."""
        stretches = into.reshape(self._stretches(into.shape))
        first = (np.arange(len(stretches))[:, None] * stretches.shape[1] + self.places) * stretches.shape[2]
        stretches[:, self.places] = numbers[(first[..., None] + np.arange(stretches.shape[2])) % len(numbers)]

    def of(self, table: Array) -> Update:
        """What the rows of a contiguous array have now."""
        stretches = table.reshape(self._stretches(table.shape))
        return Update(stretches.shape, (slice(None), self.places), stretches[:, self.places])

    def _stretches(self, shape: Shape) -> Shape:
        """The shape of a table as stretches, rows of each, and what a row has in a stretch."""
        return math.prod(shape[: self.dim]), shape[self.dim], math.prod(shape[self.dim + 1 :])


NO_TABLES: Mapping[int, Rows] = MappingProxyType({})
