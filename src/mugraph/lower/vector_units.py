"""How threads share out a product on vector units: each computes a few rows of one column, for every value of k in turn."""

from __future__ import annotations

import math

from mugraph.lower import tiles
from mugraph.lower.tile_form import Matmul, Tile

VECTOR_ROWS = 4
"""Rows that one thread computes: each element of the right factor serves them all."""
_LONGEST_RUN = 4
"""Values of k that one load brings: a widest access of fp32 numbers."""
_MOST_SUMS = 32
"""Sums that a thread keeps in registers while factors stream."""


def rows_together(product: Matmul) -> int:
    """Rows that one thread computes."""
    return min(VECTOR_ROWS, product.target.shape[-2])


def tasks_of(product: Matmul) -> int:
    """Columns of bands of rows, one of which a thread computes at a time."""
    *batch, rows, columns = product.target.shape
    return math.prod(batch) * -(-rows // rows_together(product)) * columns


def rounds_of(product: Matmul, threads: int) -> int:
    """Tasks that the first thread computes."""
    return -(-tasks_of(product) // threads)


def sums_stay_in_registers(product: Matmul, threads: int) -> bool:
    """Whether every thread can keep the sums of all its tasks at the same time."""
    return rounds_of(product, threads) * rows_together(product) <= _MOST_SUMS


def run_along_k(tile: Tile, inner: int) -> int:
    """Values of k that one load brings of a factor whose k is dimension `inner`: several where they lie together, aligned."""
    return tiles.run_along(tile, inner, _LONGEST_RUN)
