"""What PyTorch's lookups mean: slices of a tensor at the places that another one names (`mugraph.ir.lookups`)."""

from __future__ import annotations

from collections.abc import Sequence

from mugraph.errors import UnsupportedOperator
from mugraph.ir.graph import LOOKUP
from mugraph.ir.program import ProgramTensor as Tensor


def embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    """Rows of a table; what else is given says something of gradients alone."""
    return weight.apply(LOOKUP, indices, dim=0, negative="refused")


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Slices along a dimension."""
    if not x.shape or len(index.shape) != 1:
        raise UnsupportedOperator(
            f"a tensor of shape {list(x.shape)} at integers of shape {list(index.shape)}; both have dimensions"
        )
    return x.apply(LOOKUP, index, dim=dim % len(x.shape), negative="refused")


def indexed(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """`x[:, index]`: slices along the one dimension that integers are given for, negative ones from the end."""
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if len(given) != 1 or not given[0][1].dtype.is_index:
        raise UnsupportedOperator("a tensor indexed by several tensors, or by booleans; index it by one tensor of integers")
    ((dim, index),) = given
    return x.apply(LOOKUP, index, dim=dim, negative="wrapped")
