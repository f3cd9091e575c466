"""How blocks of generated kernels for GPUs share out products, told of sizes alone: what lowering does, and what costs expect.

A product multiplies `matrices` pairs of [rows, depth] and [depth, columns]. Sizes are numbers, or arrays of a number for each of
several schedules, which broadcast.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mugraph.devices.copies import COPY_BYTES
from mugraph.ir.dtypes import DType

Sizes = npt.NDArray[np.float64] | float
Truths = npt.NDArray[np.bool_] | bool

WARP = 32
"""Threads that run in step and exchange registers."""
ROWS, COLUMNS, DEPTH = 16, 8, 16
"""What one instruction of matrix units multiplies: left [ROWS, DEPTH], right [DEPTH, COLUMNS]."""
VECTOR_ROWS = 4
"""Rows that one thread computes without matrix units: each element of the right factor serves them all."""
MOST_TILES = 16
"""Tiles of the target in the registers of one warp: 64 registers of each thread."""
_MOST_SUMS = 32
"""Sums that a thread keeps in registers while factors stream, without matrix units."""
_RUN_BYTES = 128
"""Shortest run of a factor whose rows go along k, so that every row brings whole lines of memory."""
_MOST_THREADS = 256
"""More threads than these leave each too few registers for fragments."""
_ELEMENTS_PER_THREAD = 4
_COUNTS = (1, 2, 4, 8, 16)
SPLITS = tuple((down, across) for down in _COUNTS for across in _COUNTS if down * across <= MOST_TILES)
"""Tiles of the target that a warp may take together: so many below and beside each other."""
_DOWN, _ACROSS = np.array(SPLITS, float).T
_AFTER_ALL = 2.0 * MOST_TILES
"""More than a round of instructions takes."""


class Product(NamedTuple):
    """The sizes of a product, and the type in which it multiplies."""

    matrices: Sizes
    rows: Sizes
    columns: Sizes
    depth: Sizes
    dtype: DType


def threads_for(elements: Sizes) -> Sizes:
    """Threads of a block, a power of two of whole warps: a few each of the elements that are worked on at the same time."""
    threads: Sizes = np.clip(2.0 ** np.ceil(np.log2(np.ceil(elements / _ELEMENTS_PER_THREAD))), WARP, _MOST_THREADS)
    return threads


def at_once(product: Product) -> Sizes:
    """What threads can multiply at the same time."""
    return product.matrices * product.rows * product.columns * np.minimum(WARP, product.depth)


def in_matrix_units(product: Product) -> Truths:
    """Whether matrix units may multiply the factors (16 bits), and would not idle more than they work."""
    large = np.logical_and(np.maximum(product.rows, product.columns) >= COLUMNS, product.depth >= DEPTH)
    return np.logical_and(large, product.dtype in (DType.FP16, DType.BF16))


def warp_tasks(product: Product, warps: Sizes) -> tuple[npt.NDArray[np.intp], Sizes]:
    """For the split of the target that keeps matrix units busiest, its place in `SPLITS`, and the tasks of the whole product.

    It has one task for each warp at most where some split has, as sums of products that stream must; then fewest rounds of
    instructions, then fewest loads.
    """
    matrices, rows, columns = (np.asarray(size)[..., None] for size in product[:3])
    sizes = product._replace(matrices=matrices, rows=rows, columns=columns)
    rounds = np.ceil(_tasks(sizes, _DOWN, _ACROSS) / np.asarray(warps)[..., None])
    turns = rounds * (_DOWN * _ACROSS + 0.5 * (_DOWN + _ACROSS))
    best = np.argmin(np.where(rounds > 1, _AFTER_ALL + turns, turns), axis=-1)
    return best, _tasks(product, _DOWN[best], _ACROSS[best])


def _tasks(product: Product, down: Sizes, across: Sizes) -> Sizes:
    """Tasks of warps that take so many tiles of the target below and beside each other."""
    tasks: Sizes = product.matrices * np.ceil(product.rows / (ROWS * down)) * np.ceil(product.columns / (COLUMNS * across))
    return tasks


def vector_tasks(product: Product) -> Sizes:
    """Columns of bands of rows, one of which a thread computes at a time without matrix units."""
    tasks: Sizes = product.matrices * np.ceil(product.rows / np.minimum(VECTOR_ROWS, product.rows)) * product.columns
    return tasks


def parts_of_depth(product: Product, threads: Sizes) -> Sizes:
    """Parts that k is cut into without matrix units, so that no thread is idle; 1 where there are tasks enough."""
    tasks = vector_tasks(product)
    parts = np.gcd(np.asarray(threads // tasks, np.intp), np.asarray(product.depth, np.intp))
    return np.where(np.logical_or(in_matrix_units(product), 2 * tasks > threads), 1, parts)


def keeps_sums(product: Product, threads: Sizes) -> Truths:
    """Whether the registers of a block hold the sums of the whole target: one task for each warp, or all tasks of its threads."""
    _, tasks = warp_tasks(product, threads // WARP)
    of_thread = np.ceil(vector_tasks(product) / threads) * np.minimum(VECTOR_ROWS, product.rows)
    return np.where(in_matrix_units(product), tasks <= threads // WARP, of_thread <= _MOST_SUMS)


def step_of_depth(product: Product) -> Sizes:
    """Values of k that panels have whole multiples of, and so has what streams."""
    run = COPY_BYTES // product.dtype.bytes
    return np.where(in_matrix_units(product), DEPTH, np.gcd(run, np.asarray(product.depth, np.intp)))


def least_depth(product: Product, along_k: Truths) -> Sizes:
    """Values of k of the smallest panel: one step, more where rows of a factor go along k and would be too short."""
    step = step_of_depth(product)
    return np.where(along_k, _by_pairs(product.depth, step, product.dtype.bytes), step)


class Factor(NamedTuple):
    """A factor that lies in device memory in the product's type: elements of its rows there, and whether these go along k."""

    row: Sizes
    along_k: bool


class Streams(NamedTuple):
    """Which factors of a product can pass through a ring, and bytes of the smallest panels of these, and of all they are."""

    left: Truths
    right: Truths
    panel: Sizes
    whole: Sizes


def streams(product: Product, left: Factor | None, right: Factor | None, threads: Sizes) -> Streams:
    """How factors could stream in blocks of so many threads; None for one that is not in device memory as it is multiplied."""
    parts = parts_of_depth(product, threads)
    part = product._replace(matrices=product.matrices * parts, depth=product.depth / parts)
    can = np.logical_and(keeps_sums(part, threads), np.equal(np.mod(part.depth, step_of_depth(part)), 0))

    def copied(factor: Factor | None) -> tuple[Truths, Truths]:
        """Whether a factor is copied, and whether its panels then have rows along k."""
        if factor is None:
            return False, False
        row = factor.row / parts if factor.along_k else factor.row
        through = np.logical_and(can, in_whole_copies(row, product.dtype))
        return through, np.logical_and(through, factor.along_k)

    (on_left, left_along), (on_right, right_along) = copied(left), copied(right)
    bytes_of_k = part.matrices * (part.rows * on_left + part.columns * on_right) * product.dtype.bytes
    smallest = least_depth(part, np.logical_or(left_along, right_along))
    panel: Sizes = np.asarray(bytes_of_k * smallest, float)
    whole: Sizes = np.asarray(bytes_of_k * part.depth, float)
    return Streams(on_left, on_right, panel, whole)


def in_whole_copies(elements: Sizes, dtype: DType) -> Truths:
    """Whether asynchronous copies take rows of so many elements, which lie behind each other."""
    return np.equal(np.mod(elements * dtype.bytes, COPY_BYTES), 0)


def _by_pairs(depth: Sizes, step: Sizes, width: int) -> Sizes:
    depths, steps = np.broadcast_arrays(np.asarray(depth, np.intp), np.asarray(step, np.intp))
    pairs, places = np.unique(depths * (1 << 8) + steps, return_inverse=True)  # steps are of a few bytes
    found = np.array([_long_enough(*divmod(int(pair), 1 << 8), width) for pair in pairs], float)
    return found[places].reshape(depths.shape)


@lru_cache(maxsize=1 << 12)
def _long_enough(depth: int, step: int, width: int) -> int:
    """The first whole part of k, in whole steps, of which a row has `_RUN_BYTES`; all of k where none has."""
    return next((part for part in range(step, depth + 1, step) if depth % part == 0 and part * width >= _RUN_BYTES), depth)
