"""Matrix products: which form suits the strides of the factors.

*Outer*: the right factor's rows are contiguous. *Inner*: both factors are contiguous along k. A product whose rows, not columns,
are contiguous is computed transposed.
"""

from __future__ import annotations

from dataclasses import replace

from mugraph.lower import tiles
from mugraph.lower.tile_form import Kernel, Matmul
from mugraph.targets.cpu.copied_factors import (
    CopiedPairs,
    CopiedTiles,
    CopiedVectors,
    copies_to_tiles,
    in_copied_parts,
    strips_copied,
)
from mugraph.targets.cpu.dequantizing import dequantizing_form
from mugraph.targets.cpu.matrix_tiles import PackedTiles, in_blocks_of_rows, strips_for
from mugraph.targets.cpu.pairs import InnerPairs, OuterPairs, PackedPairs, multiplies_pairs
from mugraph.targets.cpu.panels import PairPanels, VectorPanels, strips_in_panels
from mugraph.targets.cpu.products import Bound, Inner, Outer, Packed, Product
from mugraph.targets.cpu.source import HELD, Vectors, Writer


def print_matmul(writer: Writer, statement: Matmul, bounded: int | None = None) -> None:
    """Write a (batched) product, along the dimension `bounded` of its points up to `held` elements."""
    given = _broadcast(statement)
    product = oriented(given)
    bound = None if bounded is None else bounded - statement.target.rank
    if product is not given and bound:
        bound = _TURNED.get(bound, bound)
    parts: tuple[Matmul, ...] = (product,)
    if bound is None:
        product = _in_blocks(writer, product)
        parts = in_copied_parts(product, writer.dtype(product.right), writer.dtype(product.target), writer.vectors)
    for part in parts:
        with writer.block():
            writer.pointer("c", part.target, written=True)
            writer.pointer("a", part.left)
            writer.pointer("b", part.right)
            _batched(writer, part, 0, bound)


def packed_on_tiles(writer: Writer, statement: Matmul) -> PackedTiles | None:
    """A product of the matrix unit by a right factor that lies packed as it is; None for others."""
    form = form_of(writer, _in_blocks(writer, oriented(_broadcast(statement))))
    return form if type(form) is PackedTiles else None


def _in_blocks(writer: Writer, product: Matmul) -> Matmul:
    """The product as it is printed where no dimension of it is bounded."""
    return in_blocks_of_rows(product) if _is_on_tiles(writer, product) else product


def _is_on_tiles(writer: Writer, product: Matmul) -> bool:
    """Whether the matrix unit multiplies with a right factor that lies packed."""
    if product.dequantized is not None:
        return issubclass(dequantizing_form(writer, product), PackedTiles)
    strips = strips_for(product, writer.dtype(product.right), writer.vectors)
    return product.strips is not None and product.strips == strips


_TURNED = {-1: -2, -2: -1}
"""The last two dimensions of a product in its transposed one."""


def _broadcast(statement: Matmul) -> Matmul:
    """The product with factors of as many dimensions as the target."""
    batch = statement.target.shape[:-2]
    left, right = (tiles.broadcast(tile, (*batch, *tile.shape[-2:])) for tile in (statement.left, statement.right))
    return replace(statement, left=left, right=right)


def product_stops(vectors: Vectors, kernel: Kernel, statement: Matmul, bounded: int) -> bool:
    """Whether a product is printed along the dimension `bounded` of its points up to `held` elements as if all were."""
    given = _broadcast(statement)
    product = oriented(given)
    right, rank = kernel.buffer(product.right.buffer).dtype, statement.target.rank
    columns = bounded == rank - (1 if product is given else 2)
    if columns or bounded == rank:
        in_strips = product.strips is not None or strips_copied(product, right, vectors) is not None
        return not in_strips and (is_inner(product) or not columns)
    return product.dequantized is None


def oriented(product: Matmul) -> Matmul:
    """The product, or the transposed product of the transposed factors where that makes rows contiguous."""
    if product.right.strides[-1] != 1 and product.left.strides[-2] == 1 and product.left.strides[-1] != 1:
        left, right = tiles.transposed(product.right), tiles.transposed(product.left)
        return replace(product, target=tiles.transposed(product.target), left=left, right=right)
    return product


def _batched(writer: Writer, product: Matmul, dim: int, bound: int | None) -> None:
    if dim == product.target.rank - 2:
        form_of(writer, product, Bound(bound) if bound in (-1, -2, 0) else None).write()
        return
    end = HELD if bound is not None and dim == product.target.rank + bound else product.target.shape[dim]
    with writer.block(f"for (long n{dim} = 0; n{dim} < {end}; ++n{dim})"):
        _batched(writer, product, dim + 1, bound)


def is_inner(product: Matmul) -> bool:
    """Whether a product with no factor in strips is one of dot products: both factors are contiguous along k."""
    left, right = product.left.strides, product.right.strides
    return left[-1] == 1 and right[-2] == 1 and right[-1] != 1 and product.left.shape[-1] > 1


def form_of(writer: Writer, product: Matmul, bound: Bound | None = None) -> Product:
    """The form that reads both factors along contiguous dimensions, where there is one."""
    right = product.right
    if product.dequantized is not None:
        return dequantizing_form(writer, product)(writer, product)
    if product.strips is not None:
        if _is_on_tiles(writer, product):
            return PackedTiles(writer, product, bound)
        if product.strips == strips_in_panels(product, writer.dtype(right), writer.vectors):
            return (PairPanels if product.strips.pairs else VectorPanels)(writer, product, bound)
        return (PackedPairs if product.strips.pairs else Packed)(writer, product, bound)
    if (strips := strips_copied(product, writer.dtype(right), writer.vectors)) is not None:
        on_tiles = copies_to_tiles(product, writer.dtype(right), writer.vectors)
        form = CopiedTiles if on_tiles else CopiedPairs if strips.pairs else CopiedVectors
        return form(writer, replace(product, strips=strips), bound)
    pairs = multiplies_pairs(product, writer.dtype(right), writer.vectors)
    if is_inner(product):
        return InnerPairs(writer, product, bound) if pairs else Inner(writer, product, bound)
    return OuterPairs(writer, product, bound) if pairs and right.strides[-1] == 1 else Outer(writer, product, bound)
