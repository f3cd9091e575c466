"""Views, copies of elements and tensors of one number: one row per operator of ATen. Parts of tensors are in `tensor_parts`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from mugraph.errors import UnsupportedOperator
from mugraph.frontend.operators import choices
from mugraph.ir.program import ProgramTensor as Tensor

Dims = int | Sequence[int] | None
Operand = Tensor | int | float


def _reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    if not isinstance(shape, Sequence):
        raise UnsupportedOperator(f"a view of the bits of {x.dtype} as {shape}")
    return x.reshape(*shape)


def _transposed(x: Tensor) -> Tensor:
    return x.transpose(-2, -1) if len(x.shape) > 1 else x


def _squeeze(x: Tensor, dim: Dims = None) -> Tensor:
    rank = len(x.shape)
    dims = range(rank) if dim is None else ((dim,) if isinstance(dim, int) else dim)
    dropped = {position % rank for position in dims if rank}
    return x.reshape(*(size for position, size in enumerate(x.shape) if size != 1 or position not in dropped))


def _expand(x: Tensor, sizes: Sequence[int], *, implicit: bool = False) -> Tensor:
    return x.expand(*sizes)


def _repeat(x: Tensor, repeats: Sequence[int]) -> Tensor:
    x = x.reshape(*(1,) * (len(repeats) - len(x.shape)), *x.shape)
    for dim, times in enumerate(repeats):
        x = x.repeat(dim, times)
    return x


def _repeat_interleave(x: Tensor, repeats: int, dim: int | None = None, *, output_size: int | None = None) -> Tensor:
    if isinstance(repeats, Tensor):
        raise UnsupportedOperator("repeats given as a tensor; give one number")
    x = x.reshape(-1) if dim is None else x
    position = (dim or 0) % len(x.shape)
    spread = x.unsqueeze(position + 1).repeat(position + 1, repeats)
    return spread.reshape(*x.shape[:position], x.shape[position] * repeats, *x.shape[position + 1 :])


def _full_like(x: Tensor, number: float, **layout: Any) -> Tensor:
    number = float(number) if isinstance(number, bool) else number
    if not math.isfinite(number) or choices.is_negative_zero(number):
        return choices.tensor_of(number, x).expand(*x.shape)
    return x.program.constant(number, x.dtype.of_arithmetic).expand(*x.shape)


def _fill(x: Tensor, value: Operand) -> Tensor:
    return value.expand(*x.shape) if isinstance(value, Tensor) else _full_like(x, value)


ROWS: dict[str, Callable[..., Any]] = {
    "view": _reshape,
    "_unsafe_view": _reshape,
    "t": _transposed,
    "squeeze": _squeeze,
    "expand": _expand,
    "full_like": _full_like,
    "fill": _fill,
    "zeros_like": lambda x, **layout: _full_like(x, 0, **layout),
    "ones_like": lambda x, **layout: _full_like(x, 1, **layout),
    "repeat": _repeat,
    "repeat_interleave": _repeat_interleave,
}
