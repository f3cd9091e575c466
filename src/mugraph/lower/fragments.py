"""How matrix units share out a product: every warp of a block takes the same number of 16 x 8 tiles of the target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from mugraph.devices.products import (
    COLUMNS,
    DEPTH,
    MOST_TILES,
    ROWS,
    SPLITS,
    WARP,
    Product,
    in_matrix_units,
    keeps_sums,
    warp_tasks,
)
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Shape
from mugraph.lower import tiles
from mugraph.lower.tile_form import Buffer, Kernel, Matmul, Memory, Tile

_COUNTS = tuple(down for down, across in SPLITS if across == 1)
PAIR = 2
"""Values of k that a register holds, or two registers side by side in TF32; of a row of sums a lane has so many neighbours."""
ROW_ELEMENTS = 8
"""16-bit elements of one row of ldmatrix, aligned to their size."""


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


def sizes_of(product: Matmul) -> Product:
    """What a product multiplies, as numbers."""
    *batch, rows, columns = product.target.shape
    return Product(math.prod(batch), rows, columns, product.left.shape[-1], product.dtype)


def on_matrix_units(product: Matmul) -> bool:
    """Whether matrix units may multiply the factors (16 bits), and would not idle more than they work."""
    return _in_matrix_units(sizes_of(product))


def instruction_depth(product: Matmul) -> int:
    """Values of k that an instruction of matrix units takes: half as many in TF32."""
    return DEPTH // 2 if product.tf32 else DEPTH


def sums_stay_in_registers(product: Matmul, threads: int) -> bool:
    """Whether threads can keep the sums of the whole target while factors stream."""
    return _keeps_sums(sizes_of(product), threads)


def stays_in_registers(product: Matmul, warps: int) -> bool:
    """Whether the whole target fits the warps' registers: one task each."""
    return on_matrix_units(product) and sums_stay_in_registers(product, warps * WARP)


@lru_cache(maxsize=1 << 12)
def _in_matrix_units(product: Product) -> bool:
    return bool(in_matrix_units(product))


@lru_cache(maxsize=1 << 12)
def _keeps_sums(product: Product, threads: int) -> bool:
    return bool(keeps_sums(product, threads))


@lru_cache(maxsize=1 << 12)
def warp_tiles(target: Shape, warps: int) -> WarpTiles:
    """The split of a product's target that keeps matrix units busiest: fewest rounds of instructions, then fewest loads."""
    *batch, rows, columns = target
    best, _ = warp_tasks(Product(math.prod(batch), rows, columns, DEPTH, DType.FP16), warps)
    down, across = SPLITS[best]
    return WarpTiles(down, across, -(-rows // (ROWS * down)), -(-columns // (COLUMNS * across)), math.prod(batch))


def row_bands(target: Shape, warps: int) -> WarpTiles | None:
    """The split of a target in which one warp holds all of each row; None where registers or warps are too few for it.

    How rows are shared out depends on nothing but their number: targets that differ in their columns have the same rows in the
    same lanes.
    """
    *batch, rows, columns = target
    matrices, across = math.prod(batch), columns // COLUMNS
    down = next((down for down in _COUNTS if matrices * -(-rows // (ROWS * down)) <= warps), None)
    if down is None or columns % COLUMNS or down * across > MOST_TILES:
        return None
    return WarpTiles(down, across, -(-rows // (ROWS * down)), 1, matrices)


def takes_left_from_registers(kernel: Kernel, product: Matmul) -> bool:
    """Whether a product's left factor is what lanes hold of another one's target (`register_scores.py`)."""
    return kernel.buffer(product.left.buffer).memory is Memory.REGISTERS


def holds_rows(kernel: Kernel) -> bool:
    """Whether warps hold whole rows of what lies in registers, as some product reads its left factor there."""
    return any(isinstance(s, Matmul) and takes_left_from_registers(kernel, s) for s in kernel.statements)


def split_of(kernel: Kernel, tile: Tile) -> WarpTiles:
    """How warps share out a target of a product in registers, or of one that takes its left factor from there."""
    warps = kernel.threads // WARP
    return (row_bands(tile.shape, warps) if holds_rows(kernel) else None) or warp_tiles(tile.shape, warps)


def product_tiles(kernel: Kernel, product: Matmul) -> WarpTiles:
    """How warps share out the target of a product that no groups multiply."""
    held = kernel.buffer(product.target.buffer).memory is Memory.REGISTERS or takes_left_from_registers(kernel, product)
    return split_of(kernel, product.target) if held else warp_tiles(product.target.shape, max(1, kernel.threads // WARP))


def stored_together(tile: Tile, buffer: Buffer) -> int:
    """Neighbours of a row of a fragment that a lane stores at once: two where they lie together in device memory."""
    return tiles.run_along(tile, -1, PAIR) if buffer.memory is Memory.DEVICE else 1


def loaded_together(tile: Tile, buffer: Buffer) -> int:
    """Neighbours of a row of a fragment that a lane loads at once: two where they lie together."""
    return tiles.run_along(tile, -1, PAIR) if buffer.dtype.bytes > 1 else 1


def comes_by_ldmatrix(tile: Tile, buffer: Buffer, dtype: DType, contiguous: int, inner: int) -> bool:
    """Whether ldmatrix reads a factor of type `dtype` whose k is dimension `inner`, in rows along dimension `contiguous`."""
    if buffer.memory is not Memory.SHARED or buffer.dtype is not dtype or tile.strides[contiguous] != 1:
        return False
    aligned = tiles.alignment(tile, ROW_ELEMENTS, contiguous) == ROW_ELEMENTS
    return aligned and tile.shape[inner] % DEPTH == 0 and tile.shape[contiguous] % ROW_ELEMENTS == 0
