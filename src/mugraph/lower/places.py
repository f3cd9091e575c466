"""Where elements lie in a buffer: the index that a window starts at, and places that are exchanged.

An index moves with the block and the iteration of its for-loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Place = TypeVar("Place", int, NDArray[np.int64])
"""An element's place in a buffer, or an array of them."""


@dataclass(frozen=True, slots=True)
class Index:
    """An element index `constant + sum_d grid[d] * block_d + loop * iteration`."""

    constant: int = 0
    grid: tuple[int, ...] = ()
    loop: int = 0

    @property
    def parts(self) -> tuple[int, ...]:
        """The constant and all coefficients."""
        return (self.constant, *self.grid, self.loop)

    def mapped(self, change: Callable[[int], int]) -> Index:
        """The constant and every coefficient changed."""
        return Index(change(self.constant), tuple(map(change, self.grid)), change(self.loop))

    def moved(self, coefficient: int, position: int, grid_dims: int) -> Index:
        """Plus `coefficient` times grid dimension `position`, or times the iteration when position == grid_dims."""
        if position == grid_dims:
            return replace(self, loop=self.loop + coefficient)
        grid = list(self.grid or (0,) * grid_dims)
        grid[position] += coefficient
        return replace(self, grid=tuple(grid))


START = Index()
"""The first element, whichever block and iteration it is."""


@dataclass(frozen=True, slots=True)
class Swizzle:
    """Exclusive or of the bits of a place: those from `base + shift` on, `bits` of them, onto those from `base` on.

    Chunks of `2**base` elements stay together. With chunks of 16 bytes, the chunks of 8 rows at one column lie in
    different banks, as padded rows would put them, and no byte is added. `shift >= bits` makes it its own inverse.
    """

    bits: int
    base: int
    shift: int

    @property
    def block(self) -> int:
        """Elements that exchange places with each other: a buffer holds a multiple of them."""
        return 1 << (self.base + self.bits)

    def __call__(self, place: Place) -> Place:
        """Where the element that would lie at `place` lies; arrays of places are moved one by one."""
        return place ^ (place >> self.shift & (self.block - (1 << self.base)))
