"""Matrix products: which form suits the strides of the factors.

*Outer*: the right factor's rows are contiguous. *Inner*: both factors are contiguous along k. A product whose rows, not columns,
are contiguous is computed transposed.
"""

from __future__ import annotations

from dataclasses import replace

from mugraph.lower import tiles
from mugraph.lower.tile_form import Matmul
from mugraph.targets.cpu.copied_factors import CopiedPairs, CopiedVectors, strips_copied
from mugraph.targets.cpu.dequantizing import dequantizing
from mugraph.targets.cpu.matrix_tiles import PackedTiles, strips_for
from mugraph.targets.cpu.pairs import InnerPairs, OuterPairs, PackedPairs, multiplies_pairs
from mugraph.targets.cpu.panels import PairPanels, VectorPanels, strips_in_panels
from mugraph.targets.cpu.products import Inner, Outer, Packed, Product
from mugraph.targets.cpu.source import Writer


def print_matmul(writer: Writer, statement: Matmul) -> None:
    """Write a (batched) product."""
    batch = statement.target.shape[:-2]
    left, right = (tiles.broadcast(tile, (*batch, *tile.shape[-2:])) for tile in (statement.left, statement.right))
    product = oriented(replace(statement, left=left, right=right))
    with writer.block():
        writer.pointer("c", product.target, written=True)
        writer.pointer("a", product.left)
        writer.pointer("b", product.right)
        _batched(writer, product, 0)


def oriented(product: Matmul) -> Matmul:
    """The product, or the transposed product of the transposed factors where that makes rows contiguous."""
    if product.right.strides[-1] != 1 and product.left.strides[-2] == 1 and product.left.strides[-1] != 1:
        left, right = tiles.transposed(product.right), tiles.transposed(product.left)
        return replace(product, target=tiles.transposed(product.target), left=left, right=right)
    return product


def _batched(writer: Writer, product: Matmul, dim: int) -> None:
    if dim == product.target.rank - 2:
        form_of(writer, product).write()
        return
    with writer.block(f"for (long n{dim} = 0; n{dim} < {product.target.shape[dim]}; ++n{dim})"):
        _batched(writer, product, dim + 1)


def form_of(writer: Writer, product: Matmul) -> Product:
    """The form that reads both factors along contiguous dimensions, where there is one."""
    depth, right = product.left.shape[-1], product.right
    if product.dequantized is not None:
        return dequantizing(writer, product)
    if product.strips is not None:
        if product.strips == strips_for(product, writer.dtype(right), writer.vectors):
            return PackedTiles(writer, product)
        if product.strips == strips_in_panels(product, writer.dtype(right), writer.vectors):
            return (PairPanels if product.strips.pairs else VectorPanels)(writer, product)
        return (PackedPairs if product.strips.pairs else Packed)(writer, product)
    if (strips := strips_copied(product, writer.dtype(right), writer.vectors)) is not None:
        return (CopiedPairs if strips.pairs else CopiedVectors)(writer, replace(product, strips=strips))
    pairs = multiplies_pairs(product, writer.dtype(right), writer.vectors)
    if product.left.strides[-1] == 1 and right.strides[-2] == 1 and right.strides[-1] != 1 and depth > 1:
        return InnerPairs(writer, product) if pairs else Inner(writer, product)
    return OuterPairs(writer, product) if pairs and right.strides[-1] == 1 else Outer(writer, product)
