"""Which operators of the table are linear in which of their operands."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from mugraph.algebra.fields import FieldArithmetic, FieldValue
from mugraph.ir.index_maps import Structure
from mugraph.ir.ops import Call, Kind, operator


@cache
def is_linear(op: str, summed: tuple[int, ...]) -> bool:
    """Whether an operator of the table is linear in the operands `summed` together; of data movement and accumulators: False.

    Elementwise rows are asked at random points of the field. A product of matrices is a sum of products.
    """
    row = operator(op)
    if row.structure is Structure.CONTRACTION:
        return len(row.products) == 1 and is_linear("mul", summed)
    if not row.elementwise:
        return row.structure is Structure.REDUCTION and row.kind is Kind.MULTILINEAR
    arith, rng = FieldArithmetic(seed=0), np.random.default_rng(0)
    first, second, fixed = ([arith.random((8,), rng) for _ in range(row.arity)] for _ in range(3))

    def applied(varied: Sequence[FieldValue]) -> FieldValue:
        operands = [varied[i] if i in summed else fixed[i] for i in range(row.arity)]
        result: FieldValue = row.compute(arith, _NO_CALL, operands)
        return result

    total = applied([arith.add(x, y) for x, y in zip(first, second, strict=True)])
    return total.agrees_with(arith.add(applied(first), applied(second)))


_NO_CALL = Call("", (), {})
