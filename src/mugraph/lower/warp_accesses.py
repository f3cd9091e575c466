"""Which elements the lanes of a warp touch at the same time: every access of a statement, as printers print it.

Each function returns places [accesses, lanes]: elements counted from a tile's start, before any swizzle. Lanes that are
idle in an access repeat the place of one that is not, which asks memory for nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mugraph.devices.products import COLUMNS, DEPTH, ROWS, WARP
from mugraph.lower.fragments import PAIR, WarpTiles

Places = NDArray[np.int64]

_MATRIX = 8
"""Rows and columns of one matrix of ldmatrix."""


def grid_places(sizes: Sequence[int], strides: Sequence[int]) -> Places:
    """The places of all elements of a window, flat, the last dimension fastest."""
    places = np.zeros(1, np.int64)
    for size, stride in zip(sizes, strides, strict=True):
        places = (places[:, None] + np.arange(size, dtype=np.int64) * stride).ravel()
    return places


def run_places(sizes: tuple[int, ...], strides: tuple[int, ...], run: int) -> Places:
    """The first elements of runs along the last dimension, which consecutive threads take in turn."""
    firsts = grid_places((*sizes[:-1], sizes[-1] // run), (*strides[:-1], strides[-1] * run))
    return _in_warps(firsts)


def group_places(kept: Places, size: int, stride: int, run: int, group: int, threads: int) -> Places:
    """The first elements of runs along a reduced dimension of `size` elements, from the places `kept` of each result's first.

    Group g of `threads / group` takes results g, g + threads / group, ..., and beyond the last one repeats it.
    """
    together = threads // group
    rounds = -(-len(kept) // together)
    wanted = np.arange(rounds * together)
    of_lane = np.repeat(kept[np.minimum(wanted, len(kept) - 1)], group).reshape(-1, WARP)
    steps = -(-size // (group * run))
    first = np.arange(WARP) % group * run
    along = np.arange(steps)[:, None] * group * run + first
    along = np.where(along < size, along, along[:, :1])
    reads = of_lane[:, None, :] + along * stride
    return reads.reshape(-1, WARP)


def leaders(kept: Places, group: int) -> Places:
    """Where the first lane of each group stores its result, a warp's groups at a time."""
    return _in_warps(kept, WARP // group)


def fragment_places(shape: tuple[int, ...], strides: tuple[int, ...], run: int = 1) -> Places:
    """The elements of a product's target that lanes hold, one of the four of a 16 x 8 fragment, or of its `run`s, at a time."""
    *batch, rows, columns = shape
    lane = np.arange(WARP)
    found: list[Places] = []
    for half in range(0, 4, run):
        m = grid_places((-(-rows // ROWS),), (ROWS,))[:, None, None] + lane // 4 + half // 2 * 8
        n = grid_places((-(-columns // COLUMNS),), (COLUMNS,))[None, :, None] + lane % 4 * 2 + half % 2
        inside = (m < rows) & (n < columns)
        places = np.where(inside, m * strides[-2] + n * strides[-1], -1).reshape(-1, WARP)
        places = places[places.max(axis=1) >= 0]
        found.append(np.where(places < 0, places.max(axis=1, keepdims=True), places))
    return _for_each(grid_places(batch, strides[:-2]), np.concatenate(found))


def matrix_places(split: WarpTiles, shape: tuple[int, ...], strides: tuple[int, ...], inner: int, contiguous: int) -> Places:
    """Rows of the 8 x 8 matrices that ldmatrix reads of a factor whose k is dimension `inner`, [matrices, 8]."""
    outer = -3 - inner
    size, depth = shape[outer], shape[inner]
    covered = split.bands * split.down * ROWS if outer == -2 else split.panels * split.across * COLUMNS
    repeats = split.panels if outer == -2 else split.bands
    corners = np.arange(0, covered, _MATRIX), np.arange(0, depth, _MATRIX)
    rows = np.arange(_MATRIX)
    if contiguous == inner:
        lines = np.minimum(corners[0][:, None] + rows, size - 1) * strides[outer]
        places = lines[:, None, :] + corners[1][None, :, None] * strides[inner]
    else:
        starts = np.minimum(corners[0], size - _MATRIX) * strides[outer]
        places = starts[:, None, None] + (corners[1][:, None] + rows)[None, :, :] * strides[inner]
    whole = _for_each(grid_places(shape[:-2], strides[:-2]), places.reshape(-1, _MATRIX))
    return np.tile(whole, (repeats, 1))


def gathered_places(split: WarpTiles, shape: tuple[int, ...], strides: tuple[int, ...], inner: int, run: int) -> Places:
    """Elements of a factor that ldmatrix cannot read: each lane gathers its pairs along k, `run` elements of them at a time."""
    outer = -3 - inner
    size, depth = shape[outer], shape[inner]
    covered = split.bands * split.down * ROWS if outer == -2 else split.panels * split.across * COLUMNS
    repeats = split.panels if outer == -2 else split.bands
    lane = np.arange(WARP)
    lines = np.minimum(np.arange(0, covered, _MATRIX)[:, None] + lane // 4, size - 1)[:, None, :] * strides[outer]
    k = (np.arange(0, -(-depth // DEPTH) * DEPTH, _MATRIX)[:, None] + np.arange(0, PAIR, run)).reshape(-1, 1) + lane % 4 * PAIR
    k = k[k[:, 0] < depth]
    along = np.where(k < depth, k, k[:, :1]) * strides[inner]
    whole = _for_each(grid_places(shape[:-2], strides[:-2]), (lines + along).reshape(-1, WARP))
    return np.tile(whole, (repeats, 1))


def vector_places(target: tuple[int, ...], strides: tuple[int, ...], inner: int, rows: int, depth: int, run: int) -> Places:
    """First elements of runs along k of a factor that threads of a product on vector units read, for `depth` values of k.

    Thread t takes `rows` rows of column t of the target [..., m, n]; `strides` are the factor's, its k is dimension `inner`.
    """
    *batch, height, width = target
    bands = -(-height // rows)
    ks = np.arange(0, depth, run)[None, :, None] * strides[inner]
    if inner == -2:
        firsts = _in_warps(grid_places((*batch, bands, width), (*strides[:-2], 0, strides[-1])))
        return (firsts[:, None, :] + ks).reshape(-1, WARP)
    found: list[Places] = []
    for row in range(rows):
        lines = np.minimum(np.arange(bands) * rows + row, height - 1) * strides[-2]
        of_batch = grid_places(batch, strides[:-2])[:, None] + lines
        firsts = _in_warps(np.repeat(of_batch.ravel(), width))
        found.append((firsts[:, None, :] + ks).reshape(-1, WARP))
    return np.concatenate(found)


def _for_each(starts: Places, places: Places) -> Places:
    """The same accesses from each of several starts."""
    return (starts[:, None, None] + places).reshape(-1, places.shape[-1])


def _in_warps(places: Places, lanes: int = WARP) -> Places:
    return np.pad(places, (0, -len(places) % lanes), mode="edge").reshape(-1, lanes)
