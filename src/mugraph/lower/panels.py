"""Panels of factors in the slots of the ring: how their rows lie there, and which other statements read them there.

A panel's dimension order is that of the factor in device memory, since copies move 16 bytes in a row; nothing else ties its
layout to that of another buffer, so each panel is laid out by itself: plain, swizzled or padded, whatever takes the fewest
wavefronts.

A factor that is one panel lies whole in its slot from the product that waited for it until the next one asks for a panel. Tiles
that a product and other statements read pass through the ring once: the others are moved right behind the product.
"""

from __future__ import annotations

import math
from dataclasses import replace

from mugraph.lower.access_costs import copy_traffic, factor_traffic
from mugraph.lower.fragments import WarpTiles
from mugraph.lower.layouts import BufferLayout, Dimensions
from mugraph.lower.order import depends
from mugraph.lower.places import Index
from mugraph.lower.tile_form import Buffer, Elementwise, Kernel, Matmul, Memory, Panels, Reduce, Statement, Tile


def laid_out(product: Matmul, panels: Panels, split: WarpTiles, whole_rows: bool) -> Panels:
    """The panels of a product, whose target warps share out in `split`, in their best layouts, the right one behind the left;
    those given have plain rows.

    With `whole_rows` none is swizzled.
    """
    left, elements = _best(product, panels.left, -1, split, whole_rows, Index())
    right, _ = _best(product, panels.right, -2, split, whole_rows, Index(elements))
    return Panels(panels.depth, left, right)


def elements_of(panels: Panels) -> int:
    """Elements of a slot that a product's panels reach to."""
    return max(tile.start.constant + _elements(tile) for tile in (panels.left, panels.right) if tile is not None)


def _elements(tile: Tile) -> int:
    span = max(size * stride for size, stride in zip(tile.shape, tile.strides, strict=True))
    return span if tile.swizzle is None else -(-span // tile.swizzle.block) * tile.swizzle.block


def _best(
    product: Matmul, panel: Tile | None, inner: int, split: WarpTiles, whole_rows: bool, start: Index
) -> tuple[Tile | None, int]:
    """The panel of a factor whose k is dimension `inner`, and the elements up to its end."""
    if panel is None:
        return None, start.constant
    buffer = Buffer(panel.buffer, Memory.SHARED, product.dtype, 0)
    order = sorted(range(panel.rank), key=lambda dim: -panel.strides[dim])
    dims = Dimensions(tuple(panel.shape[dim] for dim in order), tuple(panel.strides[dim] for dim in order), windows=whole_rows)

    def cost(layout: BufferLayout) -> float:
        tile = dims.relaid(panel, layout)
        traffic = copy_traffic(buffer, tile) + factor_traffic(buffer, product, tile, inner, split)
        return layout.cost + traffic.cost

    best = min(dims.layouts_along(len(order) - 1, buffer.dtype.bytes), key=cost)
    return replace(dims.relaid(panel, best), start=start), start.constant + best.elements


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
        matching = [new for extent, old, new in (rows, columns) if old == stride and 1 < size <= extent]
        if size > 1 and stride and not matching:
            return None
        strides.append(matching[0] if matching else 0)
    return replace(tile, buffer=place.buffer, strides=tuple(strides), start=place.start, swizzle=place.swizzle)
