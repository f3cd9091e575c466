"""Copies of factors that products read in their place, in tiles of their own in shared memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from mugraph.ir.dtypes import DType
from mugraph.lower import tiles
from mugraph.lower.scalar_expressions import Expression
from mugraph.lower.tile_form import Buffer, Elementwise, Matmul, Memory, Statement, Tile


@dataclass(frozen=True, slots=True)
class FactorCopies:
    """The copies that are made in a kernel, in `buffers` that are called by a `prefix` and a number."""

    prefix: str
    buffers: list[Buffer] = field(default_factory=list)

    def before(
        self, product: Matmul, wanted: Callable[[Tile], bool], dtype: DType, expression: Expression
    ) -> Iterator[Statement]:
        """The copies of a product's factors that are `wanted`, as `expression` of them in a type, and the product of these."""
        factors = []
        for factor in product.sources:
            if wanted(factor):
                own = tuple(1 if stride == 0 else size for size, stride in zip(factor.shape, factor.strides, strict=True))
                target = Tile(f"{self.prefix}{len(self.buffers)}", own, tiles.row_major(own))
                self.buffers.append(Buffer(target.buffer, Memory.SHARED, dtype, math.prod(own)))
                yield Elementwise(target, (replace(factor, shape=own),), expression, label=product.label)
                factor = tiles.broadcast(target, factor.shape)
            factors.append(factor)
        yield replace(product, left=factors[0], right=factors[1])
