"""Right factors that do not change between calls, packed for the products of a kernel.

Rows of a weight matrix lie pages apart, and a product that keeps a tile of its target in registers reads a few numbers of each.
Packed, the same numbers follow each other in memory in the order in which the product reads them: the hardware's prefetching
follows one stream, and each page is read from its start to its end.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from mugraph.ir.dtypes import DType
from mugraph.lower import tiles
from mugraph.lower.packing import Packing
from mugraph.lower.tile_form import Index, Kernel, Matmul, Statement, Strips, Tile
from mugraph.targets.cpu.matmul import multiplies_pairs, oriented
from mugraph.targets.cpu.matrix_tiles import strips_for
from mugraph.targets.cpu.products import outer_tile
from mugraph.targets.cpu.source import Vectors

_WIDTHS = (1, 2, 3, 4, 6, 8)
"""Vectors that a strip may be wide."""
_LONGEST = 512
"""Rows of a panel, which is summed by itself."""
_PANEL_BYTES = 1 << 14
"""What rows of the left factor may take of the first-level cache, and a strip that is read more than once."""


def with_packed_factors(kernel: Kernel, constants: Collection[str], vectors: Vectors) -> tuple[Kernel, dict[str, Packing]]:
    """The kernel as it reads those of its inputs `constants` packed that it can, and how these are packed."""
    packings: dict[str, Packing] = {}
    for name in constants:
        readers = [s for s in kernel.statements if any(tile.buffer == name for tile in s.sources)]
        if len(readers) != 1 or not isinstance(readers[0], Matmul) or readers[0].strips is not None:
            continue
        product = _with_right(readers[0], name)
        packing = None if product is None else _packing(kernel, product, vectors)
        if product is not None and packing is not None:
            kernel = _reading(kernel, readers[0], product, packing)
            packings[name] = packing
    return kernel, packings


def _with_right(statement: Matmul, name: str) -> Matmul | None:
    """The product, or the transposed one, with an input as its right factor; None where its target would not be contiguous."""
    batch = statement.target.shape[:-2]
    left, right = (tiles.broadcast(tile, (*batch, *tile.shape[-2:])) for tile in statement.sources)
    product = oriented(replace(statement, left=left, right=right))
    if product.right.buffer != name:
        target, left, right = map(tiles.transposed, (product.target, product.right, product.left))
        product = replace(product, target=target, left=left, right=right)
    whole = product.right.buffer == name and product.left.buffer != name and product.right.lookup is None
    return product if whole and product.target.strides[-1] == 1 else None


def _packing(kernel: Kernel, product: Matmul, vectors: Vectors) -> Packing | None:
    """How the right factor of a product is packed; None where windows of it overlap."""
    right = product.right
    windows = [(count, step) for count, step in _steps(kernel, right) if step]
    *batch, rows, columns = (*zip(right.shape, right.strides, strict=True),)
    windows += [(count, step) for count, step in batch if count > 1 and step]
    shape, strides = (rows[0], columns[0]), (rows[1], columns[1])
    offset = right.start.constant
    if min((step for _, step in (*windows, rows, columns)), default=0) < 0 or min(shape) < 1:
        return None
    packing = Packing(offset, tuple(windows), shape, strides, _strips(kernel, product, vectors))
    return packing if packing.elements <= kernel.buffer(right.buffer).elements else None


def _steps(kernel: Kernel, tile: Tile) -> list[tuple[int, int]]:
    """How often a tile moves with each dimension of the grid and with the iteration, and how far."""
    steps = (*(tile.start.grid or (0,) * len(kernel.grid)), tile.start.loop)
    return [(count, step if count > 1 else 0) for count, step in zip((*kernel.grid, kernel.loop), steps, strict=True)]


def _strips(kernel: Kernel, product: Matmul, vectors: Vectors) -> Strips:
    """The panels and strips that a product reads its right factor in."""
    rows, depth = product.left.shape[-2:]
    columns = product.right.shape[-1]
    right, target = (kernel.buffer(tile.buffer).dtype for tile in (product.right, product.target))
    if (tiled := strips_for(product, right, vectors)) is not None:
        return tiled
    pairs = multiplies_pairs(product, right, vectors)
    tall, wide = outer_tile(rows, -(-columns // vectors.lanes), vectors, _WIDTHS)
    if target is not DType.FP32:
        return Strips(depth, wide * vectors.lanes, pairs)  # sums of panels would be rounded
    held = rows if rows <= tall else max(rows, wide * vectors.lanes)
    fitting = max(_PANEL_BYTES // (DType.FP32.bytes * held) // 16 * 16, 64)
    return Strips(min(depth, fitting, _LONGEST), wide * vectors.lanes, pairs)


def _reading(kernel: Kernel, statement: Matmul, product: Matmul, packing: Packing) -> Kernel:
    """The kernel with a product in the place of a statement, whose right factor is packed."""
    right = product.right
    step = math.prod(packing.shape)
    batch: list[int] = []
    for count, stride in reversed((*zip(right.shape[:-2], right.strides[:-2], strict=True),)):
        moves = count > 1 and stride != 0
        batch.append(step if moves else 0)
        step *= count if moves else 1
    coefficients: list[int] = []
    for count, stride in reversed(_steps(kernel, right)):
        coefficients.append(step if stride else 0)
        step *= count if stride else 1
    loop, *grid = coefficients
    start = Index(0, tuple(reversed(grid)), loop)
    strides = (*reversed(batch), packing.shape[1], 1)
    packed = replace(product, right=replace(right, strides=strides, start=start), strips=packing.strips)

    def part(statements: Sequence[Statement]) -> tuple[Statement, ...]:
        return tuple(packed if each is statement else each for each in statements)

    return replace(
        kernel,
        buffers=tuple(replace(b, elements=packing.elements) if b.name == right.buffer else b for b in kernel.buffers),
        before=part(kernel.before),
        body=part(kernel.body),
        after=part(kernel.after),
        loads=tuple(load for load in kernel.loads if load.tile.buffer != right.buffer),
        tensors=tuple((value, tile) for value, tile in kernel.tensors if tile.buffer != right.buffer),
    )
