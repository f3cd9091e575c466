"""Operators of PyTorch that a line or two of others spell out: products with vectors, distances, written parts, losses.

PyTorch can decompose most of them itself; with a row, a call that no kernel takes stays the one that PyTorch has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mugraph.errors import UnsupportedOperator
from mugraph.frontend.operators import tensor_parts
from mugraph.frontend.operators.choices import isnan, not_equal, select
from mugraph.frontend.operators.elementary import power
from mugraph.ir.program import ProgramTensor as Tensor

Dims = int | Sequence[int] | None
_MOST_DIFFERENCES = 1 << 24
"""Between the rows of two tensors, beyond which comparing a program with fp64 takes too much memory."""


# --- products --------------------------------------------------------------------------------------------------------


def addmm(added: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta added + alpha x y; where beta is 0, PyTorch ignores what is added, which may be uninitialised."""
    product = x @ y * alpha
    return product + added * beta if beta else product


def addr(added: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta added + alpha x y, every element of x times every one of y."""
    product = x.unsqueeze(1) * y * alpha
    return product + added * beta if beta else product


def addbmm(added: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta added + alpha times the sum of the products of a batch."""
    product = (x @ y).sum(0) * alpha
    return product + added * beta if beta else product


# --- sizes and distances ---------------------------------------------------------------------------------------------


def all_if_empty(dim: Dims) -> Dims:
    """The dimensions of a reduction: no list of them is all."""
    return None if isinstance(dim, Sequence) and not dim else dim


def amin(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """The smallest element."""
    return -(-x).amax(all_if_empty(dim), keepdim)


def norm(x: Tensor, ord: float | None = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The vector norm of any order: powers of sizes, added up; for order 0, how many elements are not 0."""
    dims = all_if_empty(dim)
    if ord in (2, None):
        return x.square().sum(dims, keepdim).sqrt()
    size = x.apply("abs")
    if ord == 1:
        return size.sum(dims, keepdim)
    if ord == math.inf:
        return size.amax(dims, keepdim)
    if ord == -math.inf:
        return amin(size, dims, keepdim)
    if ord == 0:
        return not_equal(x, 0).sum(dims, keepdim)
    assert ord is not None
    return power(power(size, ord).sum(dims, keepdim), 1 / ord)


def norm_of_order(x: Tensor, p: float | None = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The same, as PyTorch called it before."""
    return norm(x, p, dim, keepdim)


def dist(x: Tensor, y: Tensor, p: float = 2) -> Tensor:
    """The norm of the difference of two tensors."""
    return norm(x - y, p)


def cdist(x: Tensor, y: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    """Between every row of one tensor and every row of the other, the norm of the difference."""
    differences = math.prod(np.broadcast_shapes(x.shape[:-2], y.shape[:-2])) * x.shape[-2] * y.shape[-2] * x.shape[-1]
    if differences > _MOST_DIFFERENCES:
        raise UnsupportedOperator(f"{differences} differences between rows, which PyTorch does not write")
    return norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)


def nansum(x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum of what is not NaN."""
    return select(isnan(x), 0, x).sum(all_if_empty(dim), keepdim)


def aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest and the largest element."""
    return amin(x, dim, keepdim), x.amax(dim, keepdim)


# --- parts -----------------------------------------------------------------------------------------------------------


def glu(x: Tensor, dim: int = -1) -> Tensor:
    """One half of a tensor times the sigmoid of the other."""
    values, gates = tensor_parts.chunked(x, 2, dim)
    return values * gates.sigmoid()


def slice_scatter(
    x: Tensor, source: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """The tensor with another one in the place of a slice; without steps between its elements."""
    if source.dtype is not x.dtype:
        raise UnsupportedOperator(f"writing {source.dtype} into {x.dtype}; convert it before")
    written = range(x.shape[dim])[slice(start, end, step)]
    if not written or step != 1:
        raise UnsupportedOperator(f"writing to {len(written)} positions {step} apart; write to neighbours")
    before = [x.slice(dim, 0, written.start)] if written.start else []
    behind = x.shape[dim] - written.stop
    return x.program.concat([*before, source, *([x.slice(dim, written.stop, behind)] if behind else [])], dim)


def select_scatter(x: Tensor, source: Tensor, dim: int, index: int) -> Tensor:
    """The tensor with another one at one position of a dimension."""
    dim, index = dim % len(x.shape), index % x.shape[dim]
    return slice_scatter(x, source.unsqueeze(dim), dim, index, index + 1)


def pixel_shuffle(x: Tensor, upscale_factor: int) -> Tensor:
    """Channels as pixels of squares of that side: [..., C s^2, H, W] becomes [..., C, H s, W s]."""
    *lead, channels, height, width = x.shape
    side = upscale_factor
    rank = len(lead)
    apart = x.reshape(*lead, channels // side**2, side, side, height, width)
    turned = apart.permute(*range(rank), rank, rank + 3, rank + 1, rank + 4, rank + 2)
    return turned.reshape(*lead, channels // side**2, height * side, width * side)


def pixel_unshuffle(x: Tensor, downscale_factor: int) -> Tensor:
    """Pixels of squares of that side as channels: [..., C, H s, W s] becomes [..., C s^2, H, W]."""
    *lead, channels, height, width = x.shape
    side = downscale_factor
    rank = len(lead)
    apart = x.reshape(*lead, channels, height // side, side, width // side, side)
    turned = apart.permute(*range(rank), rank, rank + 2, rank + 4, rank + 1, rank + 3)
    return turned.reshape(*lead, channels * side**2, height // side, width // side)


def upsample_nearest2d(x: Tensor, output_size: Sequence[int] | None, *scales: Any) -> Tensor:
    """Every pixel as often as whole factors of the sides say: [N, C, H, W] becomes [N, C, H a, W b]."""
    sides = x.shape[-2:]
    given = scales[0] if output_size is None and scales and isinstance(scales[0], Sequence) else None
    wanted = output_size or [int(side * factor) for side, factor in zip(sides, given or (), strict=True)]
    factors = [*given] if given is not None else [scale for scale in scales if isinstance(scale, float)]
    exact = all(factor == size / side for factor, size, side in zip(factors, wanted, sides, strict=False))
    if not exact or any(size % side for size, side in zip(wanted, sides, strict=True)):
        raise UnsupportedOperator(f"images of {list(sides)} made {list(wanted)}, which are no multiples")
    for dim, side, size in zip((2, 3), sides, wanted, strict=True):
        x = x.unsqueeze(dim + 1).repeat(dim + 1, size // side).reshape(*x.shape[:dim], size, *x.shape[dim + 1 :])
    return x


# --- losses ----------------------------------------------------------------------------------------------------------


def binary_cross_entropy_of_logits(x: Tensor, target: Tensor, weight: Tensor | None, pos_weight: Tensor | None) -> Tensor:
    """(1 - target) x + log(1 + exp(-x)), the latter times 1 + (pos_weight - 1) target, all of it times `weight`."""
    unlikely = softplus(-x)
    scaled = unlikely if pos_weight is None else unlikely * ((pos_weight - 1) * target + 1)
    loss = (1 - target) * x + scaled
    return loss if weight is None else loss * weight


def soft_margin(x: Tensor, target: Tensor) -> Tensor:
    """log(1 + exp(-target x)) without overflow."""
    return softplus(-(x * target))


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)) without overflow, and with all digits where it is small."""
    return x.relu() + (-x.apply("abs")).exp().apply("log1p")


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """A product of matrices, of a matrix and a vector, or of two vectors."""
    return x @ y


ROWS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("mm", "bmm", "matmul", "mv", "dot"), matmul),
    **dict.fromkeys(("addmm", "baddbmm"), addmm),
    "addr": addr,
    "addbmm": addbmm,
    "linalg_vector_norm": norm,
    "norm": norm_of_order,
    "dist": dist,
    "_cdist_forward": cdist,
    "nansum": nansum,
    "aminmax": aminmax,
    "glu": glu,
    "slice_scatter": slice_scatter,
    "select_scatter": select_scatter,
    "pixel_shuffle": pixel_shuffle,
    "pixel_unshuffle": pixel_unshuffle,
    "upsample_nearest2d": upsample_nearest2d,
    "deg2rad": lambda x: x * (math.pi / 180),
    "rad2deg": lambda x: x * (180 / math.pi),
}
"""Rows of the ATen table."""
