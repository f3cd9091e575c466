"""Products of matrices on the host in tiles that BLAS multiplies on one thread, unless they are large, and of vectors without it.

Threads that wait for a busy core take a hundred times as long as they multiply, for each matrix of a batch.
"""

from __future__ import annotations

import itertools

import numpy as np

from mugraph.ir.arithmetic import Array, broadcast_shape

_THREADS_PAY = 1 << 27
"""Multiplications of a product of matrices for which BLAS may wake its threads, ..."""
_TILE = 64
"""... and otherwise the sides of tiles that it multiplies on one, longer where others are short, with that number cubed of
multiplications."""
_OF_VECTORS = 1 << 13
"""As many multiplications of a vector BLAS leaves to one thread."""


def tiled_product(x: Array, y: Array) -> Array:
    """The product of [..., rows, inner] and [..., inner, columns], of one floating-point type: sums of strips are added up.

    Raises ValueError where the shapes are not those of factors.
    """
    rows, inner, columns = x.shape[-2], x.shape[-1], y.shape[-1]
    down, across, depth = _tile(rows, inner, columns)
    work, vector = rows * inner * columns, 1 in (rows, columns)
    whole = work > _THREADS_PAY or (work <= _OF_VECTORS if vector else rows <= down and columns <= across and inner <= depth)
    if whole or y.shape[-2] != inner:
        return np.asarray(np.matmul(x, y))
    if vector:
        with np.errstate(invalid="ignore", over="ignore"):
            return np.asarray(np.einsum("...ik,...kj->...ij", _together(x, -1), _together(y, -2)))
    result = np.empty((*broadcast_shape(x.shape[:-2], y.shape[:-2]), rows, columns), np.result_type(x, y))
    with np.errstate(invalid="ignore", over="ignore"):  # infinite sums: the product says so
        for top, left in itertools.product(range(0, rows, down), range(0, columns, across)):
            ours, theirs = x[..., top : top + down, :], y[..., left : left + across]
            tile = result[..., top : top + down, left : left + across]
            np.matmul(ours[..., :depth], theirs[..., :depth, :], out=tile)
            for start in range(depth, inner, depth):
                part = slice(start, start + depth)
                tile += np.matmul(ours[..., part], theirs[..., part, :])
    return result


def _together(factor: Array, inner: int) -> Array:
    """A factor; a copy of a vector whose elements along `inner` are apart in memory, which each row or column would meet so."""
    apart = factor.strides[inner] != factor.itemsize
    return np.ascontiguousarray(factor) if apart and factor.shape[-3 - inner] == 1 else factor


def _tile(rows: int, inner: int, columns: int) -> tuple[int, int, int]:
    """Rows and columns of a product that are computed at once, and how many terms of their sums."""
    most = _TILE**3
    down, across = min(rows, _TILE), min(columns, _TILE)
    depth = most // max(1, down * across)
    if inner >= depth:
        return down, across, depth
    if rows < columns:
        return down, most // max(1, down * inner), depth
    return most // max(1, across * inner), across, depth
