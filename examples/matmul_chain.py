"""A product of three matrices, bracketed the expensive way round.

    mugraph optimize examples/matmul_chain.py:chain

Expect the products in the other order, in one kernel: (a @ b) @ c multiplies two large matrices first, a @ (b @ c) twice a
large matrix with a narrow one.
"""

import torch


def chain(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """(a @ b) @ c"""
    return (a @ b) @ c


def cheap_chain(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """a @ (b @ c)"""
    return a @ (b @ c)


def example_inputs() -> tuple[torch.Tensor, ...]:
    return torch.randn(512, 512), torch.randn(512, 512) / 24, torch.randn(512, 16) / 24
