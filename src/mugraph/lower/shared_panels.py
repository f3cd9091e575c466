"""Tiles that a product and other statements read: they pass through the ring once, and all read them there.

A factor that is one panel lies whole in its slot from the product that waited for it until the next one asks for a
panel. Statements that read the same tile are moved there, right behind the product.
"""

from __future__ import annotations

import math
from dataclasses import replace

from mugraph.lower.order import depends
from mugraph.lower.tile_form import Elementwise, Kernel, Matmul, Reduce, Statement, Tile


def with_shared_panels(kernel: Kernel) -> Kernel:
    """The kernel with every statement that can read a streamed factor in the ring doing so."""
    before, body, after = (_shared(part) for part in (kernel.before, kernel.body, kernel.after))
    return replace(kernel, before=before, body=body, after=after)


def others_read(kernel: Kernel, factor: Tile) -> bool:
    """Whether a statement that is no product reads the tile of a factor, in a part of the kernel that a product does too."""
    for part in (kernel.before, kernel.body, kernel.after):
        multiplied = any(isinstance(s, Matmul) and factor in s.sources for s in part)
        if multiplied and any(_place_of(factor, factor, tile) for s in part if not isinstance(s, Matmul) for tile in s.sources):
            return True
    return False


def _shared(part: tuple[Statement, ...]) -> tuple[Statement, ...]:
    statements = list(part)
    for product in part:
        if not isinstance(product, Matmul) or product.panels is None or product.panels.depth != product.left.shape[-1]:
            continue
        for factor, place in ((product.left, product.panels.left), (product.right, product.panels.right)):
            for reader in list(statements):
                if place is not None and isinstance(reader, (Elementwise, Reduce)):
                    _move(statements, reader, product, factor, place)
    return tuple(statements)


def _move(statements: list[Statement], reader: Elementwise | Reduce, product: Matmul, factor: Tile, place: Tile) -> None:
    """Put a reader of a factor behind the product, reading the ring, where nothing that runs between forbids it."""
    sources = tuple(_place_of(factor, place, tile) or tile for tile in reader.sources)
    if sources == reader.sources:
        return
    here, there = statements.index(reader), statements.index(product)
    between = statements[there + 1 : here] if there < here else statements[here + 1 : there + 1]
    if not any(depends(other, reader) for other in between):
        statements.remove(reader)
        statements.insert(statements.index(product) + 1, replace(reader, sources=sources))


def _place_of(factor: Tile, place: Tile, tile: Tile) -> Tile | None:
    """A tile of the factor's elements as a window of the factor's place; None where it is no such tile."""
    if tile.buffer != factor.buffer or tile.start != factor.start or math.prod(factor.shape[:-2]) > 1:
        return None
    rows, columns = zip(factor.shape[-2:], factor.strides[-2:], place.strides[-2:], strict=True)
    strides: list[int] = []
    for size, stride in zip(tile.shape, tile.strides, strict=True):
        known = [new for extent, old, new in (rows, columns) if old == stride and 1 < size <= extent]
        if size > 1 and stride and not known:
            return None
        strides.append(known[0] if known else 0)
    return replace(tile, buffer=place.buffer, strides=tuple(strides), start=place.start, swizzle=place.swizzle)
