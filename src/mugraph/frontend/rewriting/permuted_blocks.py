"""Blocks of a tensor in another order, such as the halves that a rotary embedding exchanges, as a call of one operator.

Programs have no parts of tensors. But a concatenation of equal blocks of one tensor, some of them negated, is the product of
a small matrix of 0, 1 and -1 with the tensor whose dimension is split into blocks. The matrix becomes a tensor of the graph
(`mugraph.frontend.rewriting.arrangements`), so programs are searched and proved for every matrix. Multiplying by it rounds
nothing; but where an element is not finite, those it shares a sum with are no numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from mugraph.ir.program import ProgramTensor as Tensor

TINY_MATRIX = 4
"""Elements of a matrix up to which multiplying by it is arithmetic on what lies at hand, and no contraction."""

Blocks = tuple[tuple[int, int], ...]
"""For each block of a result: its sign, and which block of the source it is."""


def arranged(x: torch.Tensor, matrix: torch.Tensor, dim: int, blocks: Blocks) -> torch.Tensor:
    """`blocks` of the equal ones that `x` has along `dim`, one per column of `matrix`, which says the same to programs."""
    parts = x.chunk(matrix.shape[1], dim)
    return torch.cat([parts[number] if sign > 0 else -parts[number] for sign, number in blocks], dim)


def _arranged(x: Tensor, matrix: Tensor, dim: int, blocks: Blocks) -> Tensor:
    before, size, after = x.shape[:dim], x.shape[dim] // matrix.shape[1], x.shape[dim + 1 :]
    split = x.reshape(*before, matrix.shape[1], size * math.prod(after))
    return (matrix @ split).reshape(*before, len(blocks) * size, *after)


ARRANGED_ROWS: Mapping[str, Callable[..., Any]] = {arranged.__name__: _arranged}
"""What `arranged` means, as a row for `mugraph.frontend.operators.conversion`."""
