"""What running sums and products of PyTorch and ONNX mean. Casts are the caller's (`mugraph.frontend.conversion`)."""

from __future__ import annotations

from typing import Any

from mugraph.errors import ShapeMismatch, UnsupportedOperator
from mugraph.frontend import tensor_parts
from mugraph.frontend.onnx_calls import NodeCall
from mugraph.ir.program import ProgramTensor as Tensor


def cumsum(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """At every position along a dimension, the sum of all elements up to there."""
    return _along("cumsum", x, dim)


def cumprod(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """At every position along a dimension, the product of all elements up to there."""
    return _along("cumprod", x, dim)


def onnx_cumsum(call: NodeCall) -> Tensor:
    """Along the one axis that operand 1 is known to be; `exclusive` leaves the own element out, `reverse` begins at the end."""
    axes = call.integers(1)
    if len(axes) != 1:
        raise ShapeMismatch(f"a sum that runs along the axes {axes}; it runs along one")
    x, dim = call[0], call.position(axes[0])
    reverse, exclusive = (bool(call.attributes.get(name, 0)) for name in ("reverse", "exclusive"))
    scan = "cumsum_back" if reverse else "cumsum"
    if not exclusive:
        return _along(scan, x, dim)
    if x.shape[dim] == 1:
        return x.program.constant(0, x.dtype).expand(*x.shape)
    others = tensor_parts.sliced(x, dim, 1) if reverse else tensor_parts.sliced(x, dim, 0, -1)
    return tensor_parts.with_border(_along(scan, others, dim), dim, int(not reverse), int(reverse), 0)


def _along(scan: str, x: Tensor, dim: int) -> Tensor:
    rank = len(x.shape)
    if not -max(rank, 1) <= dim < max(rank, 1):
        raise UnsupportedOperator(f"{scan}: dimension {dim} of a tensor of shape {list(x.shape)}")
    return x.apply(scan, dim=dim % rank) if rank else x
