"""The order in which the blocks of a kernel run: those that share what they read stand close together.

A GPU starts blocks by their numbers. Blocks that run at once read the same parts of an input from the last cache, which brings
them from memory once, and parts that are needed again later stay only as long as the cache has room. With the last dimension
of the grid fastest, blocks of one row of a large product run at once and read all of the right factor, row after row. In bands
(`Bands`) they are nearly a square, and both factors cross memory a few times.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mugraph.lower.tile_form import Bands, Kernel, Tile

Numbers = npt.NDArray[np.int64]

_LEAST_GAIN = 0.1
"""Part of the bytes from memory that another order is to save: the model of the cache is not more exact."""
_SIZES = (2, 4, 8, 16, 32)
"""Of bands that are tried."""
_TURNS = 64
"""Times that the multiprocessors take new blocks which are looked at: what follows is more of the same."""
_SPARSE = 16
"""Numbers of places for each block that are looked at, with more of which places are numbered anew."""


def in_order(grid: Sequence[int], bands: Bands | None, most: int | None = None) -> Numbers:
    """The places of all blocks, or of the first `most`, in the order in which they run: [blocks, dimensions of the grid]."""
    blocks = math.prod(grid)
    numbers = np.arange(blocks if most is None else min(most, blocks))
    if not grid:
        return np.zeros((len(numbers), 0), np.int64)
    if bands is None:
        return np.stack(np.unravel_index(numbers, tuple(grid)), axis=1)
    behind, size = math.prod(grid[bands.dim + 1 :]), bands.size
    before, inside = np.divmod(numbers, grid[bands.dim] * behind)
    band, inside = np.divmod(inside, size * behind)
    width = np.minimum(size, grid[bands.dim] - band * size)
    along, rest = band * size + inside % width, inside // width
    outer = np.unravel_index(before, tuple(grid[: bands.dim]) or (1,))[-bands.dim or 1 :]
    inner = np.unravel_index(rest, tuple(grid[bands.dim + 1 :]) or (1,))[: len(grid) - bands.dim - 1]
    return np.stack([*outer, along, *inner], axis=1)


def numbers_of(kernel: Kernel, blocks: Sequence[int]) -> list[int]:
    """The numbers by which blocks run that are counted with the last dimension of the grid fastest."""
    if kernel.bands is None:
        return list(blocks)
    counted = np.ravel_multi_index(tuple(in_order(kernel.grid, kernel.bands).T), kernel.grid)
    return [int(number) for number in np.argsort(counted)[list(blocks)]]


def with_block_order(kernel: Kernel, multiprocessors: int, cache_bytes: int) -> Kernel:
    """The kernel with bands of blocks for a last cache of so many bytes, where they save a tenth of what comes from memory."""
    sharing = Sharing.of(kernel, multiprocessors * kernel.resident, cache_bytes)
    if sharing is None:
        return kernel
    moved = {bands: sharing.bytes_from_memory(bands) for bands in (None, *_bands(kernel.grid))}
    best = min(moved, key=lambda bands: moved[bands])
    return replace(kernel, bands=best) if moved[best] <= (1 - _LEAST_GAIN) * moved[None] else kernel


def _bands(grid: Sequence[int]) -> Iterator[Bands]:
    """Those that are an order of their own."""
    for dim, size in itertools.product(range(len(grid) - 1), _SIZES):
        if size <= grid[dim] and math.prod(grid[dim + 1 :]) > 1:
            yield Bands(dim, size)


@dataclass(frozen=True, slots=True)
class Part:
    """What one block reads of an input: as many bytes, the same as others at its place along `dims` of the grid."""

    dims: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Sharing:
    """What the blocks of a grid read, so many `at_once`, through a cache of `cache_bytes`."""

    grid: tuple[int, ...]
    parts: tuple[Part, ...]
    at_once: int
    cache_bytes: int

    @classmethod
    def of(cls, kernel: Kernel, at_once: int, cache_bytes: int) -> Sharing | None:
        """None where no order is better than another: all blocks run at once, or read nothing that others read, or only what
        stays in the cache."""
        blocks = math.prod(kernel.grid)
        if not 0 < at_once < blocks:
            return None
        parts = tuple(_parts(kernel))
        if all(math.prod(kernel.grid[dim] for dim in part.dims) == blocks for part in parts):
            return None
        whole = sum(part.bytes * math.prod(kernel.grid[dim] for dim in part.dims) for part in parts)
        return cls(kernel.grid, parts, at_once, cache_bytes) if 0 < cache_bytes < whole else None

    def bytes_from_memory(self, bands: Bands | None) -> int:
        """Bytes that the cache lacks when a block reads them.

        What was read longest ago leaves it first. Blocks that run at once go through their parts side by side, so what they read
        leaves together, and all of it where there is no room for it at once: what is held was last read in some turn or later.
        """
        places = in_order(self.grid, bands, _TURNS * self.at_once)
        turns = -(-len(places) // self.at_once)
        wanted = [_numbered(np.ravel_multi_index(tuple(places[:, dims].T), self._extents(dims))) for dims in self._together]
        last = [np.full(int(numbers.max()) + 1, -1) for numbers in wanted]
        """The turn in which each place of a part was last read."""
        held = np.zeros(turns, np.int64)
        """Bytes that were last read in each turn."""
        moved = oldest = 0
        for turn in range(turns):
            for numbers, seen, size in zip(wanted, last, self._together.values(), strict=True):
                read = _distinct(numbers[turn * self.at_once : (turn + 1) * self.at_once], seen)
                before = seen[read]
                cached = before[before >= oldest]
                moved += (len(read) - len(cached)) * size
                held -= size * np.bincount(cached, minlength=turns)
                held[turn] += size * len(read)
                seen[read] = turn
            while held[oldest : turn + 1].sum() > self.cache_bytes:
                oldest += 1
        return moved

    @cached_property
    def _together(self) -> dict[tuple[int, ...], int]:
        """Bytes that blocks read at a place along some dimensions, of all parts there: they are read, and forgotten, together."""
        return {
            dims: sum(part.bytes for part in self.parts if part.dims == dims) for dims in sorted({p.dims for p in self.parts})
        }

    def _extents(self, dims: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.grid[dim] for dim in dims)


def _numbered(places: Numbers) -> Numbers:
    """The same places by numbers that are no larger than there are blocks, but for a factor."""
    if int(places.max()) < _SPARSE * len(places):
        return places
    numbers: Numbers = np.unique(places, return_inverse=True)[1]
    return numbers


def _distinct(numbers: Numbers, scratch: Numbers) -> Numbers:
    """Each number once; `scratch` has an element for every number, and is as it was afterwards."""
    kept = scratch[numbers]
    scratch[numbers] = np.arange(len(numbers))
    once: Numbers = numbers[scratch[numbers] == np.arange(len(numbers))]
    scratch[numbers] = kept
    return once


def _parts(kernel: Kernel) -> Iterator[Part]:
    """What a block reads of its inputs, each window once; windows that all blocks have in common make no difference."""
    read = (*(tile for s in kernel.statements for tile in s.sources), *(staged.source for staged in kernel.staged))
    for tile in dict.fromkeys(tile for tile in read if tile.buffer in kernel.inputs):
        dims = tuple(dim for dim, step in enumerate(tile.start.grid) if step and kernel.grid[dim] > 1)
        if dims:
            yield Part(dims, _elements(tile, kernel.loop) * kernel.buffer(tile.buffer).dtype.bytes)


def _elements(tile: Tile, loop: int) -> int:
    """Elements that a block reads through a window in all of its iterations."""
    different = (size for size, stride in zip(tile.shape, tile.strides, strict=True) if stride)
    return math.prod(different) * (loop if tile.start.loop else 1)
