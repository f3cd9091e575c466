"""Factors of fewer bits than their product multiplies, such as weights of fp8, widened in shared memory by all threads together.

Matrix units read 16 bits there, eight numbers of a row at a time; from device memory lanes would gather such a factor byte by
byte, and no copy would be on its way meanwhile. Where it is read by a statement of its own, it is copied ahead as all is that a
loop reads beside its products (`mugraph.lower.staging`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from mugraph.ir.dtypes import DType
from mugraph.lower.factor_copies import FactorCopies
from mugraph.lower.fragments import on_matrix_units
from mugraph.lower.scalar_expressions import Source
from mugraph.lower.tile_form import Kernel, Matmul, Statement, Tile


def with_widened_factors(kernel: Kernel) -> Kernel:
    """The kernel with a copy in the products' type, which is exact, of inputs that products on matrix units read in fewer bits.

    A kernel without any is returned as it is.
    """
    copies = FactorCopies("widened")

    def part(statements: Iterable[Statement]) -> Iterator[Statement]:
        for statement in statements:
            if isinstance(statement, Matmul) and on_matrix_units(product := _in_units(kernel, statement)):
                yield from copies.before(product, partial(_is_narrow, kernel, product), product.dtype, Source(0))
            else:
                yield statement

    before, body, after = (tuple(part(statements)) for statements in (kernel.before, kernel.body, kernel.after))
    if not copies.buffers:
        return kernel
    return replace(kernel, buffers=(*kernel.buffers, *copies.buffers), before=before, body=body, after=after)


def _in_units(kernel: Kernel, product: Matmul) -> Matmul:
    """The product as matrix units may take it: of two inputs of fp8 in fp16, which has all their numbers, for the same sums."""
    both = [kernel.buffer(factor.buffer) for factor in product.sources]
    if product.dtype is DType.FP32 and all(buffer.dtype.is_fp8 and buffer.name in kernel.inputs for buffer in both):
        return replace(product, dtype=DType.FP16)
    return product


def _is_narrow(kernel: Kernel, product: Matmul, factor: Tile) -> bool:
    dtype = kernel.buffer(factor.buffer).dtype
    return factor.buffer in kernel.inputs and dtype.bytes < product.dtype.bytes and product.dtype.contains(dtype)
