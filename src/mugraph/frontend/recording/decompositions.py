"""Decompositions of ours: what operators of PyTorch stand for, where its own table has nothing or less."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from mugraph.frontend.rewriting.fused_layers import DECOMPOSED_LAYERS

aten = torch.ops.aten


def _copied(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """What is written over all of a tensor: in its type, spread to its shape, in memory of its own, and without a look at it."""
    return source.to(target.dtype).expand(target.shape).clone()


DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {aten.copy.default: _copied, **DECOMPOSED_LAYERS}
"""By operator; where a part of a tensor is written over, nothing reads what was there."""
