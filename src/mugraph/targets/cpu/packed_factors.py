"""Right factors that do not change between calls, packed for the products of a kernel.

Rows of a weight matrix lie pages apart, and a product that keeps a tile of its target in registers reads a few numbers of each.
Packed, the same numbers follow each other in memory in the order in which the product reads them: the hardware's prefetching
follows one stream, and each page is read from its start to its end.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from mugraph.ir.dtypes import DType
from mugraph.lower import tiles
from mugraph.lower.packing import Packing
from mugraph.lower.places import Index
from mugraph.lower.tile_form import Kernel, Matmul, Statement, Strips, Tile
from mugraph.targets.cpu.matmul import oriented
from mugraph.targets.cpu.matrix_tiles import strips_for
from mugraph.targets.cpu.pairs import multiplies_pairs
from mugraph.targets.cpu.panels import strips_in_panels
from mugraph.targets.cpu.products import STRIP_WIDTHS, outer_tile
from mugraph.targets.cpu.source import Vectors

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
        product = with_right(readers[0], name)
        packing = None if product is None else _packing(kernel, product, vectors)
        if product is not None and packing is not None:
            packed = replace(product, right=packed_tile(kernel, product.right, packing), strips=packing.strips)
            number = next(number for number, statement in enumerate(kernel.statements) if statement is readers[0])
            kernel = with_products(kernel, {number: packed}, {name: packing})
            packings[name] = packing
    return kernel, packings


def with_right(statement: Matmul, name: str) -> Matmul | None:
    """The product, or the transposed one, with an input as its right factor; None where its target would not be contiguous."""
    batch = statement.target.shape[:-2]
    left, right = (tiles.broadcast(tile, (*batch, *tile.shape[-2:])) for tile in (statement.left, statement.right))
    product = oriented(replace(statement, left=left, right=right))
    if product.right.buffer != name:
        target, left, right = map(tiles.transposed, (product.target, product.right, product.left))
        product = replace(product, target=target, left=left, right=right)
    whole = product.right.buffer == name and product.left.buffer != name and product.right.lookup is None
    return product if whole and product.target.strides[-1] == 1 else None


def packing_of(kernel: Kernel, tile: Tile, strips: Strips) -> Packing | None:
    """How the windows of a constant tile are packed, as blocks and iterations take them; None where one goes backwards."""
    windows = [(count, step) for count, step in _steps(kernel, tile) if step]
    *batch, rows, columns = (*zip(tile.shape, tile.strides, strict=True),)
    windows += [(count, step) for count, step in batch if count > 1 and step]
    shape, strides = (rows[0], columns[0]), (rows[1], columns[1])
    if min((step for _, step in (*windows, rows, columns)), default=0) < 0 or min(shape) < 1:
        return None
    return Packing(tile.start.constant, tuple(windows), shape, strides, strips)


def _packing(kernel: Kernel, product: Matmul, vectors: Vectors) -> Packing | None:
    """How the right factor of a product is packed; None where windows of it overlap."""
    packing = packing_of(kernel, product.right, _strips(kernel, product, vectors))
    return packing if packing is not None and packing.elements <= kernel.buffer(product.right.buffer).elements else None


def _steps(kernel: Kernel, tile: Tile) -> list[tuple[int, int]]:
    """How often a tile moves with each dimension of the grid and with the iteration, and how far."""
    steps = (*(tile.start.grid or (0,) * len(kernel.grid)), tile.start.loop)
    return [(count, step if count > 1 else 0) for count, step in zip((*kernel.grid, kernel.loop), steps, strict=True)]


def _strips(kernel: Kernel, product: Matmul, vectors: Vectors) -> Strips:
    """The panels and strips that a product reads its right factor in."""
    rows, depth = product.left.shape[-2:]
    columns = product.right.shape[-1]
    right, target = (kernel.buffer(tile.buffer).dtype for tile in (product.right, product.target))
    if (paneled := strips_for(product, right, vectors) or strips_in_panels(product, right, vectors)) is not None:
        return paneled
    pairs = multiplies_pairs(product, right, vectors)
    tall, wide = outer_tile(rows, -(-columns // vectors.lanes), vectors, STRIP_WIDTHS)
    if target is not DType.FP32:
        return Strips(depth, wide * vectors.lanes, pairs)  # sums of panels would be rounded
    held = rows if rows <= tall else max(rows, wide * vectors.lanes)
    fitting = max(_PANEL_BYTES // (DType.FP32.bytes * held) // 16 * 16, 64)
    return Strips(min(depth, fitting, _LONGEST), wide * vectors.lanes, pairs)


def packed_tile(kernel: Kernel, tile: Tile, packing: Packing) -> Tile:
    """A tile where it lies packed."""
    step = math.prod(packing.shape)
    batch: list[int] = []
    for count, stride in reversed((*zip(tile.shape[:-2], tile.strides[:-2], strict=True),)):
        moves = count > 1 and stride != 0
        batch.append(step if moves else 0)
        step *= count if moves else 1
    coefficients: list[int] = []
    for count, stride in reversed(_steps(kernel, tile)):
        coefficients.append(step if stride else 0)
        step *= count if stride else 1
    loop, *grid = coefficients
    strides = (*reversed(batch), packing.shape[1], 1)
    return replace(tile, strides=strides, start=Index(0, tuple(reversed(grid)), loop))


def with_products(kernel: Kernel, products: Mapping[int, Matmul], packings: Mapping[str, Packing]) -> Kernel:
    """The kernel with other products in the place of statements, by their numbers, whose inputs are packed.

    No iteration is left out for what is packed: its elements no longer lie where it is looked at.
    """
    numbers = itertools.count()

    def part(statements: Sequence[Statement]) -> tuple[Statement, ...]:
        return tuple(products.get(next(numbers), each) for each in statements)

    return replace(
        kernel,
        before=part(kernel.before),
        body=part(kernel.body),
        after=part(kernel.after),
        buffers=tuple(replace(b, elements=packings[b.name].elements) if b.name in packings else b for b in kernel.buffers),
        loads=tuple(load for load in kernel.loads if load.tile.buffer not in packings),
        tensors=tuple((value, tile) for value, tile in kernel.tensors if tile.buffer not in packings),
        skips=tuple(skip for skip in kernel.skips if skip.tile.buffer not in packings),
    )
