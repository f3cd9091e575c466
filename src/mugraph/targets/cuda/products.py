"""Matrix products: on matrix units where both factors are of 16 bits, else on vector units."""

from __future__ import annotations

from dataclasses import replace

from mugraph.lower import tiles
from mugraph.lower.fragments import on_matrix_units
from mugraph.lower.tile_form import Matmul
from mugraph.targets.cuda.matrix_units import write_matrix_product
from mugraph.targets.cuda.source import KernelText
from mugraph.targets.cuda.vector_units import write_vector_product


def print_product(text: KernelText, product: Matmul) -> None:
    """Write a (batched) product."""
    batch = product.target.shape[:-2]
    left, right = (tiles.broadcast(tile, (*batch, *tile.shape[-2:])) for tile in product.sources)
    product = replace(product, left=left, right=right)
    with text.block():
        text.pointer("a", left)
        text.pointer("b", right)
        if on_matrix_units(product):
            write_matrix_product(text, product)
        else:
            write_vector_product(text, product)
