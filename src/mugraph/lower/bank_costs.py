"""What the accesses of a statement to shared memory cost, in wavefronts, as a function of the strides of its tiles.

A warp's access is served in wavefronts: each gives every bank one 4-byte word. The lanes' addresses follow from how kernels
are printed: which dimension neighbouring lanes run along, how long a lane's run is, what ldmatrix reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from mugraph.lower.dims import Dim
from mugraph.lower.fragments import WARP, comes_by_ldmatrix, on_matrix_units, warp_tiles
from mugraph.lower.lanes import WIDEST_ACCESS, elementwise_share, reduction_share
from mugraph.lower.lowered import Buffer, Elementwise, Kernel, Matmul, Memory, Reduce, Statement, Tile
from mugraph.lower.parallel import VECTOR_ROWS

_BANKS, _WORD = 32, 4
_MATRIX = 8
"""Rows and columns of one matrix of ldmatrix."""


Loops = TypeVar("Loops", Elementwise, Reduce)


@dataclass(frozen=True, slots=True)
class Accesses:
    """Tiles of a statement whose costs depend on each other's strides; `cost` gives their wavefronts for other strides."""

    tiles: tuple[Tile, ...]
    cost: Callable[[Sequence[Tile]], float]


def wavefronts(addresses: Sequence[int], width: int) -> int:
    """Wavefronts that serve a warp's lanes, each of which wants `width` bytes from its address; wide lanes go in groups."""
    group = max(1, min(WARP, _BANKS * _WORD // width))
    total = 0
    for first in range(0, len(addresses), group):
        words = {(address + byte) // _WORD for address in addresses[first : first + group] for byte in range(0, width, _WORD)}
        taken = [0] * _BANKS
        for word in words:
            taken[word % _BANKS] += 1
        total += max(taken)
    return total


def accesses_of(kernel: Kernel, statement: Statement) -> Iterator[Accesses]:
    """The accesses of a statement to shared memory."""
    tiles = (statement.target, *statement.sources)
    match statement:
        case Matmul():
            yield Accesses((statement.target,), lambda laid: _result_cost(kernel, statement, laid[0]))
            yield Accesses((statement.left,), lambda laid: _left_cost(kernel, statement, laid[0]))
            yield Accesses((statement.right,), lambda laid: _right_cost(kernel, statement, laid[0]))
        case Reduce():
            yield Accesses(tiles, lambda laid: _reduction_cost(kernel, _relaid(statement, laid)))
        case Elementwise() if any(kernel.buffer(tile.buffer).memory is Memory.REGISTERS for tile in statement.sources):
            yield Accesses((statement.target,), lambda laid: _fragment_cost(kernel, laid[0]))
        case Elementwise():
            yield Accesses(tiles, lambda laid: _elementwise_cost(kernel, _relaid(statement, laid)))


def _relaid(statement: Loops, tiles: Sequence[Tile]) -> Loops:
    """The statement with other strides: `tiles` are its target and its sources."""
    return replace(statement, target=tiles[0], sources=tuple(tiles[1:]))


# products -----------------------------------------------------------------------------------------------------------------


def _result_cost(kernel: Kernel, product: Matmul, tile: Tile) -> float:
    if on_matrix_units(product):
        return _fragment_cost(kernel, tile)
    return _stored_along(kernel, tile, tile.strides[-1]) * math.prod(tile.shape)


def _fragment_cost(kernel: Kernel, tile: Tile) -> float:
    """Lanes store the elements they hold of the target one by one."""
    size = kernel.buffer(tile.buffer).dtype.bytes
    return wavefronts(_fragment(tile.strides[-2], tile.strides[-1], size), size) * math.prod(tile.shape) / WARP


def _left_cost(kernel: Kernel, product: Matmul, tile: Tile) -> float:
    if not on_matrix_units(product):
        return 0.0
    repeats = warp_tiles(product.target.shape, kernel.threads // WARP).panels
    return repeats * _matrices_cost(kernel.buffer(tile.buffer), product, tile, row=-2, inner=-1)


def _right_cost(kernel: Kernel, product: Matmul, tile: Tile) -> float:
    if not on_matrix_units(product):
        bands = -(-product.target.shape[-2] // VECTOR_ROWS)
        return bands * _stored_along(kernel, tile, tile.strides[-1]) * math.prod(tile.shape)
    repeats = warp_tiles(product.target.shape, kernel.threads // WARP).bands
    return repeats * _matrices_cost(kernel.buffer(tile.buffer), product, tile, row=-1, inner=-2)


def _matrices_cost(buffer: Buffer, product: Matmul, tile: Tile, row: int, inner: int) -> float:
    """A factor as matrices of 8 x 8: by ldmatrix where it can, else gathered by lanes, a pair of elements each."""
    size = buffer.dtype.bytes
    count = math.prod(tile.shape) / _MATRIX**2
    for contiguous, across in ((inner, row), (row, inner)):
        if comes_by_ldmatrix(tile, buffer, product.dtype, contiguous, inner):
            return count * wavefronts([line * tile.strides[across] * size for line in range(_MATRIX)], _MATRIX * size)
    return count * 2 * wavefronts(_fragment(tile.strides[row], tile.strides[inner], size), size)


def _fragment(row: int, column: int, size: int) -> list[int]:
    """Where lanes find the first elements of their pairs in a matrix with these strides."""
    return [(lane // 4 * row + lane % 4 * 2 * column) * size for lane in range(WARP)]


def _stored_along(kernel: Kernel, tile: Tile, stride: int) -> float:
    """Wavefronts for each element where neighbouring lanes are `stride` elements apart."""
    size = kernel.buffer(tile.buffer).dtype.bytes
    return wavefronts([lane * stride * size for lane in range(WARP)], size) / WARP


# elementwise statements and reductions ------------------------------------------------------------------------------------


def _elementwise_cost(kernel: Kernel, statement: Elementwise) -> float:
    share = elementwise_share(kernel, statement)
    elements = math.prod(statement.target.shape)
    lanes = min(WARP, elements // share.run)
    total = 0.0
    for position, tile in enumerate((statement.target, *statement.sources)):
        starts = [_place(share.dims, position, lane * share.run) for lane in range(lanes)]
        run = share.run if share.dims[-1].strides[position] else 1
        total += _lanes_cost(kernel, tile, starts, run) * elements / (lanes * share.run)
    return total


def _reduction_cost(kernel: Kernel, statement: Reduce) -> float:
    """Groups of lanes run along the reduced dimension, neighbouring groups along the results."""
    share = reduction_share(kernel, statement)
    *kept, reduced = share.dims
    results = math.prod(dim.size for dim in kept)
    lanes = min(WARP, share.group * results)
    total = 0.0
    for position, tile in enumerate(statement.sources, 1):
        stride = reduced.strides[position]
        starts = [_place(kept, position, lane // share.group) + lane % share.group * share.run * stride for lane in range(lanes)]
        run = share.run if stride else 1
        total += _lanes_cost(kernel, tile, starts, run) * results * reduced.size / (lanes * share.run)
    return total


def _lanes_cost(kernel: Kernel, tile: Tile, starts: Sequence[int], run: int) -> float:
    """Wavefronts in which lanes read or write a run of elements each, from these places in a tile's buffer."""
    buffer = kernel.buffer(tile.buffer)
    if buffer.memory is not Memory.SHARED:
        return 0.0
    width = min(run * buffer.dtype.bytes, WIDEST_ACCESS)
    return run * buffer.dtype.bytes // width * wavefronts([start * buffer.dtype.bytes for start in starts], width)


def _place(dims: Sequence[Dim], position: int, element: int) -> int:
    """Where an element of tile number `position` lies, counted with the last dimension fastest."""
    place = 0
    for dim in reversed(dims):
        element, index = divmod(element, dim.size)
        place += index * dim.strides[position]
    return place
