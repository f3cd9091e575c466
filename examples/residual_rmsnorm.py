"""A residual connection, then RMSNorm: what stands between any two layers of a transformer. Returns both tensors.

    mugraph optimize examples/residual_rmsnorm.py:add_and_normalise

Expect one kernel in place of one per operator: it stores the sum for the next residual and normalises it on the way.
"""

import torch


def add_and_normalise(x: torch.Tensor, residual: torch.Tensor, gain: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm(x + residual) * gain, x + residual)"""
    total = x + residual
    return total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6) * gain, total


def example_inputs() -> tuple[torch.Tensor, ...]:
    return torch.randn(256, 1024), torch.randn(256, 1024), 1 + torch.randn(1024) / 10
