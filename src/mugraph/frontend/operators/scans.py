"""What running sums and products mean. Casts are the caller's (`mugraph.frontend.operators.conversion`)."""

from __future__ import annotations

from typing import Any

from mugraph.errors import UnsupportedOperator
from mugraph.ir.program import ProgramTensor as Tensor


def cumsum(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """At every position along a dimension, the sum of all elements up to there."""
    return scanned("cumsum", x, dim)


def cumprod(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """At every position along a dimension, the product of all elements up to there."""
    return scanned("cumprod", x, dim)


def scanned(scan: str, x: Tensor, dim: int) -> Tensor:
    """A tensor after a scan of the table along a dimension; one of no dimensions is its own scan."""
    rank = len(x.shape)
    if not -max(rank, 1) <= dim < max(rank, 1):
        raise UnsupportedOperator(f"{scan}: dimension {dim} of a tensor of shape {list(x.shape)}")
    return x.apply(scan, dim=dim % rank) if rank else x
