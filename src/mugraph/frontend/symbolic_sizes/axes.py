"""Where tensors of a recorded graph have an axis of symbolic size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from mugraph.errors import MugraphError
from mugraph.frontend.operators.torch_casts import tensors_of

Axis = int | None
"""The dimension that a tensor has of the axis, if any. Its size is c times the symbol s, in m stretches (`stretches_of`) with
equally many elements of each slice: index i of it is of slice i // (c / m) % s."""
STRETCHES = "stretches"
"""In the `meta` of a node, how many stretches its tensors have; one where nothing is said."""


class SizeMatters(MugraphError):
    """A function whose results at one size are not made of slices of its results at others; the message says why."""


class NotCounted(SizeMatters):
    """One whose `node` is no sum, product or quotient of sums over an axis of varying size."""

    def __init__(self, message: str, node: fx.Node) -> None:
        super().__init__(message)
        self.node = node


def axis_of(tensor: torch.Tensor) -> Axis:
    """The dimension of a tensor whose size is a multiple of the symbol; raises SizeMatters for two of them, or other sizes."""
    axis = dim_of(tensor)
    if axis is not None and not is_multiple(tensor.shape[axis]):
        raise SizeMatters(f"a size of {shape_text(tensor)} is no multiple of the symbol")
    return axis


def dim_of(tensor: torch.Tensor) -> Axis:
    """The dimension of a tensor whose size has a symbol; raises SizeMatters for two of them."""
    dims = [dim for dim, size in enumerate(tensor.shape) if symbols_of(size)]
    if len(dims) > 1:
        raise SizeMatters(f"a tensor of shape {shape_text(tensor)} has the axis in {len(dims)} dimensions")
    return dims[0] if dims else None


def stretches_of(node: fx.Node) -> int:
    """Of how many stretches the axis is put together in the tensors of a checked node; in each, slices stand in order."""
    stretches: int = node.meta.get(STRETCHES, 1)
    return stretches


def varies(node: fx.Node) -> bool:
    """Whether a size of a tensor that a node gives is symbolic."""
    return any(symbols_of(tensor.shape) for tensor in tensors_of(node))


def symbols_of(value: Any) -> frozenset[Any]:
    """The symbols in a number, or in the sizes of tensors."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return frozenset(value.node.expr.free_symbols)
    sizes: Sequence[Any] = value.shape if isinstance(value, torch.Tensor) else value if isinstance(value, (tuple, list)) else ()
    return frozenset(symbol for size in sizes for symbol in symbols_of(size))


def is_multiple(size: Any) -> bool:
    """Whether a size is a number times the symbol."""
    return isinstance(size, torch.SymInt) and multiple(size) > 0


def multiple(size: Any) -> int:
    """How many times the symbol a size is that has it; 0 where it is no whole number of times."""
    (symbol,) = size.node.expr.free_symbols
    factor = size.node.expr / symbol
    return int(factor) if factor.is_Integer and factor > 0 else 0


def shape_text(tensor: torch.Tensor) -> str:
    """A shape as messages have it, symbols included."""
    return f"[{', '.join(map(str, tensor.shape))}]"
