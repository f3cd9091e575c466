"""How the rows of a panel lie in its slot of the ring: plain, swizzled or padded, whatever takes the fewest wavefronts.

A panel's dimension order is that of the factor in device memory, since copies move 16 bytes in a row; nothing else ties
its layout to that of another buffer, so each panel is laid out by itself.
"""

from __future__ import annotations

from dataclasses import replace

from mugraph.lower.access_costs import copy_traffic, factor_traffic
from mugraph.lower.layouts import BufferLayout, Dimensions
from mugraph.lower.tile_form import Buffer, Index, Matmul, Memory, Panels, Tile


def laid_out(product: Matmul, panels: Panels, threads: int, whole_rows: bool) -> Panels:
    """The panels of a product in their best layouts, the right one behind the left; those given have plain rows.

    With `whole_rows` none is swizzled.
    """
    left, elements = _best(product, panels.left, -1, threads, whole_rows, Index())
    right, _ = _best(product, panels.right, -2, threads, whole_rows, Index(elements))
    return Panels(panels.depth, left, right)


def elements_of(panels: Panels) -> int:
    """Elements of a slot that a product's panels reach to."""
    return max(tile.start.constant + _elements(tile) for tile in (panels.left, panels.right) if tile is not None)


def _elements(tile: Tile) -> int:
    span = max(size * stride for size, stride in zip(tile.shape, tile.strides, strict=True))
    return span if tile.swizzle is None else -(-span // tile.swizzle.block) * tile.swizzle.block


def _best(
    product: Matmul, panel: Tile | None, inner: int, threads: int, whole_rows: bool, start: Index
) -> tuple[Tile | None, int]:
    """The panel of a factor whose k is dimension `inner`, and the elements up to its end."""
    if panel is None:
        return None, start.constant
    buffer = Buffer(panel.buffer, Memory.SHARED, product.dtype, 0)
    order = sorted(range(panel.rank), key=lambda dim: -panel.strides[dim])
    dims = Dimensions(tuple(panel.shape[dim] for dim in order), tuple(panel.strides[dim] for dim in order), windows=whole_rows)

    def cost(layout: BufferLayout) -> float:
        tile = dims.relaid(panel, layout)
        traffic = copy_traffic(buffer, tile) + factor_traffic(buffer, product, tile, inner, threads)
        return layout.cost + traffic.cost

    best = min(dims.layouts_along(len(order) - 1, buffer.dtype.bytes), key=cost)
    return replace(dims.relaid(panel, best), start=start), start.constant + best.elements
