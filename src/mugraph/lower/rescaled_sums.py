"""Sums that are rescaled before products add to them, as online softmax does: a product's own result needs no registers.

What an iteration makes of a sum is `old * factor + (weights @ values) * weight`, both factors one number for each row. The second
one may as well multiply the weights, which registers hold as well, and then the product adds to the sum itself. Weights are
rounded to the type of the product behind that: in bf16, which has the range of fp32, they lose no more than they did.
"""

from __future__ import annotations

import math
from dataclasses import replace

from mugraph.ir.dtypes import DType
from mugraph.lower.fragments import takes_left_from_registers
from mugraph.lower.scalar_expressions import PRODUCT, RESCALED, Apply, Source
from mugraph.lower.tile_form import Buffer, Elementwise, Kernel, Matmul, Memory, Statement, Tile
from mugraph.lower.tiles import row_major
from mugraph.lower.touched_tiles import touching

_RESCALED = Apply(RESCALED, tuple(Source(number) for number in range(4)))
"""Of a sum and the factor of its rows, and a term and the factor of its rows."""
_SCALED = Apply(PRODUCT, (Source(0), Source(1)))


def with_rescaled_sums(kernel: Kernel) -> Kernel:
    """The kernel whose products add to sums that were rescaled before, where their left factors lie in registers in bf16."""
    for statement in kernel.body if kernel.loop > 1 else ():
        if isinstance(statement, Elementwise) and (product := _multiplied(kernel, statement)) is not None:
            kernel = _added(kernel, statement, product)
    return kernel


def _multiplied(kernel: Kernel, update: Elementwise) -> Matmul | None:
    """The product whose result a statement adds to a sum that it rescales; None where the product cannot add to it itself."""
    if update.expression != _RESCALED or update.combine is not None or update.sources[0] != update.target:
        return None
    total, old, term, new = update.sources
    users = touching(kernel.statements, term.buffer)
    product = users[0]
    if len(users) != 2 or not isinstance(product, Matmul) or product not in kernel.body or product.target != term:
        return None
    held = all(kernel.buffer(tile.buffer).memory is Memory.REGISTERS for tile in (total, term)) and total.shape == term.shape
    by_rows = all(factor.strides[-1] == 0 for factor in (old, new))
    fits = takes_left_from_registers(kernel, product) and product.dtype is DType.BF16 and not product.accumulate
    between = kernel.body[kernel.body.index(product) : kernel.body.index(update)]
    moves = all(s.target.buffer not in {tile.buffer for tile in product.sources} for s in between)
    return product if held and by_rows and fits and moves else None


def _added(kernel: Kernel, update: Elementwise, product: Matmul) -> Kernel:
    """The kernel with a product that adds to the sum, behind statements that multiply the sum and the product's left factor."""
    total, old, term, new = update.sources
    left = product.left
    scaled = Tile(f"{term.buffer}_factor", left.shape, row_major(left.shape))
    factor = replace(new, shape=left.shape)
    adding: tuple[Statement, ...] = (
        Elementwise(scaled, (left, factor), _SCALED, label=update.label),
        Elementwise(total, (total, old), _SCALED, label=update.label),
        replace(product, target=total, left=scaled, accumulate=True),
    )
    body = (each for s in kernel.body if s != product for each in (adding if s == update else (s,)))
    held = Buffer(scaled.buffer, Memory.REGISTERS, DType.FP32, math.prod(scaled.shape))
    return replace(
        kernel,
        buffers=(*(buffer for buffer in kernel.buffers if buffer.name != term.buffer), held),
        body=tuple(body),
        tensors=tuple((value, place) for value, place in kernel.tensors if place.buffer != term.buffer),
    )
