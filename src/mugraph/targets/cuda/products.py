"""Matrix products: on matrix units where both factors are of 16 bits, else on vector units."""

from __future__ import annotations

import math
from dataclasses import replace

from mugraph.lower import tiles
from mugraph.lower.fragments import on_matrix_units
from mugraph.lower.lowered import Matmul
from mugraph.lower.parallel import VECTOR_ROWS
from mugraph.targets.cuda.matrices import write_batch_offsets, write_result
from mugraph.targets.cuda.matrix_units import write_matrix_product
from mugraph.targets.cuda.source import KernelText
from mugraph.targets.source import scaled


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
            _write_vector_product(text, product)


def _write_vector_product(text: KernelText, product: Matmul) -> None:
    """Each thread computes a few rows of one column; neighbouring threads take neighbouring columns."""
    left, right = product.left, product.right
    *batch, rows, columns = product.target.shape
    depth, tall = left.shape[-1], min(VECTOR_ROWS, rows)
    bands = -(-rows // tall)
    tasks = math.prod(batch) * bands * columns
    text.pointer("c", product.target, written=True)
    with text.block(f"for (int task = thread; task < {tasks}; task += {text.threads})"):
        text.line(f"const int n = task % {columns}, band = task / {columns} % {bands}, batch = task / {columns * bands};")
        write_batch_offsets(text, {"a": left, "b": right, "c": product.target})
        text.line(f"float sum[{tall}] = {{}};")
        with text.block(f"for (int k = 0; k < {depth}; ++k)"):
            column = text.element("b", right, ["b_batch", scaled(right.strides[-2], "k"), scaled(right.strides[-1], "n")])
            text.line(f"const float factor = to_float(*({column}));")
            text.line("#pragma unroll")
            with text.block(f"for (int r = 0; r < {tall}; ++r)"):
                row = f"min(band * {tall} + r, {rows - 1})" if rows % tall else f"(band * {tall} + r)"
                element = text.element("a", left, ["a_batch", scaled(left.strides[-2], row), scaled(left.strides[-1], "k")])
                text.line(f"sum[r] = fma(to_float(*({element})), factor, sum[r]);")
        text.line("#pragma unroll")
        with text.block(f"for (int r = 0; r < {tall}; ++r)"):
            text.line(f"const int m = band * {tall} + r;")
            with text.block(f"if (m < {rows})"):
                write_result(text, product.target, "m", "n", "sum[r]", product.accumulate)
