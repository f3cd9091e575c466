"""Products of matrices on the host in tiles that BLAS multiplies on one thread, unless they are large.

Threads that wait for a busy core take a hundred times as long as they multiply, for each matrix of a batch.
"""

from __future__ import annotations

import itertools

import numpy as np

from mugraph.ir.arithmetic import Array, broadcast_shape

_THREADS_PAY = 1 << 27
"""Multiplications of a product of matrices for which BLAS may wake its threads, ..."""
_TILE = 64
"""... and otherwise the size of tiles that it multiplies on one, ..."""
_OF_VECTORS = 1 << 13
"""... with as many multiplications where one factor is a vector."""


def tiled_product(x: Array, y: Array) -> Array:
    """The product of [..., rows, inner] and [..., inner, columns], of one floating-point type: sums of strips are added up."""
    rows, inner, columns = x.shape[-2], x.shape[-1], y.shape[-1]
    tile = min(rows, _TILE) * min(columns, _TILE)
    depth = max(1, (_OF_VECTORS if 1 in (rows, columns) else _TILE**3) // max(1, tile))
    if rows * inner * columns > _THREADS_PAY or (max(rows, columns) <= _TILE and inner <= depth):
        return np.asarray(np.matmul(x, y))
    result = np.zeros((*broadcast_shape(x.shape[:-2], y.shape[:-2]), rows, columns), np.result_type(x, y))
    for top, left, start in itertools.product(range(0, rows, _TILE), range(0, columns, _TILE), range(0, inner, depth)):
        down, across, part = slice(top, top + _TILE), slice(left, left + _TILE), slice(start, start + depth)
        with np.errstate(invalid="ignore", over="ignore"):  # infinite sums: the product says so
            result[..., down, across] += np.matmul(x[..., down, part], y[..., part, across])
    return result
