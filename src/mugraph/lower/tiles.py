"""Views of tiles: every data movement that costs nothing, as arithmetic on shapes and strides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mugraph.ir.graph import Shape
from mugraph.lower.tile_form import Tile


def row_major(shape: Shape) -> tuple[int, ...]:
    """Strides of a contiguous tensor whose last dimension varies fastest."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def permuted(tile: Tile, permutation: Sequence[int]) -> Tile:
    """Dimension i of the result is dimension permutation[i] of the tile."""
    return replace(
        tile, shape=tuple(tile.shape[dim] for dim in permutation), strides=tuple(tile.strides[dim] for dim in permutation)
    )


def transposed(tile: Tile) -> Tile:
    """The last two dimensions exchanged."""
    return permuted(tile, (*range(tile.rank - 2), tile.rank - 1, tile.rank - 2))


def inverse(permutation: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes `permutation`."""
    return tuple(sorted(range(len(permutation)), key=permutation.__getitem__))


def reshaped(tile: Tile, shape: Shape) -> Tile | None:
    """The same elements, in row-major order of the tile's dimensions, as `shape`; None where strides cannot say it."""
    runs = iter(merged(tile))
    strides: list[int] = []
    remaining, inner = 1, 0
    for size in shape:
        if size == 1:
            strides.append(0)
            continue
        if remaining == 1:
            remaining, inner = next(runs)
        if remaining % size:
            return None
        remaining //= size
        strides.append(remaining * inner)
    return replace(tile, shape=tuple(shape), strides=tuple(strides))


def sliced(tile: Tile, dim: int, start: int, size: int, step: int) -> Tile:
    """`size` elements along a dimension, from `start` on in steps of `step`."""
    shape = (*tile.shape[:dim], size, *tile.shape[dim + 1 :])
    strides = (*tile.strides[:dim], step * tile.strides[dim], *tile.strides[dim + 1 :])
    moved = replace(tile.start, constant=tile.start.constant + start * tile.strides[dim])
    return replace(tile, shape=shape, strides=strides, start=moved)


def merged(*same_shape: Tile) -> list[tuple[int, ...]]:
    """(size, stride) of a tile's dimensions, those of size 1 dropped and those that line up joined; of several alike."""
    runs: list[tuple[int, ...]] = []
    for size, *strides in zip(same_shape[0].shape, *(tile.strides for tile in same_shape), strict=True):
        if size == 1:
            continue
        if runs and all(above == size * stride for above, stride in zip(runs[-1][1:], strides, strict=True)):
            runs[-1] = (runs[-1][0] * size, *strides)
        else:
            runs.append((size, *strides))
    return runs


def broadcast(tile: Tile, shape: Shape) -> Tile:
    """The tile repeated by stride 0 to `shape`, aligned at the last dimension as in NumPy."""
    missing = len(shape) - tile.rank
    strides = [0] * missing
    for size, stride, extent in zip(tile.shape, tile.strides, shape[missing:], strict=True):
        strides.append(0 if size == 1 and extent != 1 else stride)
    return replace(tile, shape=tuple(shape), strides=tuple(strides))


def grouped(tile: Tile, dim: int, size: int) -> Tile:
    """Dimension `dim` cut into groups of `size`, the place within the group moved to a new last dimension."""
    stride = tile.strides[dim]
    shape = (*tile.shape[:dim], tile.shape[dim] // size, *tile.shape[dim + 1 :], size)
    strides = (*tile.strides[:dim], stride * size, *tile.strides[dim + 1 :], stride)
    return replace(tile, shape=shape, strides=strides)


def split(tile: Tile, dim: int, count: int) -> Tile:
    """Dimension `dim` cut into `count` equal parts: a new dimension of size `count` before it."""
    size, stride = tile.shape[dim] // count, tile.strides[dim]
    shape = (*tile.shape[:dim], count, size, *tile.shape[dim + 1 :])
    strides = (*tile.strides[:dim], stride * size, stride, *tile.strides[dim + 1 :])
    return replace(tile, shape=shape, strides=strides)


def inserted(tile: Tile, dim: int, count: int) -> Tile:
    """A new dimension of size `count` before `dim`, along which the tile repeats."""
    shape = (*tile.shape[:dim], count, *tile.shape[dim:])
    strides = (*tile.strides[:dim], 0, *tile.strides[dim:])
    return replace(tile, shape=shape, strides=strides)


def cut(tile: Tile, parts: Sequence[tuple[int, int | None]]) -> Tile:
    """The part one block sees in one iteration: `parts` gives (count, dimension or None) per grid dimension, then the loop."""
    shape, start = list(tile.shape), tile.start
    grid_dims = len(parts) - 1
    for position, (count, dim) in enumerate(parts):
        if dim is not None and count > 1:
            shape[dim] //= count
            start = start.moved(shape[dim] * tile.strides[dim], position, grid_dims)
    return replace(tile, shape=tuple(shape), start=start)


def alignment(tile: Tile, widest: int, along: int) -> int:
    """Elements, a divisor of `widest`, to whose multiples the tile's start and its steps in all dimensions but `along` go."""
    others = (stride for dim, stride in enumerate(tile.strides) if dim != along % tile.rank and tile.shape[dim] > 1)
    return math.gcd(widest, tile.start.constant, tile.start.loop, *tile.start.grid, *others)


def run_along(tile: Tile, dim: int, longest: int) -> int:
    """Elements that one load brings along `dim`: `longest` where they lie together, aligned, and fill the dimension; else one."""
    if tile.strides[dim] != 1 or tile.shape[dim] % longest or alignment(tile, longest, dim) != longest:
        return 1
    return longest


def same_elements(first: Tile, second: Tile) -> bool:
    """Whether two tiles of one shape are the same elements: strides of dimensions of size 1 do not matter."""
    return _without_idle_strides(first) == _without_idle_strides(second)


def _without_idle_strides(tile: Tile) -> Tile:
    strides = (stride if size > 1 else 0 for size, stride in zip(tile.shape, tile.strides, strict=True))
    return replace(tile, strides=tuple(strides))
