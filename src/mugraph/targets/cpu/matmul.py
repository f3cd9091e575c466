"""Matrix products: which form suits the strides of the factors.

*Outer*: the right factor's rows are contiguous. *Inner*: both factors are contiguous along k. A product whose rows,
not columns, are contiguous is computed transposed. Either form multiplies pairs of bf16 numbers where the host can.
"""

from __future__ import annotations

from dataclasses import replace

from mugraph.ir.dtypes import DType
from mugraph.lower import tiles
from mugraph.lower.tile_form import Matmul
from mugraph.targets.cpu.pairs import InnerPairs, OuterPairs
from mugraph.targets.cpu.products import Inner, Outer, Product
from mugraph.targets.cpu.source import Writer

_PACKED_BYTES = 1 << 16
"""Largest left factor that is converted to bf16 pairs on the stack."""


def print_matmul(writer: Writer, statement: Matmul) -> None:
    """Write a (batched) product."""
    batch = statement.target.shape[:-2]
    left, right = (tiles.broadcast(tile, (*batch, *tile.shape[-2:])) for tile in statement.sources)
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
    (rows, depth), right = product.left.shape[-2:], product.right
    small = rows * depth * DType.BF16.bytes <= _PACKED_BYTES
    bf16 = product.dtype is DType.BF16 and writer.dtype(right) is DType.BF16
    pairs = writer.vectors.bf16_pairs and bf16 and depth % 2 == 0 and small
    if product.left.strides[-1] == 1 and right.strides[-2] == 1 and right.strides[-1] != 1 and depth > 1:
        return InnerPairs(writer, product) if pairs else Inner(writer, product)
    return OuterPairs(writer, product) if pairs and right.strides[-1] == 1 else Outer(writer, product)
