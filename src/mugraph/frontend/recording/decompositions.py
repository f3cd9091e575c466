"""What operators of PyTorch stand for: by its own table, and by ours where that has nothing or less."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.export import default_decompositions

from mugraph.frontend.operators.aten import ROWS
from mugraph.frontend.rewriting.fused_layers import DECOMPOSED_LAYERS

aten = torch.ops.aten
_SPELLED = frozenset({aten.tril.default, aten.triu.default, aten.copy.default})
"""Calls that are choices by a mask that depends on no tensor, or casts that are spread."""
_KEPT = frozenset({"_safe_softmax", "eye"})
"""Calls that are taken for others later (`mugraph.frontend.rewriting.safe_softmax`), and those that PyTorch takes apart into such
as it cannot make: `eye` of more than 255 rows into a range of unsigned 16-bit integers."""
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


def _copied(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """What is written over all of a tensor: in its type, spread to its shape, in memory of its own, and without a look at it."""
    return source.to(target.dtype).expand(target.shape).clone()


DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {aten.copy.default: _copied, **DECOMPOSED_LAYERS}
"""By operator; where a part of a tensor is written over, nothing reads what was there."""


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions of everything that has no row, but for what is kept; and ours."""
    table: Mapping[Any, Callable[..., Any]] = default_decompositions()
    kept = ROWS.keys() | _KEPT
    own = {op: table[op] for op in table if op.overloadpacket.__name__ not in kept}
    return {**own, **DECOMPOSITIONS}


def composite_decompositions() -> dict[Any, Callable[..., Any]]:
    """Those of calls that PyTorch has no kernel for, and of those that are spelled."""
    table = decompositions()
    return {op: table[op] for op in table if op.has_kernel_for_dispatch_key(_COMPOSITE) or op in _SPELLED}
