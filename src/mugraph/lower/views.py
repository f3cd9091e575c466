"""View operators of block and kernel graphs as arithmetic on tiles."""

from __future__ import annotations

from mugraph.ir.graph import Node, Shape
from mugraph.lower import tiles
from mugraph.lower.tile_form import Tile


def view(node: Node, tile: Tile) -> Tile | None:
    """What a view operator makes of a tile; None where strides cannot express it."""
    # by name: strides of the operand may fail to be those of the result, which index maps do not tell
    match node.op:
        case "transpose":
            return tiles.permuted(tile, node.integers("permutation"))
        case "reshape":
            return tiles.reshaped(tile, node.output.shape)
        case "slice":
            return tiles.sliced(tile, *(node.integer(name) for name in ("dim", "start", "size", "step")))
    return tile


def unview(node: Node, tile: Tile, shape: Shape) -> Tile | None:
    """The tile that a view operator's operand (of `shape`) must be so that its result is `tile`."""
    # by name: as above
    match node.op:
        case "transpose":
            return tiles.permuted(tile, tiles.inverse(node.integers("permutation")))
        case "reshape":
            return tiles.reshaped(tile, shape)
    return tile
