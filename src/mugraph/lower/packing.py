"""How a tensor that does not change between calls is stored anew, in the order in which a kernel reads it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mugraph.ir.graph import Shape
from mugraph.lower.tile_form import Strips


@dataclass(frozen=True, slots=True)
class Packing:
    """Windows of a tensor, one behind the other, each a right factor in `strips`.

    `windows` are (count, stride) of the dimensions in which windows follow each other, the slowest first; `shape` and `strides`
    are those of a window, of rows and columns. Strides and the `offset` of the first window are in elements of the tensor.
    """

    offset: int
    windows: tuple[tuple[int, int], ...]
    shape: Shape
    strides: tuple[int, ...]
    strips: Strips

    @property
    def elements(self) -> int:
        """Elements of all windows."""
        return math.prod((*(count for count, _ in self.windows), *self.shape))

    def pack(self, memory: NDArray[Any], packed: NDArray[Any]) -> None:
        """Write what lies in a tensor's memory as it is packed; both are given as arrays of one dimension."""
        counts = tuple(count for count, _ in self.windows)
        rows, columns = self.shape
        steps = (*(stride for _, stride in self.windows), *self.strides)
        windows = np.lib.stride_tricks.as_strided(
            memory[self.offset :], (*counts, rows, columns), [step * memory.itemsize for step in steps], writeable=False
        )
        result = packed.reshape(*counts, rows * columns)
        pair = 2 if self.strips.pairs else 1
        for top in range(0, rows, self.strips.depth):
            depth = min(self.strips.depth, rows - top)
            for start, count, width in _pieces(columns, self.strips.width):
                part = windows[..., top : top + depth, start : start + count * width]
                split = part.reshape(*counts, depth // pair, pair, count, width)
                place = columns * top + depth * start
                stored = result[..., place : place + depth * count * width].reshape(*counts, count, depth // pair, width, pair)
                stored[...] = np.moveaxis(split, (-2, -4, -1, -3), (-4, -3, -2, -1))


def _pieces(total: int, size: int) -> Iterator[tuple[int, int, int]]:
    """(start, count, size) of the equal pieces of a dimension, and of what is left of it."""
    whole = total // size
    if whole:
        yield 0, whole, size
    if total % size:
        yield whole * size, 1, total % size
