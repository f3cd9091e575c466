"""How a tensor that does not change between calls is stored anew, in the order in which a kernel reads it."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
