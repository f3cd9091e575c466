"""What the accesses of a statement to shared memory cost, in wavefronts, as a function of the layouts of its tiles.

A warp's access is served in wavefronts: each gives every bank one 4-byte word. All accesses of a statement are counted,
lane by lane (`warp_accesses.py` says where they go), so a cost is what a block's statement takes, not an estimate of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np

from mugraph.ir.dtypes import DType
from mugraph.lower import tiles
from mugraph.lower.dims import Dim
from mugraph.lower.fragments import WARP, comes_by_ldmatrix, on_matrix_units, warp_tiles
from mugraph.lower.lanes import WIDEST_ACCESS, elementwise_share, reduction_share
from mugraph.lower.lowered import Buffer, Elementwise, Kernel, Matmul, Memory, Reduce, Statement, Tile, reads_target
from mugraph.lower.vector_units import rows_together, run_along_k
from mugraph.lower.warp_accesses import (
    Places,
    fragment_places,
    gathered_places,
    grid_places,
    group_places,
    leaders,
    matrix_places,
    run_places,
    vector_places,
)

_BANKS, _WORD = 32, 4
_MATRIX_ROW = 8
"""Elements that a lane names to ldmatrix."""
_VALUES_OF_K = 32
"""Values of k for which the reads of a product on vector units are counted; the others cost alike."""


Loops = TypeVar("Loops", Elementwise, Reduce)


@dataclass(frozen=True, slots=True)
class Accesses:
    """Tiles of a statement whose costs depend on each other's layouts; `cost` gives their wavefronts for other layouts."""

    tiles: tuple[Tile, ...]
    cost: Callable[[Sequence[Tile]], float]


def wavefronts(addresses: Places, width: int) -> int:
    """Wavefronts that serve accesses [accesses, lanes] of `width` bytes from byte addresses; wide lanes go in groups."""
    lanes = addresses.shape[1]
    group = min(lanes, max(1, _BANKS * _WORD // width))
    starts = addresses.reshape(-1, group, 1) + np.arange(0, width, _WORD)
    words = np.sort(starts.reshape(len(starts), -1) // _WORD, axis=1)
    distinct = np.ones(words.shape, bool)
    distinct[:, 1:] = words[:, 1:] != words[:, :-1]
    slots = np.arange(len(words))[:, None] * _BANKS + words % _BANKS
    taken = np.bincount(slots[distinct], minlength=len(words) * _BANKS)
    return int(taken.reshape(-1, _BANKS).max(axis=1).sum())


def accesses_of(kernel: Kernel, statement: Statement) -> Iterator[Accesses]:
    """The accesses of a statement to shared memory."""
    laid_out = (statement.target, *statement.sources)
    match statement:
        case Matmul():
            yield Accesses((statement.target,), lambda laid: _result_cost(kernel, statement, laid[0]))
            left, right = (None, None) if statement.panels is None else (statement.panels.left, statement.panels.right)
            yield _factor_accesses(kernel, statement, statement.left, left, inner=-1)
            yield _factor_accesses(kernel, statement, statement.right, right, inner=-2)
        case Reduce():
            yield Accesses(laid_out, lambda laid: _reduction_cost(kernel, _relaid(statement, laid)))
        case Elementwise() if any(kernel.buffer(tile.buffer).memory is Memory.REGISTERS for tile in laid_out):
            for tile in laid_out:
                yield Accesses((tile,), lambda laid: _fragment_cost(kernel.buffer(laid[0].buffer), laid[0]))
        case Elementwise():
            yield Accesses(laid_out, lambda laid: _elementwise_cost(kernel, _relaid(statement, laid)))


def _relaid(statement: Loops, laid: Sequence[Tile]) -> Loops:
    """The statement with other layouts: `laid` are its target and its sources."""
    return replace(statement, target=laid[0], sources=tuple(laid[1:]))


def _cost(tile: Tile, dtype: DType, places: Places, elements: int = 1) -> int:
    """Wavefronts of accesses to runs of `elements` elements; runs of more than 16 bytes are several accesses."""
    moved = places if tile.swizzle is None else tile.swizzle(places)
    addresses = (moved + tile.start.constant) * dtype.bytes
    width = min(elements * dtype.bytes, WIDEST_ACCESS)
    return sum(wavefronts(addresses + chunk, width) for chunk in range(0, elements * dtype.bytes, width))


# products -----------------------------------------------------------------------------------------------------------------


def _result_cost(kernel: Kernel, product: Matmul, tile: Tile) -> float:
    buffer, times = kernel.buffer(tile.buffer), 1 + product.accumulate
    if on_matrix_units(product):
        return times * _fragment_cost(buffer, tile)
    if buffer.memory is not Memory.SHARED:
        return 0.0
    return times * _vector_result_cost(tile, buffer.dtype, rows_together(product))


@lru_cache(maxsize=1 << 12)
def _vector_result_cost(tile: Tile, dtype: DType, tall: int) -> int:
    *batch, rows, columns = tile.shape
    total = 0
    for row in range(tall):
        bands = -(-(rows - row) // tall)
        sizes, strides = (*batch, bands, columns), (*tile.strides[:-2], tall * tile.strides[-2], tile.strides[-1])
        total += _cost(tile, dtype, run_places(sizes, strides, 1) + row * tile.strides[-2])
    return total


@lru_cache(maxsize=1 << 12)
def _fragment_cost(buffer: Buffer, tile: Tile) -> float:
    """Lanes take the elements they hold of the target one by one."""
    if buffer.memory is not Memory.SHARED:
        return 0.0
    return _cost(tile, buffer.dtype, fragment_places(tile.shape, tile.strides))


def _factor_accesses(kernel: Kernel, product: Matmul, factor: Tile, panel: Tile | None, inner: int) -> Accesses:
    """The reads of a factor where it lies, or the copies and reads of all its panels."""
    if panel is None:
        buffer = kernel.buffer(factor.buffer)
        return Accesses((factor,), lambda laid: factor_cost(buffer, product, laid[0], inner, kernel.threads))
    ring, times = kernel.buffer(panel.buffer), factor.shape[inner] // panel.shape[inner]

    def cost(laid: Sequence[Tile]) -> float:
        return times * (copy_cost(laid[0], ring.dtype) + factor_cost(ring, product, laid[0], inner, kernel.threads))

    return Accesses((panel,), cost)


def factor_cost(buffer: Buffer, product: Matmul, tile: Tile, inner: int, threads: int) -> float:
    """Wavefronts of a product's reads of a factor, or of a panel of it, whose k is dimension `inner`, from `tile` in `buffer`."""
    if buffer.memory is not Memory.SHARED:
        return 0.0
    whole = tiles.broadcast(tile, (*product.target.shape[:-2], *tile.shape[-2:]))
    if on_matrix_units(product):
        return _matrices_cost(buffer, product.dtype, product.target.shape, whole, inner, threads // WARP)
    return _vector_cost(buffer.dtype, product.target.shape, whole, inner, rows_together(product))


@lru_cache(maxsize=1 << 12)
def _matrices_cost(buffer: Buffer, dtype: DType, target: tuple[int, ...], tile: Tile, inner: int, warps: int) -> float:
    """A factor as matrices of 8 x 8: by ldmatrix where it can, else gathered by lanes."""
    split = warp_tiles(target, warps)
    for contiguous in (inner, -3 - inner):
        if comes_by_ldmatrix(tile, buffer, dtype, contiguous, inner):
            return _cost(tile, buffer.dtype, matrix_places(split, tile.shape, tile.strides, inner, contiguous), _MATRIX_ROW)
    return _cost(tile, buffer.dtype, gathered_places(split, tile.shape, tile.strides, inner))


@lru_cache(maxsize=1 << 12)
def _vector_cost(dtype: DType, target: tuple[int, ...], tile: Tile, inner: int, rows: int) -> float:
    depth = tile.shape[inner]
    counted, run = min(depth, _VALUES_OF_K), run_along_k(tile, inner)
    return _cost(tile, dtype, vector_places(target, tile.strides, inner, rows, counted, run), run) * depth / counted


def copy_cost(tile: Tile, dtype: DType) -> float:
    """Wavefronts of copying a panel to its place, 16 bytes a lane."""
    along = tile.strides.index(1)
    order = [*(dim for dim in range(tile.rank) if dim != along), along]
    run = WIDEST_ACCESS // dtype.bytes
    places = run_places(tuple(tile.shape[dim] for dim in order), tuple(tile.strides[dim] for dim in order), run)
    return _cost(tile, dtype, places, run)


# elementwise statements and reductions ------------------------------------------------------------------------------------


def _elementwise_cost(kernel: Kernel, statement: Elementwise) -> float:
    share = elementwise_share(kernel, statement)
    total = 0.0
    for position, tile in enumerate((statement.target, *statement.sources)):
        times = 1 + (position == 0 and reads_target(statement))
        total += times * _runs_cost(kernel.buffer(tile.buffer), tile, _along(share.dims, position), share.run)
    return total


def _along(dims: Sequence[Dim], position: int) -> tuple[tuple[int, int], ...]:
    """The size of each loop and the stride of tile number `position` along it."""
    return tuple((dim.size, dim.strides[position]) for dim in dims)


@lru_cache(maxsize=1 << 12)
def _runs_cost(buffer: Buffer, tile: Tile, loops: tuple[tuple[int, int], ...], run: int) -> float:
    if buffer.memory is not Memory.SHARED:
        return 0.0
    sizes, strides = zip(*loops, strict=True)
    return _cost(tile, buffer.dtype, run_places(sizes, strides, run), run if strides[-1] else 1)


def _reduction_cost(kernel: Kernel, statement: Reduce) -> float:
    """Groups of lanes run along the reduced dimension, neighbouring groups along the results."""
    share = reduction_share(kernel, statement)
    total = 0.0
    for position, tile in enumerate((statement.target, *statement.sources)):
        loops, buffer = _along(share.dims, position), kernel.buffer(tile.buffer)
        if position == 0:
            total += (1 + statement.accumulate) * _results_cost(buffer, tile, loops[:-1], share.group)
        else:
            total += _groups_cost(buffer, tile, loops, share.run, share.group, kernel.threads)
    return total


@lru_cache(maxsize=1 << 12)
def _groups_cost(buffer: Buffer, tile: Tile, loops: tuple[tuple[int, int], ...], run: int, group: int, threads: int) -> float:
    if buffer.memory is not Memory.SHARED:
        return 0.0
    *kept, (size, stride) = loops
    firsts = grid_places([size for size, _ in kept], [step for _, step in kept])
    return _cost(tile, buffer.dtype, group_places(firsts, size, stride, run, group, threads), run if stride else 1)


@lru_cache(maxsize=1 << 12)
def _results_cost(buffer: Buffer, tile: Tile, loops: tuple[tuple[int, int], ...], group: int) -> float:
    if buffer.memory is not Memory.SHARED:
        return 0.0
    return _cost(tile, buffer.dtype, leaders(grid_places([size for size, _ in loops], [step for _, step in loops]), group))
