"""Masks of a torch graph's attention: which tensors they are, what must be known of them before kernels run, causal ones."""

from __future__ import annotations

import functools
import math

import torch
from torch import fx


def mask_of(node: fx.Node) -> fx.Node | None:
    """The mask that a call of attention adds to its scores."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.name == "attn_mask":
            given = node.kwargs.get("attn_mask", node.args[position] if position < len(node.args) else None)
            return given if isinstance(given, fx.Node) else None
    return None


@functools.lru_cache(maxsize=8)
def causal_mask(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The mask [queries, keys] that hides from query i the keys after key i; the layers of a model share one."""
    return torch.full(shape, -math.inf, dtype=dtype, device=device).triu(1)


def hides_a_row(mask: torch.Tensor) -> bool:
    """Whether a mask [..., queries, keys] hides every key of some query."""
    return bool((mask.amax(-1) == -math.inf).any())
