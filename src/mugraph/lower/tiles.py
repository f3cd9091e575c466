"""Views of tiles: every data movement that costs nothing, as arithmetic on shapes and strides."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar

from mugraph.ir.graph import Shape
from mugraph.lower.tile_form import TableRows, Tile

_P = ParamSpec("_P")
_Seen = TypeVar("_Seen", Tile, Tile | None)


def of_integers_too(view: Callable[Concatenate[Tile, _P], _Seen]) -> Callable[Concatenate[Tile, _P], _Seen]:
    """A view that looks at the integers of a lookup in the same way; None where it cannot."""

    @functools.wraps(view)
    def both(tile: Tile, /, *args: _P.args, **kwargs: _P.kwargs) -> _Seen:
        seen = view(tile, *args, **kwargs)
        if tile.lookup is None or seen is None:
            return seen
        index = view(tile.lookup.index, *args, **kwargs)
        return index if index is None else replace(seen, lookup=replace(tile.lookup, index=index))

    return both


def row_major(shape: Shape) -> tuple[int, ...]:
    """Strides of a contiguous tensor whose last dimension varies fastest."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


@of_integers_too
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


@of_integers_too
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


@of_integers_too
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


@of_integers_too
def broadcast(tile: Tile, shape: Shape) -> Tile:
    """The tile repeated by stride 0 to `shape`, aligned at the last dimension as in NumPy."""
    missing = len(shape) - tile.rank
    strides = [0] * missing
    for size, stride, extent in zip(tile.shape, tile.strides, shape[missing:], strict=True):
        strides.append(0 if size == 1 and extent != 1 else stride)
    return replace(tile, shape=tuple(shape), strides=tuple(strides))


@of_integers_too
def grouped(tile: Tile, dim: int, size: int) -> Tile:
    """Dimension `dim` cut into groups of `size`, the place within the group moved to a new last dimension."""
    stride = tile.strides[dim]
    shape = (*tile.shape[:dim], tile.shape[dim] // size, *tile.shape[dim + 1 :], size)
    strides = (*tile.strides[:dim], stride * size, *tile.strides[dim + 1 :], stride)
    return replace(tile, shape=shape, strides=strides)


@of_integers_too
def split(tile: Tile, dim: int, count: int) -> Tile:
    """Dimension `dim` cut into `count` equal parts: a new dimension of size `count` before it."""
    size, stride = tile.shape[dim] // count, tile.strides[dim]
    shape = (*tile.shape[:dim], count, size, *tile.shape[dim + 1 :])
    strides = (*tile.strides[:dim], stride * size, stride, *tile.strides[dim + 1 :])
    return replace(tile, shape=shape, strides=strides)


@of_integers_too
def inserted(tile: Tile, dim: int, count: int) -> Tile:
    """A new dimension of size `count` before `dim`, along which the tile repeats."""
    shape = (*tile.shape[:dim], count, *tile.shape[dim:])
    strides = (*tile.strides[:dim], 0, *tile.strides[dim:])
    return replace(tile, shape=shape, strides=strides)


@of_integers_too
def cut(tile: Tile, parts: Sequence[tuple[int, int | None]]) -> Tile:
    """The part one block sees in one iteration: `parts` gives (count, dimension or None) per grid dimension, then the loop."""
    shape, start = list(tile.shape), tile.start
    grid_dims = len(parts) - 1
    for position, (count, dim) in enumerate(parts):
        if dim is not None and count > 1:
            shape[dim] //= count
            start = start.moved(shape[dim] * tile.strides[dim], position, grid_dims)
    return replace(tile, shape=tuple(shape), start=start)


def looked_up(table: Tile, dim: int, index: Tile, wraps: bool) -> Tile | None:
    """A table at the places along a dimension that integers name, whose dimensions stand in its place; None where the table is
    looked up itself."""
    if table.lookup is not None:
        return None
    before, after, none = table.shape[:dim], table.shape[dim + 1 :], (0,) * index.rank
    shape = (*before, *index.shape, *after)
    integers = replace(index, shape=shape, strides=(*(0 for _ in before), *index.strides, *(0 for _ in after)))
    rows = TableRows(integers, table.strides[dim], table.shape[dim], wraps)
    return replace(table, shape=shape, strides=(*table.strides[:dim], *none, *table.strides[dim + 1 :]), lookup=rows)


def alignment(tile: Tile, widest: int, along: int) -> int:
    """Elements, a divisor of `widest`, to whose multiples the tile's start and its steps in all dimensions but `along` go."""
    others = (stride for dim, stride in enumerate(tile.strides) if dim != along % tile.rank and tile.shape[dim] > 1)
    return math.gcd(widest, tile.start.constant, tile.start.loop, *tile.start.grid, *others)


@of_integers_too
def with_unit_dimensions(tile: Tile, shape: Shape) -> Tile:
    """The same elements in a shape with the same sizes in the same order, but for sizes of 1, which may stand elsewhere."""
    steps = iter([stride for size, stride in zip(tile.shape, tile.strides, strict=True) if size > 1])
    return replace(tile, shape=shape, strides=tuple(next(steps) if size > 1 else 0 for size in shape))


def same_sizes(first: Shape, second: Shape) -> bool:
    """Whether two shapes differ in nothing but dimensions of size 1."""
    return [size for size in first if size > 1] == [size for size in second if size > 1]


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
