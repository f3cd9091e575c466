"""What the accesses of a statement to shared memory cost, in wavefronts, as a function of the strides of its tiles.

A warp's access is served in wavefronts: each gives every bank one 4-byte word. The lanes' addresses follow from how kernels
are printed: which dimension neighbouring lanes run along, how long a lane's run is, what ldmatrix reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mugraph.lower import tiles as views
from mugraph.lower.fragments import WARP, comes_by_ldmatrix, on_matrix_units, warp_tiles
from mugraph.lower.lanes import lanes_per_result
from mugraph.lower.lowered import Buffer, Elementwise, Kernel, Matmul, Memory, Reduce, Statement, Tile

_BANKS, _WORD = 32, 4
_WIDEST = 16
"""Bytes of the widest access of a lane."""
_LONGEST_RUN = 8
_MATRIX = 8
"""Rows and columns of one matrix of ldmatrix."""
_ROWS_AT_ONCE = 4
"""Rows of a product on vector units that share one load of the right factor."""


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
    match statement:
        case Matmul():
            yield Accesses((statement.target,), lambda laid: _result_cost(kernel, statement, laid[0]))
            yield Accesses((statement.left,), lambda laid: _left_cost(kernel, statement, laid[0]))
            yield Accesses((statement.right,), lambda laid: _right_cost(kernel, statement, laid[0]))
        case Reduce():
            yield Accesses((statement.target, *statement.sources), lambda laid: _reduction_cost(kernel, laid[1:]))
        case Elementwise() if any(kernel.buffer(tile.buffer).memory is Memory.REGISTERS for tile in statement.sources):
            yield Accesses((statement.target,), lambda laid: _fragment_cost(kernel, laid[0]))
        case Elementwise():
            yield Accesses((statement.target, *statement.sources), lambda laid: _elementwise_cost(kernel, laid))


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
    repeats = warp_tiles(product, kernel.threads // WARP).panels
    return repeats * _matrices_cost(kernel.buffer(tile.buffer), product, tile, row=-2, inner=-1)


def _right_cost(kernel: Kernel, product: Matmul, tile: Tile) -> float:
    if not on_matrix_units(product):
        bands = -(-product.target.shape[-2] // _ROWS_AT_ONCE)
        return bands * _stored_along(kernel, tile, tile.strides[-1]) * math.prod(tile.shape)
    repeats = warp_tiles(product, kernel.threads // WARP).bands
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


def _elementwise_cost(kernel: Kernel, tiles: Sequence[Tile]) -> float:
    shape = tiles[0].shape
    dims = [dim for dim, size in enumerate(shape) if size > 1]
    if not dims:
        return float(len(tiles))
    fastest = max(dims, key=lambda dim: _consecutive(kernel, tiles, dim))
    order = [*(dim for dim in dims if dim != fastest), fastest]
    run = _run(kernel, tiles, order)
    return sum(_lanes_cost(kernel, tile, order, run) for tile in tiles)


def _consecutive(kernel: Kernel, tiles: Sequence[Tile], dim: int) -> int:
    """How much memory traffic is consecutive along a dimension; device memory counts for more."""
    shared = (kernel.buffer(tile.buffer).memory is Memory.SHARED for tile in tiles)
    return sum(1 if here else 4 for tile, here in zip(tiles, shared, strict=True) if tile.strides[dim] == 1)


def _run(kernel: Kernel, tiles: Sequence[Tile], order: Sequence[int]) -> int:
    """Elements a lane takes at once along the last dimension."""
    fastest, shape = order[-1], tiles[0].shape
    run = math.gcd(shape[fastest], _LONGEST_RUN)
    for tile in tiles:
        if tile.strides[fastest] not in (0, 1):
            return 1
        if tile.strides[fastest] == 1:
            widest = _WIDEST // kernel.buffer(tile.buffer).dtype.bytes
            aligned = views.alignment(tile, widest, fastest)
            run = run if aligned == widest else min(run, aligned)
    while run > max(math.prod(shape) // kernel.threads, 1):
        run //= 2
    return run


def _lanes_cost(kernel: Kernel, tile: Tile, order: Sequence[int], run: int) -> float:
    """One tile of an elementwise statement, estimated from its first warp."""
    buffer = kernel.buffer(tile.buffer)
    if buffer.memory is not Memory.SHARED:
        return 0.0
    elements = math.prod(tile.shape)
    lanes = min(WARP, elements // run)
    run_here = run if tile.strides[order[-1]] == 1 else 1
    width = min(run_here * buffer.dtype.bytes, _WIDEST)
    accesses = run_here * buffer.dtype.bytes // width
    addresses = [_place(tile, order, lane * run) * buffer.dtype.bytes for lane in range(lanes)]
    return accesses * wavefronts(addresses, width) * elements / (lanes * run)


def _place(tile: Tile, order: Sequence[int], element: int) -> int:
    """Where an element lies, counted with the last dimension of `order` fastest."""
    place = 0
    for dim in reversed(order):
        element, index = divmod(element, tile.shape[dim])
        place += index * tile.strides[dim]
    return place


def _reduction_cost(kernel: Kernel, sources: Sequence[Tile]) -> float:
    """Groups of lanes run along the reduced dimension, neighbouring groups along the results."""
    total = 0.0
    for tile in sources:
        buffer = kernel.buffer(tile.buffer)
        if buffer.memory is not Memory.SHARED:
            continue
        results, size = math.prod(tile.shape[:-1]), buffer.dtype.bytes
        group = lanes_per_result(kernel.threads, results, tile.shape[-1])
        kept = range(tile.rank - 1)
        lanes = min(WARP, group * results)
        addresses = [(_place(tile, kept, lane // group) + lane % group * tile.strides[-1]) * size for lane in range(lanes)]
        total += wavefronts(addresses, size) * math.prod(tile.shape) / lanes
    return total
