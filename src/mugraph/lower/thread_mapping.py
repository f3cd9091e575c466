"""The loops of a statement, and how the threads of a block share them: what printers print, and what costs and barriers rely on.

An elementwise statement or a reduction loops over its dimensions, joined where they line up in every tile, and threads take runs
of neighbouring elements. Of a product on vector units each thread computes a few rows of one column, for each k in turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mugraph.devices.products import VECTOR_ROWS, WARP, vector_tasks
from mugraph.lower.fragments import sizes_of
from mugraph.lower.tile_form import Elementwise, Kernel, Matmul, Memory, Reduce, Tile
from mugraph.lower.tiles import run_along

WIDEST_ACCESS = 16
"""Bytes of the widest load or store of one thread; device buffers start at multiples of it."""
_LONGEST_RUN = 8
"""Elements: a widest access of 16-bit numbers."""
_DEVICE_WEIGHT = 4
"""How many tiles in shared memory one in device memory counts for, when the fastest dimension is chosen."""
_LONGEST_RUN_ALONG_K = 4
"""Values of k that one load brings: a widest access of fp32 numbers."""


@dataclass(frozen=True, slots=True)
class LoopDim:
    """A loop: its size, and the stride along it of the target, of each source, and of the integers of each that is looked up.

    A `bounded` one may stop earlier.
    """

    size: int
    strides: tuple[int, ...]
    reduced: bool = False
    bounded: bool = False


def loops_of(statement: Elementwise | Reduce, bounded: int | None = None) -> list[LoopDim]:
    """The loops from the target's slowest dimension to its fastest, then the reduced one; at least one loop.

    One over the dimension `bounded` stays apart: of the target's, or behind these the reduced one.
    """
    target, sources = statement.target, with_integers(statement.sources)
    dims = [
        LoopDim(size, tuple(tile.strides[d] for tile in (target, *sources)), bounded=d == bounded)
        for d, size in enumerate(target.shape)
        if size > 1
    ]
    joined: list[LoopDim] = []
    for dim in sorted(dims, key=lambda dim: -dim.strides[0]):
        apart = not joined or joined[-1].bounded or dim.bounded
        if not apart and all(outer == dim.size * inner for outer, inner in zip(joined[-1].strides, dim.strides, strict=True)):
            joined[-1] = LoopDim(joined[-1].size * dim.size, dim.strides)
        else:
            joined.append(dim)
    if isinstance(statement, Reduce):
        size = statement.sources[0].shape[-1] if statement.sources else 1
        strides = (0, *(tile.strides[-1] for tile in sources))
        joined.append(LoopDim(size, strides, reduced=True, bounded=bounded == target.rank))
    return joined or [LoopDim(1, (1,) * (1 + len(sources)))]


def with_integers(sources: Sequence[Tile]) -> tuple[Tile, ...]:
    """The sources of a statement, and behind them the integers of those that are looked up."""
    return (*sources, *(tile.lookup.index for tile in sources if tile.lookup is not None))


@dataclass(frozen=True, slots=True)
class Share:
    """The runs that threads take: thread t the runs number t, t + threads, ..., counted with the last of `dims` fastest.

    A run is `run` elements along the last dimension. For a reduction the last dimension is the reduced one, whose runs a
    group of `group` neighbouring lanes takes in turn for each result.
    """

    dims: tuple[LoopDim, ...]
    run: int
    group: int = 1

    def in_one_turn(self, threads: int) -> bool:
        """Whether every lane of a reduction takes one run for each of its results and all `threads` are busy.

        Then thread t takes the runs number t, t + threads, ... of all results one after the other, as of an elementwise
        statement.
        """
        *outer, reduced = self.dims
        results = math.prod(dim.size for dim in outer)
        return reduced.size == self.group * self.run and results % (threads // self.group) == 0


def elementwise_share(kernel: Kernel, statement: Elementwise) -> Share:
    """Runs along the dimension in which most memory traffic is consecutive."""
    tiles = (statement.target, *statement.sources)

    def consecutive(dim: LoopDim) -> int:
        shared = (kernel.buffer(tile.buffer).memory is Memory.SHARED for tile in tiles)
        weights = (1 if here else _DEVICE_WEIGHT for here in shared)
        return sum(weight for weight, stride in zip(weights, dim.strides, strict=True) if stride == 1)

    dims = loops_of(statement)
    fastest = max(dims, key=consecutive)
    ordered = (*(dim for dim in dims if dim is not fastest), fastest)
    return Share(ordered, _run(kernel, tiles, ordered, math.prod(dim.size for dim in dims) // kernel.threads))


def reduction_share(kernel: Kernel, statement: Reduce) -> Share:
    """As many lanes for each result as keep all threads busy, up to a warp."""
    dims = tuple(loops_of(statement))
    *outer, reduced = dims
    results = math.prod(dim.size for dim in outer)
    lanes = max(1, kernel.threads // _power(results))
    group = min(WARP, lanes, _power(reduced.size))
    return Share(dims, _run(kernel, statement.sources, dims, reduced.size // group), group)


def result_loops(reduction: Reduce, place: Tile) -> list[LoopDim]:
    """The loops over the results of a reduction, with their strides in its target and in another place of as many."""
    each = replace(place, shape=(*place.shape, 1), strides=(*place.strides, 0))
    *results, _ = loops_of(replace(reduction, sources=(each,)))
    return results


def addresses(share: Share, tile: Tile, position: int) -> tuple[object, ...]:
    """What identifies the elements of a statement's tile number `position` with the threads that touch them.

    Equal for two tiles exactly when the same thread touches the same elements of both in the same order.
    """
    joined: list[tuple[int, int]] = []
    for dim in share.dims:
        size, stride = dim.size, dim.strides[position]
        if joined and joined[-1][1] == size * stride:
            joined[-1] = (joined[-1][0] * size, stride)
        elif size > 1:
            joined.append((size, stride))
    return (tile.buffer, tile.start, tuple(joined), share.run)


def _run(kernel: Kernel, tiles: Sequence[Tile], dims: Sequence[LoopDim], share: int) -> int:
    """Elements that a thread takes at once along the last dimension: what alignment allows, no more than its `share`."""
    *others, last = dims
    first = len(last.strides) - len(tiles)
    run = math.gcd(last.size, _LONGEST_RUN)
    for position, tile in enumerate(tiles, first):
        if last.strides[position] == 0:
            continue
        if last.strides[position] != 1:
            return 1
        widest = WIDEST_ACCESS // kernel.buffer(tile.buffer).dtype.bytes
        steps = (dim.strides[position] for dim in others)
        aligned = math.gcd(widest, tile.start.constant, tile.start.loop, *tile.start.grid, *steps)
        several = aligned == widest and tile.swizzle is None  # chunks of a swizzled tile do not follow each other
        run = run if several else min(run, aligned)
    while run > max(share, 1):
        run //= 2
    return run


def _power(size: int) -> int:
    """The power of two from `size` on."""
    return 1 << (size - 1).bit_length()


def rows_together(product: Matmul) -> int:
    """Rows that one thread computes."""
    return min(VECTOR_ROWS, product.target.shape[-2])


def tasks_of(product: Matmul) -> int:
    """Columns of bands of rows, one of which a thread computes at a time."""
    return int(vector_tasks(sizes_of(product)))


def rounds_of(product: Matmul, threads: int) -> int:
    """Tasks that the first thread computes."""
    return -(-tasks_of(product) // threads)


def run_along_k(tile: Tile, inner: int) -> int:
    """Values of k that one load brings of a factor whose k is dimension `inner`: several where they lie together, aligned."""
    return run_along(tile, inner, _LONGEST_RUN_ALONG_K)
