"""How matrix units share out a product: every warp of a block takes the same number of 16 x 8 tiles of the target."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Shape
from mugraph.lower import tiles
from mugraph.lower.tile_form import Buffer, Matmul, Memory, Tile

WARP = 32
"""Threads that run in step and exchange registers."""
ROWS, COLUMNS, DEPTH = 16, 8, 16
"""What one instruction multiplies: left [ROWS, DEPTH], right [DEPTH, COLUMNS]."""
PAIR = 2
"""Values of k that a register holds, or two registers side by side in TF32; of a row of sums a lane has so many neighbours."""
ROW_ELEMENTS = 8
"""16-bit elements of one row of ldmatrix, aligned to their size."""
_MOST_TILES = 16
"""Tiles of the target in the registers of one warp: 64 registers of each thread."""
_COUNTS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class WarpTiles:
    """One task of a warp is `down` x `across` tiles; the target takes `bands` x `panels` tasks for each of `batch` matrices.

    With `warps`, so many neighbouring warps take a task together, each so many tiles, one below the other.
    """

    down: int
    across: int
    bands: int
    panels: int
    batch: int
    warps: int = 1

    @property
    def tasks(self) -> int:
        """Tasks of the whole product."""
        return self.bands * self.panels * self.batch

    @property
    def busy(self) -> int:
        """Warps that have a task when each takes one."""
        return self.tasks * self.warps


def on_matrix_units(product: Matmul) -> bool:
    """Whether matrix units may multiply the factors (16 bits), and would not idle more than they work."""
    large = max(product.target.shape[-2:]) >= COLUMNS and product.left.shape[-1] >= DEPTH
    return large and product.dtype in (DType.FP16, DType.BF16)


def warp_tiles(target: Shape, warps: int) -> WarpTiles:
    """The split of a product's target that keeps matrix units busiest: fewest rounds of instructions, then fewest loads."""
    *batch, rows, columns = target
    best: tuple[float, WarpTiles] | None = None
    for down in _COUNTS:
        for across in _COUNTS:
            if down * across > _MOST_TILES:
                continue
            bands, panels = -(-rows // (ROWS * down)), -(-columns // (COLUMNS * across))
            tiles = WarpTiles(down, across, bands, panels, math.prod(batch))
            cost = -(-tiles.tasks // warps) * (down * across + 0.5 * (down + across))
            if best is None or cost < best[0]:
                best = (cost, tiles)
    assert best is not None
    return best[1]


def stays_in_registers(product: Matmul, warps: int) -> bool:
    """Whether the whole target fits the warps' registers: one task each."""
    return on_matrix_units(product) and warp_tiles(product.target.shape, warps).tasks <= warps


def stored_together(tile: Tile, buffer: Buffer) -> int:
    """Neighbours of a row of a fragment that a lane stores at once: two where they lie together in device memory."""
    return tiles.run_along(tile, -1, PAIR) if buffer.memory is Memory.DEVICE else 1


def comes_by_ldmatrix(tile: Tile, buffer: Buffer, dtype: DType, contiguous: int, inner: int) -> bool:
    """Whether ldmatrix reads a factor of type `dtype` whose k is dimension `inner`, in rows along dimension `contiguous`."""
    if buffer.memory is not Memory.SHARED or buffer.dtype is not dtype or tile.strides[contiguous] != 1:
        return False
    aligned = tiles.alignment(tile, ROW_ELEMENTS, contiguous) == ROW_ELEMENTS
    return aligned and tile.shape[inner] % DEPTH == 0 and tile.shape[contiguous] % ROW_ELEMENTS == 0
